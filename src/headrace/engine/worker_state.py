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
        is_away: It has ended, and a place for another one is looked for, or it is not reached; its tickets were given
            to others for the time being, or to none.
        is_unreachable: It is not reached, or waits for a place with its tickets: what it was given, it will answer. It
            is away, unless nobody else could take tickets.
    """

    __slots__ = (
        "is_away",
        "is_gone",
        "is_leaving",
        "is_ready",
        "is_unreachable",
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
        self.is_leaving = self.is_gone = self.is_away = self.is_unreachable = False

    @property
    def is_lost(self) -> bool:
        """Whether others have to do its tickets, or to do them as well."""
        return self.is_away or self.is_unreachable

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
        stand_ins: Ticket without an answer -> number of the worker that does it in place of one that is away, or was.
        idle: Numbers of workers that had no ticket when they were put here, the first one first; some have by now.
        num_staying: How many were not let go.
        leaving: Numbers of those that were let go and are not gone.
        has_changed: Whether somebody has come, or was lost, so that it has to be looked who does what: `cover`.
    """

    def __init__(self, num_workers: int, ready: Collection[int] = ()) -> None:
        self.states = [WorkerState(is_ready=worker_idx in ready) for worker_idx in range(num_workers)]
        self.holders: dict[int, int] = {}
        self.stand_ins: dict[int, int] = {}
        self._suspects: Counter[int] = Counter()  # tickets at which workers died, with their places
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
            self.let_go(worker_idx)
        self._planned.clear()
        return new

    def let_go(self, worker_idx: int) -> None:
        """Have a worker get no more tickets, if another one stays."""
        if self.num_staying > 1 and not self.states[worker_idx].is_leaving:
            self.states[worker_idx].is_leaving = True
            self.leaving.add(worker_idx)
            self.num_staying -= 1
            self._note_change()

    def dismiss(self) -> list[int]:
        """Return the numbers of workers that were let go and have nothing left to do; they are gone."""
        done = sorted(worker_idx for worker_idx in self.leaving if not self.states[worker_idx].unanswered)
        for worker_idx in done:
            self.states[worker_idx].is_gone = True
        self.leaving.difference_update(done)
        return done

    # --- those that are away ---

    def send_away(self, worker_idx: int, *, is_accident: bool) -> None:
        """Note that a worker has ended, and that a place for another one is looked for: others do its tickets.

        The tickets stay its own, and it gets those back that are unanswered when it is there again: another worker may
        block on them, as its results of later tickets lie in its memory until these are answered. A ticket at which
        two workers have died is left to its own, so that it ends no others.
        """
        state, holders = self.states[worker_idx], self.holders
        if is_accident and state.unanswered:
            self._suspects[state.unanswered[0]] += 1
        for ticket in state.unanswered:
            if holders[ticket] != worker_idx and self.stand_ins.get(ticket) == worker_idx:
                del self.stand_ins[ticket]
        state.unanswered = deque(ticket for ticket in state.unanswered if holders[ticket] == worker_idx)
        state.is_away, state.is_unreachable = True, False
        self._note_change()

    def lose_sight(self, worker_idx: int) -> None:
        """Note that a worker is not reached: others do its tickets as well."""
        state = self.states[worker_idx]
        if not (state.is_gone or state.is_lost):
            state.is_unreachable = True
            self._note_change()

    def call_back(self, worker_idx: int) -> list[Assign]:
        """Take a worker back that was away: it gets its tickets that are unanswered, if it has not kept them."""
        state = self.states[worker_idx]
        has_them = state.is_unreachable
        if has_them:
            state.is_away = state.is_unreachable = False
            self._note_change()
        else:
            self.forget_answered(worker_idx)
        if not state.unanswered:
            self.idle.append(worker_idx)
        return [] if has_them else [Assign(worker_idx, ticket) for ticket in state.unanswered]

    def forget_answered(self, worker_idx: int) -> None:
        """Take from a worker, which has ended, the tickets that others have answered meanwhile."""
        state = self.states[worker_idx]
        state.is_away = state.is_unreachable = False
        state.unanswered = deque(ticket for ticket in state.unanswered if ticket in self.holders)
        self._note_change()

    def _note_change(self) -> None:
        """Note that somebody is there, or not there any more, who was counted on."""
        self.has_changed = True
        self._planned.clear()

    def cover(self, now: float) -> list[Assign]:
        """Have those that are there do what nobody does: the tickets of all that are lost, but for what others do."""
        states, stand_ins = self.states, self.stand_ins
        there = [idx for idx, state in enumerate(states) if not (state.is_leaving or state.is_lost)]
        if not there:
            return self.call_someone_back()
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
                if ticket in states[other].unanswered:  # it was not reached, and has kept it
                    continue
                if not states[other].unanswered:
                    states[other].show_life(now)
                states[other].unanswered.append(ticket)
                assigned.append(Assign(other, ticket))
        return assigned

    def call_someone_back(self) -> list[Assign]:
        """If only workers that are lost could take tickets: wait for these, as if there were no others.

        Whichever is heard first does what the others have, see `cover`.
        """
        states = self.states
        if any(not (state.is_leaving or state.is_lost) for state in states):
            return []
        self.has_changed = False
        self._planned.clear()
        assigned: list[Assign] = []
        for worker_idx, state in enumerate(states):
            if state.is_leaving or not state.is_away:
                continue
            if not state.is_unreachable:  # it has none of its tickets
                self.forget_answered(worker_idx)
                state.is_unreachable = True
                assigned += [Assign(worker_idx, ticket) for ticket in state.unanswered]
            state.is_away = False
            if not state.unanswered:
                self.idle.append(worker_idx)
        return assigned

    def who_does(self, ticket: int) -> int | None:
        """Return the worker that is counted on for a ticket, if it is assigned and has no answer."""
        holder, stand_in = self.holders.get(ticket), self.stand_ins.get(ticket)
        if holder is None or stand_in is None:
            return holder
        return stand_in if self.states[holder].is_lost and not self.states[stand_in].is_lost else holder

    def note_stood_in(self, ticket: int, holder: int) -> None:
        """Note that a ticket was answered that another one than its holder does, or does as well."""
        self.stand_ins.pop(ticket, None)
        state = self.states[holder]
        if state.is_away and not state.is_unreachable and ticket in state.unanswered:
            state.unanswered.remove(ticket)

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
