"""What an attack on the engine found, each with the executors that it concerns."""

import dataclasses
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from headrace.engine import Engine, EngineOptions, Job, Raising, Restarting, Skipping, note_item
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import CacheError, HeadraceError, TransformError, WorkerDiedError

EXECUTORS = ["inline", "thread", "process"]


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no note."""

    number: int


class ProudError(Exception):
    """Refuses notes."""

    def add_note(self, note):
        raise RuntimeError("no notes")


class ExitingError(Exception):
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return sys.exit, (3,)


def double(info):
    return lambda payload: payload[0] * 2


def die_once_at_3(marker):
    def setup(info):
        def work(payload):
            if payload[0] == 3 and not marker.exists():
                marker.touch()
                os._exit(9)
            return float(payload[0])

        return work

    return setup


def reused_array(count):
    array = np.zeros(1)
    for i in range(count):
        array[0] = i
        yield array


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_payload_that_is_filled_anew_for_each_ticket_is_taken_as_it_was(executor, num_workers):
    with Engine(Job(double), num_workers=num_workers, executor=executor) as engine:
        assert [delivered.value for delivered in engine.run(reused_array(30))] == [2 * i for i in range(30)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_payload_that_changed_since_is_done_again_as_it_was(num_workers, tmp_path):
    job = Job(die_once_at_3(tmp_path / "died"))
    options = EngineOptions(on_death=Restarting(3))
    with Engine(job, num_workers=num_workers, executor="process", options=options) as engine:
        assert [delivered.value for delivered in engine.run(reused_array(30))] == list(range(30))
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("kind", [FrozenError, ProudError, ExitingError])
def test_an_exception_that_cannot_be_annotated_or_carried_is_stood_in_for(executor, kind):
    def setup(info):
        def work(payload):
            raise kind(1)

        return work

    with Engine(Job(setup), num_workers=1, executor=executor) as engine:
        with pytest.raises((TransformError, ExitingError)) as caught:
            list(engine.run([1]))
        assert "ticket 0" in "".join(caught.value.__notes__)


def test_entries_of_the_search_path_that_are_no_text_are_passed_over(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    with Engine(Job(double), num_workers=1, executor="process") as engine:
        assert [delivered.value for delivered in engine.run([[4]])] == [8]


@pytest.mark.parametrize(
    "use", [lambda engine, run: next(run), lambda engine, run: engine.run([1]), lambda engine, run: engine.resize(3)]
)
def test_a_forked_child_that_uses_an_engine_of_its_parent_is_told_whose_it_is_and_changes_nothing(use):
    with Engine(Job(double), num_workers=2, executor="process") as engine:
        run = engine.run([[i] for i in range(5)])
        assert next(run).value == 0
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                use(engine, run)
            except HeadraceError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read) as pipe:
            assert "belongs to the process that forked" in pipe.read()
        os.waitpid(child, 0)
        assert [delivered.value for delivered in run] == [2, 4, 6, 8]


def test_what_makes_payloads_may_ask_for_more_workers():
    def payloads(engine):
        for number in range(12):
            time.sleep(0.005)  # slow: the consumer waits for it
            if number in (2, 7):
                engine.resize(2 if number == 2 else 1)
            yield [number]

    with Engine(Job(double), num_workers=1, executor="process") as engine:
        assert [delivered.value for delivered in engine.run(payloads(engine))] == [2 * number for number in range(12)]


def megabytes(info):
    return lambda number: np.full(1 << 20, number, np.uint8)


def test_what_a_run_had_ready_is_freed_though_another_thread_drops_it():
    options = EngineOptions(tickets_per_worker=16)
    with Engine(Job(megabytes), num_workers=1, executor=ProcessExecutor(max_bytes=32 << 20), options=options) as engine:
        for _ in range(10):
            run = engine.run(range(1000))
            pause, seconds = threading.Event(), 0.0025
            while len(run._supervisor.ready) < 8:  # more of them than fit into the arena, if none were freed
                assert next(run).value[0] < 900
                pause.wait(seconds := 2 * seconds)  # a consumer that is slower than the worker
            dropped_elsewhere = [run]
            del run
            thread = threading.Thread(target=dropped_elsewhere.clear)
            thread.start()
            thread.join()
        assert [value[0] for _, value, _ in engine.run(range(20))] == list(range(20))


def die_at_1_having_noted_0(info):
    def work(number):
        if number == 0:
            note_item("the first", 1)
        elif number == 1:
            os._exit(7)
        return number

    return work


def test_a_death_before_a_place_is_noted_does_not_name_that_of_the_ticket_before():
    options = EngineOptions(on_death=Raising())
    engine = Engine(Job(die_at_1_having_noted_0), num_workers=1, options=options)
    with engine, pytest.raises(WorkerDiedError) as caught:
        list(engine.run(range(2)))
    assert caught.value.where == "ticket 1"


def test_what_fails_because_the_consumer_keeps_all_memory_is_not_skipped(monkeypatch):
    monkeypatch.setattr("headrace.engine.process.link._HOARD_SECONDS", 0.2)
    options, executor = EngineOptions(on_error=Skipping(budget=100)), ProcessExecutor(max_bytes=8 << 20)
    kept = []
    with Engine(Job(megabytes), num_workers=1, executor=executor, options=options) as engine:
        with pytest.raises(CacheError, match="held elsewhere") as caught:
            kept.extend(value for _, value, _ in engine.run(range(30)))
        assert engine.report.num_skipped == 0
    assert "how many results the training keeps" in "".join(caught.value.__notes__)
