"""What a network can do to the connection of a remote worker: the stream is the same, or the run ends with an error."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.engine import Engine, EngineOptions, Job, Restarting, WorkerInfo
from headrace.engine.remote import Invitation, Launched, LocalLauncher, RemoteExecutor
from headrace.errors import WorkerDiedError
from servers.tcp_proxy import Trouble, tcp_proxy

PATIENT = 30.0  # seconds: a busy machine is not a dead one
NUM_TICKETS = 60


class BehindProxies(LocalLauncher):
    """Has each agent connect through a proxy of its own, with the next trouble, or the same one again and again."""

    def __init__(self, *troubles: Trouble, again: Trouble | None = None) -> None:
        super().__init__()
        self.troubles, self.again = list(troubles), again
        self.proxies: list[Any] = []
        self.pidfds: list[int] = []

    def launch(self, invitation: Invitation) -> Launched:
        _, _, port = invitation.addresses[0].rpartition(":")
        trouble = [self.troubles.pop(0)] if self.troubles else [self.again] if self.again is not None else []
        proxy = tcp_proxy(("localhost", int(port)), *trouble)
        self.proxies.append(proxy)
        launched = super().launch(dataclasses.replace(invitation, addresses=(proxy.__enter__().address,)))
        self.pidfds.append(os.pidfd_open(launched.pid))  # type: ignore[attr-defined]
        return launched

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.__exit__(None, None, None)


@pytest.fixture
def behind(wait_for_end: Callable[[int], None]) -> Iterator[Callable[..., BehindProxies]]:
    made: list[BehindProxies] = []

    def make(*troubles: Trouble, again: Trouble | None = None) -> BehindProxies:
        made.append(BehindProxies(*troubles, again=again))
        return made[-1]

    yield make
    for launcher in made:
        launcher.close()
        for pidfd in launcher.pidfds:
            wait_for_end(pidfd)


def work_of(info: WorkerInfo) -> Callable[[int], Any]:
    """Small, larger and large results in turn."""
    return lambda number: np.full((3, 9_000, 120_000)[number % 3], number)


def check(launcher: LocalLauncher, *, num_workers: int = 2, **options: Any) -> int:
    """See that the stream is what it has to be, and return how many workers were replaced."""
    executor = RemoteExecutor(launcher, **{"dead_seconds": PATIENT, "checks_values": True, **options})
    with Engine(Job(work_of), num_workers=num_workers, executor=executor) as engine:
        number = 0
        for number, delivered in enumerate(engine.run(range(NUM_TICKETS))):
            assert len(delivered.value) == (3, 9_000, 120_000)[number % 3]
            assert (delivered.value == number).all()
        assert number == NUM_TICKETS - 1
        return sum(worker.num_restarts for worker in engine.report.workers)


TROUBLES = st.builds(
    Trouble,
    st.sampled_from(["reset", "truncate", "drip", "delay", "half-close", "flip"]),
    st.one_of(st.integers(0, 1500), st.integers(0, 5_000_000)),
    st.sampled_from(["client", "server"]),
)


def test_the_stream_is_the_same_whatever_happens_to_connections(behind: Callable[..., BehindProxies]) -> None:
    @examples(6)
    @given(st.lists(TROUBLES, min_size=1, max_size=3))
    def law(troubles: list[Trouble]) -> None:
        fresh = [Trouble(trouble.kind, trouble.after_bytes, trouble.of) for trouble in troubles]
        check(behind(*fresh))

    law()


@pytest.mark.parametrize(
    ("of", "after_bytes"),
    [("client", 60), ("client", 130), ("client", 300_000), ("server", 10), ("server", 60), ("server", 700)],
)
def test_a_changed_bit_is_found_and_the_work_is_done_again(
    of: Any, after_bytes: int, behind: Callable[..., BehindProxies]
) -> None:
    trouble = Trouble("flip", after_bytes, of)
    was_at_work = after_bytes == 300_000  # so that its agent may come back, and nothing needs to be done again
    assert check(behind(trouble)) == (0 if was_at_work else 1)
    assert trouble.happened.is_set()


def test_connections_that_change_bits_again_and_again_end_the_run_with_an_error_that_says_so(
    behind: Callable[..., BehindProxies],
) -> None:
    executor = RemoteExecutor(
        behind(again=Trouble("flip", 400_000)), dead_seconds=PATIENT, checks_values=True, return_seconds=0
    )
    options = EngineOptions(on_death=Restarting(budget=1))
    with (
        Engine(Job(work_of), num_workers=2, executor=executor, options=options) as engine,
        pytest.raises(WorkerDiedError, match="bytes were changed on the way"),
    ):
        list(engine.run(range(200)))


def test_a_connection_through_which_nothing_goes_costs_the_time_of_silence_and_not_much_more(
    behind: Callable[..., BehindProxies],
) -> None:
    trouble = Trouble("stall", 900)
    start = time.monotonic()
    assert check(behind(trouble), num_workers=1, dead_seconds=2.0) >= 1
    assert trouble.happened.is_set()
    assert time.monotonic() - start < 2.0 + 25.0  # a start or two on a busy machine


def test_a_connection_that_only_drips_is_not_taken_for_dead(behind: Callable[..., BehindProxies]) -> None:
    """Also where less than the trainer asks to be woken for comes within the time of silence."""
    drips = [Trouble("drip", after_bytes) for after_bytes in (0, 100_000)]
    assert check(behind(*drips)) == 0
    assert all(trouble.happened.is_set() for trouble in drips)
