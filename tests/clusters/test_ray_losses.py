"""Clusters of Ray that go away: the trainer leaves them, or their head is lost."""

from __future__ import annotations

import itertools
import socket
import time
from typing import Any

import pytest

from headrace.engine import Engine, EngineOptions, Job, Raising
from headrace.errors import ConfigError, WorkerDiedError

ray = pytest.importorskip("ray", reason="needs headrace[ray]")

from test_ray_workers import Waiting, is_running, on_ray, pids_of, take_until  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]


def test_a_cluster_that_the_trainer_leaves_ends_the_workers_and_the_error_says_so(
    start_cluster: Any, wait_until: Waiting
) -> None:
    with (
        start_cluster(),
        Engine(Job(pids_of), num_workers=1, executor=on_ray(), options=EngineOptions(on_death=Raising())) as engine,
    ):
        run = engine.run(itertools.count())
        pid = next(run).value[1]
        ray.shutdown()
        with pytest.raises(WorkerDiedError, match=r"ray\.shutdown\(\)"):
            list(run)
        wait_until(lambda: not is_running(pid), "a worker does not end")


def test_a_cluster_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with Engine(Job(pids_of), num_workers=1, executor="ray") as engine, pytest.raises(ConfigError) as caught:
        engine.start()
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_a_run_goes_on_without_the_head_and_its_end_leaves_nothing(start_cluster: Any, wait_until: Waiting) -> None:
    with start_cluster() as cluster:
        with Engine(Job(pids_of), num_workers=2, executor=on_ray()) as engine:
            run, numbers = engine.run(itertools.count()), itertools.count()
            pids = take_until(run, numbers, lambda found: len(found) == 2)
            cluster.head_node.kill_gcs_server(check_alive=False)
            until = time.monotonic() + 5
            assert take_until(run, numbers, lambda _: time.monotonic() > until) == pids
            start = time.monotonic()
            engine.close()
            assert time.monotonic() - start < 2
        ray.shutdown()
    wait_until(lambda: not any(map(is_running, pids)), "a worker does not end")
