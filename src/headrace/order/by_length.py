"""The orders that sort by length, wholly or within bins, so that neighbours have similar lengths.

All of them rest on one kernel, a stable sort by length within bins. It is a plain sort of distinct 64-bit numbers that
pack (bin, length, position) from the highest to the lowest bits: the position makes ties come in their old order, and
is what remains when the upper bits are masked away. NumPy sorts such numbers with vector instructions. XOR with all
ones reverses the order of lengths, which makes a bin descend while its ties still ascend.

Measured for 10 M lengths below 2**16 in one bin: packed 0.15 s, stable argsort of `uint16` (a radix sort) 0.15 s, of
`int32` 1.0 s. Packing does not depend on the range of lengths, so it is the only fast path. Many small bins are sorted
some at a time, within the processor's cache, which is a fifth faster than all at once and needs no second array.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count

from .base import ArrayOrder, Order
from .policy import Policy, check_lengths, legacy_rng, set_field

_BLOCK = 65_536  # positions per step: temporaries stay in the processor's cache, and out of the peak memory


def bin_bounds(num_seqs: int, num_bins: int) -> NDArray[np.int64]:
    """Return where bins start and end as `int64[num_bins + 1]`: bin i is `i * num_seqs // num_bins` to the next."""
    quotient, remainder = divmod(num_seqs, num_bins)
    bins = np.arange(num_bins + 1, dtype=np.int64)
    # i * (quotient * B + remainder) // B, split so that only i * remainder < B**2 has to fit into 64 bits
    return bins * quotient + bins * remainder // num_bins


def argsort_lengths(lengths: NDArray[Any], *, descending: bool) -> NDArray[np.int64]:
    """Return corpus indices sorted by length as `int64[N]`; ties come in the order of the corpus, also if descending.

    Args:
        lengths: `int or float[N]`, non-negative, integers at most 2**62.
        descending: Whether the longest come first.
    """
    sizes, turned = np.array([len(lengths)]), np.array([descending])
    return _argsort_bins(None, lengths, _LengthRange.of(lengths), sizes, turned)


def sort_in_bins(
    seqs: NDArray[np.int64], lengths: NDArray[Any], bounds: NDArray[np.int64], descending: NDArray[np.bool_]
) -> None:
    """Sort each bin of `seqs` by length, in place; ties keep their order, in descending bins too.

    Args:
        seqs: `int64[n]`, distinct corpus indices.
        lengths: `int or float[N]` by corpus index, non-negative, integers at most 2**62.
        bounds: `int64[B + 1]`, ascending from 0 to n.
        descending: `bool[B]`, which bins begin with the longest.
    """
    length_range = _LengthRange.of(lengths)
    first = 0
    while first < len(descending):
        # as many whole bins as fit into a block, at least one
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + _BLOCK, side="right")) - 1)
        part = seqs[bounds[first] : bounds[last]]
        sizes = np.diff(bounds[first : last + 1])
        positions = _argsort_bins(part, lengths, length_range, sizes, descending[first:last])
        for start in range(0, len(part), _BLOCK):  # in place, since one more array would raise the peak memory
            positions[start : start + _BLOCK] = part[positions[start : start + _BLOCK]]
        part[:] = positions
        first = last


@dataclass(frozen=True)
class _LengthRange:
    """The shortest length, and how many bits hold the distance of the longest from it; None if they are floats."""

    lowest: int
    bits: int | None

    @classmethod
    def of(cls, lengths: NDArray[Any]) -> _LengthRange:
        if lengths.dtype.kind == "f" or len(lengths) == 0:
            return cls(0, None)
        lowest = int(lengths.min())
        return cls(lowest, (int(lengths.max()) - lowest).bit_length())


def _argsort_bins(
    seqs: NDArray[np.int64] | None,
    lengths: NDArray[Any],
    length_range: _LengthRange,
    sizes: NDArray[np.int64],
    descending: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return positions in `seqs` (None for the corpus itself) that sort consecutive bins of the given sizes."""
    length_bits = length_range.bits
    position_bits = int(sizes.sum()).bit_length()
    if length_bits is None or (len(sizes) - 1).bit_length() + length_bits + position_bits > 64:
        by_seq = lengths if seqs is None else lengths[seqs]
        if by_seq.dtype.kind != "f":
            by_seq = by_seq.astype(np.int64)
        signed = np.where(np.repeat(descending, sizes), -by_seq, by_seq)
        return np.lexsort((signed, np.repeat(np.arange(len(sizes)), sizes)))
    upper = np.arange(len(sizes), dtype=np.uint64) << np.uint64(length_bits)
    upper[descending] |= np.uint64((1 << length_bits) - 1)
    keys = np.repeat(upper, sizes)
    for start in range(0, len(keys), _BLOCK):
        part = keys[start : start + _BLOCK]
        by_seq = lengths[start : start + _BLOCK] if seqs is None else lengths[seqs[start : start + _BLOCK]]
        part ^= (by_seq.astype(np.int64) - length_range.lowest).view(np.uint64)
        part <<= np.uint64(position_bits)
        part |= np.arange(start, start + len(part), dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << position_bits) - 1)
    return keys.view(np.int64)


@dataclass(frozen=True)
class Sorted(Policy):
    """`sorted`: shortest first; equal lengths in the order of the corpus.

    Examples:
        >>> from headrace.order import Sorted
        >>> import numpy as np
        >>> Sorted().plan(4, rng_seed=1, lengths=np.array([30, 10, 40, 20])).block(0, 4).tolist()
        [1, 3, 0, 2]
    """

    name: ClassVar[str] = "sorted"
    needs_lengths: ClassVar[bool] = True

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the order, O(N log N)."""
        indices = argsort_lengths(check_lengths(self, num_seqs, lengths), descending=False)
        return ArrayOrder(indices, may_repeat=False)

    def __str__(self) -> str:
        return self.option_string()


@dataclass(frozen=True)
class SortedReverse(Policy):
    """`sorted_reverse`: longest first; equal lengths still in the order of the corpus.

    Examples:
        >>> from headrace.order import SortedReverse
        >>> import numpy as np
        >>> SortedReverse().plan(4, rng_seed=1, lengths=np.array([30, 10, 40, 20])).block(0, 4).tolist()
        [2, 0, 3, 1]
    """

    name: ClassVar[str] = "sorted_reverse"
    needs_lengths: ClassVar[bool] = True

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the order, O(N log N)."""
        indices = argsort_lengths(check_lengths(self, num_seqs, lengths), descending=True)
        return ArrayOrder(indices, may_repeat=False)

    def __str__(self) -> str:
        return self.option_string()


_DEFAULT_BINS = 2
_MAX_BINS = 2**31  # bin_bounds squares it; no more sequences than this fit into memory anyway


@dataclass(frozen=True)
class Binned(Policy):
    """Base of the orders with bins: the number of bins, or of sequences in each.

    Args:
        num_bins: Number of bins; 2 if neither is given.
        seqs_per_bin: Approximate number of sequences in each bin; there are at least 2 bins.
        num_epochs: Number of full epochs that keep the same shuffle. It is not a seed; 0 means 1.
        seed: A seed of your own. Orders with different seeds are independent of each other in every epoch, because seed
            and epoch are hashed, not added. Without it RETURNN's seed rule holds, bit for bit.
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
            set_field(self, "seqs_per_bin", check_count(f"{self.name}: seqs_per_bin", self.seqs_per_bin, minimum=1))
        else:
            num_bins = _DEFAULT_BINS if self.num_bins is None else self.num_bins
            set_field(self, "num_bins", check_count(f"{self.name}: num_bins", num_bins, minimum=1, maximum=_MAX_BINS))

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

    Examples:
        >>> from headrace.order import SortBinShuffle
        >>> import numpy as np
        >>> SortBinShuffle(num_bins=2).plan(4, rng_seed=1, lengths=np.array([30, 10, 40, 20])).block(0, 4).tolist()
        [1, 3, 0, 2]
    """

    name: ClassVar[str] = "sort_bin_shuffle"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:
        """Return the order, O(N log N)."""
        lengths = check_lengths(self, num_seqs, lengths)
        seqs, _ = _shuffle_sorted_bins(lengths, self.count_bins(num_seqs), legacy_rng(rng_seed))
        return ArrayOrder(seqs, may_repeat=False)


@dataclass(frozen=True)
class SortBinShuffleX2(Binned):
    """`sort_bin_shuffle_x2[:B | :.k][:n][:seed=K]`: as `SortBinShuffle`, then shuffle inside each bin too.

    Examples:
        >>> from headrace.order import SortBinShuffleX2
        >>> import numpy as np
        >>> SortBinShuffleX2(num_bins=2).plan(4, rng_seed=1, lengths=np.array([30, 10, 40, 20])).block(0, 4).tolist()
        [1, 3, 0, 2]
    """

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
