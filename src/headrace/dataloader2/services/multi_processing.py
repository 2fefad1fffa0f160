"""`MultiProcessingReadingService`: runs the graph in worker processes, as in torchdata, on Headrace's engine.

`initialize` splits the graph: the part up to the dispatch points runs in the dispatching process, the replicable part
in each worker, the rest here. The processes are started at once, and work begins when the first item is requested.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from headrace.engine import Engine, EngineOptions, EngineReport, Job
from headrace.engine.group_size import GROUP_BYTES
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, HeadraceError, check_count
from headrace.pipes import IterPipe
from headrace.pipes.core.naming import describe
from headrace.pipes.graph import Parts, list_pipes, replace, split_graph
from headrace.pipes.graph.lint import find_copies, find_own_orders
from headrace.pipes.graph.seeds import SeedGenerator, find_keepers, is_kept, set_datapipes_seed
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding, length_of_share

from ..consumer import WorkerConsumer
from ..copying import copy_graph
from ..dispatch.client import DispatchClient
from ..dispatch.process import Dispatch
from ..interface import PausableEnd, Processes, ReadingServiceInterface, ResetFn, WorkerInfo, prefetched, shut_down
from ..replica import ReplicaSetup
from ..transport.epoch_start import EpochStart
from .in_process import InProcessGraph
from .options import check_function, check_start_method, plan_look_ahead


def length_over_workers(parts: Parts, num_workers: int) -> int | None:
    """Return the sum of the lengths of the workers' graphs; None if a length is unknown.

    Args:
        parts: What runs where. Not changed.
        num_workers: How many workers there are.
    """
    try:
        dealt = None if parts.dispatch_root is None else len(parts.dispatch_root)
        return sum(_length_of(parts, worker_id, num_workers, dealt) for worker_id in range(num_workers))
    except Exception:  # noqa: BLE001 - user code: a length is optional, and the workers will report the error
        return None


def _length_of(parts: Parts, worker_id: int, num_workers: int, dealt: int | None) -> int:
    graph: Any
    graph, dispatch_root = copy_graph((parts.worker_root, parts.dispatch_root))
    inert = []
    if dealt is not None:
        share = _Share(length_of_share(dealt, num_workers, worker_id))
        graph = replace(graph, dispatch_root, share)
        inert.append(share)
    apply_sharding(graph, num_workers, worker_id, SHARDING_PRIORITIES.MULTIPROCESSING, inert_after=inert)
    length: int = len(graph)
    return length


class _Share(IterPipe[Any]):
    """Has the length of one worker's share of the dispatched items."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


_BYTES_PER_WORKER = 2 << 30  # what an executor has by default


class MultiProcessingReadingService(PausableEnd, ReadingServiceInterface):
    """Runs copies of a graph in worker processes, and gives their items in turn: worker 0's, worker 1's, ...

    A worker that dies is replaced, and the new one repeats the items that were not delivered, from the last snapshot or
    the start of the epoch; the items stay the same. If there is a dispatching process, its death or that of a worker
    raises an error instead.

    Args:
        num_workers: How many workers; 0: the graph runs in this process.
        multiprocessing_context: Name of a start method: `"spawn"`, `"forkserver"`; None: Headrace's own.
        worker_prefetch_cnt: How far a worker may be ahead: this many items if they are slow, this many groups of some
            milliseconds if they are fast. 0: it makes one item for each request. It makes at least one item while
            the consumer works.
        main_prefetch_cnt: How many more may wait in the main process, at the end of the graph.
        worker_init_fn: Called once in each worker as `fn(datapipe, worker_info)`; returns the pipe.
        worker_reset_fn: Called in each worker at the start of each epoch, after the pipes were seeded, as
            `fn(datapipe, worker_info, seed_generator)`; returns the pipe.
        keyed_randomness: Seed the global generators of Python, NumPy and torch for each item by (seed, epoch, item), so
            that what pipes draw from them does not depend on the number of workers, as long as each worker gives every
            num_workers-th item (no filter or flatmap after the sharding). About 20 us an item.
        max_bytes: Limit on the shared memory of all workers together; default: 2 GiB each. Also a limit on the items
            that wait in the dispatching process because a worker is slower than the others.
        engine_options: How to treat workers that die or stall.

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: Any = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: Callable[[Any, WorkerInfo], Any] | None = None,
        worker_reset_fn: Callable[[Any, WorkerInfo, SeedGenerator], Any] | None = None,
        *,
        keyed_randomness: bool = False,
        max_bytes: int | None = None,
        engine_options: EngineOptions | None = None,
    ) -> None:
        self._engine: Engine | None = None
        self._dispatch: Dispatch | None = None
        self._consumer: WorkerConsumer | None = None
        self._in_process: InProcessGraph | None = None
        self._end: Any = None
        self._are_workers_kept = self._is_dispatch_kept = False  # whether their items are read once for all epochs
        self._finalized = False
        self._pid = os.getpid()
        self.num_workers = check_count("num_workers", num_workers)
        self.multiprocessing_context = check_start_method(multiprocessing_context)
        self.worker_prefetch_cnt = check_count("worker_prefetch_cnt", worker_prefetch_cnt)
        self.main_prefetch_cnt = check_count("main_prefetch_cnt", main_prefetch_cnt)
        self.worker_init_fn = check_function("worker_init_fn", worker_init_fn)
        self.worker_reset_fn = check_function("worker_reset_fn", worker_reset_fn)
        self.keyed_randomness = keyed_randomness
        self.max_bytes = None if max_bytes is None else check_count("max_bytes", max_bytes, minimum=1)
        self.engine_options = EngineOptions() if engine_options is None else engine_options
        if self.num_workers == 0:
            warnings.warn("num_workers=0 runs the graph in this process: use InProcessReadingService", stacklevel=2)

    @property
    def report(self) -> EngineReport | None:
        """Where the time went, and how many workers were restarted; None before `initialize` or without workers."""
        return None if self._engine is None else self._engine.report

    def initialize(self, datapipe: Any) -> Any:
        """Split a graph, start the processes, and return the pipe that gives their items.

        Args:
            datapipe: The end of the graph, which is changed.

        Raises:
            ConfigError: The graph cannot be split, or carried to a worker.
        """
        if self._finalized:
            raise HeadraceError("this reading service has been finalized", fix="make a new one")
        if self.num_workers == 0:
            self._in_process = InProcessGraph(self.worker_init_fn, self.worker_reset_fn, keyed=self.keyed_randomness)
            apply_sharding(datapipe, 1, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
            self._end = self._in_process.initialize(datapipe)
            return self._end
        parts = split_graph(datapipe)
        _warn_of_duplicates(parts, self.num_workers)
        if parts.worker_root is None:
            raise ConfigError(
                f"no part of this graph can run in a worker: the source of {describe(datapipe)} is not replicable",
                fix="use InProcessReadingService, or make the source replicable",
            )
        try:
            self._end = self._start(parts)
        except BaseException:
            self.finalize()
            raise
        return self._end

    def _start(self, parts: Parts) -> Any:
        length = length_over_workers(parts, self.num_workers)  # before the workers' part of the graph is changed
        name, graph, client = describe(parts.worker_root), parts.worker_root, None
        if parts.dispatch_root is not None:
            self._dispatch = Dispatch(
                copy_graph(parts.dispatch_root), self.num_workers, self.multiprocessing_context, self._bytes_per_worker
            )
            self._dispatch.start()
            alone = self.worker_prefetch_cnt == 0
            client = DispatchClient(alone=alone, name=describe(parts.dispatch_root))
            graph = replace(graph, parts.dispatch_root, client)
            self._is_dispatch_kept = _is_kept(client, graph)
        max_bytes = self._bytes_per_worker
        setup = ReplicaSetup(graph, client, self.worker_init_fn, self.worker_reset_fn, max_bytes)
        self._engine = Engine(
            Job(setup),
            num_workers=self.num_workers,
            executor=self._make_executor(),
            options=plan_look_ahead(
                self.engine_options,
                self.num_workers,
                self.worker_prefetch_cnt,
                0 if parts.main else self.main_prefetch_cnt,
                may_restart=client is None,
            ),
        )
        self._engine.start()
        if self._dispatch is not None:
            self._dispatch.wait_until_ready()
        self._consumer = WorkerConsumer(
            self._engine,
            self.num_workers,
            self._dispatch,
            alone=self.worker_prefetch_cnt == 0,
            group_bytes=min(GROUP_BYTES, max_bytes // 16),
            name=name,
            length=length,
        )
        if not parts.main:
            return self._consumer
        end = replace(parts.end, parts.worker_root, self._consumer)
        self._are_workers_kept = _is_kept(self._consumer, end)
        return prefetched(end, self.main_prefetch_cnt)

    @property
    def _bytes_per_worker(self) -> int:
        return _BYTES_PER_WORKER if self.max_bytes is None else max(self.max_bytes // self.num_workers, 1)

    def _make_executor(self) -> ProcessExecutor:
        per_worker = self._bytes_per_worker
        return ProcessExecutor(
            start_method=self.multiprocessing_context,
            max_bytes=per_worker,
            slot_bytes=min(1 << 20, per_worker),
            hand_over=None if self._dispatch is None else self._dispatch.connect_worker,
        )

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Prepare an epoch: seed the pipes here, and send each worker its start.

        Args:
            seed_generator: The randomness of the epoch.
            iter_reset_fn: Called with the graph in each worker and in the dispatching process, after it was seeded.
        """
        if self._in_process is not None:
            return self._in_process.initialize_iteration(seed_generator, iter_reset_fn)
        if self._consumer is None:
            raise HeadraceError("initialize_iteration was called before initialize")
        shut_down(self._end)
        set_datapipes_seed(list_pipes(self._end), seed_generator, False)
        lasting = seed_generator.for_all_epochs()
        of_workers = lasting if self._are_workers_kept else seed_generator
        key = of_workers.spawn(0).generate_shared_seed() if self.keyed_randomness else None
        of_dispatch = lasting if self._is_dispatch_kept else of_workers
        starts = [
            EpochStart(of_workers.spawn(worker_id), iter_reset_fn, key).to_bytes()
            for worker_id in range(self.num_workers)
        ]
        dispatch_start = EpochStart(of_dispatch.spawn(0), iter_reset_fn, key).to_bytes()
        self._consumer.begin_epoch(starts, dispatch_start if self._dispatch is not None else b"")
        return None

    def finalize(self) -> None:
        """End the processes, whatever they are doing, within seconds; harmless when they have ended."""
        if self._finalized or os.getpid() != self._pid:  # in a forked child
            return
        self._finalized = True
        end, self._end = self._end, None
        if self._in_process is not None:
            shut_down(end)
            return
        if self._dispatch is not None:
            self._dispatch.hang_up()
        if self._engine is not None:
            if end is not None and end is not self._consumer:
                self._engine.interrupt()
                shut_down(end)
            self._engine.close()
        if self._dispatch is not None:
            self._dispatch.close()
        if self._consumer is not None:
            self._consumer.close()

    def _interrupt(self) -> None:
        """Wake a thread that waits for the workers, because its iteration is abandoned."""
        if self._engine is not None and self._end is not self._consumer:
            self._engine.interrupt()

    def _processes(self) -> Processes:
        run_user_code = self.worker_init_fn is not None or self.worker_reset_fn is not None
        return Processes(num_workers=self.num_workers, run_user_code=run_user_code)

    def _length(self, datapipe: Any) -> int | None:
        """Return the total number of items of a graph, before it is initialized; None if it is unknown."""
        if self.num_workers == 0:
            return len(datapipe)
        parts = split_graph(datapipe)
        return None if parts.main or parts.worker_root is None else length_over_workers(parts, self.num_workers)

    def __getstate__(self) -> dict[str, Any]:
        """Return the options: a copy of a service is a new one."""
        live = {"_engine": None, "_dispatch": None, "_consumer": None, "_in_process": None, "_end": None}
        return {**vars(self), **live, "_finalized": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _pid=os.getpid())


def _is_kept(part: Any, end: Any) -> bool:
    """Tell whether the pipe that represents a part of a graph is read only by pipes that keep its items."""
    return is_kept(find_keepers(list_pipes(end))[id(part)])


class PrototypeMultiProcessingReadingService:
    """The old name of `MultiProcessingReadingService`.

    Examples:
        >>> from headrace.dataloader2 import MultiProcessingReadingService
        >>> service = MultiProcessingReadingService(num_workers=2)  # the name to use
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> MultiProcessingReadingService:  # type: ignore[misc]
        """Return a `MultiProcessingReadingService`, and warn."""
        warnings.warn(
            "PrototypeMultiProcessingReadingService is the old name of MultiProcessingReadingService", stacklevel=2
        )
        return MultiProcessingReadingService(*args, **kwargs)


def _warn_of_duplicates(parts: Parts, num_workers: int) -> None:
    if num_workers > 1:
        for text in (*find_copies(parts, num_workers), *find_own_orders(parts)):
            warnings.warn(text, stacklevel=6)
