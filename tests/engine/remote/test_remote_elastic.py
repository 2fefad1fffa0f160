"""Remote workers that join, leave in order, and are mixed with local ones: the stream is that of a plain loop."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.engine import Engine, EngineOptions, Job, Raising, WorkerInfo
from headrace.engine.remote import Invitation, Launched, LocalLauncher, RemoteExecutor

PATIENT = 30.0  # seconds: a busy machine is not a dead one
PATIENCE = 60.0


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
