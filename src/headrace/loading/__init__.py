"""`DataLoader`: from a dataset to the batches of one training process.

This room joins the plan of the batches to the workers that make them, and says where the consumer is. It never decides
which sequences form a batch (`batching`) nor which worker makes it (`engine`), and knows no framework. Read `loader.py`
first, then `plan.py`, `work.py` and `state.py`.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .batch import Batch, Packing
    from .iterate import BatchIterator, LoaderEpoch, LoaderPosition
    from .loader import DataLoader
    from .state import LoaderState

__all__ = [
    "Batch",
    "BatchIterator",
    "DataLoader",
    "LoaderEpoch",
    "LoaderPosition",
    "LoaderState",
    "Packing",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "batch": ("Batch", "Packing"),
        "iterate": ("BatchIterator", "LoaderEpoch", "LoaderPosition"),
        "loader": ("DataLoader",),
        "state": ("LoaderState",),
    },
)
