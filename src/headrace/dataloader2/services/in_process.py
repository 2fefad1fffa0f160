"""`InProcessReadingService`: runs the whole graph in the process that requests the items.

`InProcessGraph` does it, for any service that runs a graph here: seeded like the graph of a single worker, and without
changing the global generators of the user's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import HeadraceError, check_count
from headrace.pipes.core.base import read
from headrace.pipes.core.skeletons import SameLength
from headrace.pipes.graph import list_pipes
from headrace.pipes.graph.seeds import SeedGenerator, note_seeds_of_globals, set_graph_random_seed
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding
from headrace.rng.process import kept_globals, seed_globals

from ..interface import PausableEnd, ReadingServiceInterface, ResetFn, WorkerInfo, checked_pipe, prefetched, shut_down
from ..transport.epoch_start import ITEM_PURPOSE
from .options import check_function

_ALONE = WorkerInfo(1, 0)


class InProcessGraph(ReadingServiceInterface):
    """Runs a graph in this process, for a loader without a service, and for services without workers.

    Args:
        init_fn: Called once with the graph and `WorkerInfo(1, 0)`.
        reset_fn: Called at the start of each epoch with the graph, `WorkerInfo(1, 0)` and the generator of seeds.
        keyed: Whether the global generators are seeded for each item, and restored after it.
    """

    def __init__(
        self,
        init_fn: Callable[[Any, WorkerInfo], Any] | None = None,
        reset_fn: Callable[[Any, WorkerInfo, SeedGenerator], Any] | None = None,
        *,
        keyed: bool = False,
    ) -> None:
        self._init_fn, self._reset_fn, self._keyed = init_fn, reset_fn, keyed
        self._end: Keyed | None = None
        self._graph: Any = None

    def initialize(self, datapipe: Any) -> Any:
        """Take a graph over; return the pipe to iterate over."""
        graph = datapipe
        if self._init_fn is not None:
            graph = checked_pipe(self._init_fn(graph, _ALONE), "worker_init_fn")
        self._graph = graph
        if self._keyed:
            self._end = graph = Keyed(graph)
        return graph

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Seed the random pipes for an epoch; return the function to apply to the pipe that `initialize` returned."""
        seeds = seed_generator.spawn(0)
        if self._end is not None:
            self._end.key = seeds.generate_shared_seed()
            seeds = seed_generator.spawn(0)
            note_seeds_of_globals(list_pipes(self._graph), seeds, is_shared=True)
        set_graph_random_seed(self._graph, seeds)
        reset_fn = self._reset_fn
        if reset_fn is None:
            return iter_reset_fn

        def reset(datapipe: Any) -> Any:
            if iter_reset_fn is not None:
                datapipe = iter_reset_fn(datapipe)
            return checked_pipe(reset_fn(datapipe, _ALONE, seeds), "worker_reset_fn")

        return reset

    def _length(self, datapipe: Any) -> int | None:
        return len(datapipe)


class Keyed(SameLength[Any], source="datapipe"):
    """Seeds the global generators for each item, as workers with `keyed_randomness` do, and restores them after it.

    Args:
        datapipe: The pipe to read.

    Attributes:
        key: The key of the epoch.
    """

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        self.key = 0
        self._position = 0

    def reset(self) -> None:
        """Go to the start of an epoch."""
        self._position = 0

    def state(self) -> dict[str, Any]:
        """Return the number of items given, and the key."""
        return {"position": self._position, "key": self.key}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._position, self.key = state["position"], state["key"]

    def __iter__(self) -> Iterator[Any]:
        """Return the items."""
        iterator = read(self.datapipe)
        while True:
            with kept_globals():
                seed_globals(self.key, ITEM_PURPOSE, number=self._position)
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            self._position += 1
            yield item


class InProcessReadingService(PausableEnd, ReadingServiceInterface):
    """Runs the graph here; the global generators of the user's process are not changed.

    Args:
        prefetch_cnt: How many items a thread reads ahead; 0: each item is made when it is requested.
        init_fn: Called once as `fn(datapipe, WorkerInfo(1, 0))`; returns the pipe.
        reset_fn: Called at the start of each epoch as `fn(datapipe, WorkerInfo(1, 0), seed_generator)`, after the pipes
            were seeded; returns the pipe.

    Raises:
        ConfigError: An option is wrong.

    Examples:
        >>> import headrace as hr
        >>> from headrace.pipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(6)).batch(3)
        >>> with hr.DataLoader2(pipe, reading_service=hr.InProcessReadingService(prefetch_cnt=2)) as loader:
        ...     print(list(loader))
        [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: Callable[[Any, WorkerInfo], Any] | None = None,
        reset_fn: Callable[[Any, WorkerInfo, SeedGenerator], Any] | None = None,
    ) -> None:
        self._end: Any = None
        self._in_process: InProcessGraph | None = None
        self._finalized = False
        self.prefetch_cnt = check_count("prefetch_cnt", prefetch_cnt)
        self.init_fn = check_function("init_fn", init_fn)
        self.reset_fn = check_function("reset_fn", reset_fn)

    def initialize(self, datapipe: Any) -> Any:
        """Take a graph over; return the pipe to iterate over."""
        self._in_process = InProcessGraph(self.init_fn, self.reset_fn)
        apply_sharding(datapipe, 1, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
        self._end = prefetched(self._in_process.initialize(datapipe), self.prefetch_cnt)
        return self._end

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Seed the random pipes for an epoch."""
        if self._in_process is None:
            raise HeadraceError("initialize_iteration was called before initialize")
        shut_down(self._end)
        return self._in_process.initialize_iteration(seed_generator, iter_reset_fn)

    def finalize(self) -> None:
        """End threads that read ahead; harmless when they have ended."""
        if not self._finalized:
            self._finalized = True
            shut_down(self._end)

    def _length(self, datapipe: Any) -> int | None:
        return len(datapipe)
