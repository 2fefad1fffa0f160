"""Interrupts, stalls and broken executors: a scripted executor and a clock that only moves when it is told to."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.engine import Engine, EngineOptions, Job, Raising, Restarting
from headrace.engine.events import Beat, Done, Exited, Result
from headrace.engine.executor import Executor
from headrace.engine.local.thread import ThreadExecutor
from headrace.errors import HeadraceError, StalledError


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeResult(Result):
    def __init__(self, value: Any, log: list[str]) -> None:
        self.value, self.log = value, log

    def take(self) -> Any:
        self.log.append(f"take {self.value}")
        return self.value

    def discard(self) -> None:
        self.log.append(f"discard {self.value}")


class FakeExecutor(Executor):
    """Answers each ticket with its payload when waited for; `script` says what happens instead, wait by wait."""

    name = "fake"

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = FakeClock() if clock is None else clock
        self.log: list[str] = []
        self.script: deque[Callable[[float], list]] = deque()
        self.queue: deque[Done] = deque()
        self.interrupt_in: str | None = None
        self.is_running = False

    def _note(self, method: str, *facts: object) -> None:
        self.log.append(" ".join(map(str, (method, *facts))))
        if method == self.interrupt_in:
            self.interrupt_in = None
            raise KeyboardInterrupt

    def start(self, job, num_workers):
        assert not self.is_running
        self.is_running = True
        self._note("start", num_workers)

    def begin_run(self, run_id, mode, payload=None):
        self.queue.clear()
        self._note("begin_run", run_id)

    def submit(self, worker_idx, run_id, ticket, payload):
        assert self.is_running
        self.queue.append(Done(worker_idx, ticket, run_id, FakeResult(payload, self.log)))
        self._note("submit", ticket)

    def cancel(self, run_id):
        assert self.is_running
        self._note("cancel", run_id)

    def wait(self, timeout_seconds):
        self._note("wait")
        if self.script:
            return self.script.popleft()(timeout_seconds)
        return self.answer_all()

    def answer_all(self, _timeout=None) -> list:
        events = list(self.queue)
        self.queue.clear()
        return events

    def nothing_until(self, then: float) -> Callable[[float], list]:
        """Make a piece of script: time passes as it may, wait by wait."""

        def pass_time(timeout_seconds: float) -> list:
            assert timeout_seconds >= 0
            self.clock.now = min(self.clock.now + timeout_seconds, then)
            if self.clock.now < then:
                self.script.appendleft(pass_time)
            return []

        return pass_time

    def restart(self, worker_idx, first_item):
        self.queue = deque(event for event in self.queue if event.worker_idx != worker_idx)
        self._note("restart", worker_idx, first_item)

    def stack_of(self, worker_idx):
        return f"in spin, worker {worker_idx}\n"

    def close(self):
        self.is_running = False
        self.queue.clear()
        self._note("close")


def fake_engine(**options: Any) -> tuple[Engine, FakeExecutor]:
    executor = FakeExecutor()
    job = Job(lambda info: abs)
    engine = Engine(job, num_workers=2, executor=executor, options=EngineOptions(**options), clock=executor.clock)
    return engine, executor


def values_of(run) -> list:
    return [delivered.value for delivered in run]


# --- interrupts ---


@pytest.mark.parametrize("method", ["start", "begin_run", "submit", "wait", "cancel"])
def test_an_interrupt_in_any_call_of_the_executor_passes_and_leaves_the_engine_usable(method: str) -> None:
    engine, executor = fake_engine()
    executor.interrupt_in = method

    def take_some() -> None:
        run = engine.run(range(50))
        assert [next(run).value for _ in range(20)] == list(range(20))
        run.close()

    with pytest.raises(KeyboardInterrupt):
        take_some()
    assert executor.log[-1] == "close"
    assert not executor.is_running
    take_some()
    assert values_of(engine.run(range(5))) == list(range(5))
    engine.close()
    assert not executor.is_running


def test_an_interrupt_while_the_workers_are_ended_is_made_up_for_by_the_next_call() -> None:
    engine, executor = fake_engine()
    assert values_of(engine.run([1])) == [1]
    executor.interrupt_in = "close"
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    engine.close()
    assert executor.log[-2:] == ["close", "close"]
    engine.close()
    assert executor.log[-3:] != ["close"] * 3


def test_a_second_interrupt_while_the_first_one_is_seen_to_leaves_the_engine_usable_too() -> None:
    engine, executor = fake_engine()

    def interrupt_twice(_timeout: float) -> list:
        executor.interrupt_in = "close"
        raise KeyboardInterrupt

    executor.script.append(interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        next(engine.run([1]))
    assert values_of(engine.run([2])) == [2]
    assert [line for line in executor.log if line[:5] in ("start", "close")] == ["start 2", "close", "close", "start 2"]
    engine.close()


def test_an_interrupt_in_the_consumer_gives_up_the_run_and_keeps_the_workers() -> None:
    engine, executor = fake_engine()

    def train() -> None:
        for delivered in engine.run(range(50)):
            if delivered.ticket == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert executor.log[-1] == "cancel 1"
    assert values_of(engine.run([7])) == [7]
    assert [line for line in executor.log if line.startswith("start")] == ["start 2"]
    engine.close()


def test_an_interrupt_in_the_iterator_of_payloads_passes_at_once() -> None:
    engine, executor = fake_engine()

    def payloads():
        yield from range(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(payloads())
    assert not executor.is_running
    assert values_of(engine.run([7])) == [7]
    engine.close()


def test_a_real_ctrl_c_reaches_a_consumer_that_waits_for_a_thread() -> None:
    consumer = threading.get_ident()
    may_return = threading.Event()

    def interrupt_and_hang(_: int) -> None:
        signal.pthread_kill(consumer, signal.SIGINT)
        may_return.wait()

    with Engine(Job(lambda info: interrupt_and_hang), num_workers=1, executor="thread") as engine:
        try:
            with pytest.raises(KeyboardInterrupt):
                list(engine.run([1]))
        finally:
            may_return.set()
    for thread in threading.enumerate():
        if thread.name.startswith("headrace-worker"):
            thread.join()


# --- leaving ---


def test_what_was_not_handed_over_is_discarded_and_late_results_of_older_runs_too() -> None:
    engine, executor = fake_engine(look_ahead=3)
    run = engine.run(range(9))
    assert next(run).value == 0
    late = [Done(1, 3, 1, FakeResult("late", executor.log))]
    run.close()
    assert executor.log[-3:] == ["discard 1", "discard 2", "cancel 1"]
    executor.script.append(lambda _timeout: late + executor.answer_all())
    assert values_of(engine.run([5])) == [5]
    assert executor.log.count("discard late") == 1
    assert engine.report.num_lost == 2
    engine.close()


def test_a_new_run_discards_what_the_old_iterator_holds_though_it_lives_on() -> None:
    engine, executor = fake_engine(look_ahead=3)
    old = engine.run(range(9))
    next(old)
    new = engine.run([5])
    assert executor.log.count("discard 1") == executor.log.count("discard 2") == 1
    assert values_of(new) == [5]
    with pytest.raises(HeadraceError, match="another run"):
        next(old)
    engine.close()


def test_the_report_says_where_the_time_went() -> None:
    engine, executor = fake_engine()

    def answer_in_3_seconds(_timeout: float) -> list:
        executor.clock.now += 3
        return [msgspec.structs.replace(event, seconds=2.0, transport_seconds=0.5) for event in executor.answer_all()]

    executor.script.append(answer_in_3_seconds)
    for _ in engine.run(range(4)):
        executor.clock.now += 10
    report = engine.report
    assert (report.seconds_waited, report.seconds_loaded, report.seconds_transport) == (3, 8, 2)
    assert report.seconds_consumer == 40
    assert [worker.seconds_loaded for worker in report.workers] == [4, 4]
    engine.close()


# --- stalls ---


def test_a_stall_is_warned_about_with_the_stack_and_then_raised_with_it(caplog: pytest.LogCaptureFixture) -> None:
    engine, executor = fake_engine(warn_seconds=60, stall_seconds=600)
    executor.script.append(executor.nothing_until(600))
    with pytest.raises(StalledError) as caught:
        next(engine.run(range(9)))
    assert executor.clock.now == 600
    assert [record.getMessage() for record in caplog.records] == [
        "waited 60 s for worker 0 (ticket 0)\nThe stack of worker 0:\nin spin, worker 0"
    ]
    assert caught.value.__notes__ == ["The stack of worker 0:\nin spin, worker 0"]
    assert caught.value.where == "ticket 0, before the worker was ready"  # it has not said so
    assert not executor.is_running
    assert values_of(engine.run([3])) == [3]
    engine.close()


def test_the_clock_stands_still_while_the_consumer_works(caplog: pytest.LogCaptureFixture) -> None:
    engine, executor = fake_engine(warn_seconds=60, stall_seconds=600, look_ahead=2)
    for delivered in engine.run(range(9)):
        assert delivered.ticket < 9
        executor.clock.now += 10_000
    assert not caplog.records
    assert engine.report.seconds_consumer == 90_000
    assert engine.report.seconds_waited == 0
    engine.close()


def test_a_worker_that_gets_on_is_not_stalled_however_long_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    engine, executor = fake_engine(warn_seconds=60, stall_seconds=100)

    def slow_progress(_timeout: float) -> list:
        executor.clock.now += 59
        return [Beat(0)]

    executor.script.extend([slow_progress] * 50)
    assert next(engine.run(range(9))).value == 0
    assert engine.report.seconds_waited == 50 * 59
    assert not caplog.records
    engine.close()


def test_nobody_is_blamed_for_the_time_in_which_the_trainer_was_stopped(caplog: pytest.LogCaptureFixture) -> None:
    engine, executor = fake_engine(warn_seconds=60, stall_seconds=600)

    def stopped(_timeout: float) -> list:
        executor.clock.now += 10_000
        return []

    executor.script.extend([stopped] * 3)
    assert values_of(engine.run(range(9))) == list(range(9))
    assert engine.report.seconds_waited == 30_000
    assert not caplog.records
    engine.close()


def test_a_worker_that_died_between_runs_is_replaced_in_the_next_one() -> None:
    engine, executor = fake_engine()
    assert values_of(engine.run([1])) == [1]
    executor.script.append(lambda _timeout: [Exited(0, "was killed by signal 9 (SIGKILL)")])
    assert values_of(engine.run([2, 3])) == [2, 3]
    assert executor.log.count("restart 0 0") == 1
    engine.close()


def test_a_death_told_together_with_the_last_result_is_not_lost_on_the_next_run() -> None:
    engine, executor = fake_engine(look_ahead=1)

    def error_and_death(_timeout: float) -> list:
        return [*executor.answer_all(), Exited(1, "ended with exit code 0")]

    executor.script.append(error_and_death)
    run = engine.run([1])
    assert next(run).value == 1
    run.close()
    assert "restart 1 0" in executor.log
    assert values_of(engine.run([2])) == [2]
    engine.close()


@pytest.mark.parametrize("way", ["close", "drop", "keep"])
def test_a_death_that_nobody_asked_about_before_the_next_run_is_not_lost_on_it(way: str) -> None:
    engine, executor = fake_engine(on_death=Raising())
    executor.script.append(lambda _timeout: [*executor.answer_all(), Exited(1, "ended with exit code 0")])
    run: Any = engine.run([1])
    assert next(run).value == 1
    if way == "close":
        run.close()
    elif way == "drop":
        run = None
    assert values_of(engine.run([2])) == [2]
    assert [line for line in executor.log if line[:5] in ("start", "close")] == ["start 2", "close", "start 2"]
    del run
    engine.close()


def test_the_collector_in_another_thread_leaves_the_executor_alone() -> None:
    engine, executor = fake_engine(on_death=Raising())
    executor.script.append(lambda _timeout: [*executor.answer_all(), Exited(1, "ended with exit code 0")])
    held = [engine.run([1])]
    assert next(held[0]).value == 1
    calls = len(executor.log)
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert executor.log[calls:] == []
    assert values_of(engine.run([2])) == [2]
    assert executor.log[calls : calls + 2] == ["close", "start 2"]
    engine.close()


# --- threads that do not return ---


def test_a_thread_that_is_stuck_is_left_behind_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    may_return = threading.Event()
    is_in = threading.Event()

    def hang(_: int) -> None:
        is_in.set()
        may_return.wait()

    engine = Engine(Job(lambda info: hang), num_workers=1, executor="thread")
    run = engine.run([1])
    is_in.wait()
    (thread,) = [other for other in threading.enumerate() if other.name == "headrace-worker-0"]
    assert thread.daemon
    engine.close()
    with pytest.raises(HeadraceError, match="closed"):
        next(run)
    assert "threads are left running, because user code in them does not return: headrace-worker-0" in caplog.text
    may_return.set()
    thread.join()


class ThreadsInFakeTime(ThreadExecutor):
    """Lets time pass, as much as it may, once a worker is stuck and until it is replaced."""

    def __init__(self, clock: FakeClock, is_stuck: threading.Event) -> None:
        super().__init__()
        self.clock, self.is_stuck = clock, is_stuck
        self.is_replaced = False

    def wait(self, timeout_seconds: float) -> list:
        if self.is_replaced:
            return super().wait(timeout_seconds)
        self.is_stuck.wait()
        self.clock.now += timeout_seconds
        return []

    def restart(self, worker_idx: int, first_item: int) -> None:
        self.is_replaced = True
        super().restart(worker_idx, first_item)


def test_a_thread_that_stalls_is_replaced_and_its_late_result_is_dropped() -> None:
    clock = FakeClock()
    may_return = threading.Event()
    is_stuck = threading.Event()
    calls = []

    def hang_once(number: int) -> int:
        calls.append(threading.current_thread())
        if len(calls) == 1:
            is_stuck.set()
            may_return.wait()
            return -1
        may_return.set()
        calls[0].join()  # the late result is there before this one
        return number

    options = EngineOptions(warn_seconds=0, stall_seconds=100, on_stall=Restarting(1), tickets_per_worker=1)
    executor = ThreadsInFakeTime(clock, is_stuck)
    with Engine(Job(lambda info: hang_once), num_workers=1, executor=executor, options=options, clock=clock) as engine:
        assert values_of(engine.run([5])) == [5]
        assert engine.report.num_restarts == 1
        assert calls[0] is not calls[1]
        assert values_of(engine.run([6])) == [6]


def test_the_stack_of_a_thread_names_the_function_it_is_in() -> None:
    may_return = threading.Event()
    is_in = threading.Event()

    def hang_in_here(_: int) -> None:
        is_in.set()
        may_return.wait()

    engine = Engine(Job(lambda info: hang_in_here), num_workers=1, executor="thread")
    run = engine.run([1])
    is_in.wait()
    stack = engine._workers.executor.stack_of(0)
    may_return.set()
    assert stack is not None
    assert "in hang_in_here" in stack
    assert len(list(run)) == 1
    engine.close()


class MeasuredExecutor(FakeExecutor):
    """Its tickets take `seconds` each, and their values `num_bytes`."""

    seconds, num_bytes = 1e-5, 100

    def submit(self, worker_idx, run_id, ticket, payload):
        result = FakeResult(payload, self.log)
        result.num_bytes = self.num_bytes
        self.queue.append(Done(worker_idx, ticket, run_id, result, self.seconds))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("seconds", "num_bytes", "payload"), [(0.01, 100, 0), (1e-5, 1 << 20, 0), (1e-5, 100, bytes(1 << 20))]
)
def test_workers_have_more_tickets_before_them_as_long_as_these_are_quick_and_small(
    seconds: float, num_bytes: int, payload: Any
) -> None:
    num_pulled = 0
    now: Any = 0

    def payloads():
        nonlocal num_pulled
        while True:
            num_pulled += 1
            yield now

    executor = MeasuredExecutor()
    with Engine(Job(lambda info: abs), num_workers=2, executor=executor) as engine:
        run = engine.run(payloads())
        assert num_pulled == 16
        assert 128 < max(num_pulled - next(run).ticket for _ in range(2000)) <= 256
        executor.seconds, executor.num_bytes, now = seconds, num_bytes, payload
        for _ in range(600):
            delivered = next(run)
        assert num_pulled - delivered.ticket <= 17
        run.close()


def test_slow_payloads_are_not_pulled_in_large_bursts() -> None:
    clock, num_pulled = FakeClock(), 0

    def payloads():
        nonlocal num_pulled
        while True:
            clock.now += 0.0009
            num_pulled += 1
            yield 0

    with Engine(Job(lambda info: abs), num_workers=2, executor=MeasuredExecutor(clock), clock=clock) as engine:
        run = engine.run(payloads())
        assert max(num_pulled - next(run).ticket for _ in range(1000)) <= 17
        run.close()


def test_a_number_of_tickets_that_is_said_is_kept() -> None:
    numbers = iter(range(10_000))
    options = EngineOptions(tickets_per_worker=3)
    with Engine(Job(lambda info: abs), num_workers=2, executor=MeasuredExecutor(), options=options) as engine:
        run = engine.run(numbers)
        for _ in range(1000):
            ticket = next(run).ticket
        assert next(numbers) - ticket <= 7
        run.close()
