"""Who am I: what user code in a worker can ask, and what it can tell.

Invariant: what is said here is seen by the worker that says it only. Thread and inline workers live in a context
variable (they share a process); a worker process sets it for all of its threads at once.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker knows of itself.

    Attributes:
        worker_idx: 0 .. num_workers - 1.
        num_workers: How many workers share the work; 1 where the consumer's own thread does it (`num_workers=0`).
        executor: `"inline"`, `"thread"`, `"process"`, or the name of another executor.
        seed: A seed of this worker's own, for foreign code that wants one: data that depend on it depend on the number
            of workers. A worker that is started again has the same seed.
    """

    worker_idx: int
    num_workers: int
    executor: str
    seed: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the data a worker is: named in errors, in the quarantine file, and when a worker dies."""

    tag: str | None = None
    epoch: int | None = None

    def __str__(self) -> str:
        parts = [] if self.tag is None else [f"tag {self.tag!r}"]
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch}")
        return ", ".join(parts)


@dataclass(slots=True)
class WorkerScope:
    """The mutable side of a worker's identity: made by `worker.Worker`, of no use to others.

    Attributes:
        info: What `get_worker_info` answers.
        place: What `note_place` was told last.
        num_places: How often it was told anything: grows as long as the worker gets on.
        skipped: What `skip_item` was told in this ticket, each with its place.
        on_place: Called with each place: how a worker process publishes it to the trainer.
    """

    info: WorkerInfo
    place: Place | None = None
    num_places: int = 0
    skipped: list[tuple[Exception, Place | None]] = field(default_factory=list)
    on_place: Callable[[Place], None] | None = None


_scope: contextvars.ContextVar[WorkerScope | None] = contextvars.ContextVar("headrace_worker", default=None)
_of_this_process: WorkerScope | None = None


def current_scope() -> WorkerScope | None:
    """Return the scope of the worker that calls, or `None` outside of workers."""
    scope = _scope.get()
    return _of_this_process if scope is None else scope


@contextlib.contextmanager
def worker_scope(scope: WorkerScope) -> Iterator[None]:
    """Be this worker for the length of a block."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def set_process_scope(scope: WorkerScope | None) -> None:
    """Make this whole process, with all threads it starts, one worker: for worker processes only."""
    global _of_this_process
    _of_this_process = scope


def get_worker_info() -> WorkerInfo | None:
    """Return who the calling worker is, or `None` outside of workers."""
    scope = current_scope()
    return None if scope is None else scope.info


def note_place(tag: str | None = None, epoch: int | None = None) -> None:
    """Tell which sequence is worked on now: a sign of life, and named if the next thing that happens is an error.

    Outside of workers it does nothing. About 0.5 us.
    """
    scope = current_scope()
    if scope is None:
        return
    scope.place = Place(tag, epoch)
    scope.num_places += 1
    if scope.on_place is not None:
        scope.on_place(scope.place)


def skip_item(exception: Exception) -> None:
    """Leave one item out of a ticket of many: tell its error and go on with the rest.

    It counts as a skip (budget, quarantine file); under `on_error=Raising()` it is raised at the consumer instead.
    Outside of workers the exception is raised here.
    """
    scope = current_scope()
    if scope is None:
        raise exception
    scope.skipped.append((exception, scope.place))
