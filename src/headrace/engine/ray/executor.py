"""Workers on the nodes of a Ray cluster: each is an actor, and all between it and the trainer is Ray's.

Ray places and starts the actors, tells of their ends and moves the results. What is ours: tickets go in lists, and a
call returns the values of many of them, encoded together, because a call costs as much as hundreds of small values.

Invariants: an actor is never restarted by Ray, as the supervisor decides what follows a death; each worker has at most
`_CALLS` under way, so the next one begins while the results of the others travel; whatever goes wrong with an actor or
with a result of it is its death; every public method returns without waiting for Ray, but `start`, `wait` and
`stack_of`, which have a limit of time.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count

from ..codec.codec import decode
from ..events import Beat, Done, Event, Exited, Failed, Ready, SetupFailed, StreamEnded, Unreachable, events_of_others
from ..executor import Executor
from ..group_size import GroupSize
from ..interrupts import interrupts_wait
from ..user.failure import Failure
from ..user.job import Job, Mode
from ..user.ship import ship_job, ship_payload
from ..user.worker_info import CurrentItem
from .calls import CALL_BYTES, CALL_SECONDS, CONTROL, MAX_CALL_TICKETS, Place, RayRun, Reply, Role, Status, Versions

_logger = logging.getLogger("headrace.engine")

_CALLS = 3  # under way for each worker
# How long a worker may be without a place before others do its tickets as well; before a log line says what is missing,
# and again after so many seconds.
_PLACE_SECONDS = 1.0
_WARN_SECONDS = 10.0
_WARN_AGAIN_SECONDS = 60.0
_STATUS_SECONDS = 1.0  # how often a worker that is at work is asked how far it is
_ANSWER_SECONDS = 1.0  # for a stack, and for what the cluster has free
_CONNECT_SECONDS = 10.0
_FETCH_SECONDS = 5.0  # for a result that is there; after that it is asked for again
# Workers of one node that end within so many seconds have ended by one accident.
_ACCIDENT_SECONDS = 10.0
_accidents = itertools.count(1)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("workers on a Ray cluster need the package ray", fix="pip install 'headrace[ray]'") from error
    return ray


class RayExecutor(Executor):
    """Carries tickets to workers on the nodes of a Ray cluster.

    The cluster is the one that this process is connected to, or else the one that `ray.init()` finds (`RAY_ADDRESS`) or
    starts. Files, and modules that are not on the nodes, have to be where a worker finds them: on a shared file system,
    in object storage, or in the `runtime_env`. The options but the last are those of Ray's actors.

    Args:
        num_cpus: CPUs that Ray reserves for each worker; may be a fraction, and 0 reserves none.
        resources: Custom resources for each worker, by name.
        memory: Bytes that Ray reserves for each worker on its node.
        scheduling_strategy: `"DEFAULT"`, `"SPREAD"`, or an object of `ray.util.scheduling_strategies`.
        runtime_env: Environment of each worker: packages, variables, folders.
        label_selector: Labels that a node must have.
        max_bytes: How many bytes of results may wait for the consumer in Ray's object store, for all workers; a worker
            that the consumer waits for may exceed it by one call.

    Raises:
        ConfigError: Ray is not installed, or an option is wrong.

    Examples:
        >>> import headrace as hr
        >>> def open_loader(corpus):  # where Ray is installed: 8 workers on the nodes of its cluster
        ...     executor = hr.RayExecutor(num_cpus=1, scheduling_strategy="SPREAD")
        ...     return hr.DataLoader(corpus, batching=hr.FrameBudget(8_000), num_workers=8, executor=executor)
    """

    name = "ray"
    runs_in = "process"
    may_be_elsewhere = True
    is_resizable = True

    def __init__(
        self,
        *,
        num_cpus: float = 1.0,
        resources: Mapping[str, float] | None = None,
        memory: int | None = None,
        scheduling_strategy: Any = None,
        runtime_env: Mapping[str, Any] | None = None,
        label_selector: Mapping[str, str] | None = None,
        max_bytes: int = 1 << 30,
    ) -> None:
        if not num_cpus >= 0:
            raise ConfigError(f"num_cpus is {num_cpus}", fix="give 0 or more")
        options = {
            "num_cpus": num_cpus,
            "resources": None if resources is None else dict(resources),
            "memory": None if memory is None else check_count("memory", memory, minimum=1),
            "scheduling_strategy": scheduling_strategy,
            "runtime_env": None if runtime_env is None else dict(runtime_env),
            "label_selector": None if label_selector is None else dict(label_selector),
        }
        self._options = {name: value for name, value in options.items() if value is not None}
        self._max_bytes = check_count("max_bytes", max_bytes, minimum=1)
        self._ray = _import_ray()
        self._actor_class: Any = None
        self._job: Any = None  # reference to the parcel of the job
        self._num_workers = 0  # at the start
        self._workers: dict[int, _RayWorker] = {}  # by number
        self._calls: dict[Any, tuple[_RayWorker, str]] = {}  # reference to the result -> whose it is, and what it is
        self._begin: RayRun | None = None
        self._events: list[Event] = []
        self._waiting_bytes = _Count()
        self._accidents: dict[str, _Accident] = {}  # the last one of each node
        self._warned_at = 0.0

    def another(self) -> RayExecutor:
        """Return one with the same options."""
        return RayExecutor(**self._options, max_bytes=self._max_bytes)

    def adaptive_ahead(self) -> GroupSize:
        """Let a worker have before it what fills the calls that are under way, twice."""
        num = 2 * _CALLS
        return GroupSize(max_seconds=num * CALL_SECONDS, max_bytes=num * CALL_BYTES, max_items=num * MAX_CALL_TICKETS)

    # --- lifetime ---

    def start(self, job: Job, num_workers: int) -> None:
        """Ask Ray for an actor for each worker.

        Raises:
            ConfigError: The job cannot be sent, there is no cluster, or Ray refuses an option.
        """
        from .actor import WorkerActor

        ray = self._ray
        parcel = ship_job(job)
        if not ray.is_initialized():
            _connect(ray)
        with interrupts_wait():
            self._actor_class = ray.remote(concurrency_groups={CONTROL: 1})(WorkerActor)
            self._job = ray.put((parcel.data, [np.frombuffer(buffer.raw(), np.uint8) for buffer in parcel.buffers]))
            self._num_workers, self._begin, self._warned_at = num_workers, None, time.monotonic()
            for worker_idx in range(num_workers):
                self._start_worker(worker_idx)

    def _start_worker(self, worker_idx: int, first_item: int = 0) -> None:
        try:
            actor = self._actor_class.options(max_restarts=0, max_task_retries=0, **self._options).remote()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Ray refuses these options of its actors: {error}", where=f"RayExecutor, {self._options}"
            ) from error
        worker = self._workers[worker_idx] = _RayWorker(worker_idx, actor)
        self._calls[actor.place.options(concurrency_group=CONTROL).remote()] = worker, "place"
        call_bytes = min(CALL_BYTES, max(self._max_bytes // (_CALLS * self._num_workers), 1))
        role = Role(worker_idx, self._num_workers, list(sys.argv), list(sys.path), call_bytes)
        self._calls[actor.set_up.remote(Versions.here(), role, self._job)] = worker, "set_up"
        if self._begin is not None:
            begin = self._begin
            actor.begin.remote(RayRun(begin.run_id, begin.mode, begin.payload, first_item))

    def restart(self, worker_idx: int, first_item: int) -> None:
        """End an actor, if it is there, and ask for another one."""
        self._end(self._workers[worker_idx])
        self._events = events_of_others(self._events, worker_idx)
        self._start_worker(worker_idx, first_item)

    def add_worker(self, worker_idx: int) -> None:
        """Ask for one more actor."""
        self._start_worker(worker_idx)

    def remove_worker(self, worker_idx: int) -> None:
        """End an actor."""
        self._end(self._workers.pop(worker_idx))
        self._events = events_of_others(self._events, worker_idx)

    def _end(self, worker: _RayWorker) -> None:
        """End an actor at once, and hear nothing more of it; harmless if it has ended."""
        worker.is_over = True
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] is not worker}
        if self._ray.is_initialized():
            self._ray.kill(worker.actor, no_restart=True)

    def close(self) -> None:
        """End all actors; their processes end at once, whatever they are doing."""
        with interrupts_wait():
            while self._workers:
                self._end(self._workers.popitem()[1])
            self._calls, self._events, self._accidents = {}, [], {}
            self._job = self._begin = self._actor_class = None

    # --- runs ---

    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        """Tell all actors."""
        self._cancel_current()
        begin = self._begin = RayRun(run_id, mode, ship_payload(payload) if mode is Mode.STREAM else None)
        for worker in self._workers.values():
            worker.forget_tickets()
            if not worker.is_over:
                worker.actor.begin.remote(begin)

    def cancel(self, run_id: int) -> None:
        """Have the actors stop at the next ticket of a run, and close its streams."""
        if self._begin is None or run_id != self._begin.run_id:
            return
        self._cancel_current()
        for worker in self._workers.values():
            worker.forget_tickets()
            if not worker.is_over:
                worker.actor.end_run.remote()

    def _cancel_current(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            for worker in self._workers.values():
                if not worker.is_over:
                    worker.actor.cancel.options(concurrency_group=CONTROL).remote(begin.run_id)

    def pack(self, payload: Any) -> Any:
        """Pickle a payload."""
        return ship_payload(payload)

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: Any) -> None:
        """Give a worker one more ticket."""
        self.submit_burst(worker_idx, run_id, [ticket], [payload])

    def submit_burst(self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[Any]) -> None:
        """Give a worker some tickets: in the next call."""
        del run_id
        worker = self._workers[worker_idx]
        worker.unsent += zip(tickets, payloads, strict=True)
        self._call(worker)

    def _call(self, worker: _RayWorker) -> None:
        """Have a worker work, as far as it has tickets and results have room."""
        begin = self._begin
        if begin is None or not worker.is_ready or worker.is_over:
            return
        while len(worker.calls) < min(_CALLS, worker.num_open):
            num_bytes = (1 + sum(len(other.calls) for other in self._workers.values())) * worker.call_bytes
            is_awaited = worker.worker_idx == self.awaited_worker_idx and not worker.calls
            if self._waiting_bytes.value + num_bytes > self._max_bytes and not is_awaited:
                return
            tickets, payloads = zip(*worker.unsent, strict=True) if worker.unsent else ((), ())
            worker.num_sent += len(tickets)
            worker.unsent.clear()
            ref = worker.actor.work.remote(begin.run_id, list(tickets), list(payloads))
            worker.calls.append(ref)
            self._calls[ref] = worker, "work"

    # --- events ---

    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        """Wait for results, deaths, and what the actors say of themselves."""
        ray = self._ray
        if not ray.is_initialized():
            for worker in self._workers.values():
                self._lose(worker, "was ended by ray.shutdown()")
            return self._taken_events()
        for worker in self._workers.values():
            self._call(worker)
        ready = self._ready_calls(0.0)
        if not (ready or self._events):
            self._look_around()
            timeout = 0.0 if self._events else timeout_seconds
            if timeout and not self._calls:
                time.sleep(timeout)
            elif timeout:
                ready = self._ready_calls(timeout)
        for ref in ready:
            self._take(ref)
        return self._taken_events()

    def _taken_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _ready_calls(self, timeout_seconds: float) -> list[Any]:
        """Return the calls that have returned, in the order in which they were made; after a wait, one of them."""
        if not self._calls:
            return []
        refs = list(self._calls)
        num = 1 if timeout_seconds else len(refs)
        ready: list[Any] = self._ray.wait(refs, num_returns=num, timeout=timeout_seconds)[0]
        return ready

    def _take(self, ref: Any) -> None:
        """Take what a call has returned, unless its worker has ended meanwhile.

        A small result may be here before the large one of the call before: that one is taken first.
        """
        if ref not in self._calls:
            return
        worker, what = self._calls[ref]
        if what == "work":
            while ref in self._calls and self._take_one(worker, what, worker.calls[0]):
                pass
        else:
            self._take_one(worker, what, ref)

    def _take_one(self, worker: _RayWorker, what: str, ref: Any) -> bool:
        """Take what one call has returned; tell whether it was here."""
        errors = self._ray.exceptions
        try:
            value = self._ray.get(ref, timeout=_FETCH_SECONDS)
        except errors.GetTimeoutError:
            return False
        except errors.RuntimeEnvSetupError as error:
            del self._calls[ref]
            wrong = ConfigError(f"Ray cannot make the environment of a worker: {error}", where="RayExecutor")
            self._fail(worker, Failure.of(wrong))
            return True
        except errors.RayError as error:
            del self._calls[ref]
            if what == "place" and isinstance(error, errors.RayActorError) and "creation task" in str(error):
                wrong = ConfigError(
                    f"Ray cannot make a worker: {_short(error)}",
                    where="RayExecutor",
                    fix="install headrace on all nodes, or name it in RayExecutor(runtime_env={'pip': [...]})",
                )
                self._fail(worker, Failure.of(wrong))
            else:
                self._lose(worker, f"has ended: {_short(error)}")
            return True
        del self._calls[ref]
        match value:
            case Reply():
                worker.calls.popleft()
                if self._begin is not None and value.run_id == self._begin.run_id:
                    self._take_reply(worker, value)
                if value.cause is not None:
                    self._lose(worker, value.cause)
                else:
                    self._call(worker)
            case Place():
                worker.place = value
            case Status():
                worker.is_asked, worker.asked_at = False, time.monotonic()
                worker.item = value.item
                if value.num_items != worker.num_items:
                    worker.num_items = value.num_items
                    self._events.append(Beat(worker.worker_idx))
            case bytes():
                self._fail(worker, Failure.from_bytes(value))
            case None:
                worker.is_ready = True
                self._events.append(Ready(worker.worker_idx))
                self._call(worker)
        return True

    def _take_reply(self, worker: _RayWorker, reply: Reply) -> None:
        num, run_id, worker_idx = len(reply.tickets), reply.run_id, worker.worker_idx
        worker.num_sent -= num
        if num:
            assert reply.data is not None
            worker.call_bytes = reply.data.nbytes
            values = _Values(reply.header, reply.data, num, self._waiting_bytes)
            seconds, pack_seconds = reply.seconds / num, reply.pack_seconds / num
            for position, ticket in enumerate(reply.tickets):
                failure = reply.failures.get(position)
                if failure is not None:
                    self._events.append(Failed(worker_idx, ticket, Failure.from_bytes(failure), run_id))
                    continue
                skipped = tuple(map(Failure.from_bytes, reply.skipped.get(position, ())))
                result = _Value(values, position)
                self._events.append(Done(worker_idx, ticket, run_id, result, seconds, pack_seconds, skipped))
        if reply.num_items is not None:
            worker.forget_tickets()
            self._events.append(StreamEnded(worker_idx, reply.num_items, run_id))

    def _fail(self, worker: _RayWorker, failure: Failure) -> None:
        self._end(worker)
        self._events.append(SetupFailed(worker.worker_idx, failure))

    def _lose(self, worker: _RayWorker, cause: str) -> None:
        """Report the end of a worker, once."""
        if worker.is_over:
            return
        self._end(worker)
        accident = None
        if worker.place is not None:
            cause = f"on {worker.place.host} (process {worker.place.pid}) {cause}"
            found = self._accidents.get(worker.place.node_id)
            if found is None or not found.includes(worker.worker_idx):
                found = self._accidents[worker.place.node_id] = _Accident()
            found.worker_idxs.add(worker.worker_idx)
            accident = found.number
        self._events.append(Exited(worker.worker_idx, cause, worker.item, accident=accident))

    def _look_around(self) -> None:
        """Ask workers that are at work how far they are; say who has no place."""
        now = time.monotonic()
        for worker in self._workers.values():
            if worker.is_over:
                continue
            if worker.is_ready and worker.calls and not worker.is_asked and now - worker.asked_at > _STATUS_SECONDS:
                worker.is_asked = True
                self._calls[worker.actor.status.options(concurrency_group=CONTROL).remote()] = worker, "status"
            if worker.place is None and now - worker.began_at > _PLACE_SECONDS and not worker.is_said_unreachable:
                worker.is_said_unreachable = True
                self._events.append(Unreachable(worker.worker_idx))
        waiting = [worker for worker in self._workers.values() if worker.place is None and not worker.is_over]
        if waiting and now - self._warned_at > _WARN_SECONDS:
            seconds = max(now - worker.began_at for worker in waiting)
            if seconds > _WARN_SECONDS:
                self._warned_at = now + _WARN_AGAIN_SECONDS - _WARN_SECONDS
                who = f"worker {waiting[0].worker_idx} waits" if len(waiting) == 1 else f"{len(waiting)} workers wait"
                _logger.warning("%s for a place on the Ray cluster since %.0f s: %s", who, seconds, self._needs())

    def _needs(self) -> str:
        """Return what a worker needs and what the cluster has free, as words."""
        needed = {"CPU": self._options["num_cpus"], **self._options.get("resources", {})}
        if "memory" in self._options:
            needed["memory"] = self._options["memory"]
        found: list[tuple[dict[str, float], dict[str, float], list[dict[str, float]]]] = []
        ray = self._ray

        def ask() -> None:  # Ray does not answer while the head of the cluster is gone
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            found.append((ray.available_resources(), ray.cluster_resources(), nodes))

        thread = threading.Thread(target=ask, name="headrace-ray-resources", daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        if not found:
            return f"each needs {needed}; the head of the cluster does not answer"
        free, there, nodes = found[0]
        shares = ", ".join(f"{name} {free.get(name, 0):g} of {there.get(name, 0):g}" for name in needed)
        is_possible = any(all(node.get(name, 0) >= num for name, num in needed.items()) for node in nodes)
        hint = "" if is_possible else "; no node has as much: it begins when one joins that has"
        return f"each needs {needed}; free in the cluster: {shares}{hint}"

    def stack_of(self, worker_idx: int) -> str | None:
        """Ask the actor for the stack of its thread."""
        worker = self._workers[worker_idx]
        if worker.place is None or worker.is_over:
            return None
        try:
            return str(
                self._ray.get(worker.actor.stack.options(concurrency_group=CONTROL).remote(), timeout=_ANSWER_SECONDS)
            )
        except self._ray.exceptions.RayError:
            return None

    def item_of(self, worker_idx: int) -> CurrentItem | None:
        """Return the last sequence that the worker has told of."""
        return self._workers[worker_idx].item


class _RayWorker:
    """One actor, as the trainer sees it."""

    def __init__(self, worker_idx: int, actor: Any) -> None:
        self.worker_idx = worker_idx
        self.actor = actor
        self.began_at = time.monotonic()
        self.place: Place | None = None
        self.is_ready = self.is_over = self.is_said_unreachable = False
        self.unsent: deque[tuple[int, Any]] = deque()  # tickets with their payloads
        self.num_sent = 0  # tickets that it has, and has not answered
        self.calls: deque[Any] = deque()  # of `work`, under way
        self.call_bytes = 0  # of the last result
        self.item: CurrentItem | None = None
        self.num_items = 0
        self.is_asked, self.asked_at = False, 0.0  # for its status

    @property
    def num_open(self) -> int:
        """How many tickets it has not answered."""
        return len(self.unsent) + self.num_sent

    def forget_tickets(self) -> None:
        """Forget the tickets of a run that is over; in the next one it is said again that there is no place for it."""
        self.unsent.clear()
        self.num_sent = 0
        self.is_said_unreachable = False


class _Accident:
    """What has ended workers of one node."""

    def __init__(self) -> None:
        self.number = next(_accidents)
        self.worker_idxs: set[int] = set()
        self._time = time.monotonic()

    def includes(self, worker_idx: int) -> bool:
        """Tell whether the end of one more worker belongs to it; the second end of one worker never does."""
        return worker_idx not in self.worker_idxs and time.monotonic() - self._time < _ACCIDENT_SECONDS


class _Count:
    """A number that several objects change."""

    def __init__(self) -> None:
        self.value = 0


class _Values:
    """The values of a reply, in Ray's object store until the first of them is taken."""

    def __init__(self, header: bytes, data: NDArray[np.uint8], num: int, waiting_bytes: _Count) -> None:
        self._header = header
        self._data: NDArray[np.uint8] | None = data
        self._values: list[Any] = []
        self._waiting_bytes = waiting_bytes
        self.num_bytes_each = data.nbytes // num
        self._num_bytes = data.nbytes
        waiting_bytes.value += data.nbytes

    def take(self, position: int) -> Any:
        """Return one value, which is the caller's own; once."""
        data, self._data = self._data, None
        if data is not None:
            self._values = decode(self._header, data.copy())  # arrays in the object store cannot be written to
            self._release()
        value, self._values[position] = self._values[position], None
        return value

    def _release(self) -> None:
        self._waiting_bytes.value -= self._num_bytes
        self._num_bytes = 0

    def __del__(self) -> None:
        self._release()


class _Value:
    """One value of a reply: a `Result`."""

    __slots__ = ("_position", "_values", "num_bytes")

    def __init__(self, values: _Values, position: int) -> None:
        self._values, self._position = values, position
        self.num_bytes: int | None = values.num_bytes_each

    def take(self) -> Any:
        """Return the value."""
        return self._values.take(self._position)

    def discard(self) -> None:
        """Drop the value: its memory is free when all of its reply are dropped."""


def _connect(ray: Any) -> None:
    host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
    try:
        if host and "/" not in host and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"there is no Ray cluster to run workers on: {_short(error)}",
            where=f"RAY_ADDRESS={host}:{port}" if host else None,
            fix="start one (`ray start --head`), or set RAY_ADDRESS, or call ray.init(...) before",
        ) from error


def _short(error: BaseException) -> str:
    """Return what an error of Ray says, without its advice and ids."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(("class_name:", "actor_id:", "namespace:"))]
    text = " ".join(lines)
    return text.partition(" Some common causes include:")[0] or type(error).__name__
