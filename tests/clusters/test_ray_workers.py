"""Workers on the nodes of a Ray cluster of three nodes on this machine: the stream is the same, and nothing is left."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.engine import Engine, EngineOptions, Job, Raising, Restarting, WorkerInfo, get_worker_info
from headrace.engine.process.proc_tree import children_of, descendants_of
from headrace.errors import ConfigError, StalledError, WorkerDiedError

ray = pytest.importorskip("ray", reason="needs headrace[ray]")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
PATIENT = 30.0  # seconds: a busy machine is not a dead one


def on_ray(**options: Any) -> hr.RayExecutor:
    return hr.RayExecutor(**{"num_cpus": 0.5, "dead_seconds": PATIENT, **options})


def noisy(seq: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"x": seq["x"] + rng.standard_normal(len(seq["x"]))}


def batches(**options: Any) -> list[Any]:
    items = [{"x": np.full(1 + number % 7, float(number))} for number in range(60)]
    with hr.DataLoader(items, batch_size=4, shuffle=True, seed=1, transform=noisy, **options) as loader:
        return [(batch.tags, batch["x"].tolist()) for _ in (1, 2) for batch in loader]


def pids_of(info: WorkerInfo) -> Callable[[int], Any]:
    """Return the number of the ticket, of the worker's process, and of its agent's."""
    warden = os.getppid()
    agent = int(Path(f"/proc/{warden}/stat").read_text().rpartition(")")[2].split()[1])

    def work(number: int) -> Any:
        return number, os.getpid(), agent

    return work


def numbers_of(run: Any) -> list[int]:
    return [done.value[0] for done in run]


def restarts(engine: Engine) -> int:
    return sum(worker.num_restarts for worker in engine.report.workers)


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_stream_is_that_of_no_workers(cluster: Any) -> None:
    expected = batches()
    assert batches(num_workers=2, executor=on_ray()) == expected
    assert batches(num_workers=1, executor="ray") == expected


def test_workers_are_placed_where_they_are_asked_for_and_know_what_they_are(cluster: Any) -> None:
    def where(info: WorkerInfo) -> Callable[[int], Any]:
        me = get_worker_info()
        assert me is not None
        return lambda number: (number, me.executor, os.environ.get("MARK"))

    executor = on_ray(resources={"second": 1.0}, runtime_env={"env_vars": {"MARK": "here"}})
    with Engine(Job(where), num_workers=2, executor=executor) as engine:
        assert [done.value for done in engine.run(range(8))] == [(n, "ray", "here") for n in range(8)]
        assert ray.available_resources()["second"] <= 2.0


def test_an_actor_that_is_killed_is_replaced_and_nothing_of_it_is_left(cluster: Any) -> None:
    with Engine(Job(pids_of), num_workers=2, executor=on_ray()) as engine:
        run = engine.run(range(4000))
        _, pid, agent = next(run).value
        below = descendants_of(agent)
        assert pid in below
        os.kill(agent, signal.SIGKILL)
        assert numbers_of(run) == list(range(1, 4000))
        assert restarts(engine) == 1
        wait_until(lambda: not any(map(is_running, (agent, *below))))
        last = [done.value[1:] for done in engine.run(range(50))]
    for pids in last:
        wait_until(lambda pids=pids: not any(map(is_running, pids)))  # type: ignore[misc]


def test_a_file_that_is_missing_is_an_error_that_names_the_machine(cluster: Any) -> None:
    def read(item: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.fromfile(item["path"])}

    with (
        hr.DataLoader(
            [{"path": "/no/such/file"}], batch_size=1, num_workers=1, transform=read, executor=on_ray()
        ) as it,
        pytest.raises(FileNotFoundError) as caught,
    ):
        list(it)
    assert f"worker 0 on {socket.gethostname()}" in "".join(caught.value.__notes__)


def test_what_the_cluster_has_not_is_named_while_it_is_waited_for(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.remote.ray._REMARK_SECONDS", 0.5)
    options = EngineOptions(stall_seconds=2.0)
    with (
        caplog.at_level(logging.WARNING, "headrace.engine"),
        Engine(Job(pids_of), num_workers=1, executor=on_ray(resources={"accordion": 1.0}), options=options) as engine,
        pytest.raises(StalledError) as caught,
    ):
        list(engine.run(range(3)))
    assert "free in the cluster: CPU 4 of 4, accordion 0 of 0" in caplog.text
    assert "accordion" in "".join(caught.value.__notes__)


def test_options_that_ray_refuses_are_an_error_at_once(cluster: Any) -> None:
    with (
        pytest.raises(ConfigError, match="Ray refuses these options"),
        Engine(Job(pids_of), num_workers=1, executor=on_ray(scheduling_strategy=3)) as engine,
    ):
        engine.start()


def test_a_worker_that_waits_for_room_begins_when_a_node_comes(cluster: Any) -> None:
    with Engine(Job(pids_of), num_workers=1, executor=on_ray(resources={"third": 1.0})) as engine:
        run = engine.run(range(20))  # asks Ray for an actor
        node = cluster.add_node(**cluster.node_options, resources={"third": 1.0})
        try:
            assert numbers_of(run) == list(range(20))
        finally:
            engine.close()
            cluster.remove_node(node)


def test_a_node_that_is_lost_is_one_accident_however_many_workers_it_had(cluster: Any) -> None:
    node = cluster.add_node(**cluster.node_options, resources={"doomed": 4.0})
    options = EngineOptions(on_death=Restarting(budget=1))
    executor = on_ray(num_cpus=0.1, resources={"doomed": 1.0})
    with Engine(Job(pids_of), num_workers=3, executor=executor, options=options) as engine:
        run = engine.run(range(9000))
        first = [next(run).value for _ in range(30)]
        agents = {agent for _, _, agent in first}
        assert len(agents) == 3
        node.kill_raylet()
        spare = cluster.add_node(**cluster.node_options, resources={"doomed": 4.0})
        assert numbers_of(run) == list(range(30, 9000))
        assert restarts(engine) == 3
        wait_until(lambda: not any(map(is_running, agents)))
    cluster.remove_node(node)
    cluster.remove_node(spare)


def test_workers_of_a_node_that_is_drained_are_replaced_before_it_goes_and_no_death_is_counted(cluster: Any) -> None:
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    node = cluster.add_node(**cluster.node_options, resources={"drained": 2.0})
    options, executor = EngineOptions(on_death=Raising()), on_ray(num_cpus=0.1, resources={"drained": 1.0})
    with Engine(Job(pids_of), num_workers=2, executor=executor, options=options) as engine:
        run = engine.run(itertools.count())
        begun = [next(run).value for _ in range(30)]
        agents = {agent for _, _, agent in begun}
        deadline_ms = int(1000 * (time.time() + 600))
        reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        client = ray._raylet.GcsClient(address=cluster.address)
        assert client.drain_node(node.node_id, reason, "a notice of the cloud", deadline_ms)[0]
        spare = cluster.add_node(**cluster.node_options, resources={"drained": 2.0})
        expected = itertools.count(30)
        until = time.monotonic() + 60
        last = agents
        while agents & last or sum(worker.num_replaced for worker in engine.report.workers) < 2:
            assert time.monotonic() < until
            done = [next(run).value for _ in range(100)]
            last = {agent for _, _, agent in done}
            assert [number for number, *_ in done] == list(itertools.islice(expected, 100))
        assert restarts(engine) == 0
        wait_until(lambda: not any(map(is_running, agents)))
    cluster.remove_node(node)
    cluster.remove_node(spare)


def test_two_trainings_at_once(cluster: Any) -> None:
    with (
        Engine(Job(pids_of), num_workers=1, executor=on_ray()) as one,
        Engine(Job(pids_of), num_workers=1, executor=on_ray()) as other,
    ):
        pairs = zip(one.run(range(200)), other.run(range(200)), strict=True)
        assert [(a.value[0], b.value[0]) for a, b in pairs] == [(n, n) for n in range(200)]


_TRAINER = """
import itertools, os, sys, time
import ray
import headrace as hr
from headrace.engine import Engine, Job
from test_ray_workers import on_ray, pids_of

ray.init(address=sys.argv[1], log_to_driver=False)
engine = Engine(Job(pids_of), num_workers=2, executor=on_ray())
for done in engine.run(itertools.count()):
    print("pids", *done.value[1:], flush=True)
    time.sleep(0.001)
"""


def test_a_trainer_that_is_killed_leaves_nothing_behind(cluster: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parent)])}
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, cluster.address], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    lines = (line.split() for line in trainer.stdout if line.startswith("pids"))  # Ray prints some of its own
    pids = {int(pid) for line in itertools.islice(lines, 200) for pid in line[1:]}
    assert len(pids) == 4
    pids |= {child for pid in pids for child in children_of(pid)}
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_cluster_that_the_trainer_leaves_ends_the_workers_and_the_error_says_so(cluster: Any) -> None:
    options = EngineOptions(on_death=Raising())
    with Engine(Job(pids_of), num_workers=1, executor=on_ray(), options=options) as engine:
        run = engine.run(itertools.count())
        pids = next(run).value[1:]
        ray.shutdown()
        with pytest.raises(WorkerDiedError, match=r"ray\.shutdown\(\)"):
            numbers_of(run)
    assert not ray.is_initialized()
    ray.init(address=cluster.address, log_to_driver=False)  # for the tests that follow
    wait_until(lambda: not any(map(is_running, pids)))


def _train(config: dict[str, Any]) -> None:
    """Take some batches on each rank, remember which, and keep where the loader is."""
    from ray import train

    items = [{"x": np.full(3, float(number))} for number in range(40)]
    executor = on_ray(num_cpus=0.1)
    with hr.DataLoader(items, batch_size=2, shuffle=True, seed=3, num_workers=1, executor=executor) as loader:
        if config["state"] is not None:
            loader.load_state_dict(config["state"])
        tags = [batch.tags for batch in itertools.islice(loader, config["num_batches"])]
        rank = train.get_context().get_world_rank()
        config["folder"].joinpath(f"{config['name']}-{rank}").write_text(json.dumps([tags, loader.state_dict()]))
        train.report({})


def test_a_ray_train_job_goes_on_with_another_number_of_ranks(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a script's functions, as in a script
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def fit(name: str, num_ranks: int, num_batches: int | None, state: Any = None) -> list[Any]:
        TorchTrainer(
            _train,
            train_loop_config={"name": name, "num_batches": num_batches, "state": state, "folder": tmp_path},
            scaling_config=ScalingConfig(num_workers=num_ranks, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=str(tmp_path), name=name),
        ).fit()
        return [json.loads((tmp_path / f"{name}-{rank}").read_text()) for rank in range(num_ranks)]

    first = fit("first", 2, 4)
    (second,) = fit("second", 1, None, first[0][1])
    done = [tag for tags in (*first[0][0], *first[1][0], *second[0]) for tag in tags]
    assert len(first[0][0]) == len(first[1][0]) == 4
    assert sorted(done) == sorted(f"seq-{number}" for number in range(40))
