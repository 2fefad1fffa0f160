"""A worker dies, in every way and at every point: the stream goes on unchanged, or the error says why."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.engine import Engine, EngineOptions, Job, Raising, Restarting, Skipping, WorkerInfo, note_item
from headrace.engine.process.executor import ProcessExecutor
from headrace.engine.process.proc_tree import descendants_of, state_of
from headrace.errors import WorkerDiedError

pytestmark = pytest.mark.usefixtures("warm_workers")


def _by_sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _by_segfault() -> None:
    ctypes.string_at(0)


WAYS: dict[str, Callable[[], Any]] = {
    "SIGKILL": _by_sigkill,
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(7)": lambda: os._exit(7),
    "sys.exit": lambda: sys.exit("on purpose"),
    "segfault": _by_segfault,
}
CAUSES = {
    "SIGKILL": "killed by signal 9 (SIGKILL)",
    "os._exit(0)": "exit code 0",
    "os._exit(7)": "exit code 7",
    "sys.exit": "exit code 1",
    "segfault": "killed by signal 11 (SIGSEGV)",
}
POINTS = ["in setup", "before the first ticket", "in a ticket", "after the result", "with large results"]


class _DyingResult:
    """A result that kills the worker while it is written to the slot."""

    def __init__(self, die: Callable[[], Any], value: int) -> None:
        self._die = die
        self.value = value

    def __reduce__(self) -> Any:
        self._die()
        return int, (self.value,)


def _job(point: str, die: Callable[[], Any], once: Callable[[], bool]) -> Job:
    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        if point == "in setup" and once():
            die()

        def work(number: int) -> Any:
            if point == "before the first ticket" and number < 2 and once():
                die()
            if point == "in a ticket" and number == 13 and once():
                die()
            if point == "after the result" and number == 13 and once():
                return _DyingResult(die, number)
            if point == "with large results":
                if number == 13 and once():
                    die()
                return np.full(50_000, number)
            return number

        return work

    return Job(setup)


def _numbers(engine: Engine, num_tickets: int) -> Iterator[int]:
    for delivered in engine.run(range(num_tickets)):
        value = delivered.value
        assert np.all(value == np.ravel(value)[0])
        yield int(np.ravel(value)[0])


@pytest.mark.sample(8)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("way", WAYS)
def test_the_stream_is_the_same_when_a_worker_dies_once(way: str, point: str, once: Callable[[], bool]) -> None:
    with Engine(_job(point, WAYS[way], once), num_workers=2) as engine:
        assert list(_numbers(engine, 40)) == list(range(40))
        assert sum(worker.num_restarts for worker in engine.report.workers) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_next_stream_is_whole_when_an_idle_worker_dies(number: signal.Signals) -> None:
    with Engine(Job(lambda info: lambda number: number), num_workers=2) as engine:
        assert list(_numbers(engine, 20)) == list(range(20))
        os.kill(_worker_pids(engine)[0], number)
        assert list(_numbers(engine, 20)) == list(range(20))
        assert list(_numbers(engine, 20)) == list(range(20))


def _worker_pids(engine: Engine) -> list[int]:
    executor = engine._workers.executor
    assert isinstance(executor, ProcessExecutor)
    return [life.pid for life in executor._lives.values() if life.pid is not None]


@pytest.mark.parametrize("way", WAYS)
def test_beyond_the_budget_the_error_names_the_cause_and_the_last_sequence(way: str) -> None:
    die = WAYS[way]

    def setup(info: WorkerInfo) -> Callable[[int], int]:
        def work(number: int) -> int:
            note_item(tag=f"seq-{number}", epoch=3)
            if number == 5:
                die()
            return number

        return work

    options = EngineOptions(on_death=Restarting(budget=1))
    with Engine(Job(setup), num_workers=2, options=options) as engine:
        tickets: list[int] = []
        with pytest.raises(WorkerDiedError) as caught:
            tickets.extend(delivered.ticket for delivered in engine.run(range(20)))
        # What the other worker had not yet done when it was decided is not waited for.
        assert tickets == list(range(len(tickets)))
        assert len(tickets) <= 5
    text = str(caught.value)
    assert CAUSES[way] in text
    assert "seq-5" in text
    assert "epoch 3" in text
    assert "ticket 5" in text


def test_a_segfault_leaves_the_python_stack_in_the_error() -> None:
    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        def the_guilty_function(number: int) -> Any:
            return ctypes.string_at(0)

        return the_guilty_function

    with (
        Engine(Job(setup), num_workers=1, options=EngineOptions(on_death=Raising())) as engine,
        pytest.raises(WorkerDiedError, match="the_guilty_function"),
    ):
        next(engine.run(range(3)))


def test_streams_go_on_where_they_were_when_a_worker_dies(once: Callable[[], bool]) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], Iterator[Any]]:
        def items(length: int) -> Iterator[Any]:
            for item in range(length + info.worker_idx):
                if info.worker_idx == 1 and item == 7 and once():
                    _by_sigkill()
                yield (info.worker_idx, item)

        return items

    with Engine(Job(setup), num_workers=2) as engine:
        stream = [delivered.value for delivered in engine.run_stream(12)]
    assert stream == [(worker, item) for item in range(12) for worker in range(2)] + [(1, 12)]


def test_the_children_of_a_dead_worker_end_with_it(wait_for_end: Callable[..., None]) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], list[int]]:
        kinds = (False, True)
        children = [subprocess.Popen(["sleep", "1000"], start_new_session=is_new).pid for is_new in kinds]
        return lambda number: children

    with Engine(Job(setup), num_workers=2) as engine:
        first, other = (delivered.value for delivered in engine.run(range(2)))
        pidfds = [os.pidfd_open(pid) for pid in first]
        others = [os.pidfd_open(pid) for pid in other]
        os.kill(_worker_pids(engine)[0], signal.SIGKILL)
        new, same = (delivered.value for delivered in engine.run(range(2)))
        assert same == other
        assert not set(new) & set(first)
        wait_for_end(*pidfds)
        others += [os.pidfd_open(pid) for pid in new]  # these live on, until the engine is closed
    wait_for_end(*others)


def test_the_stack_of_a_worker_that_hangs_is_told(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)

    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        def hanging_function(number: int) -> Any:
            started.write_text("now")
            return ctypes.PyDLL(None).pause()  # holds the interpreter's lock

        return hanging_function

    executor = ProcessExecutor()
    with Engine(Job(setup), num_workers=1, executor=executor) as engine:
        run = engine.run(range(1))
        executor.wait(5.0)  # sends the ticket
        assert started.read_text() == "now"
        while executor._lives[0].pid is None:
            executor.wait(0.1)
        stack = executor.stack_of(0)
        run.close()
    assert stack is not None
    assert "hanging_function" in stack


def test_a_stopped_worker_is_told_as_such(wait_until: Callable[[Callable[[], bool], str], None]) -> None:
    executor = ProcessExecutor()
    with Engine(Job(lambda info: lambda number: os.getpid()), num_workers=1, executor=executor) as engine:
        pid = next(iter(engine.run(range(1)))).value
        while executor._lives[0].pid is None:  # a result may be quicker than the warden
            executor.wait(0.1)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (state_of(pid) or "")[:1] == "T", "it does not stop")
        stack = executor.stack_of(0)
    assert stack is not None
    assert "stopped" in stack


def test_a_worker_whose_end_was_not_noticed_yet_is_told_as_such(
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    executor = ProcessExecutor()
    with Engine(Job(lambda info: lambda number: os.getpid()), num_workers=1, executor=executor) as engine:
        pid = next(iter(engine.run(range(1)))).value
        while executor._lives[0].pid is None:
            executor.wait(0.1)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: state_of(pid) is None, "the warden does not collect it")  # and nobody listens to the warden
        stack = executor.stack_of(0)
    assert stack == f"process {pid} has ended, and the process that started it has not reported that yet"


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [1, 300, 3000])
def test_what_happens_to_one_of_many_quick_tickets_is_its_own(tmp_path: Path, size: int) -> None:
    died = tmp_path / "died"

    def work(number: int) -> np.ndarray:
        if number in (1499, 1600):
            raise LookupError(number)
        if number == 1500 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(size, number)

    options = EngineOptions(on_error=Skipping(2), on_death=Restarting(1))
    with Engine(Job(lambda info: work), num_workers=2, options=options) as engine:
        run = engine.run(range(3000))
        kept = [next(run)]
        most = 0
        for delivered in run:
            assert (delivered.value == delivered.ticket).all()
            assert kept[-1].ticket < delivered.ticket
            kept.append(delivered)
            most = max(most, run._supervisor.tickets_per_worker)
        assert [delivered.ticket for delivered in kept] == [n for n in range(3000) if n not in (1499, 1600)]
        assert all((delivered.value == delivered.ticket).all() for delivered in kept)  # nothing was written over
        assert (engine.report.num_skipped, engine.report.num_restarts) == (2, 1)
        assert most > 8


def test_the_death_of_a_warden_is_one_death_for_all_workers() -> None:
    options = EngineOptions(on_death=Restarting(budget=2), tickets_per_worker=8)  # so that not all is done at once
    with Engine(Job(lambda info: lambda number: number), num_workers=3, options=options) as engine:
        executor = engine._workers.executor
        assert isinstance(executor, ProcessExecutor)
        run = engine.run(range(100_000))
        seen = [next(run).value for _ in range(50)]
        for num_restarts in (3, 6):
            assert executor._warden is not None
            os.kill(executor._warden.pid, signal.SIGKILL)
            while engine.report.num_restarts < num_restarts:
                seen.append(next(run).value)
        seen += [next(run).value for _ in range(100)]
        assert seen == list(range(len(seen)))
        assert engine.report.num_restarts == 6


def _kill_one(name: str) -> None:
    """Kill one process of ours whose name begins so, if there is one."""
    for pid in descendants_of(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                os.kill(pid, signal.SIGKILL)
                return


@pytest.mark.kernel_timing
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_any_moment_while_c_code_holds_the_interpreter_leave_the_stream_equal(seed: int) -> None:
    dice = random.Random(seed)
    holds = {number: dice.random() < 0.1 for number in range(200)}
    kills = {dice.randrange(200): dice.choice(["hr-worker", "hr-warden"]) for _ in range(4)}

    def make(_info: WorkerInfo) -> Callable[[int], Any]:
        def work(number: int) -> Any:
            if holds[number]:
                ctypes.PyDLL(None).usleep(20_000)  # a C function that keeps the lock of the interpreter
            return np.full(2000, number)

        return work

    options = EngineOptions(on_death=Restarting(budget=4))
    with Engine(Job(make), num_workers=2, options=options) as engine:
        for number, delivered in enumerate(engine.run(range(200))):
            assert set(delivered.value.tolist()) == {number}
            if number in kills:
                _kill_one(kills[number])
        assert number == 199
        for _ in engine.run(range(200)):
            break
        _kill_one("hr-warden")  # and nobody looks before all is closed
