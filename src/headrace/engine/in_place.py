"""Where a worker's function may put its result, so that nothing has to be copied.

Invariant: at most one slot is open in a process, and only the thread that performs tickets writes to it.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .arena_slot import SlotWriter

_slot: SlotWriter | None = None
_thread = 0


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return an array for the result of the current ticket, to be filled in place: `dtype[shape]`, arbitrary content.

    In the main thread of a worker process it lies in shared memory, and a result that contains it is delivered without
    a copy; it must not be written any more once the result is returned. Anywhere else it is `numpy.empty`.

    Raises:
        CacheError: The result does not fit into the worker's shared memory.
    """
    if _slot is None or threading.get_ident() != _thread or np.dtype(dtype).hasobject:
        return np.empty(shape, dtype)
    return _slot.empty(shape, dtype)


def open_slot(slot: SlotWriter | None) -> None:
    """Tell `empty` where the result of the current ticket goes; None: nowhere. For the loop of a worker only."""
    global _slot, _thread
    _slot = slot
    _thread = threading.get_ident()
