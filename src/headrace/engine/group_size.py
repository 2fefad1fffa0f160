"""Decides how many small items go together: as many as take some milliseconds and fit into a limit of bytes. Pure.

A message costs more than many small items, and an item that is slow or large should not wait for others. Sizes begin at
1 and double while what is known of the items allows it; they never change the order of the items.
"""

from __future__ import annotations

# Seconds that a worker should need for a group: longer ones delay the loop's first item and what follows a slow one.
GROUP_SECONDS = 0.010
# Bytes of a group: beyond this, a message costs little compared with its content, and memory is used up ahead.
GROUP_BYTES = 2 << 20
MAX_ITEMS = 1024
# Of earlier items, each time that a group was made: low, because sizes must follow items that become slow. Sums are
# kept, and no average of averages: a group of one item, or one in which the process had to wait for its processor, says
# little about what an item of a large group takes.
_KEPT = 0.5


class GroupSize:
    """What is known of the items of a run, and how many should come together next.

    Args:
        max_seconds: That a worker should need for a group.
        max_bytes: Limit on the bytes of a group.
        max_items: Limit on the items of a group. 1: each goes alone.

    Attributes:
        most: How many items the largest group had that was asked for.
    """

    def __init__(
        self, *, max_seconds: float = GROUP_SECONDS, max_bytes: int = GROUP_BYTES, max_items: int = MAX_ITEMS
    ) -> None:
        self._max_seconds, self._max_bytes, self._max_items = max_seconds, max_bytes, max_items
        self.most = 1
        self._num_items = self._seconds = self._bytes = 0.0  # sums, in which what is older counts less
        self._largest = 0  # group that was measured

    def note(self, num_items: int, seconds: float, num_bytes: float) -> None:
        """Take note of a group that was made.

        Args:
            num_items: How many items there are in it.
            seconds: What it took in all.
            num_bytes: Bytes of one item.
        """
        if num_items == 0:
            return
        self._num_items = _KEPT * self._num_items + num_items
        self._seconds = _KEPT * self._seconds + seconds
        self._bytes = _KEPT * self._bytes + num_bytes * num_items
        self._largest = max(self._largest, num_items)

    @property
    def is_measured(self) -> bool:
        """Whether anything is known of the items."""
        return self._largest > 0

    @property
    def is_growing(self) -> bool:
        """Whether groups are only as small as they are because none that was larger is known."""
        return 2 * self._largest < min(self._allowed(), self._max_items)

    def choose(self) -> int:
        """Return how many items the next groups should have."""
        if self._largest == 0:
            return 1
        count = max(1, round(min(self._allowed(), 2 * self._largest, self._max_items)))
        self.most = max(self.most, count)
        return count

    def _allowed(self) -> float:
        """Return how many items fit into the limits of time and bytes, by what is known."""
        if self._largest == 0:
            return self._max_items
        by_time = self._max_seconds / max(self._seconds / self._num_items, 1e-9)
        return min(by_time, self._max_bytes / max(self._bytes / self._num_items, 1.0))
