"""What ends an iteration without being its end."""

from __future__ import annotations


class PauseIteration(StopIteration):
    """The limit of an iterator is reached: `resume()` goes on behind it."""
