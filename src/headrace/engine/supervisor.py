"""Who does which ticket, when it is handed over, and what follows an error, a death or a stall: pure decisions.

Events go in, actions come out; there is no clock, no thread and no process here. One supervisor lives for one run.
Invariants, whatever happens to workers:

* each ticket below the end is delivered once, or skipped once, or the run ends in one `Raise`; in ticket order;
* a worker's own unanswered tickets are in ascending order, are answered in that order, and stay its own over a restart;
* the ticket the consumer waits for, if it exists, is the first unanswered one of its own of some worker: a worker that
  blocks because its earlier results have not been taken is never the one that is waited for. Others do it as well,
  while a place for that worker is looked for, as soon as another one is there: the first answer counts;
* no more than `look_ahead` tickets are assigned and not yet handed over, but for those that were when it was more;
* a worker that is let go does what it has, gets nothing more, and is removed then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from headrace.errors import InternalError, TransformError, WorkerDiedError

from .events import (
    Action,
    Add,
    Answer,
    Assign,
    Beat,
    Deliver,
    Done,
    Drop,
    End,
    Event,
    Exited,
    Failed,
    PayloadsEnded,
    Raise,
    Ready,
    Remove,
    Resized,
    Restart,
    ResultRequested,
    SetupFailed,
    Silent,
    Skip,
    StreamEnded,
    Unreachable,
    Warn,
)
from .options import AccidentPolicy, EngineOptions, ErrorPolicy
from .user.failure import Failure
from .user.job import Mode
from .worker_state import WorkerState, Workforce

# A burst is this part of all tickets that may be under way: workers have enough left while it is on its way.
_BURSTS = 4

SupervisorEvent = Event | ResultRequested | Silent | PayloadsEnded | Resized


class Supervisor:
    """The state of one run.

    Args:
        num_workers: At least 1.
        mode: Tasks or streams.
        options: Budgets and limits.
        in_turns: Task mode: ticket t goes to worker t mod W, and not to the one with the fewest.
        max_open: Returns how many tickets may be open now, see `Engine.run`.
        max_look_ahead: See `Executor`.
        ready_workers: Those that were set up before the run began.

    Attributes:
        num_workers: How many there are, but for those that were let go.
        workers_are_lost: Whether the run, when it ends, leaves workers that cannot serve another one.
        assigns_one: Whether one ticket at most is assigned at a time: payloads are slow to come, and a consumer that
            waits should not wait for those of later tickets.
        is_short: Whether more could be assigned now, but for `assigns_one`.
        now: Seconds for which the consumer has waited, in all: the clock stands still while the consumer works. Set by
            who waits, before the events that were reported meanwhile.
        ready: Results whose turn has come, and of which there is nothing else to say: the consumer may take the first
            one instead of asking for it, and counts it off `num_open`.
        num_open: How many tickets are assigned and not yet handed over.
        num_open_for_burst: With no more open tickets than this, a whole burst may be assigned.
        tickets_per_worker: How many tickets a worker may have before it now, see `look_further`.
    """

    def __init__(
        self,
        num_workers: int,
        mode: Mode,
        options: EngineOptions,
        *,
        in_turns: bool = False,
        max_open: Callable[[], int] | None = None,
        max_look_ahead: int | None = None,
        ready_workers: Collection[int] = (),
    ) -> None:
        self._mode = mode
        self._options = options
        self._in_turns = in_turns
        self._max_open, self._max_look_ahead = max_open, max_look_ahead
        self._force = Workforce(num_workers, ready_workers)
        self._workers = self._force.states
        self.look_further(options.min_tickets)
        self.assigns_one = self.is_short = False
        self.ready: deque[Done[Any]] = deque()
        self._answers: dict[int, Answer] = {}  # neither handed over nor ready
        self._late: list[Answer] = []  # that came when the end was decided
        self.num_open = 0
        self._next_assigned = 0  # task mode: the next ticket to assign
        self._next_delivered = 0
        self._num_tickets: int | None = None  # task mode: known once the payloads have ended
        self._payload_error: BaseException | None = None
        self._wanted = False
        self._over = False
        self._fatal: Raise | None = None  # decided, raised when the consumer has taken what is ready
        self.workers_are_lost = False
        self.now = 0.0
        self._errors = ErrorPolicy(options.on_error)
        self._accidents = AccidentPolicy(options.on_death, options.on_stall)

    def look_further(self, tickets_per_worker: int) -> None:
        """Let each worker have this many tickets queued from now on; one that has more keeps them."""
        num_all = self._force.num_staying * tickets_per_worker
        self.tickets_per_worker = tickets_per_worker
        self._look_ahead = num_all if self._options.look_ahead is None else self._options.look_ahead
        if self._max_look_ahead is not None:
            self._look_ahead = min(self._look_ahead, self._max_look_ahead)
        # Tickets go to workers in bursts, because each message may wake one, which costs more than many tickets.
        self.num_open_for_burst = self._look_ahead - max(1, min(self._look_ahead, num_all) // _BURSTS)

    def handle(self, event: SupervisorEvent) -> list[Action]:
        """Take note of an event and return what to do now, in this order; nothing once the run is over.

        Raises:
            InternalError: If an executor breaks its contract.
        """
        if isinstance(event, Done | Failed):
            return self.handle_answers((event,))
        if self._over or (self._fatal is not None and type(event) is not ResultRequested):
            self.workers_are_lost |= isinstance(event, Exited | SetupFailed)
            return []
        if type(event) is ResultRequested:
            self._wanted = True
            return self._decide(self._cover([]) if self._force.has_changed else [])
        actions = _HANDLERS[type(event)](self, event)
        if type(event) is Resized:  # it may come while a payload is pulled
            return actions
        # As this comes: tickets before it are not submitted yet.
        if self._force.has_changed and type(event) is not PayloadsEnded:
            actions = self._cover(actions)
        return self._decide(actions)

    def handle_answers(self, answers: Iterable[Answer]) -> list[Action]:
        """Do as `handle` does, for answers that came together.

        Raises:
            InternalError: If an executor breaks its contract.
        """
        if self._over or self._fatal is not None:
            self._late += answers
            return []
        workers, waiting, now = self._workers, self._answers, self.now
        force, actions = self._force, list[Action]()
        holders, idle, stand_ins = force.holders, force.idle, force.stand_ins
        for answer in answers:
            worker, ticket = workers[answer.worker_idx], answer.ticket
            unanswered = worker.unanswered
            if not unanswered or unanswered[0] != ticket:
                expected = unanswered[0] if unanswered else "none"
                what = f"worker {answer.worker_idx} answered ticket {ticket}, expected: {expected}"
                raise InternalError(what)
            unanswered.popleft()
            holder = holders.pop(ticket, None)
            if not unanswered:
                idle.append(answer.worker_idx)
            worker.last_failed = type(answer) is Failed
            worker.quiet_since, worker.warned, worker.is_ready = now, False, True
            if holder is None:
                actions.append(Drop(answer))
                continue
            if stand_ins:
                stand_ins.pop(ticket, None)
            waiting[ticket] = answer
        if force.leaving:
            actions += self._dismiss()
        return self._decide(self._cover(actions) if force.has_changed else actions)

    def give_up(self) -> list[Answer]:
        """Return the answers that were not handed over: they are the caller's."""
        answers: list[Answer] = [*self.ready, *self._answers.values(), *self._late]
        self.ready.clear()
        self._answers, self._late = {}, []
        return answers

    def deadline(self, awaited: int | None) -> float | None:
        """Return the time, on the clock of waiting, at which `Silent` would have a consequence; `None`: at no time.

        Args:
            awaited: Whom the consumer waits for, see `awaited_worker`.
        """
        if awaited is None:
            return None
        worker = self._workers[awaited]
        seconds = self._options.seconds_to_stall(is_ready=worker.is_ready)
        if self._options.warn_seconds > 0 and not worker.warned:
            seconds = min(seconds, self._options.warn_seconds) if seconds > 0 else self._options.warn_seconds
        return worker.quiet_since + seconds if seconds > 0 else None

    # --- assigning ---

    def plan_assignments(self) -> list[Assign]:
        """Return which worker does which tickets next, as far as there is room for them: a burst, and not one by one.

        The consumer may ask for this before it asks for a result.
        """
        self.is_short = False
        if self._over or self._fatal is not None:
            return []
        room = self._look_ahead - self.num_open
        if self._max_open is not None:
            room = min(room, self._max_open() - self.num_open)
        if room <= 0:  # there was more of it; but what the consumer waits for is always asked for
            room = int(self._wanted and self._next_delivered not in self._answers and self.awaited_worker() is None)
        is_burst = self.num_open <= self.num_open_for_burst
        force = self._force
        if not (is_burst or force.is_anyone_idle()):
            return []
        num_ahead = room
        if self.assigns_one and room > 1:
            room, self.is_short = 1, True
        limit, now = self.tickets_per_worker, self.now
        if self._mode is Mode.STREAM:
            assignments = force.assign_items(room, limit, now)
        else:
            first = self._next_assigned
            if self._num_tickets is not None:
                room = max(min(room, self._num_tickets - first), 0)
            if self._in_turns:
                chosen = force.assign_in_turns(first, room, limit, now)
            elif is_burst:
                chosen = force.assign_to_all(first, room, limit, now, max(num_ahead, room))
            else:
                chosen = force.assign_to_idle(first, room, limit, now)
            self._next_assigned += len(chosen)
            tickets = range(first, self._next_assigned)
            force.holders.update(zip(tickets, chosen, strict=True))
            assignments = list(map(Assign, chosen, tickets))
        if not assignments:
            self.is_short = False
        self.num_open += len(assignments)
        return assignments

    # --- handing over ---

    def _decide(self, actions: list[Action]) -> list[Action]:
        """Add to the actions what follows from the state that an event has led to."""
        if self._fatal is not None and not self.ready:
            return [self._finish(self._fatal)] if self._wanted else []
        while self._wanted and not self._over:
            if self.ready:
                self.num_open -= 1
                self._wanted = False
                actions.append(Deliver(self.ready.popleft()))
                break
            if self._mode is Mode.STREAM:
                is_at_end = self._pass_over_ends()
            else:
                is_at_end = self._num_tickets is not None and self._next_delivered >= self._num_tickets
            if is_at_end:
                actions.append(self._finish(End() if self._payload_error is None else Raise(self._payload_error)))
            elif (answer := self._answers.get(self._next_delivered)) is not None:
                self._hand_over(answer, actions)
            else:
                if self.num_open < self._look_ahead or self._next_delivered not in self._force.holders:
                    actions += self.plan_assignments()
                break
        if self._answers:
            self._line_up()
        return actions

    def _line_up(self) -> None:
        """Make ready whose turn has come, as far as there is nothing else to say."""
        answers, ticket = self._answers, self._next_delivered
        while (answer := answers.get(ticket)) is not None and type(answer) is Done and not answer.skipped:
            self.ready.append(answers.pop(ticket))  # type: ignore[arg-type]  # it is `answer`
            ticket += 1
        self._next_delivered = ticket

    def _hand_over(self, answer: Answer, actions: list[Action]) -> None:
        """Deliver or skip the next ticket, or end the run."""
        del self._answers[answer.ticket]
        self.num_open -= 1
        self._next_delivered += 1
        for failure in answer.skipped if isinstance(answer, Done) else (answer.failure,):
            decided = self._errors.decide(answer.ticket, answer.worker_idx, failure)
            if isinstance(decided, Raise):
                actions.append(self._finish(decided))
                return
            actions.append(decided)
        if isinstance(answer, Done):
            self._wanted = False
            actions.append(Deliver(answer))

    def decide_of_item(self, ticket: int, worker_idx: int, failure: Failure) -> Skip | Raise:
        """Apply the policy on errors to an item that is missing in a delivered value; the run goes on either way."""
        return self._errors.decide(ticket, worker_idx, failure)

    def _pass_over_ends(self) -> bool:
        """Stream mode: pass over tickets beyond the end of their worker's stream; tell whether nothing is left."""
        num_workers = len(self._workers)
        for _ in range(num_workers):
            item, worker_idx = divmod(self._next_delivered, num_workers)
            num_items = self._workers[worker_idx].num_items
            if num_items is None or item < num_items:
                return False
            self._next_delivered += 1
        return True  # W tickets in a row are beyond the ends of all W streams

    def _fail(self, action: Raise) -> list[Action]:
        """End the run, though not because of a ticket whose turn it is: what is ready is handed over before."""
        self._fatal = action
        return []

    def _finish(self, action: Action) -> Action:
        self._over = True
        return action

    # --- answers ---

    def _on_stream_ended(self, event: StreamEnded) -> list[Action]:
        worker = self._workers[event.worker_idx]
        num_answered = self._num_answered(worker)
        if self._mode is Mode.TASK or worker.num_items is not None or event.num_items > num_answered:
            raise InternalError(
                f"worker {event.worker_idx} says that its stream ended after {event.num_items} items, "
                f"but {num_answered} were answered"
            )
        if event.num_items < num_answered:
            return self._fail(Raise(_not_replayed(event, num_answered)))
        worker.num_items = worker.next_item = event.num_items
        self.num_open -= self._force.give_up(worker, 0)
        if worker.last_failed:
            return [
                Warn(
                    f"the stream of worker {event.worker_idx} ended right after an error that was skipped: if it is "
                    "built on a generator, what the generator had left is lost"
                )
            ]
        return []

    def _num_answered(self, worker: WorkerState) -> int:
        return worker.unanswered[0] // len(self._workers) if worker.unanswered else worker.next_item

    def _on_payloads_ended(self, event: PayloadsEnded) -> list[Action]:
        self._num_tickets, self._payload_error = event.num_tickets, event.error
        for worker in self._workers:
            self.num_open -= self._force.give_up(worker, event.num_tickets)
        return self._dismiss()

    # --- those that come and go ---

    @property
    def num_workers(self) -> int:  # noqa: D102 - see the class
        return self._force.num_staying

    @property
    def why_not_resizable(self) -> str | None:
        """Why workers can neither come nor go in this run; `None`: they can."""
        if self._mode is Mode.STREAM:
            return "each worker has a stream of its own, which is part of the order"
        return "work is dealt out to workers by their number" if self._in_turns else None

    def _on_resized(self, event: Resized) -> list[Action]:
        if self.why_not_resizable is not None:
            return []
        new = self._force.resize(event.num_workers)
        self.look_further(self.tickets_per_worker)
        self._force.wait_for_lost()
        return [*map(Add, new), *self._dismiss()]

    def _dismiss(self) -> list[Action]:
        return [Remove(worker_idx) for worker_idx in self._force.dismiss()]

    # --- deaths and stalls ---

    def _cover(self, actions: list[Action]) -> list[Action]:
        """Add who does what those that are lost cannot, after somebody was lost or has come."""
        if self._fatal is None and self.why_not_resizable is None:
            actions += self._force.cover(self.now)
        return actions

    def _on_setup_failed(self, event: SetupFailed) -> list[Action]:
        self.workers_are_lost = True
        return self._fail(Raise(event.failure.raisable(None, event.worker_idx)))

    def _on_exited(self, event: Exited) -> list[Action]:
        worker = self._workers[event.worker_idx]
        if worker.is_leaving:
            self._force.begin_anew(event.worker_idx)
            if not worker.unanswered:  # nothing is lost by it
                return self._dismiss()
        self._force.note_death(event.worker_idx)
        decided = self._accidents.decide_death(event, worker.first_ticket)
        if isinstance(decided, Raise) and isinstance(decided.error, WorkerDiedError) and worker.unanswered:
            decided.error.ticket = worker.unanswered[0]
        return self._restart_or_raise(event.worker_idx, decided)

    def _on_unreachable(self, event: Unreachable) -> list[Action]:
        if self.why_not_resizable is not None:
            return []
        self._force.lose(event.worker_idx)
        return []

    def _on_sign_of_life(self, event: Ready | Beat) -> list[Action]:
        worker = self._workers[event.worker_idx]
        worker.show_life(self.now)
        if isinstance(event, Ready):
            worker.is_ready = True
            self._force.find(event.worker_idx)
        return []

    def _on_silent(self, event: Silent) -> list[Action]:
        worker_idx = self.awaited_worker()
        if worker_idx is None:
            return []
        worker = self._workers[worker_idx]
        quiet_seconds = self.now - worker.quiet_since
        place = ", ".join(filter(None, (str(event.item or ""), worker.first_ticket)))
        options = self._options
        if 0 < options.seconds_to_stall(is_ready=worker.is_ready) <= quiet_seconds:
            where = place if worker.is_ready else f"{place}, before the worker was ready"
            decided = self._accidents.decide_stall(worker_idx, quiet_seconds, where)
            return self._restart_or_raise(worker_idx, decided)
        if 0 < options.warn_seconds <= quiet_seconds and not worker.warned:
            worker.warned = True
            return [Warn(f"waited {quiet_seconds:.0f} s for worker {worker_idx} ({place})", worker_idx)]
        return []

    def awaited_worker(self) -> int | None:
        """Return the worker that does the ticket for which the consumer waits, if there is one."""
        return self._force.who_does(self._next_delivered) if self._wanted and not self._over else None

    def starving_worker(self) -> int | None:
        """Return the worker for whose memory the consumer waits, if it has none left: never one that stands in.

        That one may block on what it has made of later tickets, until the one whose ticket it is, is there again.
        """
        return self._force.holders.get(self._next_delivered) if self._wanted and not self._over else None

    def _restart_or_raise(self, worker_idx: int, decided: Warn | Raise) -> list[Action]:
        if isinstance(decided, Warn):
            return [decided, *self._replace(worker_idx)]
        self.workers_are_lost = True
        return self._fail(decided)

    def _replace(self, worker_idx: int) -> list[Action]:
        worker = self._workers[worker_idx]
        worker.show_life(self.now)
        worker.last_failed = worker.is_ready = False
        first_item = 0 if self._mode is Mode.TASK else self._num_answered(worker)
        self._force.begin_anew(worker_idx)
        return [Restart(worker_idx, first_item), *(Assign(worker_idx, ticket) for ticket in worker.unanswered)]


def _not_replayed(event: StreamEnded, num_answered: int) -> TransformError:
    return TransformError(
        f"the stream of worker {event.worker_idx} had given {num_answered} items before the worker was restarted, "
        f"and only {event.num_items} after it",
        fix="make a stream that gives the same items each time, or set on_death=Raising()",
    )


_HANDLERS: dict[type, Callable[[Supervisor, Any], list[Action]]] = {
    Silent: Supervisor._on_silent,
    Ready: Supervisor._on_sign_of_life,
    Beat: Supervisor._on_sign_of_life,
    StreamEnded: Supervisor._on_stream_ended,
    Exited: Supervisor._on_exited,
    Unreachable: Supervisor._on_unreachable,
    SetupFailed: Supervisor._on_setup_failed,
    PayloadsEnded: Supervisor._on_payloads_ended,
    Resized: Supervisor._on_resized,
}
