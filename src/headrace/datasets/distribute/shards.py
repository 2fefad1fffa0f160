"""Which shard of the files this process has: that of its rank, the one that it was given, or what both say together."""

from __future__ import annotations

import logging

from headrace.errors import ConfigError
from headrace.ranks import Ranks, find_ranks

from .options import ShareOptions

_logger = logging.getLogger("headrace.datasets")


class RankShards:
    """Finds out which rank this is, where ranks share the files. Not thread-safe.

    Args:
        options: See `ShareOptions`.
        name: Of the dataset, for messages.

    Attributes:
        ranks: Which rank shares the files, and who said so; `None` before the first epoch, or if ranks do not share.
    """

    def __init__(self, options: ShareOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._carried: Ranks | None = None
        self._is_loss_told = False
        self.ranks: Ranks | None = None

    def shard(self, given: tuple[int, int]) -> tuple[int, int]:
        """Return into how many shards files are divided, and which one this is. It may change until `settle`.

        Args:
            given: The same, as the options of the dataset say.

        Raises:
            ConfigError: That contradicts the ranks.
        """
        if not self._options.shards_files:
            return given
        return _join_shards(given, self.ranks or self._find(), f"dataset {self._name!r}")

    def _find(self) -> Ranks:
        """Find out which rank this is; what this object was told in another process counts if nobody here says it."""
        ranks = find_ranks(self._options.rank, self._options.world_size)
        return self._carried if ranks.world_size == 1 and self._carried is not None else ranks

    def settle(self, given: tuple[int, int]) -> None:
        """Find out for good which rank this is: what starts a distributed training may come after this object."""
        if self._options.shards_files and self.ranks is None:
            self.ranks = self._find()
            _logger.info(
                "dataset %r: files are shared by rank: %d of %d (%s)",
                self._name,
                self.ranks.rank,
                self.ranks.world_size,
                self.ranks.source,
            )
        num_shards, _ = self.shard(given)
        if self._options.shards_twice and num_shards > 1 and not self._is_loss_told:
            self._is_loss_told = True
            _logger.warning(
                "dataset %r: sharding_fix=False divides the data among the ranks twice: each of %d ranks reads 1/%d of "
                "the sequences of its own files, and the others are never read",
                self._name,
                num_shards,
                num_shards,
            )

    def state(self) -> Ranks | None:
        """Return what a copy cannot find out in a worker, which knows no ranks."""
        ranks = self.ranks  # a worker may be started before an epoch has begun here
        if ranks is None and self._options.shards_files:
            ranks = self._find()
        return ranks if ranks is not None and ranks.world_size > 1 else self._carried

    def restore(self, ranks: Ranks | None) -> None:
        """Take over what `state` returned."""
        self._carried = ranks


def _join_shards(given: tuple[int, int], ranks: Ranks, where: str) -> tuple[int, int]:
    """Return (number of shards, which one) of a dataset that shards by rank and was given shards, too.

    Exactly one level shards. The given ones may be the same as the ranks, or divide the share of each rank further, as
    the workers of a `MultiProcDataset` with "dedicated" do: then they stand for both.

    Raises:
        ConfigError: They contradict each other.
    """
    num_shards, shard_index = given
    if num_shards == 1:
        return ranks.world_size, ranks.rank
    if num_shards % ranks.world_size == 0 and shard_index // (num_shards // ranks.world_size) == ranks.rank:
        return given
    raise ConfigError(
        f"distrib_shard_files=True finds rank {ranks.rank} of {ranks.world_size} ({ranks.source}), but "
        f"_shard_index={shard_index} of _num_shards={num_shards} was given",
        where=where,
        fix="leave out _num_shards and _shard_index, or set distrib_shard_files=False",
    )
