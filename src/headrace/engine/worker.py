"""What a worker does with its tickets, whatever carries them to it: shared by all executors.

Invariant: an `Exception` of user code never leaves this file, it becomes a `Failure`; what is not an `Exception`
(`SystemExit`, `KeyboardInterrupt`) always leaves it, and means the end of the worker. But where no Ctrl-C arrives
(processes of their own, threads), user code has raised a `KeyboardInterrupt`, which becomes a `Failure` as well:
no policy skips it, and the consumer raises it, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import msgspec

from .events import Answer, Done, Failed, StreamEnded
from .user.failure import Failure
from .user.job import Job, Mode
from .user.ship import unship
from .user.worker_info import WorkerInfo, WorkerScope


class ValueResult(msgspec.Struct):
    """A value that is already here."""

    value: Any
    num_bytes: int | None = None

    def take(self) -> Any:
        """Return the value."""
        return self.value

    def discard(self) -> None:
        """Drop the value."""
        self.value = None


class Worker:
    """The user's functions in one worker. Its methods are called within `worker_scope(worker.scope)`.

    Args:
        job: What to run.
        info: Who this worker is.

    Attributes:
        scope: What user code sees of it.
        worker_idx: Its number.
    """

    def __init__(self, job: Job, info: WorkerInfo) -> None:
        self.scope = WorkerScope(info)
        self.worker_idx = info.worker_idx
        self._job = job
        self._function: Any = None
        self._mode = Mode.TASK
        self._payload: Any = None
        self._first_item = 0
        self._stream: Iterator[Any] | None = None
        self._num_items = 0
        self._ended = False
        self._caught = (Exception,) if info.runs_in == "caller" else (Exception, KeyboardInterrupt)

    def set_up(self) -> Failure | None:
        """Call `worker_init` and `setup`; return what went wrong."""
        info = self.scope.info
        try:
            if self._job.worker_init is not None:
                self._job.worker_init(info)
            self._function = self._job.setup(info)
        except self._caught as error:  # the boundary of user code: it goes on as a Failure
            return Failure.of(error, item=self.scope.item)
        return None

    def begin_run(self, mode: Mode, payload: Any = None, first_item: int = 0) -> None:
        """Drop what an earlier run left, and get ready for a new one; a stream is opened at its first ticket.

        Args:
            mode: Tasks or streams.
            payload: Payload of the run, for streams.
            first_item: Streams: how many items to pass over, because they were delivered before a restart.
        """
        self.end_run()
        self._mode, self._payload, self._first_item = mode, payload, first_item

    def end_run(self) -> None:
        """Close the iterator of a stream, if there is one; what its cleaning up raises is of no use."""
        stream, self._stream = self._stream, None
        self._payload, self._num_items, self._ended = None, 0, False
        if isinstance(stream, GeneratorType):
            try:
                stream.close()
            except Exception:  # noqa: BLE001 - the boundary of user code: this run is over
                return

    def perform(self, run_id: int, ticket: int, payload: Any) -> Answer | StreamEnded | None:
        """Do the next ticket of the run.

        Returns:
            What came of it, a value as a `ValueResult`; `None` for a ticket beyond the end of a stream whose end was
            already told.
        """
        scope, worker_idx = self.scope, self.worker_idx
        scope.begin_ticket()
        start = time.perf_counter()
        failure: Failure | None = None
        if self._mode is Mode.TASK:
            try:
                value = self._function(payload)
            except self._caught as error:  # the boundary of user code: it goes on as a Failure
                failure = Failure.of(error, item=scope.item, ends_stream=not isinstance(error, Exception))
        else:
            if self._ended:
                return None
            item = self._next_item()
            if item is None:
                return StreamEnded(worker_idx, self._num_items, run_id)
            value, failure = item
        if failure is not None:
            return Failed(worker_idx, ticket, failure, run_id)
        seconds = time.perf_counter() - start
        skipped: tuple[Failure, ...] = ()
        if scope.skipped:
            skipped = tuple([Failure.of(error, item=item, num_own_frames=0) for error, item in scope.skipped])
        return Done(worker_idx, ticket, run_id, ValueResult(value), seconds, 0.0, skipped)

    def _next_item(self) -> tuple[Any, Failure | None] | None:
        """Return the next item of the stream, or why there is none; None: it has ended."""
        if self._stream is None:
            try:
                self._stream = iter(self._function(self._payload))
            except self._caught as error:  # the boundary of user code: it goes on as a Failure
                self._ended = True
                return None, Failure.of(error, item=self.scope.item, ends_stream=True)
        while True:
            value, failure = None, None
            try:
                value = next(self._stream)
            except StopIteration:
                self._ended = True
                return None
            except self._caught as error:  # the boundary of user code: it goes on as a Failure
                self._ended = isinstance(self._stream, GeneratorType) or not isinstance(error, Exception)
                failure = Failure.of(error, item=self.scope.item, ends_stream=self._ended)
            self._num_items += 1
            if self._num_items > self._first_item or self._ended:
                return value, failure
            self.scope.skipped.clear()  # passed over: it was told before the restart


class ShippedWorker(Worker):
    """A `Worker` in another process than the trainer's: payloads arrive pickled, as parcels."""

    _run_failure: Failure | None = None  # the payload of the run cannot be unpickled

    def begin_run(self, mode: Mode, payload: bytes | None = None, first_item: int = 0) -> None:
        """Do as `Worker.begin_run`; a payload that cannot be unpickled fails the tickets of the run."""
        self._run_failure, made = None, None
        try:
            made = unship(payload) if payload else None
        except Exception as error:  # noqa: BLE001 - unpickling runs user code: it goes on as a Failure
            self._run_failure = Failure.of(error, ends_stream=True)
        super().begin_run(mode, made, first_item)

    def perform(self, run_id: int, ticket: int, payload: bytes | None) -> Answer | StreamEnded | None:
        """Do as `Worker.perform`; a payload that cannot be unpickled fails its ticket."""
        failure, made = self._run_failure, None
        if failure is None and payload is not None:
            try:
                made = unship(payload)
            except Exception as error:  # noqa: BLE001 - unpickling runs user code: it goes on as a Failure
                failure = Failure.of(error)
        if failure is not None:
            return Failed(self.worker_idx, ticket, failure, run_id)
        return super().perform(run_id, ticket, made)
