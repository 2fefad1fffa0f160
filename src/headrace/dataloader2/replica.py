"""A worker: its copy of the graph, and the groups of items that it reads from it.

A ticket requests the next items of an epoch and names the first one, so that a restarted worker knows where to
continue: at the last snapshot, or at the start of the epoch, skipping the items that were delivered before. Exceptions
of pipes, `SystemExit` too, are sent with the items before them; the loop raises them at their position.
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from headrace.batching import ReuseCheck
from headrace.engine import NumberedTags, note_items
from headrace.engine import WorkerInfo as EngineWorkerInfo
from headrace.engine.codec import by_value
from headrace.engine.memory.arena import ValueTooLargeError
from headrace.engine.process.channel import Channel
from headrace.errors import TransformError
from headrace.pipes.core.base import read, stop
from headrace.pipes.graph import list_pipes
from headrace.pipes.graph.seeds import note_seeds_of_globals, set_graph_random_seed
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding
from headrace.rng.process import globals_state, seed_globals, set_globals_state

from .dispatch.client import DispatchClient
from .interface import WorkerInfo, checked_pipe
from .transport.epoch_start import ITEM_PURPOSE, EpochStart, Snapshot, read_start, seed_globals_from
from .transport.item_bytes import estimate_bytes
from .transport.worker_error import CarriedError, is_of_the_engine

# Up to this many items of a group are noted one by one, so that the message of a worker that dies names its item.
# Larger groups are of quick items, of which it would cost a third of the speed: the first and the last are named.
_NAMED_ITEMS = 64
# A snapshot is taken after this many seconds of work, and not before it would cost more than 1 in so many.
_SNAPSHOT_SECONDS = 0.05
_SNAPSHOT_SHARE = 50
# Of a snapshot: several of each worker exist at a time, and the newest is copied into each state. If the graph holds
# more (a shuffle's buffer of large items), there is none: the items are read again from the last one that fitted.
MAX_SNAPSHOT_BYTES = 2 << 20


_logger = logging.getLogger("headrace.dataloader2")


class ReplicaRequest(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a ticket: the requested items.

    Attributes:
        epoch: A new number for each iteration.
        first: Number of the first item among those of this worker in the epoch.
        count: Number of items; 0: the worker is known to have ended.
        path: Path of the file with the start of the epoch.
    """

    epoch: int
    first: int
    count: int
    path: str


@dataclass(frozen=True, slots=True)
class Group:
    """The result of a ticket.

    Attributes:
        items: The requested items; fewer at the end of the epoch, and before an error.
        has_ended: Whether these are the last items of the epoch.
        error: The error that was raised after them.
        seconds: The time it took to make them.
        item_bytes: About how many bytes each of them has.
        snapshot: The state of the graph after them.
    """

    items: list[Any]
    has_ended: bool = False
    error: CarriedError | None = None
    seconds: float = 0.0
    item_bytes: int = 0
    snapshot: Snapshot | None = None

    @property
    def is_last(self) -> bool:
        """Whether no items come after these."""
        return self.has_ended or self.error is not None

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the fields as plain tuples, which the codec encodes quickly."""
        error = None if self.error is None else tuple(self.error)
        snapshot = None if self.snapshot is None else tuple(self.snapshot)
        return self.items, self.has_ended, error, self.seconds, self.item_bytes, snapshot

    @classmethod
    def of_tuple(cls, fields: tuple[Any, ...]) -> Group:
        """Return the group of an `as_tuple`."""
        items, has_ended, error, seconds, item_bytes, snapshot = fields
        return cls(
            items,
            has_ended,
            None if error is None else CarriedError(*error),
            seconds,
            item_bytes,
            None if snapshot is None else Snapshot(*snapshot),
        )


@dataclass(frozen=True)
class ReplicaSetup:
    """The `setup` of the workers of a service.

    Attributes:
        graph: The end of the part that each worker runs.
        client: The pipe in it that represents the dispatching process, if there is one.
        init_fn: The user's `worker_init_fn`.
        reset_fn: The user's `worker_reset_fn`.
        max_bytes: The worker's shared memory, into which a group of items has to fit with the snapshot it carries.
    """

    graph: Any
    client: DispatchClient | None = None
    init_fn: Callable[[Any, WorkerInfo], Any] | None = None
    reset_fn: Callable[[Any, WorkerInfo, Any], Any] | None = None
    max_bytes: int = 2 << 30

    def __call__(self, info: EngineWorkerInfo) -> Callable[[ReplicaRequest], tuple[Any, ...]]:
        """Set a worker up; an error is sent with its first group."""
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
        worker_info = WorkerInfo(info.num_workers, info.worker_idx)
        try:
            return Replica(self, worker_info, info.handed)
        except BaseException as error:
            if is_of_the_engine(error):
                raise
            failed = Group([], error=CarriedError.of(error, f"worker process {info.worker_idx}")).as_tuple()
        return lambda _: failed


class Replica:
    """One worker's copy of the graph.

    Args:
        setup: Its setup.
        info: Its identity.
        handed: The descriptor of the channel to the dispatching process, if there is one.
    """

    def __init__(self, setup: ReplicaSetup, info: WorkerInfo, handed: tuple[int, ...]) -> None:
        self._info = info
        self._client = setup.client
        self._reset_fn = setup.reset_fn
        self._max_bytes = setup.max_bytes
        inert = [] if setup.client is None else [setup.client]
        graph = apply_sharding(
            setup.graph, info.num_workers, info.worker_id, SHARDING_PRIORITIES.MULTIPROCESSING, inert_after=inert
        )
        if setup.client is not None:
            setup.client.attach(info.worker_id, Channel.of_fd(*handed))
        if setup.init_fn is not None:
            graph = checked_pipe(setup.init_fn(graph, info), "worker_init_fn")
        self._initial = self._graph = graph
        self._epoch = -1
        self._key: int | None = None
        self._iterator: Iterator[Any] | None = None
        self._reuse = ReuseCheck()
        self._position = 0  # how many items of the epoch were made
        self._error: CarriedError | None = None
        self._can_save = True
        self._unsaved_seconds = self._snapshot_seconds = 0.0

    def __call__(self, request: ReplicaRequest) -> tuple[Any, ...]:
        """Make a group."""
        return self._make(request).as_tuple() if request.count else Group([], has_ended=True).as_tuple()

    def _make(self, request: ReplicaRequest) -> Group:
        items: list[Any] = []
        start = time.perf_counter()
        try:
            if request.epoch != self._epoch:
                self._begin(request)
                self._skip_delivered(request.first)
            self._produce(items, request.count)
        except BaseException as error:  # user code: it is passed on as data
            if is_of_the_engine(error):
                raise
            self._error = CarriedError.of(error, f"worker process {self._info.worker_id}")
            self._iterator = None
        self._position += len(items)
        seconds = time.perf_counter() - start
        has_ended = len(items) < request.count and self._error is None
        item_bytes = estimate_bytes(items[-1]) if items else 0
        max_bytes = self._max_bytes // 4  # a consumer that keeps one item of a group keeps the memory of all
        if len(items) > 1 and len(items) * item_bytes > max_bytes and sum(map(estimate_bytes, items)) > max_bytes:
            raise ValueTooLargeError(f"a group of {len(items)} items needs more than {max_bytes} bytes")
        snapshot = None
        if not has_ended and self._error is None and len(items) * item_bytes <= self._max_bytes // 2:
            snapshot = self._snapshot(seconds)
        raised = self._error if len(items) < request.count else None
        return Group(items, has_ended, raised, seconds, item_bytes, snapshot)

    def _begin(self, request: ReplicaRequest) -> None:
        """Begin an epoch, or continue in the middle of it."""
        self._leave()
        self._epoch, self._position, self._error = request.epoch, 0, None
        self._can_save = True
        self._unsaved_seconds = 0.0
        epoch_start, snapshot = read_start(request.path)
        self._key = epoch_start.key
        self._reseed(epoch_start)
        if self._client is not None:
            self._client.epoch = request.epoch
        if snapshot is not None:
            try:
                self._go_to(snapshot)
            except Exception as error:  # noqa: BLE001 - user code, and there is a fall-back
                _logger.warning("worker %d reads the epoch again from its start: %s", self._info.worker_id, error)
                self._reseed(read_start(request.path)[0])
            else:
                self._position = snapshot.item
        self._iterator = read(self._graph)

    def _go_to(self, snapshot: Snapshot) -> None:
        states, of_globals = pickle.loads(snapshot.data)  # noqa: S301 - from a worker of this loader
        set_globals_state(of_globals)
        restore_graph(self._graph, states)  # last: if it fails, the graph is as before

    def _reseed(self, epoch_start: EpochStart) -> None:
        seeds = epoch_start.seeds
        seed_globals_from(seeds)
        self._graph = self._initial  # a restarted worker gets the same from its reset functions
        note_seeds_of_globals(list_pipes(self._graph), seeds, is_shared=epoch_start.key is not None)
        set_graph_random_seed(self._graph, seeds)
        if epoch_start.reset_fn is not None:
            self._graph = checked_pipe(epoch_start.reset_fn(self._graph), "iter_reset_fn")
        if self._reset_fn is not None:
            self._graph = checked_pipe(self._reset_fn(self._graph, self._info, seeds), "worker_reset_fn")

    def _leave(self) -> None:
        """Close the iteration of the epoch before."""
        self._iterator = None
        stop(self._graph)

    def _skip_delivered(self, first: int) -> None:
        """Make again, and drop, the items that were delivered before."""
        dropped: list[Any] = []
        while self._position < first:
            self._produce(dropped, 1)  # a sign of life
            if not dropped:
                raise TransformError(
                    f"the pipes of worker {self._info.worker_id} had given {first} items before, and only "
                    f"{self._position} when they were read again",
                    fix="make sure that the pipes give the same items again for the same seeds",
                )
            self._position += 1
            dropped.clear()

    def _produce(self, items: list[Any], count: int) -> None:
        """Append the next items; fewer at the end."""
        if self._iterator is None:
            return
        iterator = self._reuse.kept(self._iterator)
        first = self._position + len(items)
        go_to = note_items(NumberedTags(f"(item {{}} of worker {self._info.worker_id})", range(first, first + count)))
        if self._key is not None:
            self._produce_keyed(iterator, items, count, go_to)
        elif count > _NAMED_ITEMS:
            go_to(-1)
            items.extend(islice(iterator, count))  # keeps what came before an exception
        else:
            append = items.append
            for number, item in enumerate(islice(iterator, count), 1):
                append(item)
                if number < count:
                    go_to(number)
        go_to(-1)  # what fails from here on fails with all of them
        self._reuse.look()
        if len(items) < count:
            self._iterator = None

    def _produce_keyed(
        self, iterator: Iterator[Any], items: list[Any], count: int, go_to: Callable[[int], None]
    ) -> None:
        assert self._key is not None
        for item in range(count):
            go_to(item)
            number = (self._position + len(items)) * self._info.num_workers + self._info.worker_id
            seed_globals(self._key, ITEM_PURPOSE, number=number)
            try:
                items.append(next(iterator))
            except StopIteration:
                return

    def _snapshot(self, seconds: float) -> Snapshot | None:
        """Return a snapshot if one is due and the pipes can continue from it, else None."""
        self._unsaved_seconds += seconds
        due = max(_SNAPSHOT_SECONDS, _SNAPSHOT_SHARE * self._snapshot_seconds)
        if self._unsaved_seconds < due or self._client is not None:
            return None
        start = time.perf_counter()
        data = self._states()
        self._unsaved_seconds, self._snapshot_seconds = 0.0, time.perf_counter() - start
        return None if data is None else Snapshot(self._position, data)

    def _states(self) -> bytes | None:
        """Return the states of the pipes and of the global generators; None if too large, or if a pipe has no state."""
        if not self._can_save:
            return None
        try:
            states = graph_state(self._graph)
            if states is not None:
                return pickle_bounded((states, globals_state()), min(MAX_SNAPSHOT_BYTES, self._max_bytes // 16))
        except TooManyBytesError:  # for now: buffers fill and are emptied
            return None
        except Exception as error:  # noqa: BLE001 - user code: an item in a buffer that cannot be pickled
            _logger.debug("the pipes of worker %d have no state: %s", self._info.worker_id, error)
        self._can_save = False
        return None


class TooManyBytesError(Exception):
    """A value to be pickled is larger than allowed."""


def pickle_bounded(value: Any, max_bytes: int) -> bytes:
    """Return the pickle of a value, or stop as soon as it is too large.

    Raises:
        TooManyBytesError: It is.
    """
    if estimate_bytes(value, depth=8) > max_bytes:
        raise TooManyBytesError
    file = _BoundedFile(max_bytes)
    by_value.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=file.check).dump(value)
    return file.getvalue()


class _BoundedFile(io.BytesIO):
    """A file in memory that takes a limited number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        self._check(memoryview(data).nbytes)
        return super().write(data)

    def check(self, buffer: pickle.PickleBuffer) -> bool:
        """Check the size of an array before it is copied; True: it goes into the pickle."""
        self._check(buffer.raw().nbytes)
        return True

    def _check(self, num_bytes: int) -> None:
        if self.tell() + num_bytes > self._max_bytes:
            raise TooManyBytesError
