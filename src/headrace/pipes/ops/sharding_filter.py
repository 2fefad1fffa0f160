"""Sharding: each worker keeps its share of the items, or one process reads them and deals them out to the workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.errors import ConfigError, check_count

from ..core.base import IterPipe, read
from ..core.registry import functional_pipe
from ..core.skeletons import OneForOne, Positioned
from ..sharding import SHARDING_PRIORITIES, length_of_share


@functional_pipe("sharding_filter")
class ShardingFilter(Positioned[Any]):
    """Keep every n-th item, as set by `apply_sharding`; all items until it is called.

    With ranks of W workers each, W consecutive items go to the workers of one rank, the next W to those of the next.

    Args:
        source_datapipe: The source, which must give the same items in the same order in every process.
        sharding_group_filter: Shard for this group only; `None`: for all.
    """

    _position_names = ("has_begun",)
    _has_begun = False

    def __init__(
        self, source_datapipe: IterPipe[Any], sharding_group_filter: SHARDING_PRIORITIES | None = None
    ) -> None:
        self.source_datapipe = source_datapipe
        self.sharding_group_filter = sharding_group_filter
        self.groups: dict[int, tuple[int, int]] = {}
        self.num_of_instances = 1
        self.instance_id = 0

    def apply_sharding(
        self,
        num_of_instances: int,
        instance_id: int,
        sharding_group: SHARDING_PRIORITIES = SHARDING_PRIORITIES.DEFAULT,
    ) -> None:
        """Set the share that this pipe keeps.

        Args:
            num_of_instances: How many shares there are.
            instance_id: The number of the share, from 0.
            sharding_group: Among which processes the items are shared. A rank's share is split among its workers.

        Raises:
            ConfigError: There is no such share.
            RuntimeError: `DEFAULT` was combined with another group.
        """
        check_count("num_of_instances", num_of_instances, minimum=1)
        if not 0 <= instance_id < num_of_instances:
            raise ConfigError(f"instance_id({instance_id}) should be smaller than num_of_instances({num_of_instances})")
        if self.sharding_group_filter is not None and self.sharding_group_filter != sharding_group:
            return
        is_default = sharding_group == SHARDING_PRIORITIES.DEFAULT
        if any((group == SHARDING_PRIORITIES.DEFAULT) != is_default for group in self.groups):
            raise RuntimeError("ShardingFilter cannot mix DEFAULT and non DEFAULT groups")
        self.groups[int(sharding_group)] = (num_of_instances, instance_id)
        self.num_of_instances, self.instance_id = 1, 0
        for group in sorted(self.groups, reverse=True):  # the highest first: it varies fastest
            num_shares, share = self.groups[group]
            self.instance_id += self.num_of_instances * share
            self.num_of_instances *= num_shares

    def __iter__(self) -> Iterator[Any]:
        num_passed = self.num_of_instances - 1 if self._has_begun else self.instance_id
        source = read(self.source_datapipe)
        self._has_begun = True
        yield from islice(source, num_passed, None, self.num_of_instances)

    def __len__(self) -> int:
        return length_of_share(len(self.source_datapipe), self.num_of_instances, self.instance_id)


@functional_pipe("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(OneForOne[Any]):
    """Have everything upstream run in one process, which deals its items out to the workers in turn.

    Without workers it has no effect.

    Args:
        source_datapipe: The source.
        sharding_group_filter: The group that the items are dealt out to: only `MULTIPROCESSING` is possible.

    Raises:
        NotImplementedError: Another group than `MULTIPROCESSING` was asked for.
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        sharding_group_filter: SHARDING_PRIORITIES | None = SHARDING_PRIORITIES.MULTIPROCESSING,
    ) -> None:
        if sharding_group_filter not in (None, SHARDING_PRIORITIES.MULTIPROCESSING):
            raise NotImplementedError(
                "`sharding_round_robin_dispatch` currently only supports `SHARDING_PRIORITIES.MULTIPROCESSING`. "
                "To share among ranks put a sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED) before it."
            )
        self.source_datapipe = source_datapipe
        self.sharding_group_filter = SHARDING_PRIORITIES.MULTIPROCESSING

    def __iter__(self) -> Iterator[Any]:
        yield from read(self.source_datapipe)
