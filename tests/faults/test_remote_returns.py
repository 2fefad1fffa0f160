"""A connection that breaks while its worker lives: the worker goes on, and nothing is lost, done twice or kept."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.engine import Engine, EngineOptions, Job, Raising, WorkerInfo
from headrace.engine.events import Done, Exited
from headrace.engine.remote import Invitation, Launched, LocalLauncher, RemoteExecutor, Tls
from headrace.engine.remote.launcher import _LocalProcess
from headrace.engine.user.job import Mode
from headrace.errors import WorkerDiedError
from servers.tcp_proxy import TcpProxy, Trouble

PATIENT = 30.0  # seconds: a busy machine is not a dead one
FILES = Path(__file__).parents[1] / "servers" / "certificates"
TLS = Tls(ca=str(FILES / "ca.pem"), cert=str(FILES / "trainer.pem"), key=str(FILES / "trainer.key"))
SIZES = (10, 3_000, 60_000, 250_000)  # float64: up to 2 MB


class OneWayThere(LocalLauncher):
    """Has agents connect through one proxy, whose connections meet one trouble after the other."""

    def __init__(self, *troubles: Trouble) -> None:
        super().__init__()
        self.troubles = troubles
        self.proxy: TcpProxy | None = None
        self.pids: list[int] = []

    def launch(self, invitation: Invitation) -> Launched:
        if self.proxy is None:
            port = int(invitation.addresses[0].rpartition(":")[2])
            self.proxy = TcpProxy(("localhost", port), list(self.troubles))
        tls = invitation.tls and msgspec.structs.replace(invitation.tls, name="localhost")
        launched = super().launch(dataclasses.replace(invitation, addresses=(self.proxy.address,), tls=tls))
        self.pids.append(launched.pid)  # type: ignore[attr-defined]
        return launched


@pytest.fixture
def way_there() -> Iterator[Callable[..., OneWayThere]]:
    made: list[OneWayThere] = []

    def make(*troubles: Trouble) -> OneWayThere:
        made.append(OneWayThere(*troubles))
        return made[-1]

    yield make
    for launcher in made:
        if launcher.proxy is not None:
            launcher.proxy.close()


def noting(folder: Path) -> Callable[[WorkerInfo], Callable[[int], Any]]:
    """Make a setup whose work writes down which tickets it did."""

    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        def work(number: int) -> Any:
            with (folder / f"{info.worker_idx}-{os.getpid()}").open("a") as file:
                file.write(f"{number}\n")
            return np.full(SIZES[number % len(SIZES)], float(number))

        return work

    return setup


def check(engine: Engine, num_tickets: int) -> None:
    number = -1
    for number, delivered in enumerate(engine.run(range(num_tickets))):
        assert delivered.value.shape == (SIZES[number % len(SIZES)],)
        assert (delivered.value == number).all()
    assert number == num_tickets - 1
    assert sum(worker.num_restarts for worker in engine.report.workers) == 0


def all_done(folder: Path) -> list[int]:
    return sorted(int(line) for file in folder.iterdir() for line in file.read_text().split())


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", ["reset", "truncate", "flip"])
def test_a_worker_whose_connections_break_goes_on_and_does_each_ticket_once(
    kind: Any, tls: Tls | None, tmp_path: Path, way_there: Callable[..., OneWayThere]
) -> None:
    """With memory for three large results only: a credit that was lost or doubled would be found out."""
    troubles = [
        Trouble(kind, 20_000),
        Trouble(kind, 3_000_000),
        Trouble(kind, 700, "server"),
        Trouble(kind, 2_500_000),
    ]
    launcher = way_there(*troubles)
    executor = RemoteExecutor(launcher, dead_seconds=PATIENT, checks_values=True, max_bytes=7 << 20, tls=tls)
    with Engine(Job(noting(tmp_path)), num_workers=1, executor=executor) as engine:
        check(engine, 120)
        seat = executor._seats[0]
        seat.memory.drain()
        assert seat.memory.held_bytes == 0
        assert seat.memory.freed_bytes - seat._freed_before == sum(charged(number) for number in range(120))
    assert all(trouble.happened.is_set() for trouble in troubles)
    assert len(launcher.pids) == 1
    assert all_done(tmp_path) == list(range(120))
    assert len(list(tmp_path.iterdir())) == 1  # one process all the time


def charged(number: int) -> int:
    """Return what the result of a ticket counts against the credit of its worker: small ones come without."""
    num_bytes = 8 * SIZES[number % len(SIZES)]
    return 0 if num_bytes <= 4096 else -(-num_bytes // 4096) * 4096


def test_a_stream_is_not_begun_again_when_its_connection_breaks(
    tmp_path: Path, way_there: Callable[..., OneWayThere]
) -> None:
    def setup(info: WorkerInfo) -> Callable[[Any], Iterator[Any]]:
        def stream(start: int) -> Iterator[Any]:
            (tmp_path / f"begun-{time.monotonic_ns()}").touch()
            for number in range(start, start + 200):
                yield np.full(5000, number)

        return stream

    troubles = [Trouble("reset", 50_000), Trouble("truncate", 1_000_000)]
    executor = RemoteExecutor(way_there(*troubles), dead_seconds=PATIENT)
    with Engine(Job(setup), num_workers=1, executor=executor) as engine:
        found = [int(done.value[0]) for done in engine.run_stream(1000)]
    assert found == list(range(1000, 1200))
    assert all(trouble.happened.is_set() for trouble in troubles)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_agent_comes_back_to_a_trainer_whose_steps_are_longer_than_it_may_take() -> None:
    executor = RemoteExecutor(LocalLauncher(), dead_seconds=PATIENT, return_seconds=0.2)
    executor.start(Job(lambda info: lambda number: number), 1)
    try:
        executor.begin_run(1, Mode.TASK)
        executor.submit(0, 1, 0, executor.pack(7))
        events: list[Any] = []
        while not any(isinstance(event, Done) for event in events):
            events += executor.wait(0.25)
        link = executor._seats[0].link
        assert link is not None
        link._sock.shutdown(socket.SHUT_RDWR)
        executor.submit(0, 1, 1, executor.pack(8))
        events = []
        for _ in range(10):
            events += executor.wait(0.0)
            time.sleep(0.3)  # a step of a training
        assert [event for event in events if isinstance(event, Exited)] == []
        assert [event.ticket for event in events if isinstance(event, Done)] == [1]
    finally:
        executor.close()


def test_an_agent_that_does_not_come_back_in_time_is_given_up_and_its_work_is_done_again(
    tmp_path: Path, way_there: Callable[..., OneWayThere]
) -> None:
    launcher = way_there(Trouble("reset", 100_000), Trouble("stall"))
    executor = RemoteExecutor(launcher, dead_seconds=PATIENT, return_seconds=0.5)
    with Engine(Job(noting(tmp_path)), num_workers=1, executor=executor) as engine:
        assert [int(done.value[0]) for done in engine.run(range(40))] == list(range(40))
        assert sum(worker.num_restarts for worker in engine.report.workers) == 1
    assert len(launcher.pids) == 2


def test_the_tickets_of_an_agent_that_is_waited_for_are_done_by_others_meanwhile(
    tmp_path: Path, way_there: Callable[..., OneWayThere]
) -> None:
    launcher = way_there(Trouble("reset", 3_000_000), Trouble("delay"), Trouble("stall"))
    executor = RemoteExecutor(launcher, dead_seconds=PATIENT, return_seconds=10 * PATIENT)
    with Engine(Job(noting(tmp_path)), num_workers=2, executor=executor) as engine:
        for _ in engine.run(itertools.count(0, len(SIZES))):  # small ones, until both are there
            if all(worker.num_tickets for worker in engine.report.workers):
                break
        check(engine, 200)
    assert all(trouble.happened.is_set() for trouble in (launcher.troubles[0], launcher.troubles[2]))
    assert len(launcher.pids) == 2


_TOLD_AT_ONCE = """
import os, signal
from headrace.engine.remote import agent

begin = agent.Session.__init__

def begin_when_told_to_leave(self, *arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    begin(self, *arguments)

agent.Session.__init__ = begin_when_told_to_leave
agent.serve_one({addresses!r}, {seat})
"""


class ToldAtOnce(LocalLauncher):
    """Has the first agent told to leave while it starts its worker."""

    is_first = True

    def launch(self, invitation: Invitation) -> Launched:
        if not self.is_first:
            return super().launch(invitation)
        self.is_first = False
        program = _TOLD_AT_ONCE.format(addresses=list(invitation.addresses), seat=invitation.seat)
        return _LocalProcess([sys.executable, "-c", program], {**os.environ, **invitation.environment})


def test_an_agent_that_is_told_to_leave_while_it_starts_leaves_in_order(tmp_path: Path) -> None:
    executor = RemoteExecutor(ToldAtOnce(), dead_seconds=PATIENT)
    with Engine(Job(noting(tmp_path)), num_workers=1, executor=executor) as engine:
        assert [int(done.value[0]) for done in engine.run(range(10))] == list(range(10))
        [worker] = engine.report.workers
        assert (worker.num_restarts, worker.num_replaced) == (0, 1)


def test_an_agent_that_ended_is_not_waited_for(tmp_path: Path, way_there: Callable[..., OneWayThere]) -> None:
    launcher = way_there()
    executor = RemoteExecutor(launcher, dead_seconds=600.0, return_seconds=600.0)
    with Engine(Job(noting(tmp_path)), num_workers=1, executor=executor) as engine:
        run = engine.run(range(40))
        assert int(next(run).value[0]) == 0
        os.kill(launcher.pids[0], signal.SIGKILL)
        assert [int(done.value[0]) for done in run] == list(range(1, 40))
        assert sum(worker.num_restarts for worker in engine.report.workers) == 1


def test_a_connection_that_never_holds_is_given_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way_there: Callable[..., OneWayThere]
) -> None:
    monkeypatch.setattr("headrace.engine.remote.seat._MAX_RETURNS", 2)
    launcher = way_there(*(Trouble("flip", 100_000) for _ in range(9)))
    executor = RemoteExecutor(launcher, dead_seconds=PATIENT, checks_values=True)
    with (
        Engine(
            Job(noting(tmp_path)), num_workers=1, executor=executor, options=EngineOptions(on_death=Raising())
        ) as engine,
        pytest.raises(WorkerDiedError, match="bytes were changed on the way"),
    ):
        list(engine.run(range(40)))
    assert launcher.proxy is not None
    assert 3 <= launcher.proxy.num_connections <= 4  # with the one that was refused
