"""A thousand workers in one process, in virtual time: the engine as it is, around workers that only take their time."""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.engine import Engine, EngineOptions, Executor, Job, Restarting, WorkerInfo, worker_scope
from headrace.engine.events import Event, Exited, Ready, Unreachable
from headrace.engine.user.job import Mode
from headrace.engine.worker import Worker

Seconds = Callable[[random.Random], float]


class Simulated(Executor):
    """Workers in virtual time: a ticket is done when its time has come. Some die.

    For the next lives of half of them a place is looked for, where they are ready after the time of some tickets.

    Args:
        seconds: Draws how long a ticket takes.
        deaths: How often one of the workers ends, and where.
        seed: Of chance.
    """

    name = "simulated"
    runs_in = "process"
    is_resizable = True

    def __init__(self, seconds: Seconds, *, deaths: float = 0.0, seed: int = 0) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.most_open = self.num_deaths = 0
        self._open: set[int] = set()  # tickets without an answer
        self._seconds, self._deaths = seconds, deaths
        self._due: list[tuple[float, int, int]] = []  # time, worker, life; a negative one begins
        self._without_place: dict[int, bool] = {}  # worker -> whether that was told
        self._lives: dict[int, int] = {}
        self._last_life = 0

    def clock(self) -> float:
        return self.now

    def start(self, job: Job, num_workers: int) -> None:
        self._job, self._num_workers = job, num_workers
        self._workers: dict[int, Worker] = {}
        self._queues: dict[int, deque[tuple[int, Any]]] = {}
        for worker_idx in range(num_workers):
            self.add_worker(worker_idx)

    def add_worker(self, worker_idx: int) -> None:
        assert worker_idx not in self._workers
        self._begin_life(worker_idx)

    def remove_worker(self, worker_idx: int) -> None:
        del self._queues[worker_idx], self._workers[worker_idx], self._lives[worker_idx]
        self._without_place.pop(worker_idx, None)

    def _begin_life(self, worker_idx: int) -> None:
        self._last_life += 1
        self._lives[worker_idx] = self._last_life
        self._queues[worker_idx] = deque()
        worker = Worker(self._job, self._job.info_of(worker_idx, self._num_workers, self.name))
        with worker_scope(worker.scope):
            assert worker.set_up() is None
        self._workers[worker_idx] = worker

    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        self._run_id = run_id
        for queue in self._queues.values():
            queue.clear()
        self._open.clear()

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: Any) -> None:
        queue = self._queues[worker_idx]
        assert ticket not in dict(queue)
        queue.append((ticket, payload))
        self._open.add(ticket)
        self.most_open = max(self.most_open, len(self._open))
        if len(queue) == 1 and worker_idx not in self._without_place:
            self._begin_ticket(worker_idx)

    def _begin_ticket(self, worker_idx: int) -> None:
        due = self.now + self._seconds(self.chance)
        heapq.heappush(self._due, (due, worker_idx, self._lives[worker_idx]))

    def cancel(self, run_id: int) -> None:
        self.begin_run(-1, Mode.TASK)

    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        untold = [idx for idx, is_told in self._without_place.items() if not is_told]
        if untold:
            self._without_place.update(dict.fromkeys(untold, True))
            return list(map(Unreachable, untold))
        end = self.now + timeout_seconds
        while self._due and self._due[0][0] <= end:
            due, worker_idx, life = heapq.heappop(self._due)
            queue = self._queues.get(worker_idx)
            if self._lives.get(worker_idx) == -life:
                self.now = max(due, self.now)
                self._without_place.pop(worker_idx, None)
                if queue:
                    self._begin_ticket(worker_idx)
                return [Ready(worker_idx)]
            if self._lives.get(worker_idx) != life or not queue:
                continue
            self.now = max(due, self.now)
            if self._deaths and self.chance.random() < self._deaths:
                self.num_deaths += 1
                return [Exited(worker_idx, "was taken away")]
            ticket, payload = queue.popleft()
            self._open.discard(ticket)
            worker = self._workers[worker_idx]
            with worker_scope(worker.scope):
                event = worker.perform(self._run_id, ticket, payload)
            if queue:
                self._begin_ticket(worker_idx)
            assert event is not None
            return [event]
        self.now = end
        return []

    def restart(self, worker_idx: int, first_item: int) -> None:
        self._begin_life(worker_idx)
        self._without_place.pop(worker_idx, None)
        if self.chance.random() < 0.5:
            self._without_place[worker_idx] = False
            due = self.now + 20 * self._seconds(self.chance)
            heapq.heappush(self._due, (due, worker_idx, -self._lives[worker_idx]))

    def stack_of(self, worker_idx: int) -> str | None:
        return None

    def close(self) -> None:
        self._due.clear()


def square(info: WorkerInfo) -> Callable[[int], int]:
    return lambda number: number * number


def steady(chance: random.Random) -> float:
    return chance.uniform(0.9, 1.1)


def uneven(chance: random.Random) -> float:
    return chance.choice([0.01, 1.0, 1.0, 1.0, 30.0])


PATIENT = EngineOptions(on_death=Restarting(10**6), warn_seconds=0, stall_seconds=0)


@examples(5)
@given(st.integers(0, 10**6), st.sampled_from([steady, uneven]))
def test_a_thousand_workers_that_die_leave_and_come_give_the_stream_of_a_plain_loop(
    seed: int, seconds: Seconds
) -> None:
    executor = Simulated(seconds, deaths=0.02, seed=seed)
    chance = random.Random(seed)
    with Engine(Job(square), num_workers=1000, executor=executor, options=PATIENT, clock=executor.clock) as engine:
        most = 1000
        found = 0
        for delivered in engine.run(range(12_000)):
            assert (delivered.ticket, delivered.value) == (found, found**2)
            found += 1
            if chance.random() < 0.002:
                num_workers = chance.randint(1, 1200)
                most = max(most, num_workers)
                engine.resize(num_workers)
                assert engine.num_workers == num_workers
        assert found == 12_000
        # Of one that was let go, and whose tickets others have done, the death is none.
        assert executor.num_deaths - 20 <= engine.report.num_restarts <= executor.num_deaths
        assert executor.most_open <= most * 64  # as many as quick tickets may be under way


class Calls:
    """Counts what the consumer's thread calls, of Python and of C, but for the simulation."""

    def __init__(self) -> None:
        self.num = 0

    def take(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename != __file__:
            self.num += 1


def calls_per_ticket(num_workers: int, options: EngineOptions, payloads: Callable[[int], Any]) -> float:
    executor = Simulated(steady)
    calls = Calls()
    with Engine(
        Job(square), num_workers=num_workers, executor=executor, options=options, clock=executor.clock
    ) as engine:
        warm, num_tickets = 10 * num_workers, 3000 + 3 * num_workers
        run = engine.run(payloads(warm + num_tickets + 64 * num_workers))
        for _ in range(warm):
            next(run)
        sys.setprofile(calls.take)
        try:
            for _ in range(num_tickets):
                next(run)
        finally:
            sys.setprofile(None)
        run.close()
    return calls.num / num_tickets


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(warn_seconds=0),
        EngineOptions(tickets_per_worker=2),
        EngineOptions(tickets_per_worker=1),
        EngineOptions(look_ahead=7),
    ],
    ids=["by default", "two ahead", "one ahead", "seven in all"],
)
def test_what_a_ticket_costs_does_not_grow_with_the_number_of_workers(options: EngineOptions) -> None:
    few, many = calls_per_ticket(10, options, range), calls_per_ticket(1000, options, range)
    assert many <= 1.5 * few, (few, many)
