"""One pass over tickets: carries out the decisions of the supervisor, and measures time.

Invariants: payloads are pulled in ticket order, in the consumer's thread, each once. An interrupt or an unforeseen
error anywhere in here ends the workers (they are restarted for the next run), because it is unknown what was half
done; leaving the loop, and errors that the supervisor decided on, leave the workers as they are.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace.errors import ConfigError, HeadraceError, InternalError, takes_note

from .events import (
    Action,
    Add,
    Answer,
    Assign,
    Deliver,
    Done,
    Drop,
    End,
    Event,
    Failed,
    PayloadsEnded,
    Raise,
    Ready,
    Remove,
    Resized,
    Restart,
    ResultRequested,
    Silent,
    Skip,
    StreamEnded,
    Warn,
)
from .group_size import GroupSize
from .interrupts import interrupts_wait
from .memory import forks
from .quarantine import Quarantine
from .report import EngineReport
from .supervisor import Supervisor
from .user.failure import Failure
from .workers import Workers

_logger = logging.getLogger("headrace.engine")
_WANTED = ResultRequested()
# A signal that arrives just before a wait begins is not seen before that wait is over (Python runs handlers between
# bytecodes, and a lock or an epoll that is entered after the signal does not return for it). So no wait is longer.
_MAX_WAIT_SECONDS = 0.25
# A wait that has taken so much longer than it was to take was none all the time: this process was stopped, by Ctrl-Z,
# a debugger, or whoever froze its container. Nobody is blamed for the rest of it.
_MAX_LATE_SECONDS = 1.0
# A payload that takes longer is slow: the next ones are pulled one by one, with a look at what has come in between.
_SLOW_SECONDS = 0.001


class Delivered(NamedTuple):
    """A value delivered to the consumer.

    Attributes:
        ticket: Its number in the run. Numbers grow; those of skipped tickets, and in stream mode those beyond the end
            of a worker's stream, are left out.
        value: What the worker's function returned. It belongs to the consumer.
        worker_idx: Who made it.

    Examples:
        >>> from headrace.engine import Engine, Job
        >>> def setup(info):
        ...     return lambda number: number * 10
        >>> with Engine(Job(setup), num_workers=0) as engine:
        ...     delivered = next(engine.run([7]))
        >>> delivered.ticket, delivered.value, delivered.worker_idx
        (0, 70, 0)
    """

    ticket: int
    value: Any
    worker_idx: int


_delivered = partial(tuple.__new__, Delivered)  # in half the time of a call of the class


class Run(Iterator[Delivered]):
    """The iterator that `Engine.run` and `Engine.run_stream` return. Not thread-safe.

    Args:
        workers: Whose current run this is.
        run_id: Its number.
        supervisor: New, of this run.
        payloads: Task mode: an iterator of what to work on; `None` in stream mode.
        ahead: Says how many tickets a worker may have before it; `None`: as many as at the start.
        report: Where to add what happened.
        quarantine: Where to write down what is skipped.
        clock: Seconds; only differences count.

    Examples:
        >>> from headrace.engine import Engine, Job
        >>> def setup(info):
        ...     return lambda number: number * 10
        >>> with Engine(Job(setup), num_workers=0) as engine:
        ...     run = engine.run(range(100))
        ...     print(next(run).value)
        ...     run.close()
        0
    """

    def __init__(
        self,
        workers: Workers,
        run_id: int,
        supervisor: Supervisor,
        payloads: Iterator[Any] | None,
        *,
        ahead: GroupSize | None,
        report: EngineReport,
        quarantine: Quarantine | None,
        clock: Callable[[], float],
    ) -> None:
        self._workers = workers
        self._executor = workers.executor
        self._run_id = run_id
        self._supervisor = supervisor
        self._payloads = payloads
        self._min_tickets = supervisor.tickets_per_worker
        self._ahead = ahead
        self._is_task_mode = supervisor.assigns_one = payloads is not None  # it is not known yet how slow payloads are
        self._num_pulled = 0
        self._pulled: dict[int, Any] = {}  # payloads of unanswered tickets: they may have to be submitted again
        self._payload_seconds = 0.0  # of the last one
        self._report = report
        self._quarantine = quarantine
        self._clock = clock
        self._seconds_waited = 0.0
        self._left_at: float | None = None  # when the consumer got the last value
        self._answer: Deliver | Raise | End | None = None
        self._is_over = False
        self._owner = os.getpid(), threading.get_ident()

    @property
    def is_current(self) -> bool:
        """Whether it may use the workers."""
        return not self._is_over and self._workers.current_run_id == self._run_id

    def resize(self, num_workers: int) -> None:
        """Set the number of workers from now on; only for the current run.

        Raises:
            ConfigError: The order of this run, or the assignment of its tickets, depends on their number.
        """
        supervisor = self._supervisor
        why = supervisor.why_not_resizable
        if why is not None and num_workers != supervisor.num_workers:
            raise ConfigError(
                f"there cannot be {num_workers} workers in place of {supervisor.num_workers} now: {why}",
                fix="resize between two epochs, or before the first",
            )
        self._workers.resize(num_workers)
        try:
            self._act(supervisor.handle(Resized(num_workers)))
        except BaseException:
            self._abort()
            raise

    def prefetch(self) -> None:
        """Give the workers what they have room for, before the next value is asked for."""
        try:
            self._refill()
        except BaseException:
            self._abort()
            raise

    def __next__(self) -> Delivered:
        """Return the next value.

        Raises:
            StopIteration: When there are no more, and whenever it is asked again after any end.
            HeadraceError: If another run of the same engine has begun meanwhile, or the engine was closed.
            BaseException: What user code raised, in a worker or in the iterator of payloads.
        """
        if self._is_over:
            raise StopIteration
        if forks.own_pid != self._owner[0]:
            what = "this iterator belongs to the process that forked this one"
            raise HeadraceError(what, fix="make an engine of your own here")
        start = self._clock()
        if self._left_at is not None:
            self._report.seconds_consumer += start - self._left_at
        supervisor, workers = self._supervisor, self._workers
        answer: Deliver | Raise | End
        try:
            if supervisor.num_open <= supervisor.num_open_for_burst and workers.current_run_id == self._run_id:
                if supervisor.num_open and not supervisor.ready:  # what has come says who has what left to do
                    self._hear(0.0, None)
                self._refill()
                start = self._clock()
            done: Done[Any] | None = None
            if supervisor.ready and workers.current_run_id == self._run_id:
                done = supervisor.ready.popleft()
                supervisor.num_open -= 1
            else:
                answer = self._wait_for_answer()
                if isinstance(answer, Deliver):
                    done, start = answer.done, self._clock()
            if done is not None:
                assert done.result is not None
                try:
                    value = done.result.take()
                except Exception as error:  # unpickling runs user code
                    where = f"over the result of ticket {done.ticket}, worker {done.worker_idx}"
                    takes_note(error, f"headrace: in the consumer, {where}")
                    self.close()  # the workers are as they should be, and stay
                    raise
                report = self._report
                self._left_at = now = self._clock()
                report.seconds_taken += now - start
                report.num_delivered += 1
                return _delivered((done.ticket, value, done.worker_idx))
        except BaseException:
            self._abort()
            raise
        self.close()
        if not isinstance(answer, Raise):
            raise StopIteration
        try:
            raise answer.error
        finally:
            del answer  # its traceback holds this frame

    def skip_item(self, delivered: Delivered, failure: Failure) -> BaseException | None:
        """Apply the policy on errors to an item that failed, of which the value of a ticket tells.

        For values of many items, all of which before the one whose error is raised are wanted: `skip_item` in a worker
        cannot tell which these are. Call it in the order of the items, before the next value is taken.

        Returns:
            `None` if it is skipped: it is counted, and written down. Else the error, which the caller raises when its
            turn has come; the run goes on until it is closed.
        """
        decided = self._supervisor.decide_of_item(delivered.ticket, delivered.worker_idx, failure)
        if isinstance(decided, Raise):
            return decided.error
        try:
            self._act([decided])
        except BaseException:
            self._abort()
            raise
        return None

    def close(self) -> None:
        """End the run early: running work is given up. The workers stay. Harmless at any time."""
        if not self._is_over:
            self._is_over = True
            self.give_up()

    def give_up(self) -> None:
        """Discard what was not handed over and free the workers for another run."""
        self._discard()
        if self._supervisor.workers_are_lost and self._workers.current_run_id == self._run_id:
            self._workers.stop()
        else:
            self._workers.end_run(self._run_id)

    def __del__(self) -> None:
        pid, thread = getattr(self, "_owner", (None, None))
        if os is None or pid != os.getpid() or self._is_over:  # None: at the end of the interpreter
            return
        if thread == threading.get_ident():
            with interrupts_wait():
                self.close()
        elif self._supervisor.workers_are_lost:
            # The collector may run in any thread, while the executor is in use in its own: leave a note. A run that is
            # not ended here is cancelled by the next one.
            self._workers.stop_later()

    # --- the loop ---

    def _wait_for_answer(self) -> Deliver | Raise | End:
        supervisor, workers = self._supervisor, self._workers
        run_id = self._run_id  # user code may end this run, or begin another one, at any time
        if workers.current_run_id == run_id and (actions := supervisor.handle(_WANTED)):
            self._act(actions)
        while self._answer is None and workers.current_run_id == run_id:
            awaited = supervisor.awaited_worker()
            deadline = supervisor.deadline(awaited)
            timeout = _MAX_WAIT_SECONDS
            if supervisor.is_short:
                self._refill()
                timeout, awaited = 0.0, supervisor.awaited_worker()
            elif deadline is not None:
                timeout = min(timeout, max(deadline - self._seconds_waited, 0.0))
            self._hear(timeout, awaited)
            if deadline is not None and self._seconds_waited >= deadline:
                awaited = supervisor.awaited_worker()
                item = None if awaited is None else self._executor.item_of(awaited)
                self._act(supervisor.handle(Silent(item)))
        answer, self._answer = self._answer, None  # it may hold a value, which is the consumer's
        if answer is not None and workers.current_run_id == run_id:
            return answer
        if isinstance(answer, Deliver):
            self._give_up((answer.done,))
        return Raise(self._superseded())

    def _hear(self, timeout_seconds: float, awaited: int | None) -> None:
        """Have the executor wait, for a worker or for none, and tell the supervisor what has happened."""
        self._executor.awaited_worker_idx = None if awaited is None else self._supervisor.starving_worker()
        start = self._clock()
        events = self._executor.wait(timeout_seconds)
        seconds = self._clock() - start
        self._seconds_waited += min(seconds, timeout_seconds + _MAX_LATE_SECONDS)
        self._report.seconds_waited += seconds
        if awaited is not None:
            self._report.workers[awaited].seconds_awaited += seconds
        self._supervisor.now = self._seconds_waited
        self._tell(events)

    def _refill(self) -> None:
        """Give the workers what they have room for."""
        supervisor = self._supervisor
        self._assign(supervisor.plan_assignments())
        if supervisor.is_short and not supervisor.assigns_one:  # the first payload came quickly
            self._assign(supervisor.plan_assignments())

    def _tell(self, events: Sequence[Event]) -> None:
        """Tell the supervisor of events: of answers that came together, at once."""
        answers: list[Answer] = []
        workers, pulled, run_id = self._report.workers, self._pulled, self._run_id
        seconds, num_bytes = 0.0, 0  # of the workers; of payloads and of results in shared memory
        are_measured = True
        for event in events:
            if type(event) is Done or type(event) is Failed:
                if event.run_id != run_id:
                    if type(event) is Done and event.result is not None:
                        event.result.discard()
                    continue
                payload = pulled.pop(event.ticket, None)
                if type(payload) is bytes:
                    num_bytes += len(payload)
                worker = workers[event.worker_idx]
                worker.num_tickets += 1
                if type(event) is Done:
                    worker.seconds_loaded += event.seconds
                    worker.seconds_transport += event.transport_seconds
                    seconds += event.seconds + event.transport_seconds
                    result_bytes = None if event.result is None else event.result.num_bytes
                    if result_bytes is None:
                        are_measured = False
                    else:
                        num_bytes += result_bytes
                        worker.num_bytes += result_bytes
                else:
                    are_measured = False
                answers.append(event)
            elif not isinstance(event, StreamEnded) or event.run_id == run_id:
                if isinstance(event, Ready):
                    self._workers.ready.add(event.worker_idx)
                if answers:
                    self._act(self._supervisor.handle_answers(answers))
                    answers, seconds, num_bytes, are_measured = [], 0.0, 0, True
                self._act(self._supervisor.handle(event))
        if answers:
            if are_measured and self._ahead is not None:
                self._look_further(self._ahead, seconds / len(answers), num_bytes / len(answers))
            self._act(self._supervisor.handle_answers(answers))

    def _look_further(self, ahead: GroupSize, seconds: float, num_bytes: float) -> None:
        """Let workers have as many tickets before them as those that came just now say to be worth it.

        Args:
            ahead: Of a worker.
            seconds: What a ticket took its worker.
            num_bytes: Bytes of a payload and its result.
        """
        supervisor = self._supervisor
        before = supervisor.tickets_per_worker
        seconds += self._payload_seconds  # a burst of payloads is pulled while values may be here
        ahead.note(before, seconds * before, num_bytes)  # as if all that a worker may have had come
        wanted = max(ahead.choose(), self._min_tickets)
        if wanted != before:
            supervisor.look_further(wanted)

    # --- what the supervisor decided ---

    def _act(self, actions: list[Action]) -> None:
        assignments: list[Assign] = []  # they come last, and go together
        for action in actions:
            match action:
                case Assign():
                    assignments.append(action)
                case Deliver() | End():
                    self._answer = action
                case Raise(error, stack_of):
                    stack = self._stack_of(stack_of)
                    if stack:
                        error.add_note(stack)
                    self._answer = action
                case Drop(answer):
                    self._give_up((answer,))
                case Skip(ticket, _, failure):
                    self._report.num_skipped += 1
                    if self._quarantine is not None:
                        self._quarantine.append(ticket, failure)
                case Restart(worker_idx, first_item):
                    self._report.workers[worker_idx].num_restarts += 1
                    self._workers.restart(worker_idx, first_item)
                case Add(worker_idx):
                    self._report.expect(worker_idx)
                    self._workers.add(worker_idx)
                case Remove(worker_idx):
                    self._workers.remove(worker_idx)
                case Warn(text, stack_of):
                    stack = self._stack_of(stack_of)
                    _logger.warning("%s", f"{text}\n{stack}" if stack else text)
        if assignments:
            self._assign(assignments)

    def _assign(self, assignments: Sequence[Assign]) -> None:
        """Pull the payloads of tickets that have none yet, and submit the tickets: to each worker in one burst."""
        executor, pulled, clock = self._executor, self._pulled, self._clock
        bursts: dict[int, tuple[list[int], list[Any]]] = {}
        seconds: float | None = None
        start = clock()
        for assignment in assignments:
            ticket, payload = assignment.ticket, None
            if ticket in pulled:
                payload = pulled[ticket]
            elif self._is_task_mode:
                if ticket < self._num_pulled:
                    raise InternalError(f"ticket {ticket} is assigned again, and was answered")
                if self._payloads is None:
                    continue  # they ended at a ticket before this one
                try:
                    payload = executor.pack(next(self._payloads))
                except StopIteration:
                    self._end_payloads(ticket, None)
                    continue
                except Exception as error:  # noqa: BLE001 - the boundary of user code: raised after the tickets before
                    self._end_payloads(ticket, error)
                    continue
                end = clock()
                seconds, start = end - start, end
                pulled[ticket] = payload
                self._num_pulled = ticket + 1
            burst = bursts.get(assignment.worker_idx)
            if burst is None:
                burst = bursts[assignment.worker_idx] = [], []
            burst[0].append(ticket)
            burst[1].append(payload)
        if seconds is not None:
            self._payload_seconds = seconds
            self._supervisor.assigns_one = seconds > _SLOW_SECONDS
        for worker_idx, (tickets, payloads) in bursts.items():
            if self._workers.current_run_id == self._run_id:  # an iterator of payloads may have begun another run
                executor.submit_burst(worker_idx, self._run_id, tickets, payloads)

    def _end_payloads(self, num_tickets: int, error: Exception | None) -> None:
        self._payloads = None
        self._act(self._supervisor.handle(PayloadsEnded(num_tickets, error)))

    def _stack_of(self, worker_idx: int | None) -> str | None:
        stack = None if worker_idx is None else self._executor.stack_of(worker_idx)
        return f"The stack of worker {worker_idx}:\n{stack.rstrip()}" if stack else None

    # --- ends ---

    def _abort(self) -> None:
        self._is_over = True
        self._discard()
        if self._workers.current_run_id == self._run_id:
            self._workers.stop()

    def _discard(self) -> None:
        """Give up all values that are here and were not handed over; in a forked child they are not ours to give up."""
        answers, self._pulled, self._payloads = self._supervisor.give_up(), {}, None
        if os.getpid() == self._owner[0]:
            self._give_up(answers)

    def _give_up(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, Done) and answer.result is not None:
                self._report.num_lost += 1
                answer.result.discard()

    def _superseded(self) -> HeadraceError:
        if self._workers.is_closed:
            return HeadraceError("the engine of this iterator is closed")
        return HeadraceError(
            "this iterator is over, because another run of the same engine has begun",
            fix="finish or drop an iterator before the next run, or make a second engine",
        )
