"""The same number of sequences in each batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order.policy import check_count, set_field

from .base import Batching, check_data_key
from .plan import WINDOW_SEQS, Groups, WindowKey

_Last = Literal["keep", "drop"]
_MAX_SEQS = 2**31 - 1


@dataclass(frozen=True)
class FixedCount(Batching):
    """`num_seqs` consecutive sequences a batch, whatever their lengths.

    A window is made a multiple of `num_seqs`, so that only the last batch of an epoch is smaller (and that of each
    window, where something was left out of it before).

    Args:
        num_seqs: Sequences of a batch.
        last: What becomes of a last batch that is not full: `"keep"` or `"drop"` (which is counted).
        data_key: The data key whose lengths are the costs; None for the main key of the dataset.

    Raises:
        ConfigError: An option is wrong.
    """

    num_seqs: int
    last: _Last = "keep"
    data_key: str | None = None

    def __post_init__(self) -> None:
        """Check all options."""
        count = check_count("FixedCount", "num_seqs", self.num_seqs, minimum=1, maximum=_MAX_SEQS)
        set_field(self, "num_seqs", count)
        if self.last not in get_args(_Last):
            raise ConfigError(f'FixedCount: last must be "keep" or "drop", got {self.last!r}')
        check_data_key("FixedCount", self.data_key)

    @property
    def needs_lengths(self) -> bool:
        """Lengths are costs only."""
        return False

    def window_seqs(self, wanted: int = WINDOW_SEQS) -> int:
        """Return the largest multiple of `num_seqs` that is not above what is wanted, at least one batch."""
        return max(wanted // self.num_seqs, 1) * self.num_seqs

    def count_batches(self, num_seqs: int) -> int:
        """Return the number of batches of so many sequences."""
        return num_seqs // self.num_seqs if self.last == "drop" else -(-num_seqs // self.num_seqs)

    def fullness(self, frames: NDArray[np.int64]) -> float:
        """Return the number of pieces in batches."""
        return len(frames) / self.num_seqs

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:  # noqa: ARG002
        """Group consecutive pieces."""
        num_batches = self.count_batches(len(frames))
        starts = np.minimum(np.arange(num_batches + 1) * self.num_seqs, len(frames))
        pieces = np.arange(starts[-1])
        longest = np.maximum.reduceat(frames, starts[:-1]) if num_batches else np.zeros(0, np.int64)
        return Groups(pieces, starts, self.costs_of(longest) * np.diff(starts))

    def caps(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of sequences of a batch whose longest has so many frames, `int64[n]`."""
        return np.full(len(frames), self.num_seqs, np.int64)

    def costs_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cost of one sequence that is padded to so many frames; an empty one counts as one frame."""
        return np.maximum(frames, 1)
