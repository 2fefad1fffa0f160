"""Workers on the nodes of a Ray cluster of three nodes on this machine: the stream is the same, and nothing is left."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.engine import Engine, EngineOptions, Job, Raising, Restarting, WorkerInfo, get_worker_info
from headrace.engine.process.proc_tree import children_of, descendants_of
from headrace.engine.remote import MixedExecutor
from headrace.errors import ConfigError, WorkerDiedError

ray = pytest.importorskip("ray", reason="needs headrace[ray]")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
Waiting = Callable[[Callable[[], bool], str], None]
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


def take_until(run: Any, numbers: Iterator[int], is_so: Callable[[set[int]], bool], seconds: float = 120.0) -> set[int]:
    """Take values of a run without an end, which are the next numbers, until something is so of those who gave them.

    How many values that takes is a matter of the machine: how soon workers begin, and how soon a death is noticed.
    """
    deadline, agents = time.monotonic() + seconds, set[int]()
    while not is_so(agents):
        assert time.monotonic() < deadline
        number, _, agent = next(run).value
        assert number == next(numbers)
        agents.add(agent)
        time.sleep(0.001)  # which leaves Ray some of the machine
    return agents


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


def test_an_actor_that_is_killed_is_replaced_and_nothing_of_it_is_left(cluster: Any, wait_until: Waiting) -> None:
    with Engine(Job(pids_of), num_workers=2, executor=on_ray()) as engine:
        run, numbers = engine.run(itertools.count()), itertools.count()
        pid, agent = next(run).value[1:]
        next(numbers)
        below = descendants_of(agent)
        assert pid in below
        os.kill(agent, signal.SIGKILL)
        take_until(run, numbers, lambda _: restarts(engine) == 1)
        run.close()
        wait_until(lambda: not any(map(is_running, (agent, *below))), "the actor has left something")
        last = [done.value[1:] for done in engine.run(range(50))]
    for pids in last:
        wait_until(lambda pids=pids: not any(map(is_running, pids)), "a worker does not end")  # type: ignore[misc]


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


def test_what_the_cluster_has_not_is_named_while_it_is_waited_for_and_that_is_no_stall(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.remote.ray._REMARK_SECONDS", 0.5)
    monkeypatch.setattr("headrace.engine.remote.ray._REMARK_AGAIN_SECONDS", 1.0)
    options = EngineOptions(stall_seconds=4.0)

    class EnoughWaiting(Exception):
        pass

    def stop(record: logging.LogRecord) -> bool:  # after a longer time than that in which a worker may be silent
        if re.search(r"since ([6-9]|\d\d) s", record.getMessage()):
            raise EnoughWaiting(record.getMessage())
        return True

    monkeypatch.setattr(logging.getLogger("headrace.engine"), "filters", [stop])
    executor = on_ray(resources={"accordion": 1.0})
    with (
        Engine(Job(pids_of), num_workers=2, executor=executor, options=options) as engine,
        pytest.raises(EnoughWaiting, match="2 workers wait for Ray") as caught,
    ):
        list(engine.run(range(3)))
    # Ray may not have noticed yet that what the tests before had is free, and that their nodes are gone.
    needs = r"free in the cluster: CPU [\d.]+ of \d+, accordion 0 of 0; no node has as much"
    assert re.search(needs, str(caught.value))


def test_what_a_worker_has_that_ray_finds_no_room_for_is_done_by_the_others(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.remote.seat._PLACE_SECONDS", 0.1)
    node = cluster.add_node(**cluster.node_options, resources={"single": 1.0})
    options = EngineOptions(stall_seconds=PATIENT)
    executor = on_ray(resources={"single": 1.0})
    with Engine(Job(pids_of), num_workers=3, executor=executor, options=options) as engine:
        assert numbers_of(engine.run(range(300))) == list(range(300))
        assert numbers_of(engine.run(range(300))) == list(range(300))
        assert sorted(worker.num_tickets > 0 for worker in engine.report.workers) == [False, False, True]
        another = cluster.add_node(**cluster.node_options, resources={"single": 1.0})
        for number, done in enumerate(engine.run(itertools.count())):
            assert done.value[0] == number
            if sum(worker.num_tickets > 0 for worker in engine.report.workers) == 2:
                break
        assert restarts(engine) == 0
    cluster.remove_node(node)
    cluster.remove_node(another)


def test_options_that_ray_refuses_are_an_error_at_once(cluster: Any) -> None:
    with (
        pytest.raises(ConfigError, match="Ray refuses these options"),
        Engine(Job(pids_of), num_workers=1, executor=on_ray(scheduling_strategy=3)) as engine,
    ):
        engine.start()


def test_deaths_are_counted_by_the_word_of_ray_where_the_options_say_nothing(cluster: Any, wait_until: Waiting) -> None:
    with Engine(Job(pids_of), num_workers=1, executor=on_ray(max_restarts=1)) as engine:
        run = engine.run(itertools.count())
        os.kill(next(run).value[2], signal.SIGKILL)
        while not restarts(engine):
            next(run)
        wait_until(
            lambda: is_running(last := next(run).value[2]) and os.kill(last, signal.SIGKILL) is None,
            "the actor is not there again",
        )
        with pytest.raises(WorkerDiedError, match=r"number 2 of this run and RayExecutor\(max_restarts=1\) allows 1"):
            numbers_of(run)


def test_what_follows_a_death_is_said_once() -> None:
    executor = on_ray(max_restarts=3)
    for told in (executor.another(), MixedExecutor(executor, num_local=1), on_ray(max_restarts=-1)):
        assert told.on_death is not None
        assert told.on_death.budget >= 3
    options = EngineOptions(on_death=Raising())
    with pytest.raises(ConfigError, match=r"RayExecutor\(max_restarts=3\) and .*on_death=Raising") as caught:
        Engine(Job(pids_of), num_workers=1, executor=executor, options=options)
    assert "one of them" in str(caught.value)
    with pytest.raises(ConfigError, match="max_restarts"):
        on_ray(max_restarts=-2)


def test_an_option_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="RayExecutor has no option 'max_restart'") as caught:
        on_ray(max_restart=3)
    text = str(caught.value)
    assert "did you mean 'max_restarts'?" in text
    assert "scheduling_strategy" in text
    assert "dead_seconds" in text
    with pytest.raises(ConfigError, match="RayExecutor has no option 'launcher'"):
        on_ray(launcher=None)


def test_a_worker_that_waits_for_room_begins_when_a_node_comes(cluster: Any) -> None:
    with Engine(Job(pids_of), num_workers=1, executor=on_ray(resources={"third": 1.0})) as engine:
        run = engine.run(range(20))  # asks Ray for an actor
        node = cluster.add_node(**cluster.node_options, resources={"third": 1.0})
        try:
            assert numbers_of(run) == list(range(20))
        finally:
            engine.close()
            cluster.remove_node(node)


def test_a_node_that_is_lost_is_one_accident_however_many_workers_it_had(cluster: Any, wait_until: Waiting) -> None:
    node = cluster.add_node(**cluster.node_options, resources={"doomed": 4.0})
    options = EngineOptions(on_death=Restarting(budget=1))
    executor = on_ray(num_cpus=0.1, resources={"doomed": 1.0})
    with Engine(Job(pids_of), num_workers=3, executor=executor, options=options) as engine:
        run, numbers = engine.run(itertools.count()), itertools.count()
        agents = take_until(run, numbers, lambda agents: len(agents) == 3)
        node.kill_raylet()
        spare = cluster.add_node(**cluster.node_options, resources={"doomed": 4.0})
        take_until(run, numbers, lambda _: restarts(engine) == 3)
        take_until(run, numbers, lambda found: len(found - agents) == 3)
        wait_until(lambda: not any(map(is_running, agents)), "an actor of the node does not end")
    cluster.remove_node(node)
    cluster.remove_node(spare)


def test_four_nodes_of_which_one_is_killed_give_the_stream_of_no_workers_and_go_on_with_three(cluster: Any) -> None:
    items = [{"x": np.full(1 + number % 50, number, np.float32)} for number in range(400)]

    def slow(seq: Any, *, rng: np.random.Generator) -> Any:  # so each worker has work before it at any time
        time.sleep(0.005)
        return noisy(seq, rng=rng)

    def digests(transform: Any, num: int = 0, kill: Callable[[], object] | None = None, **options: Any) -> list[str]:
        """Return one for each epoch: so many, or up to the one after that in which the node was killed."""
        found, was_killed = [], False
        with hr.DataLoader(items, batch_size=4, shuffle=True, seed=7, transform=transform, **options) as loader:
            while len(found) < num or not (num or was_killed):
                was_killed = kill is None
                digest = hashlib.sha256()
                for batch in loader:
                    digest.update(batch["x"].tobytes() + repr(batch.tags).encode())
                    if kill is not None and all(worker.num_tickets for worker in loader.report.workers):
                        kill()
                        kill = None
                found.append(digest.hexdigest())
            # None where the others were done before it was known that one was dead.
            assert sum(worker.num_restarts for worker in loader.report.workers) <= ("executor" in options)
        return found

    nodes = [cluster.add_node(**cluster.node_options, resources={"four": 1.0}) for _ in range(4)]
    executor = on_ray(num_cpus=0.1, resources={"four": 1.0})  # a node each: there is no room for another worker
    try:
        found = digests(slow, kill=nodes[1].kill_raylet, num_workers=4, executor=executor)
        assert found == digests(noisy, len(found))
    finally:
        for node in nodes:
            cluster.remove_node(node)


def test_processes_here_and_workers_on_ray_together_give_the_stream_of_no_workers(cluster: Any) -> None:
    assert batches(num_workers=3, executor=MixedExecutor(on_ray(), num_local=1)) == batches()


def test_workers_of_a_node_that_is_drained_are_replaced_before_it_goes_and_no_death_is_counted(
    cluster: Any, wait_until: Waiting
) -> None:
    node = cluster.add_node(**cluster.node_options, resources={"drained": 2.0})
    options, executor = EngineOptions(on_death=Raising()), on_ray(num_cpus=0.1, resources={"drained": 1.0})
    with Engine(Job(pids_of), num_workers=2, executor=executor, options=options) as engine:
        run, numbers = engine.run(itertools.count()), itertools.count()
        agents = take_until(run, numbers, lambda found: len(found) == 2)  # one may begin long after the other
        reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=a notice of the cloud"]
        where = [f"--address={cluster.address}", f"--node-id={node.node_id}", "--deadline-remaining-seconds=600"]
        subprocess.run([Path(sys.executable).parent / "ray", "drain-node", *where, *reason], check=True)
        spare = cluster.add_node(**cluster.node_options, resources={"drained": 2.0})
        take_until(run, numbers, lambda _: sum(worker.num_replaced for worker in engine.report.workers) >= 2)
        take_until(run, numbers, lambda found: len(found - agents) >= 2)
        assert restarts(engine) == 0
        wait_until(lambda: not any(map(is_running, agents)), "an actor of the node does not end")
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


def test_a_trainer_that_is_killed_leaves_nothing_behind(cluster: Any, wait_until: Waiting) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parent)])}
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, cluster.address], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    lines = (line.split() for line in trainer.stdout if line.startswith("pids"))  # Ray prints some of its own
    pids = set[int]()
    while len(pids) < 4:  # one worker may begin long after the other
        pids.update(map(int, next(lines)[1:]))
    pids |= {child for pid in pids for child in children_of(pid)}
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    wait_until(lambda: not any(map(is_running, pids)), "a worker does not end")


def test_a_cluster_that_the_trainer_leaves_ends_the_workers_and_the_error_says_so(
    cluster: Any, wait_until: Waiting
) -> None:
    options = EngineOptions(on_death=Raising())
    with Engine(Job(pids_of), num_workers=1, executor=on_ray(), options=options) as engine:
        run = engine.run(itertools.count())
        pids = next(run).value[1:]
        ray.shutdown()
        with pytest.raises(WorkerDiedError, match=r"ray\.shutdown\(\)"):
            numbers_of(run)
    assert not ray.is_initialized()
    ray.init(address=cluster.address, log_to_driver=False)  # for the tests that follow
    wait_until(lambda: not any(map(is_running, pids)), "a worker does not end")


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


@pytest.mark.timeout(600)  # it starts five processes that import torch, which takes minutes on a busy machine
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

    begun = fit("begun", 2, 4)
    (shrunk,) = fit("shrunk", 1, 4, begun[0][1])
    grown = fit("grown", 2, None, shrunk[1])
    done = [tag for tags, _ in (*begun, shrunk, *grown) for batch in tags for tag in batch]
    assert [len(tags) for tags, _ in (*begun, shrunk, *grown)] == [4, 4, 4, 4, 4]
    assert sorted(done) == sorted(f"seq-{number}" for number in range(40))
