"""What a worker process has said, as events for the supervisor."""

from __future__ import annotations

from headrace.errors import InternalError

from .events import Event, Failed, Finished, Produced, Ready, SetupFailed
from .failure import Failure
from .messages import Behind, Done, IsReady, NotDone, NotSetUp, Starved, StreamEnded, ToTrainer
from .worker_life import WorkerLife


def events_of(life: WorkerLife, run_id: int | None, now: float) -> list[Event]:
    """Return what was gathered and heard from a worker.

    Args:
        life: Of the worker; what it wants to be known of itself, such as a want of slots, is noted there.
        run_id: The current run, if there is one: results of others are discarded.
        now: On the clock of waiting.
    """
    events: list[Event] = []
    for message in life.messages():
        if isinstance(message, Done):
            if message.run_id == run_id:
                events.append(_produced(life, message))
            else:
                life.discard(message)
        elif isinstance(message, Starved):
            life.note_starved(message, now)
        else:
            events.append(_event_of(life.worker_idx, message))
    return events


def _event_of(worker_idx: int, message: ToTrainer) -> Event:
    match message:
        case NotDone():
            return Failed(worker_idx, message.ticket, Failure.from_bytes(message.failure), message.run_id)
        case StreamEnded():
            return Finished(worker_idx, message.num_items, message.run_id)
        case IsReady():
            return Ready(worker_idx)
        case NotSetUp():
            return SetupFailed(worker_idx, Failure.from_bytes(message.failure))
        case Behind() | Done() | Starved():
            raise InternalError(f"worker {worker_idx} said something in the wrong place", where=repr(message)[:200])


def _produced(life: WorkerLife, done: Done) -> Produced:
    skipped = tuple(map(Failure.from_bytes, done.skipped)) if done.skipped else ()
    result = life.result_of(done)
    return Produced(life.worker_idx, done.ticket, done.run_id, result, done.seconds, done.transport_seconds, skipped)
