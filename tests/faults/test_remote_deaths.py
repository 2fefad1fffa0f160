"""Remote workers, their agents, connections and trainers end: the stream is the same, and nothing is left."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import DataLoader, FixedCount, MapDataset
from headrace.engine import Engine, EngineOptions, Executor, Job, Raising, Restarting, WorkerInfo, note_item
from headrace.engine.process.proc_tree import children_of, descendants_of, state_of
from headrace.engine.remote import Invitation, Launched, LocalLauncher, MixedExecutor, RemoteExecutor
from headrace.errors import CacheError, StalledError, WorkerDiedError
from servers.tcp_proxy import Trouble, tcp_proxy

HOST = socket.gethostname()
PATIENT = 30.0  # seconds: a busy machine is not a dead one


class Agents(LocalLauncher):
    """Remembers the agents; has them connect through a proxy, if there is one."""

    def __init__(self, *troubles: Trouble) -> None:
        super().__init__()
        self.pids: list[int] = []
        self.troubles = list(troubles)
        self.proxies: list[Any] = []

    def launch(self, invitation: Invitation) -> Launched:
        if self.troubles or self.proxies:
            _, _, port = invitation.addresses[0].rpartition(":")
            trouble = [self.troubles.pop(0)] if self.troubles else []
            proxy = tcp_proxy(("localhost", int(port)), *trouble)
            self.proxies.append(proxy)
            invitation = dataclasses.replace(invitation, addresses=(proxy.__enter__().address,))
        launched = super().launch(invitation)
        self.pids.append(launched.pid)  # type: ignore[attr-defined]
        return launched

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.__exit__(None, None, None)


def remote(launcher: LocalLauncher | None = None, **options: Any) -> RemoteExecutor:
    return RemoteExecutor(launcher or LocalLauncher(), **{"dead_seconds": PATIENT, **options})


def arrays(info: WorkerInfo) -> Callable[[int], Any]:
    """Small and large results in turn."""

    def work(number: int) -> Any:
        note_item(tag=f"seq-{number}")
        return np.full(40_000 if number % 3 else 3, number)

    return work


def check(engine: Engine, num_tickets: int = 60) -> None:
    found = 0
    for delivered in engine.run(range(num_tickets)):
        assert (delivered.value == found).all()
        assert len(delivered.value) == (40_000 if found % 3 else 3)
        found += 1
    assert found == num_tickets


def num_restarts(engine: Engine) -> int:
    return sum(worker.num_restarts for worker in engine.report.workers)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, 0])
def test_a_worker_that_dies_is_restarted_by_its_agent_and_its_end_is_told_as_that_of_a_local_one(
    how: int, size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        def work(number: int) -> Any:
            note_item(tag=f"seq-{number}")
            if number == 13 and not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                os.kill(os.getpid(), how) if how else os._exit(7)
            return np.full(size, number)

        return work

    launcher = Agents()
    with Engine(Job(setup), num_workers=2, executor=remote(launcher)) as engine:
        assert [int(done.value[0]) for done in engine.run(range(40))] == list(range(40))
        assert num_restarts(engine) == 1
        assert len(launcher.pids) == 2
    cause = f"killed by signal {how} ({signal.Signals(how).name})" if how else "exit code 7"
    assert f"on {HOST} " in caplog.text
    assert cause in caplog.text


def test_a_worker_that_may_not_be_restarted_is_named_with_its_sequence_and_its_machine() -> None:
    def setup(info: WorkerInfo) -> Callable[[int], int]:
        def work(number: int) -> int:
            note_item(tag=f"seq-{number}", epoch=3)
            return os._exit(3) if number == 5 else number

        return work

    options = EngineOptions(on_death=Raising())
    with (
        Engine(Job(setup), num_workers=2, executor=remote(), options=options) as engine,
        pytest.raises(WorkerDiedError, match=f"on {HOST} ended with exit code 3") as caught,
    ):
        list(engine.run(range(20)))
    assert "tag 'seq-5', epoch 3, ticket 5" in str(caught.value)


def test_an_agent_that_is_killed_is_replaced_and_nothing_of_it_is_left(wait_for_end: Callable[[int], None]) -> None:
    launcher = Agents()
    with Engine(Job(arrays), num_workers=2, executor=remote(launcher)) as engine:
        run = engine.run(range(200))
        for number in range(30):
            assert next(run).value[0] == number
        below = [os.pidfd_open(pid) for pid in descendants_of(launcher.pids[0])]
        os.kill(launcher.pids[0], signal.SIGKILL)
        assert [int(done.value[0]) for done in run] == list(range(30, 200))
        assert num_restarts(engine) == 1
        assert len(launcher.pids) == 3
        assert below
        for pidfd in below:
            wait_for_end(pidfd)
        check(engine)


def test_agents_that_are_killed_again_and_again_use_up_the_budget_and_the_error_says_how_they_ended() -> None:
    launcher = Agents()
    options = EngineOptions(on_death=Restarting(budget=2))
    with Engine(Job(arrays), num_workers=2, executor=remote(launcher), options=options) as engine:

        def endless() -> Iterator[int]:
            while True:
                os.kill(launcher.pids[-1], signal.SIGKILL)
                yield from range(50)

        with pytest.raises(WorkerDiedError, match=r"killed by signal 9 \(SIGKILL\)"):
            list(engine.run(endless()))
        check(engine)  # with new ones


def test_an_agent_that_is_stopped_is_taken_for_dead_and_the_stream_goes_on() -> None:
    launcher = Agents()
    with Engine(Job(arrays), num_workers=1, executor=remote(launcher, dead_seconds=1.0)) as engine:
        run = engine.run(range(400))
        for number in range(10):
            assert next(run).value[0] == number
        stopped = launcher.pids[-1]
        os.kill(stopped, signal.SIGSTOP)
        assert [int(done.value[0]) for done in run] == list(range(10, 400))
        assert num_restarts(engine) >= 1
        assert state_of(stopped) is None


@pytest.mark.parametrize("num_local", [0, 1])
def test_the_tickets_of_an_agent_that_says_nothing_are_done_by_others_before_it_is_taken_for_dead(
    num_local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.remote.seat._UNREACHABLE_PART", 0.02)
    launcher = Agents()
    executor: Executor = MixedExecutor(remote(launcher), num_local=num_local) if num_local else remote(launcher)
    with Engine(Job(arrays), num_workers=2, executor=executor) as engine:
        check(engine)
        os.kill(launcher.pids[-1], signal.SIGSTOP)
        run = engine.run(range(400))
        assert [int(done.value[0]) for done in run] == list(range(400))  # the stopped one has some of them
        before = engine.report.workers[1].num_tickets
        os.kill(launcher.pids[-1], signal.SIGCONT)
        run = engine.run(itertools.count())
        for number, done in enumerate(run):
            assert done.value[0] == number
            if number >= 100 and engine.report.workers[1].num_tickets > before:
                break
        assert num_restarts(engine) == 0


def test_a_stopped_worker_is_a_stall_as_a_local_one_is_with_its_stack(tmp_path: Path) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], int]:
        def work(number: int) -> int:
            if number == 7:
                (tmp_path / "stopped").touch()
                threading.Event().wait()
            return number

        return work

    options = EngineOptions(stall_seconds=5.0)  # more than a start takes on a busy machine
    with (
        Engine(Job(setup), num_workers=2, executor=remote(), options=options) as engine,
        pytest.raises(StalledError) as caught,
    ):
        list(engine.run(range(20)))
    (note,) = caught.value.__notes__
    assert f"it is on {HOST}" in note
    assert "in work" in note


def test_a_stalled_worker_is_restarted_if_that_is_wanted(tmp_path: Path) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], int]:
        def work(number: int) -> int:
            if number == 7 and not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            return number

        return work

    options = EngineOptions(stall_seconds=5.0, on_stall=Restarting())
    with Engine(Job(setup), num_workers=2, executor=remote(), options=options) as engine:
        assert [done.value for done in engine.run(range(50))] == list(range(50))
        assert num_restarts(engine) == 1


@pytest.fixture
def troubled() -> Iterator[Callable[..., Agents]]:
    made: list[Agents] = []

    def make(*troubles: Trouble) -> Agents:
        made.append(Agents(*troubles))
        return made[-1]

    yield make
    for launcher in made:
        launcher.close()


@pytest.mark.parametrize("after_bytes", [0, 40, 100, 130, 400, 5000, 100_000, 2_000_000])
@pytest.mark.parametrize("kind", ["reset", "truncate"])
def test_a_connection_that_is_cut_anywhere_changes_nothing(
    kind: Any, after_bytes: int, troubled: Callable[..., Agents]
) -> None:
    trouble = Trouble(kind, after_bytes)
    launcher = troubled(trouble)
    with Engine(Job(arrays), num_workers=2, executor=remote(launcher)) as engine:
        check(engine, 200)
        assert trouble.happened.is_set()
        # An agent whose worker was at work comes back, and nothing needs to be done again.
        assert num_restarts(engine) in ((1,) if after_bytes < 400 else (0, 1) if after_bytes == 400 else (0,))


@pytest.mark.parametrize("after_bytes", [700, 500_000])
def test_a_connection_through_which_nothing_goes_any_more_is_noticed(
    after_bytes: int, troubled: Callable[..., Agents]
) -> None:
    trouble = Trouble("stall", after_bytes)
    with Engine(Job(arrays), num_workers=1, executor=remote(troubled(trouble), dead_seconds=1.5)) as engine:
        check(engine, 200)
        assert trouble.happened.is_set()
        assert num_restarts(engine) >= 1


def test_a_slow_connection_is_only_slow(troubled: Callable[..., Agents]) -> None:
    with Engine(Job(arrays), num_workers=2, executor=remote(troubled(Trouble("slow")))) as engine:
        check(engine, 100)
        assert num_restarts(engine) == 0


def test_a_large_job_comes_through_whole_also_when_its_first_connection_is_cut(
    troubled: Callable[..., Agents],
) -> None:
    table = np.random.default_rng(1).random(1_000_000)

    def setup(info: WorkerInfo) -> Callable[[int], float]:
        return lambda number: float(table[number])

    with Engine(Job(setup), num_workers=2, executor=remote(troubled(Trouble("reset", 500)))) as engine:
        assert [done.value for done in engine.run(range(0, 1_000_000, 9999))] == table[::9999].tolist()


# --- memory ---


def test_a_consumer_that_keeps_all_the_memory_and_waits_for_more_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.remote.seat._HOARD_SECONDS", 0.2)
    executor = remote(max_bytes=1 << 20)
    with Engine(Job(lambda info: lambda n: np.full(20_000, n)), num_workers=1, executor=executor) as engine:
        kept = []
        with pytest.raises(CacheError, match="still held elsewhere") as caught:
            kept += [done.value for done in engine.run(iter(int, 1))]
        assert "drop results sooner" in str(caught.value)
        with pytest.raises(CacheError, match="still held elsewhere"):  # again, in another run
            kept += [done.value for done in engine.run(iter(int, 1))]
        del kept, caught
        assert [int(done.value[0]) for done in engine.run(range(30))] == list(range(30))


def test_a_worker_without_memory_waits_until_another_thread_drops_a_view() -> None:
    executor = remote(max_bytes=1 << 20)
    kept: list[Any] = []
    with Engine(Job(lambda info: lambda n: np.full(20_000, n)), num_workers=1, executor=executor) as engine:
        run = engine.run(range(40))
        kept += [next(run).value for _ in range(5)]
        timer = threading.Timer(0.3, kept.clear)
        timer.start()
        for number in range(5, 40):
            value = next(run).value
            assert value[0] == number
            if len(kept) < 5 and timer.is_alive():
                kept.append(value)
            del value
        timer.join()


def test_a_result_that_is_larger_than_the_limit_is_an_error_that_names_the_option() -> None:
    executor = remote(max_bytes=1 << 16)
    with Engine(Job(lambda info: lambda n: np.zeros(n)), num_workers=1, executor=executor) as engine:
        with pytest.raises(CacheError, match="raise max_bytes"):
            list(engine.run([10, 10_000]))
        assert len(next(engine.run([8000])).value) == 8000


def test_results_that_fill_the_memory_alone_follow_each_other_without_a_wait() -> None:
    executor = remote(max_bytes=1 << 20)
    with Engine(Job(lambda info: lambda n: np.full(100_000, n)), num_workers=1, executor=executor) as engine:
        start = time.monotonic()
        for done in engine.run(range(30)):
            assert done.value[0] == done.ticket
            del done
        assert time.monotonic() - start < 5.0  # else what ends waits was asked for: nothing would have become free


def test_the_memory_of_results_is_bounded_and_reused() -> None:
    limit = 8 << 20
    executor = remote(max_bytes=limit)
    rng = np.random.default_rng(0)
    sizes = [int(size) for size in 2 ** (10 + 11.5 * rng.random(300))]
    with Engine(Job(lambda info: lambda n: np.full(n, n % 251, np.uint8)), num_workers=1, executor=executor) as engine:
        for done, size in zip(engine.run(sizes), sizes, strict=True):
            assert done.value.nbytes == size
            assert (done.value == size % 251).all()
            del done
            assert _shared_bytes() <= 1.3 * limit


def _shared_bytes() -> int:
    """Return how much memory of results this process has, in bytes."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            if "headrace-remote" in os.readlink(f"/proc/self/fd/{entry}"):
                status = os.stat(f"/proc/self/fd/{entry}")
                found[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:
            continue
    assert found
    return sum(found.values())


def test_results_stay_valid_when_the_worker_and_the_engine_are_gone() -> None:
    with Engine(Job(arrays), num_workers=2, executor=remote()) as engine:
        values = [done.value for done in engine.run(range(20))]
    for number, value in enumerate(values):
        assert (value == number).all()


# --- the trainer ---

_PROGRAM = """
import os, sys, threading, time
from headrace.engine import Engine, Job
from headrace.engine.remote import LocalLauncher, RemoteExecutor

def setup(info):
    os.write(1, f"{{os.getpid()}}\\n".encode())
    def work(number):
        os.write(1, b"working\\n")
        {state}
        return number
    return work

engine = Engine(Job(setup), num_workers=2, executor=RemoteExecutor(LocalLauncher()))
run = engine.run(range(1000000))
{consume}
"""
STATES = {
    "idle": "pass",
    "busy": "exec('while True: pass')",
    "in C": "__import__('ctypes').PyDLL(None).pause()",
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("consume", ["next(run); next(run); threading.Event().wait()", "list(run)"])
def test_nothing_outlives_a_trainer_that_is_killed(
    state: str, consume: str, wait_for_end: Callable[[int], None]
) -> None:
    if state != "idle":
        consume = "list(run)"
    program = _PROGRAM.format(state=STATES[state], consume=consume)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        lines = {line.strip() for _, line in zip(range(4), trainer.stdout, strict=False)}
        assert "working" in lines
        below = [os.pidfd_open(pid) for pid in descendants_of(trainer.pid)]
        assert len(below) >= 4
        trainer.kill()
    for pidfd in below:
        wait_for_end(pidfd)


def test_two_trainers_at_once_have_nothing_to_do_with_each_other() -> None:
    with (
        Engine(Job(arrays), num_workers=2, executor=remote()) as one,
        Engine(Job(lambda info: str), num_workers=2, executor=remote()) as other,
    ):
        pairs = zip(one.run(range(50)), other.run(range(50)), strict=True)
        assert [(int(left.value[0]), right.value) for left, right in pairs] == [(n, str(n)) for n in range(50)]
        one.close()
        assert [done.value for done in other.run(range(20))] == [str(n) for n in range(20)]


def test_a_forked_child_of_the_trainer_sees_a_closed_executor_and_harms_nothing() -> None:
    with Engine(Job(arrays), num_workers=2, executor=remote()) as engine:
        run = engine.run(range(100))
        for number in range(10):
            assert next(run).value[0] == number
        pid = os.fork()
        if pid == 0:
            engine.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert [int(done.value[0]) for done in run] == list(range(10, 100))
        assert num_restarts(engine) == 0


def test_closing_ends_workers_that_do_not_return_within_two_seconds() -> None:
    engine = Engine(Job(lambda info: lambda n: threading.Event().wait()), num_workers=2, executor=remote())
    engine.run([1, 2, 3])
    engine.start()
    before = children_of(os.getpid())
    assert before
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 10  # it is 2 s; the machine is busy
    assert not children_of(os.getpid())


# --- loaders ---


def _noisy(features: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"data": features["data"] + rng.random()}


def _batches(**options: Any) -> list[Any]:
    items = [{"data": np.full((number % 7 + 1, 2), float(number))} for number in range(60)]
    with DataLoader(MapDataset(items), batching=FixedCount(4), seed=5, transform=_noisy, **options) as loader:
        return [np.asarray(batch["data"]).tobytes() for _ in range(20) for batch in loader]


def test_batches_and_states_are_those_without_workers_whoever_is_killed() -> None:
    expected = _batches()
    launcher = Agents()
    stopped = threading.Event()

    def kill_now_and_then() -> None:
        for _ in range(6):
            if stopped.wait(0.4):
                return
            living = set(children_of(os.getpid())) & set(launcher.pids)
            if living:
                os.kill(max(living), signal.SIGKILL)

    thread = threading.Thread(target=kill_now_and_then)
    thread.start()
    try:
        options = EngineOptions(on_death=Restarting(budget=1000))
        assert _batches(num_workers=2, executor=remote(launcher), engine_options=options) == expected
    finally:
        stopped.set()
        thread.join()


def test_a_loader_goes_on_where_another_one_stopped() -> None:
    items = [{"data": np.full(3, float(number))} for number in range(40)]

    def open_loader(**workers: Any) -> DataLoader:
        return DataLoader(MapDataset(items), batching=FixedCount(4), seed=5, **workers)

    with open_loader() as loader:
        expected = [np.asarray(batch["data"]).tobytes() for batch in loader]
    found = []
    with open_loader(num_workers=2, executor=remote()) as loader:
        for _, batch in zip(range(4), loader, strict=False):
            found.append(np.asarray(batch["data"]).tobytes())
        state = loader.state_dict()
    with open_loader(num_workers=3, executor=remote()) as loader:
        loader.load_state_dict(state)
        found += [np.asarray(batch["data"]).tobytes() for batch in loader]
    assert found == expected


def test_a_path_that_is_missing_there_is_an_error_that_names_the_machine() -> None:
    def setup(info: WorkerInfo) -> Callable[[str], bytes]:
        return lambda path: Path(path).read_bytes()

    with (
        Engine(Job(setup), num_workers=1, executor=remote()) as engine,
        pytest.raises(FileNotFoundError, match="no/such/file") as caught,
    ):
        list(engine.run(["/no/such/file"]))
    assert f"ticket 0, worker 0 on {HOST}" in "".join(caught.value.__notes__)
