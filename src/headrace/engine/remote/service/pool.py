"""The worker processes of one recipe, and the trainers that wait for their results.

A ticket is computed once for all trainers: one that asks while it is being computed waits for the same answer, and one
that asks later gets the kept result. Invariants: only the thread of the pool calls the executor; no thread waits for a
process while the lock is held; what a trainer asks for is looked at in its order, one ticket of each of their
workers in turn, so that one that asks for much, takes nothing, or is gone, keeps no other waiting; a failure is told
to those who wait for it, and not kept.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from headrace.errors import HeadraceError

from ...events import Beat, Done, Event, Exited, Failed, Ready, SetupFailed
from ...process.executor import ProcessExecutor
from ...process.messages import Begin
from ...process.results import SlotResult
from ...process.worker_config import Shipment
from .cache import Kept, KeptValue, ResultCache
from .tickets import Asker, Outcome, TicketRequest, Work

_logger = logging.getLogger("headrace.engine")

# Tickets that a process has before it: one more than it works on hides what it takes to tell it of the next.
_MAX_GIVEN = 2
_RUN_ID = 1
_SLOT_BYTES = 1 << 20
_STACK_SECONDS = 1.0
_NO_STACK = "it waits for a worker of the service"


@contextmanager
def _imports_from(folders: Sequence[str]) -> Iterator[None]:
    """Start processes that import from these folders, too, after those of this process."""
    with _path_lock:
        before = list(sys.path)
        sys.path += [entry for entry in folders if entry not in sys.path and os.path.exists(entry)]
        try:
            yield
        finally:
            sys.path[:] = before


_numbers = itertools.count()
_path_lock = threading.Lock()  # of `sys.path`: while processes of one recipe are started, none of another are


class Pool:
    """The processes of one recipe.

    Args:
        cache: Where answers are kept.
        num_workers: How many processes.

    Attributes:
        lock: Protects everything that askers share.
        is_ready: Whether a process has been set up.
        is_broken: Whether it has failed: nothing more is to be asked of it.
        num_computed: Tickets that were given to processes.
        num_joined: Tickets that somebody asked for while they were being computed for others.
    """

    def __init__(self, cache: ResultCache, num_workers: int) -> None:
        self.lock = threading.Lock()
        self.is_ready = self.is_broken = False
        self.num_computed = self.num_joined = 0
        self._cache, self._num_workers = cache, num_workers
        self._number = next(_numbers)  # of no pool before: what that had kept is not for those who ask this one
        self._askers: deque[Asker] = deque()  # whose turn it is comes first
        self._works: dict[bytes, Work] = {}
        self._by_ticket: dict[int, Work] = {}
        self._given: list[deque[Work]] = [deque() for _ in range(num_workers)]
        self._backlog: deque[Work] = deque()  # of processes that have died
        self._dead: set[int] = set()
        self._hung: set[int] = set()  # to be replaced
        self._stacks: list[_StackRequest] = []
        self._tickets = itertools.count()
        self._sys_path: Sequence[str] = ()
        self._is_closing = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._serve, name="headrace-pool", daemon=True)
        self._executor: ProcessExecutor | None = None

    def start(self, shipment: Shipment, sys_path: Sequence[str], max_bytes: int, num_threads: int) -> None:
        """Start the processes.

        Args:
            shipment: What they do.
            sys_path: Where they look for modules, after the folders of this process.
            max_bytes: Limit on the shared memory of each.
            num_threads: Number of threads of numerical libraries, in each.

        Raises:
            ConfigError: This machine has no such workers.
        """
        self._sys_path = sys_path
        executor = ProcessExecutor(
            max_bytes=max_bytes, slot_bytes=min(_SLOT_BYTES, max_bytes), threads_per_worker=num_threads
        )
        try:
            with _imports_from(sys_path):
                executor.start_shipped(shipment, range(self._num_workers), self._num_workers)
            executor.begin_shipped(Begin(_RUN_ID, False, b"", 0))
            executor.wake_for(self._wake_fd)
        except BaseException:
            executor.close()
            os.close(self._wake_fd)
            raise
        self._executor = executor
        self._thread.start()

    def close(self) -> None:
        """End the processes, within 2 s, and keep nothing of theirs; who still asks gets no answer. Harmless twice."""
        with self.lock:
            self._is_closing = True
            self._wake()
        self._thread.join()
        with self.lock:
            wake_fd, self._wake_fd = self._wake_fd, -1
        if wake_fd >= 0:
            os.close(wake_fd)
        self._cache.drop(self._number)

    def _wake(self) -> None:
        """Have the thread of the pool look at what has changed; to be called with the lock."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    @property
    def num_askers(self) -> int:
        """How many ask."""
        return len(self._askers)

    # --- for askers, in threads of theirs ---

    def join(self, asker: Asker) -> None:
        """Take in one more who asks."""
        with self.lock:
            self._askers.append(asker)

    def leave(self, asker: Asker) -> int:
        """Forget all of one who asks; return how many are left."""
        with self.lock:
            self.forget(asker, list(asker.requests))
            self._askers.remove(asker)
            return len(self._askers)

    def look(self, asker: Asker) -> None:
        """Answer what can be answered at once, and have the rest computed; to be called with the lock."""
        while self._look_at_next(asker, None):
            pass
        if asker.unseen:
            self._wake()

    def forget(self, asker: Asker, requests: Sequence[TicketRequest]) -> None:
        """Let go of tickets of one who asks; to be called with the lock."""
        gone = set(requests)
        for one in requests:
            asker.held_bytes -= one.num_bytes
            if one.work is not None:
                one.work.waiting.remove(one)
        asker.requests = deque(one for one in asker.requests if one not in gone)
        asker.unseen = deque(one for one in asker.unseen if one not in gone)

    def replace_worker_of(self, request: TicketRequest) -> None:
        """Have the process that has a ticket replaced: it takes too long over this one, or over the one before it.

        What it had for others is computed again. To be called with the lock.
        """
        if request.work is not None and request.work.worker_idx is not None:
            self._hung.add(request.work.worker_idx)
            self._wake()

    def stack_of(self, request: TicketRequest | None) -> str | None:
        """Return the stack of the process that works on a ticket, if it can be had within a second."""
        with self.lock:
            work = None if request is None else request.work
            if work is None or work.worker_idx is None:
                return _NO_STACK
            ask = _StackRequest(work.worker_idx)
            self._stacks.append(ask)
            self._wake()
        ask.is_done.wait(2 * _STACK_SECONDS)
        return ask.text

    # --- with the lock, in any thread ---

    def _look_at_next(self, asker: Asker, worker_idx: int | None) -> bool:
        """Look at the next ticket of one who asks; tell whether it was dealt with.

        Args:
            asker: Who asks.
            worker_idx: The process that is to compute it, if none has; given only by the thread of the pool.
        """
        if not asker.unseen or asker.held_bytes > asker.max_held_bytes:
            return False
        request = asker.unseen[0]
        work = self._works.get(request.key)
        if work is not None:
            self.num_joined += 1
        else:
            kept = self._cache.get(self._number, request.key)
            if kept is None and worker_idx is None:
                return False
            if kept is not None:
                asker.unseen.popleft()
                self._answer(request, kept)
                return True
            assert worker_idx is not None
            work = self._works[request.key] = Work(request.key, request.payload)
            self._give(work, worker_idx)
        asker.unseen.popleft()
        request.work = work
        work.waiting.append(request)
        return True

    def _answer(self, request: TicketRequest, outcome: Outcome) -> None:
        request.work, request.outcome = None, outcome
        request.asker.held_bytes += request.num_bytes
        request.asker.wake()

    # --- in the thread of the pool ---

    def _serve(self) -> None:
        executor = self._executor
        assert executor is not None
        try:
            while not self._is_closing:
                events = executor.wait(None)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                self._answer_stack_requests(executor)
                for event in events:
                    self._take(event)
                with self.lock:
                    self._replace_hung()
                    self._dispatch()
        except Exception as error:
            if not isinstance(error, HeadraceError):
                _logger.exception("the workers of a recipe have to be given up")
            self._give_up(f"is not there, because the service could not go on: {error}")
        finally:
            executor.close()

    def _give_up(self, cause: str) -> None:
        """Tell all who wait that nothing will come."""
        with self.lock:
            self.is_broken = True
            self._works.clear()
            for asker in self._askers:
                for request in asker.requests:
                    if request.outcome is None:
                        self._answer(request, Exited(0, cause))
                asker.unseen.clear()

    def _answer_stack_requests(self, executor: ProcessExecutor) -> None:
        while self._stacks:
            request = self._stacks.pop()
            request.text = executor.stack_of(request.worker_idx)
            request.is_done.set()

    def _take(self, event: Event) -> None:
        """Take in what a process has said."""
        match event:
            case Done() | Failed():
                outcome = _in_own_memory(event) if isinstance(event, Done) else event
                with self.lock:
                    self._finish(event.worker_idx, event.ticket, outcome)
            case Ready():
                with self.lock:
                    self.is_ready = True
                    self._wake_all()
            case Beat(worker_idx):
                with self.lock:
                    self._note_progress(worker_idx)
            case SetupFailed():
                with self.lock:
                    self._lose(event.worker_idx, event, len(self._given[event.worker_idx]))
            case Exited():
                with self.lock:
                    self._lose(event.worker_idx, event, 1)

    def _finish(self, worker_idx: int, ticket: int, outcome: Kept | Failed) -> None:
        work = self._by_ticket.pop(ticket, None)
        if work is None:  # it was given up
            return
        self._given[worker_idx].remove(work)
        if self._works.pop(work.key, None) is None:
            return
        if isinstance(outcome, Done) and not outcome.skipped:  # what was left out may be there the next time
            # A later hit in the cache has waited for nothing.
            kept = msgspec.structs.replace(outcome, seconds=0.0, transport_seconds=0.0)
            self._cache.put(self._number, work.key, kept)
        for asker in self._askers:  # whose tickets wait for a process have come nearer to it
            asker.has_beat = True
        for request in work.waiting:
            self._answer(request, outcome)

    def _note_progress(self, worker_idx: int) -> None:
        """Tell those of progress whose next ticket this process has."""
        for asker in self._askers:
            work = asker.requests[0].work if asker.requests else None
            if work is not None and work.worker_idx == worker_idx:
                asker.has_beat = True

    def _wake_all(self) -> None:
        for asker in self._askers:
            asker.wake()

    def _lose(self, worker_idx: int, outcome: Exited | SetupFailed, num_lost: int) -> None:
        """Handle the end of a process: `num_lost` of its tickets have this outcome, and others compute the rest."""
        lost = self._take_from(worker_idx)
        self._dead.add(worker_idx)
        for work in lost[:num_lost]:
            self._works.pop(work.key, None)
            for request in work.waiting:
                self._answer(request, outcome)
        self._backlog += lost[num_lost:]

    def _take_from(self, worker_idx: int) -> list[Work]:
        """Return what a process has been given, and will not do."""
        lost = list(self._given[worker_idx])
        self._given[worker_idx].clear()
        self._by_ticket = {ticket: work for ticket, work in self._by_ticket.items() if work not in lost}
        for work in lost:
            work.worker_idx = None
        return lost

    def _replace_hung(self) -> None:
        while self._hung:
            worker_idx = self._hung.pop()
            if worker_idx not in self._dead:
                self._backlog += self._take_from(worker_idx)
                self._restart(worker_idx)

    def _dispatch(self) -> None:
        """Give the processes work: first what others have left, then a ticket of each who asks, in turn."""
        while self._backlog and (worker_idx := self._free_worker()) is not None:
            work = self._backlog.popleft()
            if work.waiting:
                self._give(work, worker_idx)
            else:
                del self._works[work.key]
        num_passed = 0  # one after the other, who could be given nothing
        while num_passed < len(self._askers):
            self._askers.rotate(-1)
            is_dealt_with = self._look_at_next(self._askers[-1], self._free_worker())
            num_passed = 0 if is_dealt_with else num_passed + 1

    def _free_worker(self) -> int | None:
        """Return the process that has the least to do, if one has room."""
        worker_idx = min(range(self._num_workers), key=lambda idx: len(self._given[idx]))
        return worker_idx if len(self._given[worker_idx]) < _MAX_GIVEN else None

    def _give(self, work: Work, worker_idx: int) -> None:
        if worker_idx in self._dead:
            self._restart(worker_idx)
        ticket = next(self._tickets)
        work.worker_idx, self._by_ticket[ticket] = worker_idx, work
        self._given[worker_idx].append(work)
        self.num_computed += 1
        assert self._executor is not None
        self._executor.submit(worker_idx, _RUN_ID, ticket, work.payload)

    def _restart(self, worker_idx: int) -> None:
        assert self._executor is not None
        with _imports_from(self._sys_path):
            self._executor.restart(worker_idx, 0)
        self._dead.discard(worker_idx)


@dataclass(eq=False)
class _StackRequest:
    """A question for the stack of a process, and its answer."""

    worker_idx: int
    text: str | None = None
    is_done: threading.Event = field(default_factory=threading.Event)


def _in_own_memory(done: Done[Any]) -> Kept:
    """Return an answer whose value is not in the memory of its worker any more."""
    if type(done.result) is not SlotResult:
        return done
    result = done.result
    kept = KeptValue(result.header, np.array(np.frombuffer(result.take_bytes(), np.uint8)).data)
    return msgspec.structs.replace(done, result=kept)
