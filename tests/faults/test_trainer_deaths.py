"""The trainer is gone, in whatever way: within a moment nothing of it is left, its workers' children included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.engine.process.proc_tree import children_of, state_of

# Each prints the pids of a worker and its children, and then keeps the worker in the state of its name.
_PROGRAM = """
import ctypes, os, subprocess, sys, threading
from headrace.engine import Engine, Job

def busy_in_python():
    while True:
        pass

def busy_in_c():
    ctypes.PyDLL(None).pause()  # holds the interpreter's lock

def idle():
    pass

def setup(info):
    children = [subprocess.Popen(["sleep", "1000"], start_new_session=new).pid for new in (False, True)]
    children.append(subprocess.Popen(["sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE))
    grandchild = int(children[-1].stdout.readline())
    children[-1] = children[-1].pid
    os.write(1, (" ".join(map(str, [os.getpid(), os.getppid(), *children, grandchild])) + "\\n").encode())
    def work(number):
        os.write(1, b"working\\n")
        {state}()
        return number
    return work

engine = Engine(Job(setup), num_workers=2)
run = engine.run(range(100))
{consume}
"""
_NUM_WORKERS = 2
# As above, with workers that C code keeps from running any Python, and no children: only Python could find those.
_STUCK_PROGRAM = """
import ctypes, itertools, os, threading
from headrace.engine import Engine, Job
from headrace.engine.process.executor import ProcessExecutor

def setup(info):
    os.write(1, f"{{os.getpid()}} {{os.getppid()}}\\n".encode())
    def work(number):
        os.write(1, b"working\\n")
        {stuck}
    return work

engine = Engine(Job(setup), num_workers=2, executor=ProcessExecutor(start_method={method!r}))
run = engine.run(range(2))
{consume}
"""


Start = Callable[..., tuple[subprocess.Popen[str], list[int]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a trainer; return it with pidfds of all processes below it, when its workers are up and it says so."""
    trainers: list[subprocess.Popen[str]] = []

    def start_one(
        text: str, until: str = "working", per_worker: int = 5, num_words: int = 1
    ) -> tuple[subprocess.Popen[str], list[int]]:
        trainer = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        trainers.append(trainer)
        assert trainer.stdout is not None
        pids: set[int] = set()
        words: list[str] = []
        while len(pids) < per_worker * _NUM_WORKERS + 1 or words.count(until) < num_words:
            line = trainer.stdout.readline()
            assert line, "the trainer has ended"
            if line.strip().isalpha():
                words.append(line.strip())
            else:
                pids.update(map(int, line.split()))
        return trainer, [os.pidfd_open(pid) for pid in pids]

    yield start_one
    for trainer in trainers:
        trainer.kill()
        trainer.wait()
        assert trainer.stdout is not None
        trainer.stdout.close()


@pytest.mark.parametrize("state", ["idle", "busy_in_python", "busy_in_c"])
def test_nothing_outlives_a_trainer_that_is_killed(state: str, start: Start, wait_for_end: Callable[..., None]) -> None:
    trainer, pidfds = start(_PROGRAM.format(state=state, consume="list(run); threading.Event().wait()"))
    trainer.send_signal(signal.SIGKILL)
    wait_for_end(*pidfds)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_outlives_a_trainer_that_is_interrupted(
    number: signal.Signals, start: Start, wait_for_end: Callable[..., None]
) -> None:
    trainer, pidfds = start(_PROGRAM.format(state="busy_in_c", consume="list(run)"))
    trainer.send_signal(number)
    wait_for_end(*pidfds)
    assert trainer.wait() == -number


def test_nothing_outlives_a_trainer_that_executes_another_program(
    start: Start, wait_for_end: Callable[..., None]
) -> None:
    consume = "next(run); next(run); os.execvp('sleep', ['sleep', '1000'])"
    trainer, pidfds = start(_PROGRAM.format(state="idle", consume=consume))
    wait_for_end(*pidfds)
    assert trainer.poll() is None


def test_a_forked_child_that_lives_on_does_not_keep_the_workers(
    start: Start, wait_for_end: Callable[..., None]
) -> None:
    consume = "next(run); next(run)\nif os.fork():\n    os.write(1, b'forked\\n')\nthreading.Event().wait()"
    trainer, pidfds = start(_PROGRAM.format(state="idle", consume=consume), until="forked")
    (child,) = set(children_of(trainer.pid)) - set(_pids_of(pidfds))
    trainer.send_signal(signal.SIGKILL)
    wait_for_end(*pidfds)
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("state", ["busy_in_python", "busy_in_c"])
def test_nothing_outlives_trainer_and_warden_killed_together(
    state: str,
    start: Start,
    wait_for_end: Callable[..., None],
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    """Workers wait in C by then: nothing interrupts a wait that begins after the signal has come."""
    trainer, pidfds = start(_PROGRAM.format(state=state, consume="list(run)"), num_words=_NUM_WORKERS)
    if state == "busy_in_c":
        workers = [pid for pid in _pids_of(pidfds) if _name_of(pid).startswith("hr-worker")]
        wait_until(lambda: all((state_of(pid) or "").startswith("S") for pid in workers), "no worker waits in C")
    os.kill(_warden_among(pidfds), signal.SIGKILL)
    trainer.send_signal(signal.SIGKILL)
    wait_for_end(*pidfds)


_WAITS = "ctypes.PyDLL(None).sleep(600)"
_COMPUTES = "max(itertools.repeat(0))"  # no signal interrupts it


@pytest.mark.sample(2)
@pytest.mark.parametrize(("method", "stuck"), [(None, _WAITS), (None, _COMPUTES), ("spawn", _COMPUTES)])
def test_no_worker_that_is_stuck_in_c_outlives_trainer_and_warden_killed_together(
    method: str | None, stuck: str, start: Start, wait_for_end: Callable[..., None]
) -> None:
    program = _STUCK_PROGRAM.format(method=method, stuck=stuck, consume="list(run)")
    trainer, pidfds = start(program, per_worker=1)
    os.kill(_warden_among(pidfds), signal.SIGKILL)
    trainer.send_signal(signal.SIGKILL)
    wait_for_end(*pidfds)


def test_nor_does_one_while_a_forked_child_of_the_trainer_lives_on(
    start: Start, wait_for_end: Callable[..., None]
) -> None:
    consume = "if os.fork():\n    os.write(1, b'forked\\n')\n    list(run)\nthreading.Event().wait()"
    program = _STUCK_PROGRAM.format(method=None, stuck=_COMPUTES, consume=consume)
    trainer, pidfds = start(program, until="forked", per_worker=1)
    (child,) = set(children_of(trainer.pid)) - set(_pids_of(pidfds))
    os.kill(_warden_among(pidfds), signal.SIGKILL)
    trainer.send_signal(signal.SIGKILL)
    wait_for_end(*pidfds)
    os.kill(child, signal.SIGKILL)


def _warden_among(pidfds: list[int]) -> int:
    return next(pid for pid in _pids_of(pidfds) if _name_of(pid) == "hr-warden")


def _name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _pids_of(pidfds: list[int]) -> list[int]:
    infos = [Path(f"/proc/self/fdinfo/{pidfd}").read_text() for pidfd in pidfds]
    return [int(line.split()[1]) for info in infos for line in info.splitlines() if line.startswith("Pid:")]
