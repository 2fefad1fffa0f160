"""What the supervisor knows of each worker, who there is, and who gets the next ticket.

What a ticket costs does not depend on the number of workers: all of them are looked at only when there is a burst to be
given to all, or when one comes or goes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from itertools import cycle, islice

from .events import Assign

# With the second worker that dies at a ticket it is a good guess that the ticket is why.
_MOST_DEATHS = 2


class WorkerState:
    """One worker, as the supervisor sees it.

    Attributes:
        unanswered: The tickets that it has not answered, in the order in which it does them.
        next_item: Stream mode: which item the next ticket asks for.
        num_items: Stream mode: how many items there are, known once the iterator has ended.
        last_failed: Whether its last answer was an error.
        quiet_since: When it last showed a sign of life, on the clock of waiting.
        warned: Whether its silence since then has been warned about.
        is_ready: Whether it was set up, and has begun to work.
        is_leaving: It gets no more tickets: it was let go.
        is_gone: It is not there any more, nor is another one in its place.
        is_lost: A place for it is looked for: others do its tickets as well.
        is_away: It gets no new tickets because it is lost, and somebody else is there.
    """

    __slots__ = (
        "is_away",
        "is_gone",
        "is_leaving",
        "is_lost",
        "is_ready",
        "last_failed",
        "next_item",
        "num_items",
        "quiet_since",
        "unanswered",
        "warned",
    )

    def __init__(self, *, is_ready: bool = False) -> None:
        self.is_ready = is_ready
        self.unanswered: deque[int] = deque()
        self.next_item = 0
        self.num_items: int | None = None
        self.last_failed = False
        self.quiet_since = 0.0
        self.warned = False
        self.is_leaving = self.is_gone = self.is_lost = self.is_away = False

    @property
    def takes_more(self) -> bool:
        """Whether it may get new tickets."""
        return not (self.is_leaving or self.is_away)

    @property
    def first_ticket(self) -> str:
        """The ticket that it works on, as text."""
        return f"ticket {self.unanswered[0]}" if self.unanswered else "between tickets"

    def show_life(self, now: float) -> None:
        """Note a sign of life."""
        self.quiet_since = now
        self.warned = False


def plan_tasks(workers: Sequence[WorkerState], limit: int, first: int, num: int, *, in_turns: bool) -> list[int]:
    """Choose the workers of the next tasks: fewer than `num` of them, if no worker may have more.

    Ticket t goes to the worker with the fewest, among equals to worker t mod W, or the next one after it: workers that
    are equally fast take turns.

    Args:
        workers: The workers; none may be given more tickets than `limit`.
        limit: See `workers`.
        first: The first ticket.
        num: How many there are at most.
        in_turns: Whether ticket t goes to worker t mod W only.
    """
    num_workers = len(workers)
    loads = [len(worker.unanswered) for worker in workers]
    fewest = min(loads)
    num_with_fewest = loads.count(fewest)
    chosen: list[int] = []
    for ticket in range(first, first + num):
        worker_idx = ticket % num_workers
        if loads[worker_idx] > fewest and not in_turns:
            after = worker_idx + 1
            worker_idx = loads.index(fewest, after) if fewest in loads[after:] else loads.index(fewest)
        load = loads[worker_idx]
        if load >= limit:
            break
        loads[worker_idx] = load + 1
        chosen.append(worker_idx)
        if load == fewest:
            num_with_fewest -= 1
            if num_with_fewest == 0:
                fewest = min(loads)
                num_with_fewest = loads.count(fewest)
    return chosen


def plan_items(workers: Sequence[WorkerState], limit: int, num: int) -> list[int]:
    """Choose the next tickets of streams: the lowest whose workers have neither ended nor as many as the limit.

    So the ticket that the consumer waits for is always asked for: as long as it is not, its worker has room (all
    tickets below it have been handed over), and the one handed over last has made room for one more in all.
    """
    num_workers = len(workers)
    open_to: list[int] = []  # tickets that each worker may get, of which the lowest come first
    for worker_idx, worker in enumerate(workers):
        if worker.num_items is None:
            room = min(limit - len(worker.unanswered), num)
            open_to += [(worker.next_item + item) * num_workers + worker_idx for item in range(room)]
    open_to.sort()
    return open_to[:num]


class Workforce:
    """The workers of a run.

    Args:
        num_workers: At least 1.
        ready: Numbers of those that were set up before the run began.

    Attributes:
        states: By number; also of those that are gone.
        holders: Ticket without an answer -> number of the worker that has it; also while others do it for that one.
        stand_ins: Ticket without an answer -> number of the worker that does it in place of one that is lost, or was.
        idle: Numbers of workers that had no ticket when they were put here, the first one first; some have by now.
        num_staying: How many were not let go.
        leaving: Numbers of those that were let go and are not gone.
        has_changed: Whether somebody has come, or was lost, so that it has to be looked who does what: `cover`.
    """

    def __init__(self, num_workers: int, ready: Collection[int] = ()) -> None:
        self.states = [WorkerState(is_ready=worker_idx in ready) for worker_idx in range(num_workers)]
        self.holders: dict[int, int] = {}
        self.stand_ins: dict[int, int] = {}
        self._suspects: Counter[int] = Counter()  # tickets at which workers died
        self.idle = deque(range(num_workers))
        self.num_staying = num_workers
        self.leaving: set[int] = set()
        self.has_changed = False
        self._planned: deque[int] = deque()  # the workers that get the tickets after those that were given

    def resize(self, num_workers: int) -> list[int]:
        """Let workers go, or add some, so that `num_workers` stay; return the indices of those to start.

        The last ones go, and come back first.
        """
        new: list[int] = []
        for worker_idx, state in enumerate(self.states):
            if state.is_leaving and self.num_staying < num_workers:
                if state.is_gone:
                    self.states[worker_idx] = WorkerState()
                    new.append(worker_idx)
                else:
                    state.is_leaving = False
                    self.leaving.discard(worker_idx)
                self.idle.append(worker_idx)
                self.num_staying += 1
                self.has_changed = True
        while self.num_staying < num_workers:
            new.append(len(self.states))
            self.idle.append(len(self.states))
            self.states.append(WorkerState())
            self.num_staying += 1
            self.has_changed = True
        for worker_idx in reversed(range(len(self.states))):
            if self.num_staying <= num_workers:
                break
            if not self.states[worker_idx].is_leaving:
                self.states[worker_idx].is_leaving = True
                self.leaving.add(worker_idx)
                self.num_staying -= 1
                self.has_changed = True
        self._planned.clear()
        return new

    def dismiss(self) -> list[int]:
        """Return the numbers of workers that were let go and have nothing left to do; they are gone.

        One that is lost has nothing left as soon as others have answered all of its own tickets.
        """
        done = []
        for worker_idx in sorted(self.leaving):
            state = self.states[worker_idx]
            if state.is_lost and not any(self.holders.get(ticket) == worker_idx for ticket in state.unanswered):
                self.begin_anew(worker_idx)
            if not state.unanswered:
                state.is_gone = True
                done.append(worker_idx)
        self.leaving.difference_update(done)
        return done

    # --- those that are lost ---

    def note_death(self, worker_idx: int) -> None:
        """Note that a worker has died at its first ticket.

        A ticket at which two workers have died is left to its own, so that it ends no others.
        """
        unanswered = self.states[worker_idx].unanswered
        if unanswered:
            self._suspects[unanswered[0]] += 1

    def begin_anew(self, worker_idx: int) -> None:
        """Have a worker, which has ended, keep the tickets of its own that nobody has answered meanwhile.

        Another worker may block on these, as its results of later tickets lie in its memory until they are answered.
        """
        state, holders, stand_ins = self.states[worker_idx], self.holders, self.stand_ins
        state.is_lost = state.is_away = False
        for ticket in state.unanswered:
            if stand_ins.get(ticket) == worker_idx:
                del stand_ins[ticket]
        state.unanswered = deque(ticket for ticket in state.unanswered if holders.get(ticket) == worker_idx)
        if not state.unanswered:
            self.idle.append(worker_idx)
        self._note_change()

    def lose(self, worker_idx: int) -> None:
        """Note that a place for a worker is looked for: others do its tickets as well."""
        state = self.states[worker_idx]
        if not (state.is_gone or state.is_lost):
            state.is_lost = True
            self._note_change()

    def find(self, worker_idx: int) -> None:
        """Note that a worker is there; it has its tickets."""
        state = self.states[worker_idx]
        if state.is_lost:
            state.is_lost = state.is_away = False
            self._note_change()
            if not state.unanswered:
                self.idle.append(worker_idx)

    def _note_change(self) -> None:
        """Note that somebody is there, or not there any more, who was counted on."""
        self.has_changed = True
        self._planned.clear()

    def cover(self, now: float) -> list[Assign]:
        """Have those that are there do what nobody does: the tickets of all that are lost, but for what others do."""
        states, stand_ins = self.states, self.stand_ins
        there = [idx for idx, state in enumerate(states) if not (state.is_leaving or state.is_lost)]
        if not there:
            self.wait_for_lost()
            return []
        self.has_changed = False
        assigned: list[Assign] = []
        lost = [(worker_idx, state) for worker_idx, state in enumerate(states) if state.is_lost]
        if lost:
            there.sort(key=lambda idx: len(states[idx].unanswered))
        for worker_idx, state in lost:
            state.is_away = True
            for ticket in state.unanswered:
                stand_in = stand_ins.get(ticket)
                if (
                    self.holders.get(ticket) != worker_idx
                    or (stand_in is not None and not states[stand_in].is_lost)
                    or self._suspects[ticket] >= _MOST_DEATHS
                ):
                    continue
                other = there[len(assigned) % len(there)]
                stand_ins[ticket] = other
                if ticket in states[other].unanswered:  # it was lost, and has kept it
                    continue
                if not states[other].unanswered:
                    states[other].show_life(now)
                states[other].unanswered.append(ticket)
                assigned.append(Assign(other, ticket))
        return assigned

    def wait_for_lost(self) -> None:
        """If only workers that are lost could take tickets: give these more, as if they were not.

        Whichever is there first does what the others have, see `cover`.
        """
        states = self.states
        if any(not (state.is_leaving or state.is_lost) for state in states):
            return
        self.has_changed = False
        self._planned.clear()
        for worker_idx, state in enumerate(states):
            if state.is_away and not state.is_leaving:
                state.is_away = False
                if not state.unanswered:
                    self.idle.append(worker_idx)

    def who_does(self, ticket: int) -> int | None:
        """Return the worker that is counted on for a ticket, if it is assigned and has no answer."""
        holder, stand_in = self.holders.get(ticket), self.stand_ins.get(ticket)
        if holder is None or stand_in is None:
            return holder
        return stand_in if self.states[holder].is_lost and not self.states[stand_in].is_lost else holder

    # --- who gets the next tickets ---

    def is_anyone_idle(self) -> bool:
        """Tell whether a worker that may get tickets has none."""
        idle, states = self.idle, self.states
        while idle:
            state = states[idle[0]]
            if not state.unanswered and state.takes_more and state.num_items is None:
                return True
            idle.popleft()
        return False

    def give_up(self, state: WorkerState, first: int) -> int:
        """Take from a worker its tickets from one on, and return how many these were."""
        num = 0
        while state.unanswered and state.unanswered[-1] >= first:
            del self.holders[state.unanswered.pop()]
            num += 1
        return num

    def assign_to_idle(self, first: int, num: int, limit: int, now: float) -> list[int]:
        """Give the next tasks to workers that have none, in turns; return the worker of each.

        Args:
            first: The first ticket.
            num: How many there are at most.
            limit: How many a worker may have.
            now: On the clock of waiting.
        """
        chosen = self._choose_idle(first, num, now)
        more = list(islice(cycle(chosen), min(num, len(chosen) * limit) - len(chosen)))
        for ticket, worker_idx in enumerate(more, first + len(chosen)):
            self.states[worker_idx].unanswered.append(ticket)
        chosen += more
        return chosen

    def assign_to_all(self, first: int, num: int, limit: int, now: float, num_ahead: int) -> list[int]:
        """Give the next tasks to workers, first those with none, then those with the fewest; return the worker of each.

        Args:
            first: The first ticket.
            num: How many there are at most.
            limit: How many a worker may have.
            now: On the clock of waiting.
            num_ahead: How many tickets all workers may get, if `num` were no limit: it is planned who gets them.
        """
        states, planned = self.states, self._planned
        chosen = self._choose_idle(first, num, now)
        ticket, end = first + len(chosen), first + num
        if ticket < end and not planned:
            staying = [worker_idx for worker_idx, state in enumerate(states) if state.takes_more]
            of_staying = [states[worker_idx] for worker_idx in staying]
            choice = plan_tasks(of_staying, limit, ticket, num_ahead - len(chosen), in_turns=False)
            planned += [staying[number] for number in choice]
        while ticket < end and planned:
            worker_idx = planned.popleft()
            unanswered = states[worker_idx].unanswered
            if len(unanswered) < limit:
                unanswered.append(ticket)
                chosen.append(worker_idx)
                ticket += 1
        return chosen

    def assign_in_turns(self, first: int, num: int, limit: int, now: float) -> list[int]:
        """Give ticket t to worker t mod W, as long as that may have more; return the worker of each.

        Args:
            first: The first ticket.
            num: How many there are at most.
            limit: How many a worker may have.
            now: On the clock of waiting.
        """
        chosen = plan_tasks(self.states, limit, first, num, in_turns=True)
        for ticket, worker_idx in enumerate(chosen, first):
            state = self.states[worker_idx]
            if not state.unanswered:
                state.quiet_since, state.warned = now, False
            state.unanswered.append(ticket)
        self._find_idle()
        return chosen

    def assign_items(self, num: int, limit: int, now: float) -> list[Assign]:
        """Ask streams for their next items, see `plan_items`."""
        states, assigned = self.states, list[Assign]()
        for ticket in plan_items(states, limit, num):
            worker_idx = ticket % len(states)
            state = states[worker_idx]
            if not state.unanswered:
                state.quiet_since, state.warned = now, False
            state.next_item += 1
            state.unanswered.append(ticket)
            self.holders[ticket] = worker_idx
            assigned.append(Assign(worker_idx, ticket))
        self._find_idle()
        return assigned

    def _find_idle(self) -> None:
        """Recompute which workers are idle, where none is chosen by that: the list would only grow."""
        self.idle.clear()
        self.idle.extend(worker_idx for worker_idx, state in enumerate(self.states) if not state.unanswered)

    def _choose_idle(self, first: int, num: int, now: float) -> list[int]:
        """Give one ticket to each worker that has none; return these workers."""
        idle, states, chosen = self.idle, self.states, list[int]()
        while idle and len(chosen) < num:
            worker_idx = idle.popleft()
            state = states[worker_idx]
            if not state.unanswered and state.takes_more:
                state.quiet_since, state.warned = now, False
                state.unanswered.append(first + len(chosen))
                chosen.append(worker_idx)
        return chosen
