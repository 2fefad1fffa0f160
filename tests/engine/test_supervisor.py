"""The supervisor decides: laws over simulated workers, and one sentence for each rule."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.events import (
    Add,
    Assign,
    Beat,
    Deliver,
    Done,
    Drop,
    End,
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
from headrace.engine.options import EngineOptions, Raising, Restarting, Skipping
from headrace.engine.supervisor import Supervisor
from headrace.engine.user.failure import Failure
from headrace.engine.user.job import Mode
from headrace.engine.user.worker_info import CurrentItem
from headrace.engine.worker_state import WorkerState, plan_items, plan_tasks
from headrace.errors import ConfigError, InternalError, StalledError, TransformError, WorkerDiedError


def failure(number: int = 0, ends_stream: bool = False, kind: type[Exception] = ValueError) -> Failure:
    return Failure(kind.__name__, f"bad {number}", "trace", None, kind(f"bad {number}"), ends_stream)


@dataclass
class SimWorker:
    """A worker that does what it is told, in its own time."""

    queue: deque[int] = field(default_factory=deque)
    untold: deque[object] = field(default_factory=deque)
    next_item: int = 0
    ended: bool = False
    beyond: list[int] = field(default_factory=list)
    is_unreachable: bool = False


class World:
    """Simulated workers, and a consumer, around one supervisor; chance decides who acts next.

    Args:
        some_stay_lost: Whether some workers, but for the first one, are never heard again after they were lost.
    """

    def __init__(
        self,
        mode: Mode,
        lengths: list[int],
        options: EngineOptions,
        *,
        bad: frozenset[int],
        num_deaths: int,
        num_stalls: int = 0,
        num_resizes: int = 0,
        num_losses: int = 0,
        slots: int = 1000,
        some_stay_lost: bool = False,
        chance: random.Random,
    ) -> None:
        self.mode, self.options, self.bad, self.chance = mode, options, bad, chance
        self.lengths = lengths  # stream mode: of each worker's stream; task mode: one number, of tickets
        self.num_workers = len(lengths)
        self.num_tickets = lengths[0]
        self.deaths_left, self.stalls_left = num_deaths, num_stalls
        self.resizes_left, self.losses_left = num_resizes, num_losses
        self.workers = dict(enumerate(SimWorker() for _ in lengths))
        self.slots = slots  # so many results of a worker fit into its memory
        self.some_stay_lost, self.lost = some_stay_lost, set[int]()  # the workers that are
        self.held: dict[int, set[int]] = {}  # results by worker, over all of its lives
        self.num_staying = self.most_staying = self.num_workers
        self.supervisor = Supervisor(self.num_workers, mode, options)
        self.payloads_ended = False
        self.now = 0.0
        self.num_died = 0
        self.assigned: set[int] = set()
        self.answered: set[int] = set()
        self.stream: list[tuple[str, int]] = []
        self.handed_over = 0
        self.answer: object = None
        self.error_type: type[Exception] = ValueError

    def tell(self, event) -> None:
        if isinstance(event, Done | Failed):
            self.answered.add(event.ticket)
        if isinstance(event, StreamEnded):
            worker = self.workers[event.worker_idx]
            self.assigned -= {*worker.beyond, *worker.queue}
        for action in self.supervisor.handle(event):
            self.obey(action)

    def obey(self, action) -> None:
        match action:
            case Assign(worker_idx, ticket):
                self.assign(worker_idx, ticket)
            case Deliver(done):
                assert self.answer is None
                self.stream.append(("value", done.ticket))
                self.held[done.worker_idx].discard(done.ticket)
                self.answer = action
            case Drop(answer):
                self.held[answer.worker_idx].discard(answer.ticket)
            case Skip(ticket, _, _):
                self.stream.append(("skip", ticket))
            case Restart(worker_idx, first_item):
                assert worker_idx in self.workers
                untold = deque([Ready(worker_idx)])
                for event in self.workers[worker_idx].untold:  # of one that has stalled
                    self.held.setdefault(worker_idx, set()).discard(getattr(event, "ticket", -1))
                self.workers[worker_idx] = SimWorker(next_item=first_item, untold=untold)
            case Add(worker_idx):
                assert worker_idx not in self.workers
                self.workers[worker_idx] = SimWorker()
            case Remove(worker_idx):
                gone = self.workers.pop(worker_idx)
                self.lost.discard(worker_idx)
                left = {*gone.queue, *(event.ticket for event in gone.untold if not isinstance(event, Ready))}
                assert not left or gone.is_unreachable
                self.held.setdefault(worker_idx, set()).difference_update(left)
            case Raise() | End():
                assert self.answer is None
                self.answer = action

    def assign(self, worker_idx: int, ticket: int) -> None:
        worker = self.workers[worker_idx]
        if self.mode is Mode.TASK:
            assert ticket not in self.answered  # its payload is gone, and the next one would be taken
            if ticket >= self.num_tickets:
                if not self.payloads_ended:
                    assert ticket == self.num_tickets
                    self.payloads_ended = True
                    self.tell(PayloadsEnded(ticket))
                return
        else:
            assert ticket % self.num_workers == worker_idx
        is_new = ticket not in self.assigned
        assert not is_new or not worker.queue or worker.queue[-1] < ticket
        worker.queue.append(ticket)
        if not is_new:  # of a worker that was started anew, or that others do its work for
            return
        self.assigned.add(ticket)
        assert len(worker.queue) <= self.supervisor.tickets_per_worker
        last = self.stream[-1][1] if self.stream else -1
        not_handed_over = [other for other in self.assigned if other > last]
        assert self.supervisor.num_workers == self.num_staying
        look_ahead = self.options.look_ahead or self.most_staying * self.supervisor.tickets_per_worker
        assert len(not_handed_over) <= look_ahead or min(not_handed_over) == ticket  # what the consumer waits for

    def work(self, worker_idx: int) -> None:
        worker = self.workers[worker_idx]
        ticket = worker.queue.popleft()
        if self.mode is Mode.STREAM:
            if worker.next_item >= self.lengths[worker_idx]:
                worker.beyond.append(ticket)
                if not worker.ended:
                    worker.ended = True
                    worker.untold.append(StreamEnded(worker_idx, worker.next_item))
                return
            assert ticket // self.num_workers == worker.next_item
            worker.next_item += 1
        if ticket in self.bad:
            worker.untold.append(Failed(worker_idx, ticket, failure(ticket, kind=self.error_type)))
        else:
            worker.untold.append(Done(worker_idx, ticket))
            self.held.setdefault(worker_idx, set()).add(ticket)

    def has_memory(self, worker_idx: int) -> bool:
        return len(self.held.setdefault(worker_idx, set())) < self.slots

    def die(self, worker_idx: int) -> None:
        """What it had finished is told first, if it is heard. A place for the next one may have to be found."""
        worker = self.workers[worker_idx]
        while worker.untold and not worker.is_unreachable and worker_idx not in self.lost:
            self.tell(worker.untold.popleft())
        if not isinstance(self.answer, End | Raise) and worker_idx in self.workers:
            self.num_died += 1
            worker.queue.clear()
            for event in worker.untold:  # what it had made and not told is lost
                self.held.setdefault(worker_idx, set()).discard(getattr(event, "ticket", -1))
            worker.untold.clear()
            self.lost.discard(worker_idx)
            self.tell(Exited(worker_idx, "was killed by signal 9 (SIGKILL)"))
            if not isinstance(self.answer, End | Raise) and worker_idx in self.workers and self.chance.random() < 0.5:
                self.lose(worker_idx)

    def step(self) -> None:
        workers = sorted(self.workers)
        there = [idx for idx in workers if idx not in self.lost]
        choices = [(self.work, idx) for idx in there if self.workers[idx].queue and self.has_memory(idx)] * 3
        heard = {idx: self.workers[idx] for idx in there if not self.workers[idx].is_unreachable}
        choices += [(self.tell_next, idx) for idx in sorted(heard) if heard[idx].untold] * 3
        choices += [(self.find, idx) for idx in there if idx not in heard]
        assert choices, "the consumer waits, and nobody has anything to do"
        if any(isinstance(worker.untold[0], Done | Failed) for worker in heard.values() if worker.untold):
            choices += [(self.tell_together, 0)] * 3
        if self.options.tickets_per_worker is None:
            choices.append((self.look_further, 0))
        if self.deaths_left:
            choices += [(self.kill, idx) for idx in workers]
        if self.stalls_left:
            choices.append((self.stall, 0))
        if self.resizes_left:
            choices.append((self.resize, 0))
        if self.losses_left:
            choices += [(self.lose_one, idx) for idx in sorted(heard)]
        act, worker_idx = self.chance.choice(choices)
        act(worker_idx)

    def tell_next(self, worker_idx: int) -> None:
        self.tell(self.workers[worker_idx].untold.popleft())

    def tell_together(self, _: int) -> None:
        answers: list[object] = []
        for worker in self.workers.values():
            while (
                not worker.is_unreachable
                and worker.untold
                and isinstance(worker.untold[0], Done | Failed)
                and self.chance.random() < 0.7
            ):
                answers.append(worker.untold.popleft())
        self.answered |= {answer.ticket for answer in answers}
        for action in self.supervisor.handle_answers(answers):
            self.obey(action)

    def look_further(self, _: int) -> None:
        self.supervisor.look_further(self.chance.choice([1, 2, 3, 8, 20]))

    def kill(self, worker_idx: int) -> None:
        self.deaths_left -= 1
        self.die(worker_idx)

    def resize(self, _: int) -> None:
        self.resizes_left -= 1
        self.num_staying = self.chance.randint(1, 6)
        self.most_staying = max(self.num_staying, self.most_staying)
        self.tell(Resized(self.num_staying))

    def lose_one(self, worker_idx: int) -> None:
        self.losses_left -= 1
        self.lose(worker_idx)

    def lose(self, worker_idx: int) -> None:
        self.workers[worker_idx].is_unreachable = True
        if self.some_stay_lost and worker_idx and self.chance.random() < 0.5:
            self.lost.add(worker_idx)
        self.tell(Unreachable(worker_idx))

    def find(self, worker_idx: int) -> None:
        self.workers[worker_idx].is_unreachable = False
        self.tell(Ready(worker_idx))

    def stall(self, _: int) -> None:
        self.stalls_left -= 1
        self.now += 1000.0
        self.supervisor.now = self.now
        self.tell(Silent())

    def run(self):
        """Consume everything; return the last answer."""
        if self.chance.random() < 0.5:
            for action in self.supervisor.plan_assignments():
                self.obey(action)
        while True:
            self.answer = None
            self.tell(ResultRequested())
            while self.answer is None:
                self.step()
            if not isinstance(self.answer, Deliver):
                return self.answer


def expected_tickets(mode: Mode, lengths: list[int]) -> list[int]:
    if mode is Mode.TASK:
        return list(range(lengths[0]))
    return sorted(item * len(lengths) + idx for idx, length in enumerate(lengths) for item in range(length))


worlds = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(Mode),
        "lengths": st.lists(st.integers(0, 9), min_size=1, max_size=5) | st.lists(st.just(60), min_size=3, max_size=4),
        "tickets_per_worker": st.none() | st.integers(1, 4),
        "look_ahead": st.none() | st.integers(1, 12),
        "bad": st.frozensets(st.integers(0, 45), max_size=6),
        "num_deaths": st.integers(0, 12),
        "num_stalls": st.integers(0, 3),
        "num_resizes": st.integers(0, 6),
        "num_losses": st.integers(0, 8),
        "slots": st.integers(1, 4) | st.just(1000),
        "chance": st.randoms(use_true_random=False),
    }
)


def build(world: dict, *, some_stay_lost: bool = False, **policies) -> World:
    options = EngineOptions(tickets_per_worker=world["tickets_per_worker"], look_ahead=world["look_ahead"], **policies)
    return World(
        world["mode"],
        world["lengths"],
        options,
        bad=world["bad"],
        num_deaths=world["num_deaths"],
        num_stalls=world["num_stalls"],
        num_resizes=0 if world["mode"] is Mode.STREAM else world["num_resizes"],
        num_losses=world["num_losses"],
        slots=world["slots"],
        some_stay_lost=some_stay_lost,
        chance=world["chance"],
    )


@given(worlds)
def test_each_ticket_is_delivered_once_in_order_or_skipped_once_whatever_happens_to_workers(world: dict) -> None:
    sim = build(world, on_death=Restarting(99), on_stall=Restarting(99), on_error=Skipping(99))
    assert isinstance(sim.run(), End)
    tickets = expected_tickets(world["mode"], world["lengths"])
    assert sim.stream == [("skip" if ticket in world["bad"] else "value", ticket) for ticket in tickets]


def run_to_first_error(sim, world: dict) -> tuple[BaseException | None, int | None]:
    """Run; return the error and its ticket, after all values before it were checked. Without one it has to end."""
    last = sim.run()
    tickets = expected_tickets(world["mode"], world["lengths"])
    first_bad = next((number for number, ticket in enumerate(tickets) if ticket in world["bad"]), None)
    assert sim.stream == [("value", ticket) for ticket in tickets[:first_bad]]
    if first_bad is None:
        assert isinstance(last, End)
        return None, None
    assert isinstance(last, Raise)
    return last.error, tickets[first_bad]


@given(worlds)
def test_an_error_is_raised_after_all_earlier_tickets_and_before_all_later_ones(world: dict) -> None:
    sim = build(world, on_death=Restarting(99), on_stall=Restarting(99))
    error, bad_ticket = run_to_first_error(sim, world)
    if bad_ticket is not None:
        assert str(error) == f"bad {bad_ticket}"


@given(worlds, st.integers(0, 4))
def test_a_skip_beyond_the_budget_is_raised_in_its_place(world: dict, budget: int) -> None:
    sim = build(world, on_death=Restarting(99), on_stall=Restarting(99), on_error=Skipping(budget))
    last = sim.run()
    tickets = expected_tickets(world["mode"], world["lengths"])
    bad = [number for number, ticket in enumerate(tickets) if ticket in world["bad"]]
    end = bad[budget] if len(bad) > budget else None
    assert sim.stream == [("skip" if ticket in world["bad"] else "value", ticket) for ticket in tickets[:end]]
    assert isinstance(last, Raise if len(bad) > budget else End)


@given(worlds)
def test_a_wrong_option_is_never_skipped(world: dict) -> None:
    sim = build(world, on_death=Restarting(99), on_stall=Restarting(99), on_error=Skipping(99))
    sim.error_type = ConfigError
    error, bad_ticket = run_to_first_error(sim, world)
    if bad_ticket is not None:
        assert isinstance(error, ConfigError)
        assert "an option is wrong" in error.__notes__[-1]


@given(worlds, st.integers(0, 4))
def test_a_death_beyond_the_budget_is_raised_once_and_what_came_before_is_a_prefix(world: dict, budget: int) -> None:
    sim = build(world, on_death=Restarting(budget), on_stall=Restarting(99), on_error=Skipping(99))
    last = sim.run()
    tickets = expected_tickets(world["mode"], world["lengths"])
    stream = [("skip" if ticket in world["bad"] else "value", ticket) for ticket in tickets]
    assert sim.stream == stream[: len(sim.stream)]
    if isinstance(last, End):
        assert sim.num_died <= budget
        assert sim.stream == stream
    else:
        assert isinstance(last.error, WorkerDiedError)
        assert sim.supervisor.workers_are_lost
        assert sim.num_died == budget + 1
    assert sim.supervisor.handle(ResultRequested()) == []


@given(worlds)
def test_workers_that_are_lost_or_let_go_count_as_no_deaths(world: dict) -> None:
    sim = build({**world, "num_deaths": 0, "num_stalls": 0}, on_death=Raising(), on_error=Skipping(99))
    assert isinstance(sim.run(), End)
    assert len(sim.stream) == len(expected_tickets(world["mode"], world["lengths"]))


@given(worlds)
def test_the_run_goes_on_without_those_that_are_never_heard_again_as_long_as_one_is_there(world: dict) -> None:
    # With the second death at a ticket it is left to its own worker, and memory may be full of later results.
    world |= {"mode": Mode.TASK, "num_deaths": 0, "num_stalls": 0, "slots": 1000}
    sim = build(world, some_stay_lost=True, on_error=Skipping(99))
    assert isinstance(sim.run(), End)
    assert [ticket for _, ticket in sim.stream] == list(range(world["lengths"][0]))


# --- planning ---


def worker_states(loads: list[int], ended: frozenset[int] = frozenset()) -> list[WorkerState]:
    """Workers with so many tickets each; the streams of some have ended."""
    workers = [WorkerState() for _ in loads]
    for worker_idx, (worker, load) in enumerate(zip(workers, loads, strict=True)):
        worker.unanswered.extend(range(load))
        worker.next_item = load
        worker.num_items = load if worker_idx in ended else None
    return workers


limits_and_loads = st.integers(1, 4).flatmap(
    lambda limit: st.tuples(st.just(limit), st.lists(st.integers(0, limit), min_size=1, max_size=5))
)


@given(limits_and_loads, st.integers(0, 9), st.integers(0, 12), st.booleans())
def test_a_burst_of_tasks_goes_where_they_would_go_one_by_one(
    limit_and_loads: tuple[int, list[int]], first: int, num: int, in_turns: bool
) -> None:
    limit, loads = limit_and_loads
    chosen = plan_tasks(worker_states(loads), limit, first, num, in_turns=in_turns)
    for ticket in range(first, first + num):
        order = [(ticket + offset) % len(loads) for offset in range(len(loads))]
        worker_idx = order[0] if in_turns else min(order, key=loads.__getitem__)
        if loads[worker_idx] >= limit:
            assert len(chosen) == ticket - first
            return
        assert chosen[ticket - first] == worker_idx
        loads[worker_idx] += 1
    assert len(chosen) == num


@given(limits_and_loads, st.frozensets(st.integers(0, 4)), st.integers(0, 12))
def test_a_burst_of_items_is_of_the_lowest_tickets_that_streams_go_on_with(
    limit_and_loads: tuple[int, list[int]], ended: frozenset[int], num: int
) -> None:
    limit, loads = limit_and_loads
    planned = plan_items(worker_states(loads, ended), limit, num)
    open_to = [
        item * len(loads) + worker_idx
        for worker_idx, load in enumerate(loads)
        if worker_idx not in ended
        for item in range(load, limit)
    ]
    assert planned == sorted(open_to)[:num]


# --- one rule at a time ---


def task_supervisor(num_workers: int = 2, **options) -> Supervisor:
    return Supervisor(num_workers, Mode.TASK, EngineOptions(**options))


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
    st.integers(0, 20),
)
def test_no_more_tickets_are_open_than_every_limit_allows(
    num_workers: int, per_worker: int, look_ahead: int | None, max_look_ahead: int | None, most: int | None, end: int
) -> None:
    options = EngineOptions(tickets_per_worker=per_worker, look_ahead=look_ahead)
    max_open = None if most is None else lambda: most
    supervisor = Supervisor(num_workers, Mode.TASK, options, max_open=max_open, max_look_ahead=max_look_ahead)
    supervisor.handle(PayloadsEnded(end))
    limit = min(num_workers * per_worker, *(limit for limit in (look_ahead, max_look_ahead, most) if limit), 99)
    doing: deque[Assign] = deque()
    num_assigned = num_delivered = most_open = 0
    actions = supervisor.handle(ResultRequested())
    while End() not in actions:
        assigned = [action for action in actions if isinstance(action, Assign)]
        doing += assigned
        num_assigned += len(assigned)
        most_open = max(most_open, num_assigned - num_delivered)
        if any(isinstance(action, Deliver) for action in actions):
            num_delivered += 1
            actions = supervisor.handle(ResultRequested())
        else:
            done = doing.popleft()
            actions = supervisor.handle(Done(done.worker_idx, done.ticket))
    assert num_assigned == num_delivered == end
    assert most_open == min(limit, end)


def test_answers_that_come_after_the_end_are_given_up_as_well() -> None:
    supervisor = task_supervisor(2, tickets_per_worker=2)
    supervisor.handle(ResultRequested())
    supervisor.handle(Done(1, 1))
    supervisor.handle(SetupFailed(0, failure()))
    supervisor.handle(Done(1, 3))
    assert [answer.ticket for answer in supervisor.give_up()] == [1, 3]
    assert supervisor.give_up() == []


def test_a_stream_ends_once() -> None:
    supervisor = Supervisor(2, Mode.STREAM, EngineOptions())
    supervisor.handle(ResultRequested())
    supervisor.handle(StreamEnded(1, 0))
    with pytest.raises(InternalError, match="its stream ended after 0 items"):
        supervisor.handle(StreamEnded(1, 0))


def test_a_worker_that_is_let_go_does_what_it_has_and_is_removed_then() -> None:
    supervisor = task_supervisor(2, tickets_per_worker=2)
    assert supervisor.handle(ResultRequested()) == [Assign(0, 0), Assign(1, 1), Assign(0, 2), Assign(1, 3)]
    assert supervisor.handle(Resized(1)) == []
    assert supervisor.handle(Done(1, 1)) == []
    assert supervisor.handle(Done(1, 3)) == [Remove(1)]
    assert supervisor.handle(Exited(1, "ended with exit code 0")) == []
    assert supervisor.handle(Done(0, 0)) == [Deliver(Done(0, 0))]
    assert supervisor.num_workers == 1


def test_a_worker_that_dies_after_it_was_let_go_is_missed_only_for_what_it_had() -> None:
    supervisor = task_supervisor(3, tickets_per_worker=1, on_death=Restarting(1))
    supervisor.handle(ResultRequested())
    supervisor.handle(Resized(1))
    assert supervisor.handle(Exited(1, "was killed"))[1:] == [Restart(1, 0), Assign(1, 1)]
    assert supervisor.handle(Done(1, 1)) == [Remove(1)]
    assert supervisor.handle(Done(2, 2)) == [Remove(2)]


def test_workers_that_were_let_go_stay_or_come_back_before_there_are_new_ones() -> None:
    supervisor = task_supervisor(3, tickets_per_worker=1, look_ahead=5)
    supervisor.handle(ResultRequested())
    supervisor.handle(Resized(1))
    assert supervisor.handle(Done(1, 1)) == [Remove(1)]
    assert supervisor.handle(Resized(4)) == [Add(1), Add(3)]  # a payload may be on its way: nothing is planned now
    assert supervisor.plan_assignments() == [Assign(1, 3), Assign(3, 4)]
    assert supervisor.handle(Done(2, 2)) == []  # which stays, and look_ahead is used up
    supervisor.handle(Done(0, 0))
    assert supervisor.handle(ResultRequested())[0] == Deliver(Done(1, 1))
    assert Assign(2, 5) in supervisor.plan_assignments()


def test_streams_and_turns_keep_their_workers() -> None:
    stream = Supervisor(2, Mode.STREAM, EngineOptions())
    for supervisor in (stream, Supervisor(2, Mode.TASK, EngineOptions(), in_turns=True)):
        assert supervisor.why_not_resizable
        assert supervisor.handle(Resized(3)) == []
        assert supervisor.num_workers == 2


def test_items_that_a_worker_left_out_are_skipped_before_the_ticket_they_belong_to() -> None:
    supervisor = task_supervisor(1, on_error=Skipping(2), tickets_per_worker=1)
    supervisor.handle(ResultRequested())
    left_out = failure(1), failure(2)
    assert supervisor.handle(Done(0, 0, skipped=left_out)) == [
        Skip(0, 0, left_out[0]),
        Skip(0, 0, left_out[1]),
        Deliver(Done(0, 0, skipped=left_out)),
    ]


def test_items_that_a_worker_left_out_are_raised_unless_they_may_be_skipped() -> None:
    supervisor = task_supervisor(1)
    supervisor.handle(ResultRequested())
    (action,) = supervisor.handle(Done(0, 0, skipped=(failure(7),)))
    assert isinstance(action, Raise)
    assert str(action.error) == "bad 7"


def test_a_death_is_raised_with_cause_and_ticket_and_remedy_unless_restarts_are_allowed() -> None:
    supervisor = task_supervisor(2, on_death=Raising())
    supervisor.handle(ResultRequested())
    (action,) = supervisor.handle(Exited(1, "ended with exit code 0"))
    assert isinstance(action, Raise)
    assert str(action.error) == (
        "worker 1 ended with exit code 0\n  where: ticket 1\n"
        "  fix: on_death=Restarting() restarts it and does its tickets again"
    )


def test_a_death_right_after_a_delivery_is_raised_when_the_next_ticket_is_asked_for() -> None:
    supervisor = task_supervisor(1, on_death=Raising())
    supervisor.handle(ResultRequested())
    assert supervisor.handle(Done(0, 0)) == [Deliver(Done(0, 0))]
    assert supervisor.handle(Exited(0, "ended with exit code 0")) == []
    assert supervisor.workers_are_lost
    (action,) = supervisor.handle(ResultRequested())
    assert isinstance(action.error, WorkerDiedError)


def test_a_death_that_is_told_after_the_end_still_counts_for_the_next_run() -> None:
    supervisor = task_supervisor(1)
    supervisor.handle(ResultRequested())
    assert supervisor.handle(PayloadsEnded(0)) == [End()]
    assert not supervisor.workers_are_lost
    assert supervisor.handle(Exited(0, "ended with exit code 0")) == []
    assert supervisor.workers_are_lost


def test_a_worker_that_dies_gets_its_tickets_again_and_no_others() -> None:
    supervisor = task_supervisor(2, tickets_per_worker=2)
    supervisor.handle(ResultRequested())
    supervisor.handle(Done(1, 1))
    warn, *rest = supervisor.handle(Exited(1, "was killed by signal 9 (SIGKILL)"))
    assert isinstance(warn, Warn)
    assert "worker 1 was killed by signal 9" in warn.text
    assert rest == [Restart(1, 0), Assign(1, 3)]


def lose(supervisor: Supervisor, worker_idx: int) -> list:
    """Let a worker die, for whose next life a place has to be found; return what is done but for the warning."""
    return [*supervisor.handle(Exited(worker_idx, "was lost"))[1:], *supervisor.handle(Unreachable(worker_idx))]


def test_a_worker_that_has_died_has_its_own_tickets_while_a_place_for_it_is_looked_for() -> None:
    supervisor = task_supervisor(2, tickets_per_worker=1, warn_seconds=60)
    supervisor.handle(ResultRequested())
    assert lose(supervisor, 0) == [Restart(0, 0), Assign(0, 0), Assign(1, 0)]
    assert lose(supervisor, 1) == [Restart(1, 0), Assign(1, 1), Assign(1, 0)]
    (warn,) = silent_at(supervisor, 60)
    assert "worker 0 (ticket 0)" in warn.text
    assert supervisor.handle(Ready(0)) == [Assign(0, 1)]  # whichever is there first does the rest as well


def test_others_do_the_tickets_of_a_worker_that_is_not_reached_as_well_and_the_first_answer_counts() -> None:
    supervisor = task_supervisor(3, tickets_per_worker=2)
    supervisor.handle(ResultRequested())
    assert supervisor.handle(Unreachable(1)) == [Assign(0, 1), Assign(2, 4)]
    assert supervisor.handle(Unreachable(1)) == []
    supervisor.handle_answers([Done(0, 0), Done(0, 3)])
    assert {assign.worker_idx for assign in supervisor.plan_assignments()} <= {0, 2}
    supervisor.handle_answers([Done(0, 1)])
    assert supervisor.handle(Ready(1)) == []  # it has its tickets
    assert supervisor.handle_answers([Done(1, 1)]) == [Drop(Done(1, 1))]
    assert supervisor.handle_answers([Done(1, 4)]) == []
    assert supervisor.handle_answers([Done(2, 2), Done(2, 5), Done(2, 4)]) == [Drop(Done(2, 4))]
    tickets = [supervisor.handle(ResultRequested())[0].done.ticket for _ in range(5)]
    assert tickets == [1, 2, 3, 4, 5]


def test_who_stands_in_is_blamed_for_its_silence_and_not_who_waits_for_a_place() -> None:
    supervisor = task_supervisor(2, tickets_per_worker=1, warn_seconds=60)
    supervisor.handle(ResultRequested())
    supervisor.handle(Unreachable(0))
    supervisor.handle(Done(1, 1))
    supervisor.now = 59
    supervisor.handle(Beat(0))
    assert supervisor.awaited_worker() == 1
    assert supervisor.starving_worker() == 0  # the other one may block on what it has made of later tickets
    (warn,) = silent_at(supervisor, 60)
    assert warn == Warn("waited 60 s for worker 1 (ticket 0)", 1)
    supervisor.handle(Unreachable(1))
    assert supervisor.awaited_worker() == 0


def test_a_worker_that_is_not_reached_is_waited_for_where_nobody_else_may_do_its_work() -> None:
    alone = task_supervisor(1)
    alone.handle(ResultRequested())
    assert alone.handle(Unreachable(0)) == []
    in_turns = Supervisor(2, Mode.TASK, EngineOptions(tickets_per_worker=1), in_turns=True)
    in_turns.handle(ResultRequested())
    assert in_turns.handle(Unreachable(0)) == []


def test_a_ticket_that_ends_its_workers_ends_two_others_at_most_and_is_named() -> None:
    supervisor = Supervisor(4, Mode.TASK, EngineOptions(tickets_per_worker=1, on_death=Restarting(budget=3)))
    supervisor.handle(ResultRequested())
    supervisor.handle_answers([Done(idx, idx) for idx in (1, 2, 3)])
    assert lose(supervisor, 0)[:3] == [Restart(0, 0), Assign(0, 0), Assign(1, 0)]
    actions = lose(supervisor, 1)
    assert not [action for action in actions if isinstance(action, Assign) and action.ticket == 0]
    supervisor.handle(Ready(0))
    assert lose(supervisor, 0)[:2] == [Restart(0, 0), Assign(0, 0)]
    (action,) = supervisor.handle(Exited(0, "was lost"))
    assert isinstance(action, Raise)
    assert "ticket 0" in str(action.error)
    assert "it was number 4 of this run" in str(action.error)


def test_a_generator_that_raised_is_not_skipped_because_the_rest_would_be_lost_in_silence() -> None:
    supervisor = Supervisor(1, Mode.STREAM, EngineOptions(on_error=Skipping(9)))
    supervisor.handle(ResultRequested())
    (action,) = supervisor.handle(Failed(0, 0, failure(ends_stream=True)))
    assert isinstance(action, Raise)
    assert any("a generator cannot go on after it has raised" in note for note in action.error.__notes__)


def test_a_stream_that_ends_right_after_a_skipped_error_is_warned_about() -> None:
    supervisor = Supervisor(1, Mode.STREAM, EngineOptions(on_error=Skipping(9)))
    supervisor.handle(ResultRequested())
    supervisor.handle(Failed(0, 0, failure()))
    warn, end = supervisor.handle(StreamEnded(0, 1))
    assert isinstance(warn, Warn)
    assert isinstance(end, End)


def test_a_stream_that_gives_fewer_items_the_second_time_is_an_error() -> None:
    supervisor = Supervisor(1, Mode.STREAM, EngineOptions())
    supervisor.handle(ResultRequested())
    for ticket in range(3):
        supervisor.handle(Done(0, ticket))
    assert Restart(0, 3) in supervisor.handle(Exited(0, "ended with exit code 7"))
    supervisor.handle(StreamEnded(0, 2))
    for ticket in (1, 2):  # what is here comes first
        assert supervisor.handle(ResultRequested()) == [Deliver(Done(0, ticket))]
    (action,) = supervisor.handle(ResultRequested())
    assert isinstance(action, Raise)
    assert isinstance(action.error, TransformError)
    assert "had given 3 items" in str(action.error)
    assert "only 2 after it" in str(action.error)


def test_what_ends_several_workers_at_once_counts_once() -> None:
    options = EngineOptions(on_death=Restarting(budget=3))
    supervisor = Supervisor(3, Mode.TASK, options)
    supervisor.handle(ResultRequested())
    for accident in (5, 6, 7):
        for worker_idx in range(3):
            actions = supervisor.handle(Exited(worker_idx, "lost its warden", accident=accident))
            assert Restart(worker_idx, 0) in actions
    (action,) = supervisor.handle(Exited(0, "ended with exit code 7"))
    assert isinstance(action, Raise)
    assert "it was number 4 of this run and on_death allows 3" in str(action.error)


def test_a_death_that_is_raised_says_what_to_do_and_how_often_it_came_at_the_same_sequence() -> None:
    supervisor = Supervisor(1, Mode.TASK, EngineOptions(on_death=Restarting(budget=2)))
    supervisor.handle(ResultRequested())
    for place in (CurrentItem("seq-1", 3), CurrentItem("seq-2", 3)):
        assert Restart(0, 0) in supervisor.handle(Exited(0, "was killed", place, advice="give it more memory"))
    (action,) = supervisor.handle(Exited(0, "was killed", CurrentItem("seq-1", 3), advice="give it more memory"))
    assert isinstance(action, Raise)
    text = str(action.error)
    assert "fix: give it more memory; it was number 3 of this run and on_death allows 2" in text
    assert "2 workers died at tag 'seq-1', epoch 3" in text


def test_a_set_up_that_fails_is_raised_and_ends_the_workers() -> None:
    supervisor = task_supervisor(1)
    supervisor.handle(ResultRequested())
    (action,) = supervisor.handle(SetupFailed(0, failure()))
    assert isinstance(action, Raise)
    assert supervisor.workers_are_lost
    assert action.error.__notes__[0].startswith("headrace: while it was set up, worker 0")


def test_an_answer_to_another_ticket_than_the_next_one_is_a_breach_of_contract() -> None:
    supervisor = task_supervisor(1)
    supervisor.handle(ResultRequested())
    with pytest.raises(InternalError, match="answered ticket 1, expected: 0"):
        supervisor.handle(Done(0, 1))


def test_an_end_of_stream_beyond_what_was_answered_is_a_breach_of_contract() -> None:
    supervisor = Supervisor(1, Mode.STREAM, EngineOptions())
    supervisor.handle(ResultRequested())
    with pytest.raises(InternalError, match="after 4 items, but 0 were answered"):
        supervisor.handle(StreamEnded(0, 4))


# --- silence ---


def silent_at(supervisor: Supervisor, now: float) -> list:
    supervisor.now = now
    return supervisor.handle(Silent())


def test_a_silent_worker_is_warned_about_once_and_then_raised_with_its_stack() -> None:
    supervisor = task_supervisor(2, warn_seconds=60, stall_seconds=600)
    supervisor.handle(ResultRequested())
    assert supervisor.deadline(supervisor.awaited_worker()) == 60
    assert silent_at(supervisor, 59.9) == []
    (warn,) = silent_at(supervisor, 60)
    assert warn == Warn("waited 60 s for worker 0 (ticket 0)", 0)
    assert supervisor.deadline(supervisor.awaited_worker()) == 600
    assert silent_at(supervisor, 599) == []
    (action,) = silent_at(supervisor, 600)
    assert isinstance(action.error, StalledError)
    assert action.stack_of == 0


def test_only_the_worker_that_is_waited_for_is_blamed() -> None:
    supervisor = task_supervisor(2, warn_seconds=60, tickets_per_worker=1, look_ahead=2)
    supervisor.handle(ResultRequested())
    supervisor.handle(Done(0, 0))
    assert supervisor.deadline(supervisor.awaited_worker()) is None
    assert silent_at(supervisor, 1000) == []
    supervisor.handle(ResultRequested())
    assert [warn.stack_of for warn in silent_at(supervisor, 1000)] == [1]


def test_a_sign_of_life_starts_the_clock_anew() -> None:
    supervisor = task_supervisor(1, warn_seconds=60)
    supervisor.handle(ResultRequested())
    supervisor.now = 59
    supervisor.handle(Beat(0))
    assert supervisor.deadline(supervisor.awaited_worker()) == 119
    assert silent_at(supervisor, 118) == []
    assert len(silent_at(supervisor, 119)) == 1


def test_a_worker_that_is_not_ready_yet_has_a_limit_of_its_own() -> None:
    supervisor = task_supervisor(1, on_stall=Restarting(1), warn_seconds=0, stall_seconds=5, start_seconds=100)
    supervisor.handle(ResultRequested())
    assert supervisor.deadline(0) == 100
    supervisor.now = 40
    supervisor.handle(Ready(0))
    assert supervisor.deadline(0) == 45
    assert isinstance(silent_at(supervisor, 45)[0], Warn)  # the new one has to start as well
    assert supervisor.deadline(0) == 145
    (action,) = silent_at(supervisor, 145)
    assert action.error.seconds == 100
    assert action.error.where == "ticket 0, before the worker was ready"


def test_workers_that_were_ready_before_the_run_have_the_limit_for_tickets() -> None:
    options = EngineOptions(warn_seconds=0, stall_seconds=5, start_seconds=100)
    supervisor = Supervisor(2, Mode.TASK, options, ready_workers={1})
    supervisor.handle(ResultRequested())
    assert [supervisor.deadline(worker_idx) for worker_idx in (0, 1)] == [100, 5]


def test_without_limits_nobody_is_blamed() -> None:
    supervisor = task_supervisor(1, warn_seconds=0, stall_seconds=0)
    supervisor.handle(ResultRequested())
    assert supervisor.deadline(supervisor.awaited_worker()) is None
    assert silent_at(supervisor, 1e9) == []


def test_a_stalled_worker_is_started_anew_if_that_is_wanted_until_the_budget_is_used_up() -> None:
    supervisor = task_supervisor(1, on_stall=Restarting(1), tickets_per_worker=2, warn_seconds=0, stall_seconds=10)
    supervisor.handle(ResultRequested())
    warn, *rest = silent_at(supervisor, 10)
    assert warn.stack_of == 0
    assert rest == [Restart(0, 0), Assign(0, 0), Assign(0, 1)]
    assert supervisor.deadline(supervisor.awaited_worker()) == 20
    (action,) = silent_at(supervisor, 20)
    assert "it was number 2 of this run and on_stall allows 1" in str(action.error)


def test_the_item_that_is_waited_for_is_asked_for_though_more_is_open_than_may_be_by_now() -> None:
    supervisor = Supervisor(3, Mode.STREAM, EngineOptions())
    supervisor.look_further(8)
    supervisor.plan_assignments()
    supervisor.handle(StreamEnded(2, 0))
    supervisor.handle_answers([Done(1, 1 + 3 * item) for item in range(8)])
    again = supervisor.plan_assignments()
    assert {action.worker_idx for action in again} == {1}  # the other one has as many as it may
    supervisor.handle_answers([Done(1, action.ticket) for action in again])
    supervisor.handle_answers([Done(0, 3 * item) for item in range(8)])
    supervisor.look_further(1)
    for ticket in [number for number in range(24) if number % 3 != 2]:
        assert supervisor.handle(ResultRequested()) == [Deliver(Done(ticket % 3, ticket))]
    assert supervisor.num_open == 8
    assert supervisor.handle(ResultRequested()) == [Assign(0, 24)]


@pytest.mark.parametrize("mode", [Mode.TASK, Mode.STREAM])
def test_what_is_known_of_idle_workers_does_not_grow(mode):
    supervisor = Supervisor(2, mode, EngineOptions(tickets_per_worker=2), in_turns=mode is Mode.TASK)
    for _ in range(500):
        assigned = supervisor.plan_assignments()
        supervisor.handle_answers([Done(one.worker_idx, one.ticket) for one in assigned])
        while supervisor.ready:
            supervisor.ready.popleft()
            supervisor.num_open -= 1
    assert len(supervisor._force.idle) <= 4
