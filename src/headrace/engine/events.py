"""What happens in a run, as data: what executors report, what the consumer does, and what the supervisor decides.

Events of one worker come in the order in which they happened. Events and actions carry facts, never behaviour; the one
exception is `Result`, a value that may still lie in shared memory. What a worker says of itself is a `WorkerEvent`: a
worker process sends it as it is, and its trainer decodes it to the same class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from .user.failure import Failure
from .user.worker_info import CurrentItem


class Result(Protocol):
    """A value that a worker made, not yet handed over. Exactly one of `take` and `discard` is called, once.

    Attributes:
        num_bytes: Bytes of the memory between processes that it takes meanwhile; `None` if it takes none.

    Examples:
        >>> class Kept:  # a result of an executor whose values lie in this process
        ...     num_bytes = None
        ...
        ...     def __init__(self, value):
        ...         self.value = value
        ...
        ...     def take(self):
        ...         return self.value
        ...
        ...     def discard(self):
        ...         del self.value
    """

    num_bytes: int | None = None

    def take(self) -> Any:
        """Return the value (decoding it where needed); its memory stays valid as long as the value lives."""

    def discard(self) -> None:
        """Drop the value without reading it: its memory is free again."""


# --- from executors ---

R = TypeVar("R")


class WorkerEvent(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says. Between processes its class travels as a small number, its fields in order."""


class Ready(WorkerEvent, frozen=True, tag=0):
    """A worker has been set up. Tickets may be submitted before this."""

    worker_idx: int


class Done(WorkerEvent, Generic[R], frozen=True, tag=1):
    """A ticket is done.

    Attributes:
        run_id: The run it belongs to: results of earlier runs are discarded by the engine.
        result: The value, a `Result`; of which class is up to the executor.
        seconds: What user code took.
        transport_seconds: What it took to put the value where the trainer can see it.
        skipped: Items that were left out of this ticket, see `skip_item`.
    """

    worker_idx: int
    ticket: int
    run_id: int = 0
    result: R | None = None
    seconds: float = 0.0
    transport_seconds: float = 0.0
    skipped: tuple[Failure, ...] = ()


class Failed(WorkerEvent, frozen=True, tag=2):
    """User code raised an exception over a ticket; the worker continues with its next ticket."""

    worker_idx: int
    ticket: int
    failure: Failure
    run_id: int = 0


class SetupFailed(WorkerEvent, frozen=True, tag=3):
    """`worker_init` or `setup` raised: this worker will do nothing."""

    worker_idx: int
    failure: Failure


class StreamEnded(WorkerEvent, frozen=True, tag=4):
    """Stream mode: the worker's iterator has ended; tickets beyond its end stay without an answer.

    Attributes:
        num_items: How many items the iterator gave in all, those that were skipped after a restart included.
    """

    worker_idx: int
    num_items: int
    run_id: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: the worker made progress since the last one (it noted a new item). Running alone is none.

    Examples:
        >>> from headrace.engine import Beat
        >>> Beat(worker_idx=0)
        Beat(worker_idx=0)
    """

    worker_idx: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker is gone; nothing comes from it any more until it is restarted.

    Attributes:
        cause: How it ended, as words for an error: "was killed by signal 9 (SIGKILL)", "ended with exit code 0".
        item: The last sequence that it worked on, where known.
        advice: What to do about it, where that is known.
        accident: The same number for all workers that one thing has ended, such as the end of their warden: it counts
            once. None: it ended by itself.
    """

    worker_idx: int
    cause: str
    item: CurrentItem | None = None
    advice: str = ""
    accident: int | None = None


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A place for a worker is still looked for, which may take long: others do its tickets as well until it is `Ready`.

    It keeps its tickets, and those that it gets meanwhile, and answers them when it has been set up, in order. Where
    one is started in its place (`Executor.restart`), this has to be said again.
    """

    worker_idx: int


Answer = Done[Any] | Failed
"""The answer of a worker to a ticket."""

Event = Ready | Beat | Done[Any] | Failed | SetupFailed | StreamEnded | Exited | Unreachable
"""The events that an executor reports of its workers, by which the core of the engine decides."""


def events_of_others(events: Iterable[Event], worker_idx: int) -> list[Event]:
    """Return the events of all workers but one."""
    return [event for event in events if event.worker_idx != worker_idx]


# --- from the consumer's side ---


@dataclass(frozen=True, slots=True)
class ResultRequested:
    """The consumer asks for the next ticket. It stands until a `Deliver`, `End` or `Raise` answers it."""


@dataclass(frozen=True, slots=True)
class Silent:
    """All reported events have been handled: asks which worker has been silent for too long.

    Attributes:
        item: The last sequence that the worker which is waited for worked on, where known.
    """

    item: CurrentItem | None = None


@dataclass(frozen=True, slots=True)
class PayloadsEnded:
    """Task mode: there is no payload for this ticket, nor for any later one.

    Attributes:
        num_tickets: How many there are.
        error: What the iterator of payloads raised, if that is why it ended.
    """

    num_tickets: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Resized:
    """The consumer wants `num_workers` workers from now on."""

    num_workers: int


# --- decided by the supervisor ---


class Assign(msgspec.Struct, frozen=True):  # there is one for each ticket: made in a fifth of a dataclass's time
    """Submit a ticket to a worker. After a `Restart` the same ticket may be assigned again."""

    worker_idx: int
    ticket: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand this result to the consumer."""

    done: Done[Any]


@dataclass(frozen=True, slots=True)
class Drop:
    """Give this answer up: another worker was first to answer the ticket."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave a ticket, or one item of it, out; write it down."""

    ticket: int
    worker_idx: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart a worker.

    Attributes:
        first_item: Stream mode: the item at which its iterator has to go on.
    """

    worker_idx: int
    first_item: int


@dataclass(frozen=True, slots=True)
class Add:
    """Start one more worker, with this number, for the current run."""

    worker_idx: int


@dataclass(frozen=True, slots=True)
class Remove:
    """End a worker that was let go and has nothing left to do; what it has made stays valid."""

    worker_idx: int


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a warning; with the stack of a worker, if one is named and a stack can be had."""

    text: str
    stack_of: int | None = None


@dataclass(frozen=True, slots=True)
class Raise:
    """The run ends with this error.

    Attributes:
        error: What the consumer gets.
        stack_of: A worker whose stack goes into a note, if it can be had.
    """

    error: BaseException
    stack_of: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Every ticket has been delivered or skipped."""


Action = Assign | Deliver | Drop | Skip | Restart | Add | Remove | Warn | Raise | End
