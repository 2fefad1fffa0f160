"""What the supervisor knows of each worker, who there is, and who gets the next ticket.

What a ticket costs does not depend on the number of workers: all of them are looked at only when there is a burst to be
given to all, or when one comes or goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import cycle, islice

from .events import Assign


class WorkerState:
    """One worker, as the supervisor sees it.

    Attributes:
        unanswered: Its tickets without an answer, ascending.
        next_item: Stream mode: which item the next ticket asks for.
        num_items: Stream mode: how many items there are, known once the iterator has ended.
        last_failed: Whether its last answer was an error.
        quiet_since: When it last showed a sign of life, on the clock of waiting.
        warned: Whether its silence since then has been warned about.
        is_leaving: It gets no more tickets: it was let go.
        is_gone: It is not there any more, nor is another one in its place.
    """

    __slots__ = (
        "is_gone",
        "is_leaving",
        "last_failed",
        "next_item",
        "num_items",
        "quiet_since",
        "unanswered",
        "warned",
    )

    def __init__(self) -> None:
        self.unanswered: deque[int] = deque()
        self.next_item = 0
        self.num_items: int | None = None
        self.last_failed = False
        self.quiet_since = 0.0
        self.warned = False
        self.is_leaving = self.is_gone = False

    @property
    def first_ticket(self) -> str:
        """The ticket that it works on, as text."""
        return f"ticket {self.unanswered[0]}" if self.unanswered else "between tickets"

    def show_life(self, now: float) -> None:
        """Take note of a sign of life."""
        self.quiet_since = now
        self.warned = False


def plan_tasks(workers: Sequence[WorkerState], limit: int, first: int, num: int, *, in_turns: bool) -> list[int]:
    """Choose the workers of the next tasks: fewer than `num` of them, if no worker may have more.

    Ticket t goes to the worker with the fewest, among equals to worker t mod W, or the next one after it: workers that
    are equally fast take turns.

    Args:
        workers: Of whom none may be given more tickets than `limit`.
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

    Attributes:
        states: By number; also of those that are gone.
        holders: Ticket without an answer -> number of the worker that has it.
        idle: Numbers of workers that had no ticket when they were put here, the first one first; some have by now.
        num_staying: How many were not let go.
        leaving: Numbers of those that were let go and are not gone.
    """

    def __init__(self, num_workers: int) -> None:
        self.states = [WorkerState() for _ in range(num_workers)]
        self.holders: dict[int, int] = {}
        self.idle = deque(range(num_workers))
        self.num_staying = num_workers
        self.leaving: set[int] = set()
        self._planned: deque[int] = deque()  # who gets the tickets after those that were given

    def resize(self, num_workers: int) -> list[int]:
        """Let workers go, or have others come, so that so many stay; return the numbers of those that have to come.

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
        while self.num_staying < num_workers:
            new.append(len(self.states))
            self.idle.append(len(self.states))
            self.states.append(WorkerState())
            self.num_staying += 1
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
            self._planned.clear()

    def dismiss(self) -> list[int]:
        """Return the numbers of workers that were let go and have nothing left to do; they are gone."""
        done = sorted(worker_idx for worker_idx in self.leaving if not self.states[worker_idx].unanswered)
        for worker_idx in done:
            self.states[worker_idx].is_gone = True
        self.leaving.difference_update(done)
        return done

    def is_anyone_idle(self) -> bool:
        """Tell whether a worker that may get tickets has none."""
        idle, states = self.idle, self.states
        while idle:
            state = states[idle[0]]
            if not (state.unanswered or state.is_leaving or state.num_items is not None):
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
        """Give the next tasks to workers that have none, in turns; return to whom.

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
        """Give the next tasks to workers, first to those that have none, then to who has the fewest; return to whom.

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
            staying = [worker_idx for worker_idx, state in enumerate(states) if not state.is_leaving]
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
        """Give the next tasks to workers: ticket t to worker t mod W, as long as that may have more; return to whom.

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
        """Find out who has nothing to do, where nobody is chosen for that: what was noted of it would only grow."""
        self.idle.clear()
        self.idle.extend(worker_idx for worker_idx, state in enumerate(self.states) if not state.unanswered)

    def _choose_idle(self, first: int, num: int, now: float) -> list[int]:
        """Give one ticket to each worker that has none; return to whom."""
        idle, states, chosen = self.idle, self.states, list[int]()
        while idle and len(chosen) < num:
            worker_idx = idle.popleft()
            state = states[worker_idx]
            if not (state.unanswered or state.is_leaving):
                state.quiet_since, state.warned = now, False
                state.unanswered.append(first + len(chosen))
                chosen.append(worker_idx)
        return chosen
