"""Which files go to which sub-epoch and shard. Pure: nothing here touches a file.

The files of a full epoch are put into bins, one for each sub-epoch of each shard. Everything follows from the sizes,
the options and the epoch, so that all ranks come to the same bins without asking each other, as long as they see the
same sizes. Invariant: the bins of a full epoch hold each file exactly once, and none is empty.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError, SourceError, check_count, did_you_mean
from headrace.order import derive_order_seed
from headrace.order.policy import legacy_rng, set_field
from headrace.rng import derive_seed

_CLASSES_PER_DOUBLING = 8  # files of one class differ by a factor below 1 + 1/8; the bound below depends on it


def distribute_in_order(sizes: ArrayLike, num_bins: int) -> list[int]:
    """Cut a list of files into bins of about equal bytes, in the order of the list.

    A bin is filled up to the average of the bytes left for it and those after it. The file that would exceed it is
    still taken if that comes at least as close to the average as leaving it to the next bin. The boundaries are those
    of RETURNN's `DistributeFilesDataset`, bit for bit. O(n).

    Args:
        sizes: `int64[n]`, bytes of each file, in order.
        num_bins: 1 to n.

    Returns:
        `num_bins + 1` boundaries: bin `b` is files `boundaries[b]` to `boundaries[b + 1] - 1`.

    Raises:
        ConfigError: There are fewer files than bins.
        SourceError: A size is negative, or not a whole number of 64 bits.
    """
    checked = _checked_sizes(sizes)
    num_files = _check_enough(len(checked), num_bins)
    ends = list(accumulate(checked.tolist(), initial=0))  # Python's integers: exact, however large the sum
    average = ends[-1] / num_bins
    bounds = [0]
    undecided = 0  # the first file whose bin is not known yet
    for bins_after in range(num_bins - 1, 0, -1):
        start = bounds[-1]
        one_for_each = num_files - bins_after  # from this file on, each bin after this one gets one file
        too_large = bisect_right(ends, ends[start] + math.floor(average), lo=undecided + 1) - 1
        if too_large >= one_for_each:
            bounds.extend(range(one_for_each, num_files))
            break
        taken, size = ends[too_large] - ends[start], ends[too_large + 1] - ends[too_large]
        # floating point as in RETURNN, since ties matter
        takes_it = too_large == start or abs(taken + size - average) <= abs(taken - average)
        undecided = too_large + 1
        bounds.append(undecided if takes_it else too_large)
        average = (ends[-1] - ends[undecided]) / bins_after
    return [*bounds, num_files]


def distribute_largest_first(sizes: ArrayLike, num_bins: int, rng_seed: int | None) -> list[NDArray[np.int64]]:
    """Put the largest files first, each into the bin that has the fewest bytes so far.

    For ranks that must not wait for each other. "Largest" is meant by classes, eight in each doubling of the size, so
    that two files of a class differ by less than 9/8: in a class the order is random, and so is which bin comes first,
    so that each seed mixes the files in another way. A bin has its files in a random order, too: large and small mixed.

    The bins differ by no more than the last file that the fullest one got, so by no more than the largest file; where
    many small files come last, by very little. With OPT for the fullest bin of the best distribution there is and m
    bins, the fullest bin holds at most (1 + 3/8 (1 - 1/m)) OPT: let s be the last file that the fullest bin got. Before
    it, that bin held at most the mean of all but s, so it holds at most OPT + (1 - 1/m) s in the end, and each file
    that came before s is larger than 8/9 s. If s <= 3/8 OPT, that is the bound. If not, no bin of the best distribution
    holds three of the files up to s, so there are n <= 2 m of them. If n <= m, s had a bin for itself. Else 2 m - n + 1
    bins or more held one file when s came, the smallest of them no larger than x, the (2 m - n + 1)-th largest file. In
    the best distribution only 2 m - n bins can hold one file, so one of the files of size x or more has company:
    x + 8/9 s <= OPT, and our bin holds at most x + s <= OPT + s / 9, where s <= 9/16 OPT. (After R. L. Graham, "Bounds
    on Multiprocessing Timing Anomalies", 1969, who has 4/3 - 1/(3m) for the strict order.)

    Args:
        sizes: `int64[n]`, bytes of each file.
        num_bins: 1 to n.
        rng_seed: Seed of the random orders, 64 bits. None draws nothing: files of a class, those of a
            bin, and the bins by their first files come in the order of the list.

    Returns:
        For each bin the `int64[k]` indices of its files, read-only. O(n log n): about 1 us a file.

    Raises:
        ConfigError: There are fewer files than bins.
        SourceError: A size is negative, or not a whole number of 64 bits.
    """
    files, bounds = _bins_largest_first(_checked_sizes(sizes), num_bins, rng_seed)
    return np.split(files, bounds[1:-1])


def _bins_largest_first(
    sizes: NDArray[np.int64], num_bins: int, rng_seed: int | None
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the result of `distribute_largest_first` as the files of all bins, one after the other, and boundaries."""
    num_files = _check_enough(len(sizes), num_bins)
    tie_order = file_order = np.arange(num_files)
    if rng_seed is not None:
        # the legacy generator: NumPy has frozen its permutations, and a run may be resumed with another NumPy
        rng = legacy_rng(derive_seed(rng_seed, "largest_first", bits=32))
        tie_order, file_order, bin_order = (rng.permutation(count) for count in (num_files, num_files, num_bins))
    largest_first = tie_order[np.argsort(-_size_classes(sizes)[tie_order], kind="stable")]
    bin_of = np.empty(num_files, np.int64)
    bin_of[largest_first] = _fill(sizes[largest_first].tolist(), num_bins)
    if rng_seed is None:
        bin_order = np.argsort(np.argsort(np.unique(bin_of, return_index=True)[1]))  # by the first file of each
    bin_of = bin_order[bin_of]
    files = file_order[np.argsort(bin_of[file_order], kind="stable")]
    files.flags.writeable = False
    return files, [0, *np.cumsum(np.bincount(bin_of)).tolist()]


def _checked_sizes(sizes: ArrayLike) -> NDArray[np.int64]:
    """Return sizes as `int64[n]`.

    Raises:
        SourceError: One is negative or does not fit, or they are not whole numbers.
    """
    column = np.asarray(sizes)
    if column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
        what = f"file sizes must be whole numbers below 2**63, one a file, not {column.dtype} of shape {column.shape}"
        raise SourceError(what)
    wrong = np.flatnonzero((column < 0) | (column > np.iinfo(np.int64).max))
    if wrong.size:
        raise SourceError(f"the size {column[wrong[0]]} is not in 0..2**63-1", where=f"file {wrong[0]} of the list")
    return column.astype(np.int64, copy=False)


def _check_enough(num_files: int, num_bins: int, needed_for: str = "bins") -> int:
    """Return `num_files`.

    Raises:
        ConfigError: It is less than `num_bins`, or `num_bins` less than 1.
    """
    check_count("files: num_bins", num_bins, minimum=1)
    if num_files < num_bins:
        raise ConfigError(
            f"{num_files} files cannot be distributed over {num_bins} {needed_for}, each of which needs one",
            fix="split the data into more files, or ask for fewer sub-epochs or shards",
        )
    return num_files


def _size_classes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each size that grows with it, 8 of them from one power of 2 to the next.

    From the bits of the floating-point number, not by a logarithm: the last digit of that differs between machines.
    """
    mantissas, exponents = np.frexp(sizes.astype(np.float64))
    steps = np.floor((mantissas - 0.5) * (2 * _CLASSES_PER_DOUBLING)).astype(np.int64)
    return exponents.astype(np.int64) * _CLASSES_PER_DOUBLING + steps


def _fill(sizes: list[int], num_bins: int) -> list[int]:
    """Return, for each file in turn, the bin with the fewest bytes, of these one with the fewest files."""
    bins = [(0, 0, bin_idx) for bin_idx in range(num_bins)]  # a valid heap; empty files are spread over the bins
    chosen = []
    for size in sizes:
        num_bytes, num_files, bin_idx = bins[0]
        heapq.heapreplace(bins, (num_bytes + size, num_files + 1, bin_idx))
        chosen.append(bin_idx)
    return chosen


_CHOICES = {"ordering": ("default", "random"), "balance": ("in_order", "largest_first")}
_MAX_KEPT = 2  # full epochs: the one that is read, and the one that is prefetched towards its end
_MAX_OFFSET = 2**62

_Bins = tuple[NDArray[np.int64], list[int]]  # the files of all bins, one after the other, and where each bin begins


@dataclass(frozen=True, eq=False)
class FilePlan:
    """Assigns files to each sub-epoch and shard. Checked when built; thread-safe.

    The files of a full epoch, in the order of the list or shuffled, are put into `partition_epoch * num_shards` bins.
    Shard `s` has the bins from `partition_epoch * s` on, one for each sub-epoch. (Sequences are cut the other way
    round, see `headrace.order.slice_bounds`: there the shards of a sub-epoch are adjacent.)

    With `num_canonical_shards` = C there are `partition_epoch * C` bins, whatever the number of shards: a sub-epoch is
    C canonical shards, and these are distributed over the current `num_shards`. So a job can continue with another
    number of ranks: each file of a sub-epoch still comes exactly once, in the same canonical shard and in the same
    order there. They are distributed by bytes: the largest first, each to the shard that has the fewest bytes so far.
    Where `num_shards` does not divide C, some shards get more than others, so choose a C that the expected numbers
    divide.

    Args:
        sizes: `int64[n]`, bytes of each entry of the file list.
        partition_epoch: Sub-epochs of a full epoch.
        num_shards: For example one per rank.
        ordering: `"default"` keeps the order of the list, the same files in each full epoch; `"random"` shuffles them
            for each full epoch, by RETURNN's seed rule and generator.
        random_seed_offset: Added to the number of the full epoch (from 1); must be the same on all ranks.
        fixed_random_seed: The seed of every full epoch instead.
        balance: `"in_order"` is RETURNN's distribution, see `distribute_in_order`. `"largest_first"` makes the
            bins as equal as can be, see `distribute_largest_first`; with `"random"` each full epoch mixes differently.
        num_canonical_shards: See above. A part of the recipe: another number gives other bins.

    Raises:
        ConfigError: An option is wrong, there are fewer files than bins, or more shards than canonical ones.
        SourceError: The sizes are not non-negative integers, or their sum is 2**63 or more.
    """

    sizes: NDArray[np.int64]
    partition_epoch: int = 1
    num_shards: int = 1
    ordering: Literal["default", "random"] = "default"
    random_seed_offset: int = 0
    fixed_random_seed: int | None = None
    balance: Literal["in_order", "largest_first"] = "in_order"
    num_canonical_shards: int | None = None
    _kept: dict[int | None, _Bins] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check all options, and take a copy of the sizes."""
        set_field(self, "sizes", _frozen_sizes(self.sizes))
        for option in ("partition_epoch", "num_shards"):
            set_field(self, option, check_count(f"files: {option}", getattr(self, option), minimum=1))
        for option, valid in _CHOICES.items():
            value = getattr(self, option)
            if value not in valid:
                raise ConfigError(f"{option}={value!r} is unknown", fix=did_you_mean(str(value), valid))
        limits = {"minimum": -_MAX_OFFSET, "maximum": _MAX_OFFSET}
        offset = check_count("files: random_seed_offset", self.random_seed_offset, **limits)
        set_field(self, "random_seed_offset", offset)
        if self.fixed_random_seed is not None:
            seed = check_count("files: fixed_random_seed", self.fixed_random_seed, minimum=0, maximum=2**32 - 1)
            set_field(self, "fixed_random_seed", seed)
        if self.num_canonical_shards is not None:
            num_canonical = check_count("files: num_canonical_shards", self.num_canonical_shards, minimum=1)
            set_field(self, "num_canonical_shards", num_canonical)
            if self.num_shards > num_canonical:
                raise ConfigError(
                    f"{self.num_shards} shards cannot share {num_canonical} canonical shards: some would get nothing",
                    fix=f"use up to {num_canonical} ranks, or start a new run with a larger num_canonical_shards",
                )
        what = "shards" if self.num_canonical_shards is None else "canonical shards"
        needed_for = f"bins ({self.partition_epoch} sub-epochs x {self._shards_of_bins} {what})"
        _check_enough(len(self.sizes), self.partition_epoch * self._shards_of_bins, needed_for)

    def files_of(self, epoch: int, shard_index: int) -> NDArray[np.int64]:
        """Return the files of one sub-epoch for one shard.

        A full epoch costs O(n) when first asked for (`"largest_first"`: O(n log n)); the last 2 are kept.

        Args:
            epoch: Counts sub-epochs from 1; 0 counts as 1.
            shard_index: 0 to `num_shards - 1`.

        Returns:
            `int64[k]`, k >= 1, positions in the file list, in the order of reading; read-only.

        Raises:
            ConfigError: The epoch is negative, the shard index out of range, or the seed out of the generator's range.
        """
        shards = self.canonical_shards_of(epoch, shard_index)
        if len(shards) == 1:
            return self.files_of_canonical_shard(epoch, shards[0])
        files = np.concatenate([self.files_of_canonical_shard(epoch, shard) for shard in shards])
        files.flags.writeable = False
        return files

    def canonical_shards_of(self, epoch: int, shard_index: int) -> list[int]:
        """Return which canonical shards of a sub-epoch one shard reads, in order.

        Without `num_canonical_shards` the shards are the canonical ones. Arguments and errors as in `files_of`.
        """
        check_count("files: shard_index", shard_index, minimum=0, maximum=self.num_shards - 1)
        if self.num_shards == self._shards_of_bins:
            return [shard_index]
        in_shard = [self.files_of_canonical_shard(epoch, shard) for shard in range(self._shards_of_bins)]
        shard_bytes = [int(self.sizes[files].sum()) for files in in_shard]
        share: list[int] = distribute_largest_first(shard_bytes, self.num_shards, None)[shard_index].tolist()
        return share

    def files_of_canonical_shard(self, epoch: int, canonical_shard: int) -> NDArray[np.int64]:
        """Return the files of one canonical shard of a sub-epoch, the same for any `num_shards`; see `files_of`."""
        check_count("files: canonical_shard", canonical_shard, minimum=0, maximum=self._shards_of_bins - 1)
        files, bounds = self._bins_of(check_count("files: epoch", epoch, minimum=0))
        bin_idx = self.partition_epoch * canonical_shard + (max(epoch, 1) - 1) % self.partition_epoch
        return files[bounds[bin_idx] : bounds[bin_idx + 1]]

    @property
    def digest(self) -> str:
        """Digest of all that decides the bins, 32 hex digits: plans on all ranks, and after a resume, must agree on it.

        Covers the sizes in order and the options; `num_shards` only where there are no canonical shards. O(n).
        """
        decisive = ["partition_epoch", "balance", "ordering"]
        if self.ordering == "random":
            decisive.append("random_seed_offset" if self.fixed_random_seed is None else "fixed_random_seed")
        options = [self._shards_of_bins, *(f"{option}={getattr(self, option)}" for option in decisive)]
        return xxhash.xxh3_128_hexdigest(f"{options}".encode() + self.sizes.astype("<i8").tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, not the bins."""
        return type(self), tuple(getattr(self, option.name) for option in fields(self) if option.init)

    @property
    def _shards_of_bins(self) -> int:
        return self.num_shards if self.num_canonical_shards is None else self.num_canonical_shards

    def _bins_of(self, epoch: int) -> _Bins:
        seed = None
        if self.ordering == "random":
            seed = derive_order_seed(
                epoch,
                partition_epoch=self.partition_epoch,
                fixed_random_seed=self.fixed_random_seed,
                random_seed_offset=self.random_seed_offset,
            )
        kept = self._kept
        if seed not in kept:
            # A new dict, not a change to this one: another thread may be reading it. Two may do the same work at once.
            kept = dict([*kept.items(), (seed, self._distribute(seed))][-_MAX_KEPT:])
            set_field(self, "_kept", kept)
        return kept[seed]

    def _distribute(self, seed: int | None) -> _Bins:
        num_bins = self.partition_epoch * self._shards_of_bins
        if self.balance == "largest_first":
            return _bins_largest_first(self.sizes, num_bins, seed)
        files = np.arange(len(self.sizes)) if seed is None else legacy_rng(seed).permutation(len(self.sizes))
        files.flags.writeable = False
        return files, distribute_in_order(self.sizes[files], num_bins)


def _frozen_sizes(sizes: ArrayLike) -> NDArray[np.int64]:
    frozen = _checked_sizes(sizes).copy()
    if sum(frozen.tolist()) >= 2**63:
        raise SourceError("the files have 2**63 bytes or more together", fix="check their sizes")
    frozen.flags.writeable = False
    return frozen
