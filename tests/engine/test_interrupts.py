"""Ctrl-C while processes are started or ended: it comes a moment later, and nothing is left behind."""

import atexit
import gc
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from headrace.engine import Engine, Job
from headrace.engine.interrupts import interrupts_wait
from headrace.engine.process import executor as process
from headrace.engine.process import exit_cause
from servers.leaks import nothing_left


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def interrupts_are_on():
    """Have Ctrl-C raise also where the shell lets background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end_of_the_block():
    done = []

    def work():
        with interrupts_wait():
            for number in (1, 2):
                interrupt()
                done.append(number)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        interrupt()  # all is as before


def test_other_handlers_get_it_too_and_those_that_ignore_it_do():
    came = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    with interrupts_wait():
        interrupt()
        assert came == []
    assert came == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_wait():
        interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_error_of_the_block_is_seen_and_the_handler_put_back():
    with pytest.raises(ZeroDivisionError), interrupts_wait():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_changes_no_handler():
    found = []

    def look():
        with interrupts_wait():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def double(_info):
    return lambda number: 2 * number


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("module", "place"),
    [
        (process, "write_worker_config"),
        (exit_cause, "count_oom_kills"),
        (process, "WardenClient"),
        (process, "WorkerConnection"),
    ],
)
def test_an_interrupt_while_workers_are_started_leaves_nothing(monkeypatch, module, place):
    real = getattr(module, place)

    def interrupted(*args, **kwargs):
        made = real(*args, **kwargs)
        interrupt()  # before the caller has noted what was made
        return made

    with nothing_left():
        engine = Engine(Job(double), num_workers=2)
        with engine:
            with monkeypatch.context() as patch:
                patch.setattr(module, place, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    engine.start()
            assert [delivered.value for delivered in engine.run(range(9))] == [2 * number for number in range(9)]


def test_an_interrupt_while_workers_are_ended_leaves_nothing(monkeypatch):
    real = process.WorkerConnection.close_channel

    def interrupted(life):
        interrupt()
        real(life)

    with nothing_left():
        engine = Engine(Job(double), num_workers=2)
        engine.start()
        monkeypatch.setattr(process.WorkerConnection, "close_channel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.close()
        engine.close()


def drop(made):
    """Drop the only object of a list, and wait for the interrupt, which comes a moment later."""
    made.clear()
    gc.collect()
    time.sleep(120.0)


class Finalized:
    """What takes its time in its finalizer, and is interrupted there."""

    def __init__(self, ended):
        self.ended = ended

    def __del__(self):
        with interrupts_wait():
            interrupt()
            self.ended.append(1)


@pytest.fixture
def no_gc_callbacks():
    """Take away what other packages of the tests run at each collection: Python loses what is raised there, too."""
    before, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = before


@pytest.mark.usefixtures("no_gc_callbacks")
@pytest.mark.parametrize("is_in_a_cycle", [False, True])
def test_an_interrupt_in_a_finalizer_has_its_effect_after_it(is_in_a_cycle):
    ended = []
    gc.collect()  # nothing else is to be finalized with it
    made = [Finalized(ended)]
    if is_in_a_cycle:
        made[0].me = made[0]
    with pytest.raises(KeyboardInterrupt):
        drop(made)
    assert ended == [1]


@pytest.mark.usefixtures("no_gc_callbacks")
def test_an_interrupt_while_an_engine_is_dropped_is_not_lost():
    """A worker's exit handler sends it, so it comes while the finalizer waits for the end of the worker."""
    trainer = os.getpid()

    def make(_info):
        atexit.register(os.kill, trainer, signal.SIGINT)
        return abs

    with nothing_left():
        engines = [Engine(Job(make), num_workers=1)]
        assert [delivered.value for delivered in engines[0].run([-1, -2])] == [1, 2]
        with pytest.raises(KeyboardInterrupt):
            drop(engines)
        gc.collect()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("no_gc_callbacks")
def test_an_interrupt_while_a_run_is_dropped_is_not_lost(monkeypatch):
    real = process.ProcessExecutor.cancel

    def interrupted(executor, run_id):
        interrupt()
        real(executor, run_id)

    with nothing_left(), Engine(Job(double), num_workers=1) as engine:
        runs = [engine.run(range(100))]
        assert next(runs[0]).value == 0
        monkeypatch.setattr(process.ProcessExecutor, "cancel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            drop(runs)
        monkeypatch.undo()
        assert [delivered.value for delivered in engine.run(range(9))] == [2 * number for number in range(9)]


def fill(_info):
    return lambda number: np.full(20_000, number, np.uint8)


def read_until_interrupted(engine, runs, seconds):
    """Read runs of 30 results until an interrupt comes.

    Args:
        runs: Gets the runs: Python loses what is raised in a finalizer, and none is to be dropped meanwhile.
    """
    threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        runs.append(engine.run(range(30)))
        kept = [delivered.value for delivered in runs[-1]]
        assert [int(value[-1]) for value in kept] == list(range(30))


@pytest.mark.usefixtures("no_gc_callbacks")
def test_an_interrupt_at_any_moment_comes_out_of_the_loop_and_costs_nothing():
    dice = random.Random(7)
    with nothing_left(), Engine(Job(fill), num_workers=1) as engine:
        for _ in range(8):
            runs = []
            with pytest.raises(KeyboardInterrupt):
                read_until_interrupted(engine, runs, dice.uniform(1e-4, 0.3))
            runs.clear()
            assert [int(delivered.value[-1]) for delivered in engine.run(range(50))] == list(range(50))
            assert [life.reader.num_leased for life in engine._workers.executor._lives.values()] == [0]
