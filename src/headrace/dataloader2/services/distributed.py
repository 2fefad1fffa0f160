"""`DistributedReadingService`: gives each rank of `torch.distributed` a share of the items, and all the same seeds."""

from __future__ import annotations

from typing import Any

from headrace.errors import HeadraceError, check_count
from headrace.pipes.core.naming import class_name
from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.ops.buffers.fullsync import FullSync, GlooGroup, initialized_distributed
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding

from ..interface import Processes, ReadingServiceInterface, ResetFn, shut_down

DEFAULT_TIMEOUT_SECONDS = 1800


class DistributedReadingService(ReadingServiceInterface):
    """Shards by rank, makes all ranks end together (`fullsync`), and shares rank 0's seeds with all.

    Needs torch, and a process group that was initialised. It makes a gloo group of its own.

    Args:
        timeout: Seconds that a rank waits for the others, when an epoch begins and for each item.

    Examples:
        >>> import headrace as hr
        >>> def read_my_share(pipe):  # in each process of torchrun, once torch.distributed is initialised
        ...     with hr.DataLoader2(pipe, reading_service=hr.DistributedReadingService()) as loader:
        ...         yield from loader
    """

    def __init__(self, timeout: int = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._group: GlooGroup | None = None
        self._end: Any = None
        self._timeout = check_count("timeout", timeout, minimum=1)
        self._rank = 0
        self._world_size: int | None = None  # it stays known when the group is gone

    def initialize(self, datapipe: Any) -> Any:
        """Set a graph to this rank's share.

        Raises:
            RuntimeError: torch.distributed is not available, or not initialised.
        """
        distributed = initialized_distributed()
        num_ranks = self._world_size = distributed.get_world_size()
        self._rank = distributed.get_rank()
        self._group = GlooGroup(self._timeout)
        apply_sharding(datapipe, num_ranks, self._rank, SHARDING_PRIORITIES.DISTRIBUTED)
        if class_name(datapipe) != "FullSync":
            datapipe = FullSync(datapipe, self._timeout)
        self._end = datapipe
        return datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Give the generator rank 0's seeds, make it this rank's, and seed the pipes."""
        if self._group is None:
            raise HeadraceError("initialize_iteration was called before initialize")
        shut_down(self._end)
        of_epoch, lasting = seed_generator.generate_shared_seed(), seed_generator.lasting_seed
        halves = self._group.broadcast([*_halves(of_epoch), *_halves(lasting)])
        seed_generator.seed(_whole(halves[:2]))
        seed_generator.lasting_seed = _whole(halves[2:])
        seed_generator.spawn(self._rank, inplace=True)
        set_graph_random_seed(self._end, seed_generator)
        return iter_reset_fn

    def _processes(self) -> Processes:
        known = self._world_size
        return Processes(num_ranks=initialized_distributed().get_world_size() if known is None else known)

    def finalize(self) -> None:
        """Destroy the process group; a second call does nothing."""
        group, self._group = self._group, None
        end, self._end = self._end, None
        shut_down(end)
        if group is not None:
            group.close()


def _halves(seed: int) -> list[int]:
    """Split an unsigned 64-bit seed into two numbers, as torch has signed integers only."""
    return [seed >> 32, seed & 0xFFFFFFFF]


def _whole(halves: list[int]) -> int:
    return (halves[0] << 32) | halves[1]
