"""Where a batch of an epoch is: a prefix table of the number of batches in each window.

It is small (8 bytes for 65 thousand sequences) and makes every position of an epoch addressable in O(log windows).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError


def num_windows(num_seqs: int, window_seqs: int) -> int:
    """Return into how many windows an epoch is cut; window w holds places `w * window_seqs` and on."""
    return -(-num_seqs // window_seqs)


def window_bounds(window: int, num_seqs: int, window_seqs: int) -> tuple[int, int]:
    """Return the first place of a window, and the one behind its last."""
    return window * window_seqs, min((window + 1) * window_seqs, num_seqs)


class BatchTable:
    """The batches of an epoch, by window. Immutable.

    Args:
        batches_of_windows: Number of batches in each window, `int[W]`; a window may have none.

    Raises:
        ConfigError: A number is negative, or not an integer.
    """

    def __init__(self, batches_of_windows: NDArray[Any]) -> None:
        counts = np.asarray(batches_of_windows)
        if counts.ndim != 1 or (len(counts) and (counts.dtype.kind not in "iu" or counts.min() < 0)):
            raise ConfigError(f"a batch table needs one number of batches for each window, got {batches_of_windows!r}")
        self._ends = np.cumsum(counts, dtype=np.int64)

    @property
    def num_windows(self) -> int:
        """Number of windows of the epoch."""
        return len(self._ends)

    @property
    def batches_of_windows(self) -> NDArray[np.int64]:
        """Number of batches in each window, `int64[W]`."""
        return np.diff(self._ends, prepend=0)

    @property
    def num_batches(self) -> int:
        """Number of batches of the epoch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def batches_of(self, window: int) -> int:
        """Return the number of batches of a window."""
        return int(self._ends[window]) - self.first_batch(window)

    def first_batch(self, window: int) -> int:
        """Return the number, in the epoch, of the first batch of a window."""
        return int(self._ends[window - 1]) if window else 0

    def locate(self, batch: int) -> tuple[int, int]:
        """Return the window of a batch of the epoch, and its number there."""
        if not 0 <= batch < self.num_batches:
            raise IndexError(f"batch {batch} is outside an epoch of {self.num_batches} batches")
        window = int(np.searchsorted(self._ends, batch, side="right"))
        return window, batch - self.first_batch(window)
