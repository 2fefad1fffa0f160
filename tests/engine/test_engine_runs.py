"""The face of the engine: runs, errors, ends; with the inline and the thread executor."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.engine import (
    Engine,
    EngineOptions,
    Job,
    Restarting,
    Skipping,
    WorkerInfo,
    empty,
    get_worker_info,
    note_item,
)
from headrace.errors import ConfigError, HeadraceError, TransformError, WorkerDiedError

EXECUTORS = pytest.mark.parametrize("executor", ["inline", "thread"])


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def job_of(function) -> Job:
    return Job(lambda info: function)


def values_of(run) -> list:
    return [delivered.value for delivered in run]


@EXECUTORS
def test_the_workers_and_their_functions_stay_over_runs(executor: str) -> None:
    made = []
    with Engine(Job(lambda info: made.append(info.worker_idx) or abs), num_workers=2, executor=executor) as engine:
        for _ in range(3):
            assert values_of(engine.run([-1, -2, -3])) == [1, 2, 3]
    assert sorted(made) == [0, 1]


def test_without_workers_nothing_happens_before_it_is_asked_for() -> None:
    log = []

    def payloads():
        for number in range(3):
            log.append(f"pull {number}")
            yield number

    with Engine(job_of(lambda number: log.append(f"work {number}")), num_workers=0) as engine:
        run = engine.run(payloads())
        assert log == []
        for delivered in run:
            log.append(f"use {delivered.ticket}")
    assert log == [f"{what} {number}" for number in range(3) for what in ("pull", "work", "use")]


def test_payloads_are_pulled_in_the_thread_that_consumes() -> None:
    threads = set()

    def payloads():
        for number in range(50):
            threads.add(threading.get_ident())
            yield number

    with Engine(job_of(abs), num_workers=3, executor="thread") as engine:
        assert len(values_of(engine.run(payloads()))) == 50
    assert threads == {threading.get_ident()}


@EXECUTORS
def test_each_worker_knows_who_it_is_while_it_works_and_the_consumer_is_none(executor: str) -> None:
    def setup(info: WorkerInfo):
        assert get_worker_info() == info
        return lambda _: get_worker_info()

    inits = []
    job = Job(setup, worker_init=inits.append, seed=5)
    with Engine(job, num_workers=2, executor=executor) as engine:
        run = engine.run(range(2))
        infos = [next(run).value for _ in range(2)]
        assert get_worker_info() is None
    assert [(info.num_workers, info.executor) for info in infos] == [(2, executor)] * 2
    assert set(infos) <= set(inits)
    assert {info.worker_idx: info.seed for info in inits}.keys() == {0, 1}
    assert len({info.seed for info in inits}) == 2


def test_without_workers_the_one_who_works_is_worker_0_of_1() -> None:
    with Engine(job_of(lambda _: get_worker_info()), num_workers=0) as engine:
        (info,) = values_of(engine.run([0]))
    assert (info.worker_idx, info.num_workers, info.executor) == (0, 1, "inline")


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers is -1"):
        Engine(job_of(abs), num_workers=-1)


def test_an_unknown_executor_is_refused_with_the_closest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'thread'"):
        Engine(job_of(abs), num_workers=1, executor="threads")


@pytest.mark.parametrize(
    ("name", "value"),
    [("tickets_per_worker", 0), ("look_ahead", 0), ("stall_seconds", -1), ("warn_seconds", float("nan"))],
)
def test_an_option_that_makes_no_sense_is_refused_when_it_is_given(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineOptions(**{name: value})


def test_a_quarantine_file_in_a_folder_that_does_not_exist_is_refused_when_it_is_given(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no-such-folder"):
        Skipping(quarantine=tmp_path / "no-such-folder" / "file")


# --- errors of user code ---


class NeedsTwo(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


@EXECUTORS
def test_an_error_keeps_its_type_and_says_where_it_was(executor: str) -> None:
    def fail(number: int) -> int:
        note_item(tag=f"seq-{number}", epoch=7)
        if number == 1:
            raise NeedsTwo("this", "that")
        return number

    with Engine(job_of(fail), num_workers=2, executor=executor) as engine:
        run = engine.run(range(5))
        assert next(run).value == 0
        with pytest.raises(NeedsTwo, match="this and that") as caught:
            next(run)
        assert caught.value.__notes__ == ["headrace: tag 'seq-1', epoch 7, ticket 1, worker 1"]
        assert "fail" in [entry.name for entry in caught.traceback]
        assert list(run) == []


@EXECUTORS
def test_a_stop_iteration_of_user_code_does_not_end_the_loop_in_silence(executor: str) -> None:
    def fail(_: int) -> int:
        raise StopIteration("oops")

    with (
        Engine(job_of(fail), num_workers=1, executor=executor) as engine,
        pytest.raises(TransformError, match="raised StopIteration: oops"),
    ):
        list(engine.run([1]))


@EXECUTORS
def test_an_error_in_the_set_up_is_raised_and_the_next_run_tries_again(executor: str) -> None:
    attempts = []

    def setup(info: WorkerInfo):
        attempts.append(info)
        if len(attempts) == 1:
            raise OSError("no disk")
        return abs

    with Engine(Job(setup), num_workers=1, executor=executor) as engine:
        with pytest.raises(OSError, match="no disk") as caught:
            list(engine.run([1]))
        assert caught.value.__notes__ == ["headrace: while it was set up, worker 0"]
        assert values_of(engine.run([-1])) == [1]


@EXECUTORS
def test_a_payload_that_cannot_be_iterated_is_refused_at_once(executor: str) -> None:
    with Engine(job_of(abs), num_workers=1, executor=executor) as engine, pytest.raises(TypeError):
        engine.run(5)


@EXECUTORS
def test_a_function_that_makes_no_iterator_is_an_error_of_the_stream(executor: str) -> None:
    with (
        Engine(job_of(lambda _: 5), num_workers=1, executor=executor) as engine,
        pytest.raises(TypeError, match="not iterable"),
    ):
        list(engine.run_stream())


# --- leaving early ---


@EXECUTORS
def test_a_new_run_ends_the_iterator_before_it_with_a_clear_error(executor: str) -> None:
    with Engine(job_of(abs), num_workers=2, executor=executor) as engine:
        old = engine.run(range(10))
        assert next(old).value == 0
        new = engine.run([-5, -6])
        with pytest.raises(HeadraceError, match="another run of the same engine has begun"):
            next(old)
        assert values_of(new) == [5, 6]


@EXECUTORS
def test_an_iterator_of_a_closed_engine_says_so_and_so_does_the_engine(executor: str) -> None:
    engine = Engine(job_of(abs), num_workers=2, executor=executor)
    run = engine.run(range(10))
    next(run)
    engine.close()
    engine.close()
    with pytest.raises(HeadraceError, match="the engine of this iterator is closed"):
        next(run)
    with pytest.raises(HeadraceError, match="this engine is closed"):
        engine.run([1])


@EXECUTORS
def test_an_iterator_that_was_closed_or_has_ended_stays_at_its_end(executor: str) -> None:
    with Engine(job_of(abs), num_workers=1, executor=executor) as engine:
        run = engine.run([1, 2])
        run.close()
        assert list(run) == []
        run = engine.run([1, 2])
        assert len(list(run)) == 2
        assert next(run, None) is None


def test_a_payload_iterator_that_begins_another_run_ends_its_own() -> None:
    with Engine(job_of(abs), num_workers=2, executor="thread", options=EngineOptions(look_ahead=2)) as engine:
        inner = []

        def payloads():
            for number in range(10):
                if number == 4:
                    inner.append(engine.run([-7]))
                yield number

        with pytest.raises(HeadraceError, match="another run of the same engine has begun"):
            list(engine.run(payloads()))
        assert values_of(inner[0]) == [7]


def test_what_was_made_and_not_handed_over_is_counted_and_not_kept() -> None:
    class Value:
        pass

    alive: weakref.WeakSet[Value] = weakref.WeakSet()
    both_made = threading.Barrier(2)

    def make(number: int) -> Value:
        value = Value()
        alive.add(value)
        if number == 1:
            both_made.wait()
        return value

    with Engine(job_of(make), num_workers=1, executor="thread") as engine:
        run = engine.run(range(2))
        both_made.wait()
        next(run)
        values_of(engine.run([]))
        assert next(iter(engine.run([5]))).value in alive
    gc.collect()
    assert len(alive) == 0


@EXECUTORS
def test_an_engine_that_is_dropped_ends_its_workers(executor: str) -> None:
    engine = Engine(job_of(abs), num_workers=3, executor=executor)
    run = engine.run([-1, -2])
    del engine
    assert values_of(run) == [1, 2]  # an iterator holds on to what it needs


@EXECUTORS
def test_leaving_a_loop_early_closes_the_streams(executor: str) -> None:
    closed = threading.Semaphore(0)

    def stream(_: object):
        try:
            yield from range(1000)
        finally:
            closed.release()

    with Engine(job_of(stream), num_workers=2, executor=executor) as engine:
        for delivered in engine.run_stream():
            if delivered.ticket == 5:
                break
        assert closed.acquire(timeout=120)
        assert closed.acquire(timeout=120)
        assert next(engine.run_stream()).value == 0


# --- deaths of threads ---


def exit_once(at: int):
    """Make a function that ends its worker when it sees this number for the first time."""
    seen = []

    def function(number: int) -> int:
        note_item(tag=f"seq-{number}")
        if number == at and not seen:
            seen.append(number)
            raise SystemExit(3)
        return number

    return function


def test_a_stream_goes_on_where_it_was_when_its_thread_exits() -> None:
    function = exit_once(17)
    with Engine(job_of(lambda n: map(function, range(n))), num_workers=2, executor="thread") as engine:
        assert values_of(engine.run_stream(30)) == [number for number in range(30) for _ in range(2)]
        assert engine.report.num_restarts == 1


def test_a_death_beyond_the_budget_names_cause_and_sequence_and_the_engine_can_still_be_used() -> None:
    options = EngineOptions(on_death=Restarting(0))
    with Engine(job_of(exit_once(17)), num_workers=3, executor="thread", options=options) as engine:
        with pytest.raises(WorkerDiedError) as caught:
            list(engine.run(range(40)))
        assert "ended by SystemExit: 3" in caught.value.what
        assert caught.value.where == "tag 'seq-17', ticket 17"
        assert values_of(engine.run(range(40))) == list(range(40))


def test_an_exit_without_workers_reaches_the_consumer_and_the_engine_can_still_be_used() -> None:
    with Engine(job_of(exit_once(2)), num_workers=0) as engine:
        with pytest.raises(SystemExit):
            list(engine.run(range(5)))
        assert values_of(engine.run(range(5))) == list(range(5))


# --- the report ---


@EXECUTORS
def test_the_report_counts_who_did_what(executor: str) -> None:
    with Engine(job_of(abs), num_workers=2, executor=executor) as engine:
        values_of(engine.run(range(10)))
        report = engine.report
    assert report.num_delivered == 10
    assert sum(worker.num_tickets for worker in report.workers) == 10


def test_what_an_engine_inside_of_a_worker_makes_is_not_written_over_by_later_tickets() -> None:
    def make(number: int) -> np.ndarray:
        array = empty(100, np.int64)
        array.fill(number)
        return array

    def setup(info: WorkerInfo):
        inner = Engine(Job(lambda info: make), num_workers=0)
        run, kept = inner.run(range(1000)), []

        def work(number: int) -> np.ndarray:
            kept.append(next(run).value)  # handed over two tickets later
            make(-1)
            return kept[max(number - 2, 0)]

        return work

    with Engine(Job(setup), num_workers=1) as engine:
        for delivered in engine.run(range(50)):
            assert (delivered.value == max(delivered.ticket - 2, 0)).all()


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_keyboard_interrupt_of_user_code_is_raised_once_and_ends_no_worker(executor, is_stream, capfd) -> None:
    def do(number: int) -> int:
        if number == 4:
            raise KeyboardInterrupt
        return number

    def stream(_payload: object) -> Iterator[int]:
        yield from map(do, range(9))

    job = Job(lambda _info: stream if is_stream else do)
    with Engine(job, num_workers=1, executor=executor, options=EngineOptions(on_error=Skipping())) as engine:
        run = engine.run_stream() if is_stream else engine.run(range(9))
        assert [next(run).value for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(KeyboardInterrupt) as caught:
            next(run)
        assert not any("traceback" in note for note in caught.value.__notes__)
        assert engine.report.num_restarts == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_keyboard_interrupt_while_a_worker_is_set_up_is_raised_once(executor, capfd) -> None:
    def setup(_info: WorkerInfo) -> None:
        raise KeyboardInterrupt

    with Engine(Job(setup), num_workers=2, executor=executor) as engine, pytest.raises(KeyboardInterrupt):
        next(engine.run(range(9)))
    assert capfd.readouterr().err == ""
