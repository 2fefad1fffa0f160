"""Remote workers that join, leave in order, and are mixed with local ones: the stream is that of a plain loop."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import DataLoader
from headrace.engine import Engine, EngineOptions, Job, Raising, WorkerInfo
from headrace.engine.remote import (
    ConnectedWorkers,
    Invitation,
    Launched,
    LocalLauncher,
    MixedExecutor,
    RemoteExecutor,
)
from headrace.errors import ConfigError
from headrace.testing import check_executor

PATIENT = 30.0  # seconds: a busy machine is not a dead one
PATIENCE = 60.0
SECRET = "of no use to anybody else"


class Agents(LocalLauncher):
    """Remembers the agents."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []

    def launch(self, invitation: Invitation) -> Launched:
        launched = super().launch(invitation)
        self.pids.append(launched.pid)  # type: ignore[attr-defined]
        return launched


def wait_for_ticket(folder: Path) -> Callable[[WorkerInfo], Callable[[int], Any]]:
    """Make a setup whose work over ticket 5 waits for a file, after it has said that it has begun."""

    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        def work(number: int) -> Any:
            (folder / f"did-{number}-{os.getpid()}").touch()
            is_told = (folder / f"did-5-{os.getpid()}").exists()
            while is_told and (number > 5 or not (folder / "go").exists()):  # after 5 it does nothing more
                time.sleep(0.005)
            return np.full(2000, number)

        return work

    return setup


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


def test_a_worker_that_is_told_to_leave_finishes_what_it_has_begun_and_gives_back_the_rest(tmp_path: Path) -> None:
    agents = Agents()
    executor = RemoteExecutor(agents, dead_seconds=PATIENT)
    options = EngineOptions(on_death=Raising(), tickets_per_worker=8)
    with Engine(Job(wait_for_ticket(tmp_path)), num_workers=1, executor=executor, options=options) as engine:
        run = engine.run(range(20))
        found = [next(run).value[0] for _ in range(5)]
        wait_until(lambda: list(tmp_path.glob("did-5-*")))
        os.kill(agents.pids[0], signal.SIGTERM)
        (tmp_path / "go").touch()
        found += [delivered.value[0] for delivered in run]
        assert found == list(range(20))
        assert engine.report.num_restarts == 0
        assert [worker.num_replaced for worker in engine.report.workers] == [1]
        assert len(agents.pids) == 2
    assert len(list(tmp_path.glob("did-5-*"))) == 1


def square(info: WorkerInfo) -> Callable[[int], int]:
    return lambda number: number * number


def test_workers_that_are_told_to_leave_while_they_have_nothing_to_do_are_replaced_in_the_next_run() -> None:
    agents = Agents()
    executor = RemoteExecutor(agents, dead_seconds=PATIENT)
    options = EngineOptions(on_death=Raising())
    with Engine(Job(square), num_workers=2, executor=executor, options=options) as engine:
        for number_of_run in range(2):
            for delivered in engine.run(itertools.count()):
                assert delivered.value == delivered.ticket**2
                num_replaced = sum(worker.num_replaced for worker in engine.report.workers)
                if delivered.ticket >= 300 and num_replaced == 2 * number_of_run:
                    break
            for pid in agents.pids[-2:]:
                os.kill(pid, signal.SIGTERM)
        assert engine.report.num_restarts == 0


def large(info: WorkerInfo) -> Callable[[int], Any]:
    return lambda number: np.full(40_000 if number % 3 else 3, number)


@pytest.mark.parametrize("num_local", [1, 3])
def test_local_and_remote_workers_together_give_what_a_plain_loop_gives(num_local: int) -> None:
    executor = MixedExecutor(RemoteExecutor(LocalLauncher(), dead_seconds=PATIENT), num_local=num_local)
    with Engine(Job(large), num_workers=2, executor=executor) as engine:
        for length in (120, 7):
            kept = []
            for delivered in engine.run(range(length)):
                assert delivered.ticket == len(kept)
                kept.append(delivered.value)
                if len(kept) == 20:
                    engine.resize(4)
                if len(kept) == 60:
                    engine.resize(1)
            assert all((value == number).all() for number, value in enumerate(kept))
            assert len(kept) == length
        workers = engine.report.workers
        assert [worker.is_remote for worker in workers] == [number >= num_local for number in range(4)]
        assert len(engine.report.remote_workers) == 4 - num_local
        for worker in workers[:2]:
            assert worker.num_tickets
            assert worker.num_bytes > 40_000


def test_a_death_on_either_side_is_made_good(tmp_path: Path) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        def work(number: int) -> Any:
            if number in (3, 4, 17, 18) and not (tmp_path / str(number)).exists():
                (tmp_path / str(number)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return info.executor, number

        return work

    executor = MixedExecutor(RemoteExecutor(LocalLauncher(), dead_seconds=PATIENT), num_local=1)
    with Engine(Job(setup), num_workers=2, executor=executor) as engine:
        found = [delivered.value for delivered in engine.run(range(40))]
        assert [number for _, number in found] == list(range(40))
        assert {name for name, _ in found} == {"process", "remote"}
        assert engine.report.num_restarts == 4


def noisy(features: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": features["x"] + rng.random(3)}


def test_a_loader_says_what_the_network_costs() -> None:
    items = [{"x": np.full(3, float(number))} for number in range(30)]

    def batches(**workers: Any) -> tuple[list[Any], str]:
        with DataLoader(items, batch_size=4, shuffle=True, seed=1, transform=noisy, **workers) as loader:
            return [batch["x"].tolist() for batch in loader], loader.explain()

    executor = MixedExecutor(RemoteExecutor(LocalLauncher(), dead_seconds=PATIENT), num_local=1)
    mixed, text = batches(num_workers=2, executor=executor)
    plain, plain_text = batches(num_workers=0)
    assert mixed == plain
    assert "MB from 1 of 2 workers; " in text
    assert "network" not in plain_text


class Connected:
    """Workers that are started by somebody else."""

    def __init__(self, num_workers: int, max_workers: int) -> None:
        self.executor = RemoteExecutor(
            ConnectedWorkers(), host="localhost", secret=SECRET, dead_seconds=PATIENT, max_workers=max_workers
        )
        address = self.executor.listen()
        self.command = [sys.executable, "-m", "headrace", "worker", "--return-wait", "9", "--connect", address]
        self.agents: list[subprocess.Popen[bytes]] = []
        for _ in range(num_workers):
            self.connect()

    def connect(self) -> None:
        environment = {**os.environ, "HEADRACE_WORKER_SECRET": SECRET}
        self.agents.append(subprocess.Popen(self.command, env=environment, stdout=subprocess.DEVNULL))

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for agent in self.agents:
            agent.kill()
        for agent in self.agents:
            agent.wait()


def test_workers_that_connect_while_a_run_is_under_way_join_up_to_a_maximum() -> None:
    with Connected(1, 3) as workers, Engine(Job(square), num_workers=1, executor=workers.executor) as engine:
        run = engine.run(itertools.count())
        deadline = time.monotonic() + PATIENCE
        for delivered in run:
            assert delivered.value == delivered.ticket**2
            assert time.monotonic() < deadline
            if len(workers.agents) == 1 and delivered.ticket > 50:
                assert engine.num_workers == 1
                for _ in range(3):  # one more than may join
                    workers.connect()
            reports = engine.report.workers
            if len(reports) == 3 and all(worker.num_tickets for worker in reports):
                break
        assert engine.num_workers == 3
        engine.resize(2)  # and none joins any more
        for delivered in itertools.islice(run, 200):
            assert delivered.value == delivered.ticket**2
        assert engine.num_workers == 2


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_worker_has_left_is_done_by_the_others_if_nobody_takes_its_place(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.remote.executor._VACANT_SECONDS", 0.5)
    with Connected(2, 2) as workers, Engine(Job(square), num_workers=2, executor=workers.executor) as engine:
        gone_at = None
        deadline = time.monotonic() + PATIENCE
        for num_taken, delivered in enumerate(engine.run(itertools.count())):
            assert delivered.value == delivered.ticket**2
            assert delivered.ticket == num_taken
            assert time.monotonic() < deadline
            if gone_at is None and all(worker.num_tickets for worker in engine.report.workers):
                workers.agents[0].send_signal(how)
                assert workers.agents[0].wait() == (0 if how == signal.SIGTERM else -signal.SIGKILL)
                gone_at = num_taken
            if gone_at is not None and engine.num_workers == 1 and num_taken > gone_at + 200:
                break
        assert engine.report.num_restarts == (how == signal.SIGKILL)
        assert len(list(engine.run(range(20)))) == 20


def test_a_maximum_is_for_workers_that_come_by_themselves() -> None:
    with pytest.raises(ConfigError, match="LocalLauncher starts workers itself"):
        RemoteExecutor(LocalLauncher(), max_workers=3)


def test_executors_that_are_mixed_keep_the_contract() -> None:
    check_executor(
        lambda: MixedExecutor(RemoteExecutor(LocalLauncher(), dead_seconds=PATIENT), num_local=1), num_workers=2
    )
