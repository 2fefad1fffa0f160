"""`InProcessReadingService`: the whole graph in the process that asks for the items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError, check_count
from headrace.pipes.seeds import SeedGenerator
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding

from .in_place import InPlace
from .options import check_function
from .prefetching import prefetched, shut_down
from .services import PausableEnd, ReadingServiceInterface, ResetFn, WorkerInfo


class InProcessReadingService(PausableEnd, ReadingServiceInterface):
    """Runs the graph here; the global generators of the user's process are left alone.

    Args:
        prefetch_cnt: How many items a thread reads ahead; 0: each item is made when it is asked for.
        init_fn: Called once as `fn(datapipe, WorkerInfo(1, 0))`; returns the pipe.
        reset_fn: Called at the start of each epoch as `fn(datapipe, WorkerInfo(1, 0), seed_generator)`, after the pipes
            were seeded; returns the pipe.

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: Callable[[Any, WorkerInfo], Any] | None = None,
        reset_fn: Callable[[Any, WorkerInfo, SeedGenerator], Any] | None = None,
    ) -> None:
        self._end: Any = None
        self._in_place: InPlace | None = None
        self._finalized = False
        self.prefetch_cnt = check_count("prefetch_cnt", prefetch_cnt)
        self.init_fn = check_function("init_fn", init_fn)
        self.reset_fn = check_function("reset_fn", reset_fn)

    def initialize(self, datapipe: Any) -> Any:
        """Take a graph over; return what is to be iterated over."""
        self._in_place = InPlace(self.init_fn, self.reset_fn)
        apply_sharding(datapipe, 1, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
        self._end = prefetched(self._in_place.initialize(datapipe), self.prefetch_cnt)
        return self._end

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Seed the random pipes for an epoch."""
        if self._in_place is None:
            raise HeadraceError("initialize_iteration was called before initialize")
        shut_down(self._end)
        return self._in_place.initialize_iteration(seed_generator, iter_reset_fn)

    def finalize(self) -> None:
        """End threads that read ahead; harmless when they have ended."""
        if not self._finalized:
            self._finalized = True
            shut_down(self._end)

    def _length(self, datapipe: Any) -> int | None:
        return len(datapipe)
