"""The exception that pauses an iteration."""

from __future__ import annotations


class PauseIteration(StopIteration):
    """The limit of an iterator is reached: `resume()` continues after it.

    Examples:
        >>> from headrace.dataloader2 import DataLoader2, PauseIteration
        >>> from headrace.pipes.iter import IterableWrapper
        >>> with DataLoader2(IterableWrapper(range(4))) as loader:
        ...     items = iter(loader)
        ...     items.limit(1)
        ...     print(next(items))
        ...     try:
        ...         next(items)
        ...     except PauseIteration:
        ...         print("paused")
        0
        paused
    """
