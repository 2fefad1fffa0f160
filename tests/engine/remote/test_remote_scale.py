"""A thousand connections of one trainer: what a ticket costs it does not depend on how many there are."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from headrace.engine import Job
from headrace.engine.codec.codec import NO_CODE
from headrace.engine.events import Done
from headrace.engine.process.results import InlineResult
from headrace.engine.remote import ConnectedWorkers, RemoteExecutor
from headrace.engine.remote.handshake import introduce
from headrace.engine.remote.port.stranger import Connection
from headrace.engine.remote.seal import Seal
from headrace.engine.remote.wire import RemoteResult
from headrace.engine.user.job import Mode

KEYS = b"k" * 32, b"l" * 32


class Agents:
    """An executor whose agents are the other ends of sockets in this process."""

    def __init__(self, num_workers: int) -> None:
        self.executor = RemoteExecutor(
            ConnectedWorkers(), host="localhost", secret="s" * 32, dead_seconds=600.0, max_bytes=1 << 20
        )
        self.executor.start(Job(lambda info: abs), num_workers)
        self.num_workers = num_workers
        self.ends: list[socket.socket] = []
        self.seals: list[Seal] = []
        introduction = introduce(-1)
        with socket.create_server(("localhost", 0)) as listening:
            for seat in self.executor._seats.values():
                there = socket.create_connection(listening.getsockname())
                here = listening.accept()[0]
                here.setblocking(False)
                seat.welcome(Connection(here, introduction, *map(Seal, KEYS)))
                self.ends.append(there)
                self.seals.append(Seal(KEYS[0]))
                self.seals[-1].checks_values = False
        self.executor.begin_run(1, Mode.TASK)
        self.executor.wait(0.0)

    def answer(self, worker_idx: int, ticket: int, num_bytes: int) -> None:
        """Say that a ticket is done."""
        value = bytearray(num_bytes)
        large = num_bytes > 4096
        result: Any = RemoteResult(b"h", num_bytes) if large else InlineResult(b"h", value, num_bytes)
        done = Done(worker_idx, ticket, 1, result)
        values = [(memoryview(value), NO_CODE)] if large else []
        frame = self.seals[worker_idx].frame([done], values)
        self.ends[worker_idx].sendall(frame + (value if large else b""))

    def one_ticket(self, number: int, num_bytes: int) -> None:
        """Have one worker do one ticket."""
        worker_idx = number * 7 % self.num_workers
        self.executor.submit(worker_idx, 1, number, b"payload")
        self.answer(worker_idx, number, num_bytes)
        found = [event.ticket for event in self.executor.wait(1.0) if isinstance(event, Done)]
        assert found == [number]


@contextmanager
def agents_of(num_workers: int) -> Iterator[Agents]:
    agents = Agents(num_workers)
    try:
        yield agents
    finally:
        agents.executor.close()
        for end in agents.ends:
            end.close()


def calls_per_ticket(num_workers: int, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return what the executor calls for a ticket, of Python and of C, between two looks at all workers."""
    num_calls = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call") and frame.f_code.co_filename != __file__

    with agents_of(num_workers) as agents:
        monkeypatch.setattr(agents.executor, "_look_seconds", 600.0)
        for number in range(10):
            agents.one_ticket(number, num_bytes)
        sys.setprofile(count)
        try:
            for number in range(10, 110):
                agents.one_ticket(number, num_bytes)
        finally:
            sys.setprofile(None)
    return num_calls / 100


@pytest.mark.parametrize("num_bytes", [100, 10_000])
def test_what_a_ticket_costs_does_not_grow_with_the_number_of_connections(
    num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (calls_per_ticket(num_workers, num_bytes, monkeypatch) for num_workers in (10, 1000))
    assert many <= 1.2 * few, (few, many)


def test_looks_at_all_workers_take_a_small_part_of_the_time_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look that takes 1 s is not followed by another one for 20 s."""
    now = [1000.0]
    monkeypatch.setattr("headrace.engine.remote.executor.time.monotonic", lambda: now[0])
    with agents_of(3) as agents:
        executor = agents.executor
        num_looks = 0
        look: Callable[..., None] = executor._look

        def slow_look(*args: Any) -> None:
            nonlocal num_looks
            look(*args)
            num_looks += 1
            now[0] += 1.0

        monkeypatch.setattr(executor, "_look", slow_look)
        for _ in range(400):
            now[0] += 0.1
            executor.wait(0.0)
        assert 2 <= num_looks <= 3


def test_a_worker_that_was_not_listened_to_for_long_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer was away for an hour; what came meanwhile is read before silence is spoken of."""
    now = [1000.0]
    monkeypatch.setattr("headrace.engine.remote.executor.time.monotonic", lambda: now[0])
    with agents_of(2) as agents:
        agents.executor.wait(0.0)
        agents.answer(0, 0, 100)
        now[0] += 3600.0
        events = list(agents.executor.wait(0.0))
        now[0] += 1.0
        events += agents.executor.wait(0.0)
        found = [(type(event).__name__, getattr(event, "worker_idx", None)) for event in events]
        assert found == [("Done", 0), ("Exited", 1)]
