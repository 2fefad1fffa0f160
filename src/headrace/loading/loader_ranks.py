"""Which rank a loader is, of how many: looked up when its first iteration begins, and the same from then on.

A loader is often made before the training is distributed: before `init_process_group`, or before a trainer starts its
other processes. So nothing is decided in the constructor but what the user said there. Invariant: once a batch was
asked for, the ranks never change; if the surroundings say something else later, that is an error that names both.
"""

from __future__ import annotations

import logging

from headrace.batching import FixedCount
from headrace.errors import ConfigError
from headrace.ranks import LateRanks, Ranks, find_ranks, parts_of_torch, ranks_of_mesh

from .inputs import Subject
from .options import LoaderOptions
from .sampler import SampledBatches

_logger = logging.getLogger("headrace.loading")


class LoaderRanks:
    """The ranks of one loader.

    Args:
        options: Of the loader.
        subject: What it loads; it may divide itself already.

    Raises:
        ConfigError: What the user said of the ranks cannot be.
    """

    def __init__(self, options: LoaderOptions, subject: Subject) -> None:
        self._options, self._subject = options, subject
        self._late = LateRanks(self._find, subject.name)
        is_said = options.rank is not None or options.world_size is not None or options.mesh is not None
        if is_said or subject.num_shards > 1:
            self.look_up()

    def look_up(self) -> Ranks:
        """Return who shares the batches, as far as it is known now: exactly one level shards.

        Raises:
            ConfigError: Two levels would shard, or ranks would have different numbers of steps unasked, or the
                surroundings contradict themselves.
        """
        return self._late.look_up()

    def settle(self) -> Ranks:
        """Return who shares the batches, for good.

        Raises:
            ConfigError: As `look_up`, or it was settled before and is different now.
        """
        has_begun = self._late.is_settled
        found = self._late.settle()
        if not has_begun:
            self._say(found)
        return found

    def _find(self) -> Ranks:
        options, subject = self._options, self._subject
        num_shards = subject.num_shards
        if num_shards <= 1:
            ranks = (
                find_ranks(options.rank, options.world_size) if options.mesh is None else ranks_of_mesh(options.mesh)
            )
            if subject.is_stream and ranks.world_size > 1:
                options.check_equal_steps(subject.name)
            return ranks
        if (options.world_size or 1) > 1 or options.mesh is not None:
            said = "mesh" if options.world_size is None else f"world_size={options.world_size}"
            raise ConfigError(
                f"two levels would divide the data: the dataset ({subject.sharded_by}) and the loader ({said})",
                fix="leave out the dataset's sharding: the loader gives all ranks equally many steps",
            )
        is_even = subject.has_even_shards and isinstance(options.batching, FixedCount | SampledBatches)
        if options.remainder != "keep" and options.steps_per_epoch is None and options.agree is None and not is_even:
            raise ConfigError(
                f"the dataset divides itself ({subject.sharded_by}), so ranks may have different numbers of batches, "
                f'and remainder="{options.remainder}" promises equal steps',
                fix='leave out the dataset\'s sharding, or give remainder="keep", steps_per_epoch= (for streams), or '
                "agree= and agree_every=, by which the ranks find out together",
            )
        return Ranks(0, 1, f"the dataset shards itself: {subject.sharded_by}")

    def equal_steps_of(self, ranks: Ranks) -> str | None:
        """Return which rank this is of several that must have equally many steps; None if it is alone, or need not."""
        if ranks.world_size > 1:
            return f"rank {ranks.rank} of {ranks.world_size}"
        if self._subject.num_shards > 1 and self._options.remainder != "keep":
            return f"one of {self._subject.num_shards} ranks"
        return None if self._options.agree is None else "one of several ranks"

    def _say(self, ranks: Ranks) -> None:
        """Say what is assumed of ranks that nobody named: louder where some of them have a group of their own."""
        if ranks.world_size == 1 or ranks.source != "torch.distributed":
            return
        _logger.log(
            logging.WARNING if parts_of_torch() else logging.INFO,
            "each of the %d ranks of torch.distributed gets batches of its own (this is rank %d); if some of them work "
            "on the same batch (tensor, pipeline or context parallelism), give the loader mesh=, such as "
            'mesh=device_mesh["dp"], or rank= and world_size= of data parallelism',
            ranks.world_size,
            ranks.rank,
        )

    def __str__(self) -> str:
        """Say which rank this is, and who says so."""
        try:
            ranks = self.look_up()
        except ConfigError as error:
            return f"not known yet: {error.what}"
        later = (
            ""
            if self._late.is_settled or ranks.source == "arguments"
            else ", to be looked up again by the first iteration"
        )
        return f"{ranks.rank} of {ranks.world_size} ({ranks.source}{later})"
