"""The orders that shuffle and sort by length in bins, so that neighbours have similar lengths."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

from .base import ArrayOrder, Order
from .length_sort import bin_bounds, sort_in_bins
from .policy import Policy, check_count, check_lengths, legacy_rng, set_field

_DEFAULT_BINS = 2
_MAX_BINS = 2**31  # bin_bounds squares it; nobody has more sequences than this in memory anyway


@dataclass(frozen=True)
class Binned(Policy):
    """What the orders with bins share: their number, or how many sequences one of them holds.

    Args:
        num_bins: Number of bins; 2 if neither is given.
        seqs_per_bin: About so many sequences in each bin, at least 2 bins.
        num_epochs: Keep the same shuffle for so many full epochs. It is not a seed; 0 means 1.
        seed: A seed of your own. Orders with different seeds are independent of each other in every epoch, because seed
            and epoch are hashed, not added. Without it the documented seed rule holds, bit for bit.
    """

    num_bins: int | None = None
    seqs_per_bin: int | None = None
    num_epochs: int = 1
    seed: int | None = None
    needs_lengths: ClassVar[bool] = True
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields; equal meanings become equal values."""
        super().__post_init__()
        if self.num_bins is not None and self.seqs_per_bin is not None:
            raise ConfigError(
                f"{self.name}: num_bins = {self.num_bins} and seqs_per_bin = {self.seqs_per_bin} exclude each other",
                fix="give one of them",
            )
        if self.seqs_per_bin is not None:
            set_field(self, "seqs_per_bin", check_count(self.name, "seqs_per_bin", self.seqs_per_bin, minimum=1))
        else:
            num_bins = _DEFAULT_BINS if self.num_bins is None else self.num_bins
            set_field(self, "num_bins", check_count(self.name, "num_bins", num_bins, minimum=1, maximum=_MAX_BINS))

    def __str__(self) -> str:
        bins = f".{self.seqs_per_bin}" if self.num_bins is None else str(self.num_bins)
        if self.num_epochs > 1:
            return self.option_string(bins, str(self.num_epochs))
        return self.option_string() if self.num_bins == _DEFAULT_BINS else self.option_string(bins)

    def count_bins(self, num_seqs: int) -> int:
        """Return the number of bins for a corpus of this size; some may be empty."""
        if self.seqs_per_bin is not None:
            return max(num_seqs // self.seqs_per_bin, 2)
        assert self.num_bins is not None
        return self.num_bins


@dataclass(frozen=True)
class Laplace(Binned):
    """`laplace[:B | :.k][:n][:seed=K]`: shuffle, cut into bins, sort bins by length, alternately up and down.

    Neighbours have similar lengths, also where two bins meet. B is a number of bins, k the number of sequences in one.
    """

    name: ClassVar[str] = "laplace"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:
        """Return the order, O(N log N)."""
        lengths = check_lengths(self, num_seqs, lengths)
        seqs = legacy_rng(rng_seed).permutation(num_seqs)
        num_bins = self.count_bins(num_seqs)
        if num_bins < num_seqs:  # else no bin holds more than one sequence
            descending = np.arange(num_bins) % 2 == 1
            sort_in_bins(seqs, lengths, bin_bounds(num_seqs, num_bins), descending)
        return ArrayOrder(seqs, may_repeat=False)


@dataclass(frozen=True)
class SortBinShuffle(Binned):
    """`sort_bin_shuffle[:B | :.k][:n][:seed=K]`: shuffle, sort by length, cut into bins, shuffle the bins.

    Bins hold similar lengths; inside a bin they ascend.
    """

    name: ClassVar[str] = "sort_bin_shuffle"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:
        """Return the order, O(N log N)."""
        lengths = check_lengths(self, num_seqs, lengths)
        seqs, _ = _shuffle_sorted_bins(lengths, self.count_bins(num_seqs), legacy_rng(rng_seed))
        return ArrayOrder(seqs, may_repeat=False)


@dataclass(frozen=True)
class SortBinShuffleX2(Binned):
    """`sort_bin_shuffle_x2[:B | :.k][:n][:seed=K]`: as `SortBinShuffle`, then shuffle inside each bin too."""

    name: ClassVar[str] = "sort_bin_shuffle_x2"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:
        """Return the order, O(N log N)."""
        lengths = check_lengths(self, num_seqs, lengths)
        rng = legacy_rng(rng_seed)
        seqs, ends = _shuffle_sorted_bins(lengths, self.count_bins(num_seqs), rng)
        for start, stop in itertools.pairwise([0, *ends.tolist()]):
            rng.shuffle(seqs[start:stop])
        return ArrayOrder(seqs, may_repeat=False)


def _shuffle_sorted_bins(
    lengths: NDArray[Any], num_bins: int, rng: np.random.RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all sequences, in sorted bins that come in random order, and where each of these bins ends in it."""
    num_seqs = len(lengths)
    seqs = rng.permutation(num_seqs)
    sort_in_bins(seqs, lengths, np.array([0, num_seqs]), np.array([False]))
    bounds = bin_bounds(num_seqs, num_bins)
    bins = rng.permutation(num_bins)
    parts = zip(bounds[bins].tolist(), bounds[bins + 1].tolist(), strict=True)
    return np.concatenate([seqs[start:stop] for start, stop in parts]), np.cumsum(np.diff(bounds)[bins])
