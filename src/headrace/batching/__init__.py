"""Which pieces of sequences form a batch: numbers by data key, chunks, context frames and sliding windows.

This room decides how a sequence is cut and what surrounds each piece. It never reads a file, knows no dataset and
draws no random number: what is random comes in as an argument. Read `chunking.py` first.
"""

from .chunking import Chunking, ChunkingFunction, parse_chunking, plan_chunks, vary_chunking
from .numbers import NumbersDict
from .windows import apply_window, parse_context_window, slice_pad_zeros

__all__ = [
    "Chunking",
    "ChunkingFunction",
    "NumbersDict",
    "apply_window",
    "parse_chunking",
    "parse_context_window",
    "plan_chunks",
    "slice_pad_zeros",
    "vary_chunking",
]
