"""The exception that pauses an iteration."""

from __future__ import annotations


class PauseIteration(StopIteration):
    """The limit of an iterator is reached: `resume()` continues after it."""
