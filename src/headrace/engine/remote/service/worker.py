"""One worker of a trainer, as its agent sees it: in place of a process, what a pool of processes has for all trainers.

Invariant: to the trainer it is a worker like any other, which does one ticket after another, answers in their order,
and dies when a process dies over a ticket that it waits for.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.errors import ConfigError, HeadraceError

from ...events import Beat, Done, Event, Exited, Failed, Ready, SetupFailed
from ...process.messages import Begin
from ...process.worker_config import Shipment
from ...user.failure import Failure
from .cache import KeptValue
from .pool import Pool
from .recipe import digest_payload
from .tickets import Outcome, TicketRequest

_MAIN = b"__main__"
# Progress is told this often at most: what looks for its absence waits for seconds.
_BEAT_SECONDS = 0.25


class PooledWorker:
    """Answers the tickets of one worker of a trainer. One thread, that of its agent, calls its methods.

    Args:
        max_bytes: So many of outcomes may wait to be sent; others are not looked at meanwhile.
        join_pool: Returns its pool, which runs.
        leave_pool: Called in the end, if it had joined.
    """

    def __init__(
        self,
        max_bytes: int,
        join_pool: Callable[[PooledWorker, Shipment], Pool],
        leave_pool: Callable[[PooledWorker, Pool], None],
    ) -> None:
        self.requests: deque[TicketRequest] = deque()
        self.unseen: deque[TicketRequest] = deque()
        self.held_bytes = 0
        self.max_held_bytes = max_bytes
        self.has_beat = False
        self._join_pool, self._leave_pool = join_pool, leave_pool
        self._pool: Pool | None = None
        self._worker_idx = 0
        self._run_id = -1
        self._is_announced = self._has_exited = False
        self._beat_at = 0.0
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_awake = False  # it looks before it sleeps; with the lock of the pool
        self._poll = select.poll()

    @property
    def pool(self) -> Pool:
        """Where its tickets are computed."""
        assert self._pool is not None, "it was started"
        return self._pool

    def wake(self) -> None:
        """Have `wait` return."""
        if not self._is_awake:
            self._is_awake = True
            os.eventfd_write(self._wake_fd, 1)

    # --- for its agent ---

    def start_shipped(self, shipment: Shipment, worker_idxs: range, num_workers: int) -> None:
        """Join the pool, in which there are other workers, and another number of them."""
        del num_workers
        self._worker_idx = worker_idxs[0]
        try:
            self._pool = self._join_pool(self, shipment)
        except BaseException:
            self.close()
            raise

    def wake_for(self, fd: int) -> None:
        """Have `wait` return when there is something to read from this descriptor, and no other."""
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self._poll.register(fd, select.POLLIN)

    def begin_shipped(self, begin: Begin) -> None:
        """Begin a run.

        Raises:
            HeadraceError: It is one of streams, which no pool can do.
        """
        if begin.is_stream:
            raise HeadraceError("a job that is pure has no streams")
        self._forget()
        self._run_id = begin.run_id

    def submit_burst(
        self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[bytes | None]
    ) -> None:
        """Have tickets computed, or found."""
        del worker_idx
        if self._has_exited or run_id != self._run_id:
            return
        requests = []
        for ticket, payload in zip(tickets, payloads, strict=True):
            assert payload is not None
            one = TicketRequest(self, run_id, ticket, digest_payload(payload), payload)
            if _MAIN in payload:
                one.outcome = Failed(0, ticket, _refusal())
            requests.append(one)
        with self.pool.lock:
            self.requests += requests
            self.unseen += [one for one in requests if one.outcome is None]
            if any(one.outcome is not None for one in requests):
                self.wake()
            self.pool.look(self)

    def cancel(self, run_id: int) -> None:
        """Give up what was not answered."""
        if run_id == self._run_id:
            self._run_id = -1
            self._forget()

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Forget all that it was given. If it has not exited, the process that it waits for is taken for stuck.

        Raises:
            HeadraceError: The pool has failed.
        """
        del worker_idx, first_item
        pool = self.pool
        if pool.is_broken:
            raise HeadraceError("the workers of this recipe were given up")
        with pool.lock:
            if self.requests and not self._has_exited:
                pool.replace_worker_of(self.requests[0])
        self._forget()
        self._has_exited = self._is_announced = False

    def stack_of(self, worker_idx: int) -> str | None:
        """Return the stack of the process that works on its next ticket."""
        del worker_idx
        return self.pool.stack_of(self.requests[0] if self.requests else None)

    def wait(self, timeout_seconds: float | None) -> Sequence[Event]:
        """Wait for answers, or for the descriptor of `wake_for`."""
        self._poll.poll(None if timeout_seconds is None else 1000 * timeout_seconds)
        with self.pool.lock:
            if self._is_awake:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                self._is_awake = False
            return self._take_events()

    def close(self) -> None:
        """Leave the pool; harmless twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._leave_pool(self, pool)
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    # --- with the lock ---

    def _take_events(self) -> list[Event]:
        events: list[Event] = []
        if self.pool.is_ready and not self._is_announced and not self._has_exited:
            self._is_announced = True
            events.append(Ready(self._worker_idx))
        while self.requests and self.requests[0].outcome is not None and not self._has_exited:
            one = self.requests.popleft()
            assert one.outcome is not None
            events.append(self._event_of(one, one.outcome))
        now = time.monotonic()
        if self.has_beat and not events and now - self._beat_at >= _BEAT_SECONDS:
            self.has_beat, self._beat_at = False, now
            events.append(Beat(self._worker_idx))
        return events

    def _event_of(self, one: TicketRequest, outcome: Outcome) -> Event:
        match outcome:
            case Done():
                result: Any = outcome.result
                if type(result) is KeptValue:
                    result = _Sendable(self, result, one.num_bytes)
                else:
                    self.held_bytes -= one.num_bytes
                fields = {"worker_idx": self._worker_idx, "ticket": one.ticket, "run_id": one.run_id, "result": result}
                return msgspec.structs.replace(outcome, **fields)
            case Failed():
                return Failed(self._worker_idx, one.ticket, outcome.failure, one.run_id)
            case SetupFailed():
                self._has_exited = True
                return SetupFailed(self._worker_idx, outcome.failure)
            case Exited():
                self._has_exited = True
                return replace(outcome, worker_idx=self._worker_idx, accident=None)

    def let_go(self, num_bytes: int) -> None:
        """Take note of bytes that are on their way, or given up."""
        pool = self._pool
        if pool is not None:
            with pool.lock:
                self.held_bytes -= num_bytes
                pool.look(self)

    def _forget(self) -> None:
        with self.pool.lock:
            self.pool.forget(self, list(self.requests))


@dataclass(eq=False, slots=True)
class _Sendable:
    """A value that is kept, on its way to one trainer. Exactly one of `take_bytes` and `discard` is called, once."""

    owner: PooledWorker
    value: KeptValue
    held_bytes: int

    @property
    def header(self) -> bytes:
        return self.value.header

    @property
    def num_bytes(self) -> int:
        return self.value.num_bytes

    def take_bytes(self) -> memoryview:
        self.owner.let_go(self.held_bytes)
        return self.value.data

    def discard(self) -> None:
        self.owner.let_go(self.held_bytes)


def _refusal() -> Failure:
    error = ConfigError(
        "a ticket holds something of __main__, which each training defines anew, and a shared service would mix",
        fix="define it in a module, or use workers of this training alone",
    )
    return Failure.of(error)
