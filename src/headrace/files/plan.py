"""Which files go to which sub-epoch and shard. Pure: nothing here touches a file.

The files of a full epoch are put into bins, one for each sub-epoch of each shard. Everything follows from the sizes,
the options and the epoch, so that all ranks come to the same bins without asking each other, as long as they see the
same sizes. Invariant: the bins of a full epoch hold each file exactly once, and none is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError, SourceError, check_count, did_you_mean
from headrace.order import derive_order_seed
from headrace.order.policy import legacy_rng, set_field

from .balance import bins_largest_first, check_enough, checked_sizes, distribute_in_order, distribute_largest_first

__all__ = ["FilePlan", "distribute_in_order", "distribute_largest_first"]

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
        check_enough(len(self.sizes), self.partition_epoch * self._shards_of_bins, needed_for)

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

    def bytes_of(self, epoch: int, shard_index: int) -> int:
        """Return how many bytes the files of one sub-epoch and shard have; arguments and errors as in `files_of`."""
        return int(self.sizes[self.files_of(epoch, shard_index)].sum())

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
            return bins_largest_first(self.sizes, num_bins, seed)
        files = np.arange(len(self.sizes)) if seed is None else legacy_rng(seed).permutation(len(self.sizes))
        files.flags.writeable = False
        return files, distribute_in_order(self.sizes[files], num_bins)


def _frozen_sizes(sizes: ArrayLike) -> NDArray[np.int64]:
    frozen = checked_sizes(sizes).copy()
    if sum(frozen.tolist()) >= 2**63:
        raise SourceError("the files have 2**63 bytes or more together", fix="check their sizes")
    frozen.flags.writeable = False
    return frozen
