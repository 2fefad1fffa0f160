"""How many sequences the files hold: counted, or learnt from sub-epochs that were read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_UNKNOWN = -1


class SeqCounts:
    """Numbers of sequences by entry of the file list, and of entries that were read together.

    Args:
        num_entries: Of the file list.
    """

    def __init__(self, num_entries: int) -> None:
        self._counts = np.full(num_entries, _UNKNOWN, dtype=np.int64)
        self._together: dict[bytes, int] = {}
        self.is_counted = False

    def of(self, entries: NDArray[np.int64]) -> int | None:
        """Return how many sequences some entries hold, `None` if that is not known."""
        counts = self._counts[entries]
        return self._together.get(entries.tobytes()) if (counts == _UNKNOWN).any() else int(counts.sum())

    @property
    def total(self) -> int | None:
        """How many sequences all entries hold, if they were counted."""
        return int(self._counts.sum()) if self.is_counted else None

    def take(self, counts: NDArray[np.int64]) -> None:
        """Take the numbers of all entries, `int64[N]`."""
        self._counts, self.is_counted = counts, True

    def learn(self, entries: NDArray[np.int64], num_seqs: int, *, come_again: bool) -> None:
        """Take note of what some entries hold; of several it is kept only if just these come together again."""
        if len(entries) == 1:
            self._counts[entries[0]] = num_seqs
        elif come_again:
            self._together[entries.tobytes()] = num_seqs

    def state(self) -> NDArray[np.int64] | None:
        """Return what a copy need not count again."""
        return self._counts if self.is_counted else None

    def restore(self, counts: NDArray[np.int64] | None) -> None:
        """Take over what `state` returned."""
        if counts is not None:
            self.take(counts.copy())
