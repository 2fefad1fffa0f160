"""Two ways to distribute files by size. Pure: nothing here touches a file.

Everything follows from the numbers given, so that all ranks come to the same bins without asking each other. Invariant:
the bins hold each file exactly once, and none is empty.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError, SourceError, check_count
from headrace.order.policy import legacy_rng
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
    checked = checked_sizes(sizes)
    num_files = check_enough(len(checked), num_bins)
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
    files, bounds = bins_largest_first(checked_sizes(sizes), num_bins, rng_seed)
    return np.split(files, bounds[1:-1])


def bins_largest_first(
    sizes: NDArray[np.int64], num_bins: int, rng_seed: int | None
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the result of `distribute_largest_first` as the files of all bins, one after the other, and boundaries."""
    num_files = check_enough(len(sizes), num_bins)
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


def checked_sizes(sizes: ArrayLike) -> NDArray[np.int64]:
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


def check_enough(num_files: int, num_bins: int, needed_for: str = "bins") -> int:
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
