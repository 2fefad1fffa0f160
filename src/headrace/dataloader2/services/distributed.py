"""`DistributedReadingService`: a share for each rank of `torch.distributed`, and the same seeds on all of them."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.errors import check_count
from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.ops.buffers.fullsync import FullSync
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding

from ..interface import ReadingServiceInterface, ResetFn, shut_down

DEFAULT_TIMEOUT_SECONDS = 1800
_SYNC_NAMES = ("FullSync", "FullSyncIterDataPipe")


class DistributedReadingService(ReadingServiceInterface):
    """Shards by rank, makes all ranks end together (`fullsync`), and shares rank 0's seeds with all.

    Needs torch, and a process group that was initialised. It makes a gloo group of its own.

    Args:
        timeout: Seconds that a rank waits for the others.
    """

    def __init__(self, timeout: int = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._group: Any = None
        self._end: Any = None
        self._timeout = check_count("timeout", timeout, minimum=1)
        self._rank, self._world_size = 0, 1

    def initialize(self, datapipe: Any) -> Any:
        """Take a rank's share of a graph.

        Raises:
            RuntimeError: torch.distributed is not available, or not initialised.
        """
        distributed = _distributed()
        self._world_size, self._rank = distributed.get_world_size(), distributed.get_rank()
        self._group = distributed.new_group(backend="gloo")
        apply_sharding(datapipe, self._world_size, self._rank, SHARDING_PRIORITIES.DISTRIBUTED)
        if type(datapipe).__name__ not in _SYNC_NAMES:
            datapipe = FullSync(datapipe, self._timeout)
        self._end = datapipe
        return datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Make the generator rank 0's, and then this rank's, in place; seed the pipes."""
        torch = importlib.import_module("torch")
        shut_down(self._end)
        of_epoch, lasting = seed_generator.generate_shared_seed(), seed_generator.lasting_seed
        seeds = torch.tensor([*_halves(of_epoch), *_halves(lasting)], dtype=torch.int64)
        _distributed().broadcast(seeds, src=0, group=self._group)
        seed_generator.seed(_whole(seeds.tolist()[:2]))
        seed_generator.lasting_seed = _whole(seeds.tolist()[2:])
        seed_generator.spawn(self._rank, inplace=True)
        set_graph_random_seed(self._end, seed_generator)
        return iter_reset_fn

    def finalize(self) -> None:
        """Destroy the process group; a second call does nothing."""
        group, self._group = self._group, None
        end, self._end = self._end, None
        if group is not None:
            shut_down(end)
            _distributed().destroy_process_group(group)


def _distributed() -> Any:
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        raise RuntimeError("DistributedReadingService needs torch.distributed, and torch is not installed") from None
    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError(
            "Torch Distributed is required to be initialized: call torch.distributed.init_process_group() first"
        )
    return distributed


def _halves(seed: int) -> list[int]:
    """Return 64 bits as two numbers that fit into signed ones."""
    return [seed >> 32, seed & 0xFFFFFFFF]


def _whole(halves: list[int]) -> int:
    return (halves[0] << 32) | halves[1]
