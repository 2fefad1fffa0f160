"""How many small things go together: as many as are made within some milliseconds and fit into so many bytes. Pure.

A message costs more than many small items, and an item that is slow or large should not wait for others. Sizes begin at
1 and double while what is known of the items allows it; they never change the order of the items.
"""

from __future__ import annotations

# Seconds that a worker should need for a group: longer ones delay the loop's first item and what follows a slow one.
GROUP_SECONDS = 0.010
# Bytes of a group: beyond this, a message costs little compared with its content, and memory is used up ahead.
GROUP_BYTES = 2 << 20
MAX_ITEMS = 1024
# Of a new measure in the average: high, because sizes must follow items that become slow.
_WEIGHT = 0.5


class GroupSize:
    """What is known of the items of a run, and how many should come together next.

    Args:
        max_seconds: That a worker should need for a group.
        max_bytes: Of a group.
        max_items: Of a group. 1: each goes alone.

    Attributes:
        most: How many items the largest group had that was asked for.
    """

    def __init__(
        self, *, max_seconds: float = GROUP_SECONDS, max_bytes: int = GROUP_BYTES, max_items: int = MAX_ITEMS
    ) -> None:
        self._max_seconds, self._max_bytes, self._max_items = max_seconds, max_bytes, max_items
        self.most = 1
        self._seconds = self._bytes = 0.0  # of one item
        self._largest = 0  # group that was measured

    def note(self, num_items: int, seconds: float, num_bytes: float) -> None:
        """Take note of a group that was made.

        Args:
            num_items: How many items there are in it.
            seconds: What it took in all.
            num_bytes: Of one item.
        """
        if num_items == 0:
            return
        weight = 1.0 if self._largest == 0 else _WEIGHT
        self._seconds += weight * (seconds / num_items - self._seconds)
        self._bytes += weight * (num_bytes - self._bytes)
        self._largest = max(self._largest, num_items)

    def choose(self) -> int:
        """Return how many items the next groups should have."""
        if self._largest == 0:
            return 1
        by_time = self._max_seconds / max(self._seconds, 1e-9)
        by_bytes = self._max_bytes / max(self._bytes, 1.0)
        count = max(1, round(min(by_time, by_bytes, 2 * self._largest, self._max_items)))
        self.most = max(self.most, count)
        return count
