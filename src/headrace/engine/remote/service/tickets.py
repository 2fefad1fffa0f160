"""What a trainer has asked for, and what is being computed: the state that a pool and those who ask it share."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from ...events import Done, Exited, Failed, SetupFailed
from .cache import Kept, num_bytes_of

Outcome = Kept | Failed | SetupFailed | Exited
"""What becomes of a ticket."""


@dataclass(eq=False, slots=True)
class TicketRequest:
    """A ticket that a trainer has given to one of its workers.

    Attributes:
        asker: That worker.
        run_id: The trainer's.
        ticket: The trainer's.
        key: The digest of the payload.
        payload: What to work on.
        work: Where it is being computed.
        outcome: What has become of it.
    """

    asker: Asker
    run_id: int
    ticket: int
    key: bytes
    payload: bytes
    work: Work | None = None
    outcome: Outcome | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the outcome."""
        return num_bytes_of(self.outcome) if isinstance(self.outcome, Done) else 0


@dataclass(eq=False, slots=True)
class Work:
    """A ticket that is being computed, or waits for another process because its own has died.

    Attributes:
        key: The digest of the payload.
        payload: What to work on.
        worker_idx: Which process has it.
        waiting: The requests that wait for it.
    """

    key: bytes
    payload: bytes
    worker_idx: int | None = None
    waiting: list[TicketRequest] = field(default_factory=list)


class Asker(Protocol):
    """One worker of a trainer, as the pool sees it. All is read and written while `Pool.lock` is held.

    Attributes:
        requests: What it was given and has not told the outcome of, in order.
        unseen: The last of these, which were not looked at yet.
        held_bytes: Bytes of outcomes that were not sent yet.
        max_held_bytes: With more than that, no more is looked at.
        has_beat: Whether there was progress since that was told.
    """

    requests: deque[TicketRequest]
    unseen: deque[TicketRequest]
    held_bytes: int
    max_held_bytes: int
    has_beat: bool

    def wake(self) -> None:
        """Have it look at what has changed."""
