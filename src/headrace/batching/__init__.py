"""Which sequences, or pieces of them, form a batch, in which order batches come, and how a batch is laid out.

This room decides all that as arithmetic on lengths: which pieces (`Batching` and its policies), when and on which rank
(`BatchOrder`, `BatchTable`, `Steps`), and where in the arrays (`pad_batch`, `pack_batch`). It never reads a file, knows
no dataset and no process; what is random is keyed by the window of the epoch. For the loader read `base.py` first, then
`plan.py`; for the chunks and numbers of the epoch API, `chunking.py`.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .base import Batching
    from .buckets import Buckets
    from .chunking import Chunking, ChunkingFunction, parse_chunking, plan_chunks, vary_chunking
    from .consecutive import FixedCount, FrameBudget
    from .layout import (
        Column,
        LayoutOptions,
        PaddedBatch,
        TextColumn,
        cut_seq,
        find_cut_keys,
        frames_to_cut,
        gather_columns,
        pad_batch,
        pad_columns,
    )
    from .numbers import NumbersDict
    from .pack import Pack
    from .packed_layout import PackedBatch, RowLayout, pack_batch, pack_columns
    from .pieces import Pieces, PlanCounts
    from .plan import PLAN_VERSION, WINDOW_SEQS, BatchOrder, Groups, PlannedBatch, WindowKey, WindowPlan
    from .reuse import ReuseCheck as ReuseCheck
    from .stacking import CopyingItemStack as CopyingItemStack
    from .stacking import ItemStack
    from .steps import BatchTable, Steps, num_windows, window_bounds
    from .windows import apply_window, parse_context_window, slice_pad_zeros
    from .wrappers import Chunks, LimitLengths

__all__ = [
    "PLAN_VERSION",
    "WINDOW_SEQS",
    "BatchOrder",
    "BatchTable",
    "Batching",
    "Buckets",
    "Chunking",
    "ChunkingFunction",
    "Chunks",
    "Column",
    "CopyingItemStack",
    "FixedCount",
    "FrameBudget",
    "Groups",
    "ItemStack",
    "LayoutOptions",
    "LimitLengths",
    "NumbersDict",
    "Pack",
    "PackedBatch",
    "PaddedBatch",
    "Pieces",
    "PlanCounts",
    "PlannedBatch",
    "ReuseCheck",
    "RowLayout",
    "Steps",
    "TextColumn",
    "WindowKey",
    "WindowPlan",
    "apply_window",
    "cut_seq",
    "find_cut_keys",
    "frames_to_cut",
    "gather_columns",
    "num_windows",
    "pack_batch",
    "pack_columns",
    "pad_batch",
    "pad_columns",
    "parse_chunking",
    "parse_context_window",
    "plan_chunks",
    "slice_pad_zeros",
    "vary_chunking",
    "window_bounds",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "base": ("Batching",),
        "buckets": ("Buckets",),
        "chunking": ("Chunking", "ChunkingFunction", "parse_chunking", "plan_chunks", "vary_chunking"),
        "wrappers": ("Chunks", "LimitLengths"),
        "layout": (
            "Column",
            "TextColumn",
            "LayoutOptions",
            "PaddedBatch",
            "cut_seq",
            "find_cut_keys",
            "frames_to_cut",
            "gather_columns",
            "pad_batch",
            "pad_columns",
        ),
        "pieces": ("PlanCounts", "Pieces"),
        "consecutive": ("FixedCount", "FrameBudget"),
        "numbers": ("NumbersDict",),
        "pack": ("Pack",),
        "packed_layout": ("PackedBatch", "RowLayout", "pack_batch", "pack_columns"),
        "plan": ("PLAN_VERSION", "WINDOW_SEQS", "BatchOrder", "Groups", "PlannedBatch", "WindowKey", "WindowPlan"),
        "reuse": ("ReuseCheck",),
        "stacking": ("CopyingItemStack", "ItemStack"),
        "steps": ("Steps", "BatchTable", "num_windows", "window_bounds"),
        "windows": ("apply_window", "parse_context_window", "slice_pad_zeros"),
    },
)
