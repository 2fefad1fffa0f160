"""Workers on the nodes of a Ray cluster of three nodes on this machine: the stream is the same, and nothing is left."""

from __future__ import annotations

import itertools
import logging
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

import headrace as hr
from headrace.engine import Engine, EngineOptions, Job, Restarting, WorkerInfo, get_worker_info, note_item
from headrace.errors import ConfigError, StalledError
from headrace.testing import check_executor

ray = pytest.importorskip("ray", reason="needs headrace[ray]")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
Waiting = Callable[[Callable[[], bool], str], None]
LONG = pytest.mark.long


def on_ray(**options: Any) -> hr.RayExecutor:
    return hr.RayExecutor(**{"num_cpus": 0.1, **options})


def noisy(seq: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"x": seq["x"] + rng.standard_normal(len(seq["x"]))}


def batches(**options: Any) -> list[Any]:
    items = [{"x": np.full(1 + number % 7, float(number))} for number in range(60)]
    with hr.DataLoader(items, batch_size=4, shuffle=True, seed=1, transform=noisy, **options) as loader:
        return [(batch.tags, batch["x"].tolist()) for _ in (1, 2) for batch in loader]


def pids_of(info: WorkerInfo) -> Callable[[int], Any]:
    del info
    return lambda number: (number, os.getpid())


def restarts(engine: Engine) -> int:
    return sum(worker.num_restarts for worker in engine.report.workers)


def take_until(run: Any, numbers: Any, is_so: Callable[[set[int]], bool]) -> set[int]:
    """Take values of a run without an end, which are the next numbers, until something is so of those who gave them."""
    pids = set[int]()
    while not is_so(pids):
        number, pid = next(run).value
        assert number == next(numbers)
        pids.add(pid)
    return pids


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_keeps_the_promises_of_an_executor(cluster: Any) -> None:
    check_executor(on_ray, num_workers=2)


def test_the_stream_is_that_of_no_workers(cluster: Any) -> None:
    expected = batches()
    assert batches(num_workers=2, executor=on_ray()) == expected
    assert batches(num_workers=1, executor=on_ray(max_bytes=1000)) == expected
    assert batches(num_workers=1, executor="ray") == expected


def test_a_dataset_of_one_process_and_files_over_sub_epochs_are_the_same_too(cluster: Any, tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        paths.append(str(tmp_path / f"{number}.hdf"))
        with hr.HDFWriter(paths[-1], specs={"data": hr.DataSpec("float32", (2,))}) as writer:
            for seq in range(6):
                writer.append(f"{number}-{seq}", {"data": np.full((1 + seq, 2), number, np.float32)})

    def tags(dataset: Any) -> list[str]:
        found = []
        with dataset:
            for epoch in (1, 2):
                dataset.init_seq_order(epoch=epoch)
                number = 0
                while dataset.is_less_than_num_seqs(number):
                    dataset.load_seqs(number, number + 1)
                    found.append(dataset.get_tag(number))
                    number += 1
        return found

    def opened(executor: Any, **options: Any) -> Any:
        return hr.DistributeFilesDataset(
            files=paths,
            get_sub_epoch_dataset=lambda files: {"class": "HDFDataset", "files": files, "seq_ordering": "random"},
            partition_epoch=2,
            seq_ordering="random",
            num_workers=0 if executor is None else 1,
            **options,
            **({} if executor is None else {"executor": executor}),
        )

    assert tags(opened(on_ray())) == tags(opened(None))
    one = {"class": "HDFDataset", "files": paths, "seq_ordering": "random"}
    several = hr.MultiProcDataset(one, num_workers=2, buffer_size=4, executor=on_ray())
    assert tags(several) == tags(hr.init_dataset(one))


def test_workers_know_what_they_are_and_have_the_environment_that_was_asked_for(cluster: Any) -> None:
    def where(info: WorkerInfo) -> Callable[[int], Any]:
        me = get_worker_info()
        assert me is not None
        return lambda number: (number, me.executor, me.num_workers, os.environ.get("MARK"))

    executor = on_ray(runtime_env={"env_vars": {"MARK": "here"}})
    with Engine(Job(where), num_workers=2, executor=executor) as engine:
        assert [done.value for done in engine.run(range(8))] == [(n, "ray", 2, "here") for n in range(8)]


def test_an_error_of_user_code_comes_with_its_type_and_its_traceback(cluster: Any) -> None:
    def read(item: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.fromfile(item["path"])}

    loader = hr.DataLoader([{"path": "/no/such/file"}], batch_size=1, num_workers=1, transform=read, executor=on_ray())
    with loader, pytest.raises(FileNotFoundError) as caught:
        list(loader)
    notes = "".join(caught.value.__notes__)
    assert "worker 0" in notes
    assert "np.fromfile" in notes


def test_what_cannot_be_carried_is_an_error_of_its_item_and_of_no_other(cluster: Any) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        return lambda number: open(os.devnull) if number == 5 else number

    with Engine(Job(setup), num_workers=1, executor=on_ray()) as engine:
        run = engine.run(range(20))
        assert [next(run).value for _ in range(5)] == list(range(5))
        with pytest.raises(hr.TransformError, match="cannot be sent to another process"):
            next(run)


def test_a_small_result_that_overtakes_a_large_one_comes_after_it(cluster: Any) -> None:
    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        return lambda number: np.full(8 << 20 if number % 3 == 0 else 1, number % 100, np.uint8)

    options = EngineOptions(tickets_per_worker=6)
    with Engine(Job(setup), num_workers=2, executor=on_ray(max_bytes=1 << 20), options=options) as engine:
        assert [int(done.value[-1]) for done in engine.run(range(100))] == list(range(100))


def test_values_are_the_consumers_own_and_few_bytes_of_them_wait(cluster: Any) -> None:
    made = 20

    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        return lambda number: np.full(1 << 20, number, np.uint8)

    executor = on_ray(max_bytes=3 << 20)
    with Engine(Job(setup), num_workers=2, executor=executor, options=EngineOptions(look_ahead=made)) as engine:
        for number, done in enumerate(engine.run(range(made))):
            assert set(done.value[[0, -1]]) == {number}
            done.value[0] += 1
            waiting = executor._waiting_bytes.value
            assert waiting <= 4 << 20
    del done
    assert executor._waiting_bytes.value == 0


def test_an_actor_that_is_killed_is_replaced_and_nothing_of_it_is_left(cluster: Any, wait_until: Waiting) -> None:
    with Engine(Job(pids_of), num_workers=2, executor=on_ray()) as engine:
        run, numbers = engine.run(itertools.count()), itertools.count()
        pids = take_until(run, numbers, lambda pids: len(pids) == 2)
        os.kill(min(pids), signal.SIGKILL)
        pids |= take_until(run, numbers, lambda found: restarts(engine) == 1 and len(found - pids) > 0)
        engine.resize(1)
        take_until(run, numbers, lambda found: len(found) > 0)
    assert len(pids) == 3
    wait_until(lambda: not any(map(is_running, pids)), "a worker does not end")


@LONG
def test_a_node_that_is_lost_is_one_accident_however_many_workers_it_had(cluster: Any, wait_until: Waiting) -> None:
    node = cluster.add(resources={"doomed": 4.0})
    options = EngineOptions(on_death=Restarting(budget=1))
    with Engine(Job(pids_of), num_workers=3, executor=on_ray(resources={"doomed": 1.0}), options=options) as engine:
        run, numbers = engine.run(itertools.count()), itertools.count()
        pids = take_until(run, numbers, lambda found: len(found) == 3)
        node.kill_raylet()
        spare = cluster.add(resources={"doomed": 4.0})
        take_until(run, numbers, lambda found: len(found - pids) == 3)
        assert restarts(engine) == 3
    wait_until(lambda: not any(map(is_running, pids)), "an actor of the node does not end")
    cluster.remove_node(node)
    cluster.remove_node(spare)


def test_a_worker_that_stalls_is_told_with_its_stack(
    cluster: Any, tmp_path: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    is_up = tmp_path / "up"

    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        is_up.touch()

        def sleeps_for_ever(number: int) -> None:
            note_item(f"seq-{number}")
            time.sleep(1000)

        return sleeps_for_ever

    options = EngineOptions(warn_seconds=0, stall_seconds=4.0)
    with Engine(Job(setup), num_workers=1, executor=on_ray(), options=options) as engine:
        engine.start()
        wait_until(is_up.exists, "the worker is not set up")  # however long it takes to start
        run = engine.run(range(3))
        with pytest.raises(StalledError) as caught:
            next(run)
    assert "seq-0" in str(caught.value)
    assert "sleeps_for_ever" in "".join(caught.value.__notes__)


def test_what_the_cluster_has_not_is_named_and_becomes_a_stall(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.engine.ray.executor._WARN_SECONDS", 0.5)
    options = EngineOptions(stall_seconds=3.0)
    executor = on_ray(resources={"accordion": 1.0})
    with (
        caplog.at_level(logging.WARNING, "headrace.engine"),
        Engine(Job(pids_of), num_workers=2, executor=executor, options=options) as engine,
        pytest.raises(StalledError),
    ):
        list(engine.run(range(3)))
    assert "2 workers wait for a place" in caplog.text
    assert "accordion 0 of 0; no node has as much" in caplog.text


def test_what_a_worker_without_a_place_has_is_done_by_the_others(cluster: Any) -> None:
    node = cluster.add(resources={"single": 1.0})
    options = EngineOptions(stall_seconds=60.0)
    with Engine(Job(pids_of), num_workers=3, executor=on_ray(resources={"single": 1.0}), options=options) as engine:
        for _ in (1, 2):
            assert [done.value[0] for done in engine.run(range(300))] == list(range(300))
        assert sorted(worker.num_tickets > 0 for worker in engine.report.workers) == [False, False, True]
        another = cluster.add(resources={"single": 1.0})
        run, numbers = engine.run(itertools.count()), itertools.count()
        take_until(run, numbers, lambda found: len(found) == 2)
        assert restarts(engine) == 0
    cluster.remove_node(node)
    cluster.remove_node(another)


def test_options_that_ray_refuses_are_an_error_at_once(cluster: Any) -> None:
    for wrong in ({"scheduling_strategy": 3}, {"resources": {"CPU": 1.0}}):
        engine = Engine(Job(pids_of), num_workers=1, executor=on_ray(**wrong))
        with engine, pytest.raises(ConfigError, match="Ray refuses these options"):
            engine.start()
    for wrong in ({"num_cpus": -1}, {"memory": 0}, {"max_bytes": 0}):
        with pytest.raises(ConfigError):
            on_ray(**wrong)


def test_nodes_with_other_versions_or_without_headrace_are_one_clear_error(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headrace.engine.ray.calls.__version__", "0.0.0")
    with Engine(Job(pids_of), num_workers=2, executor=on_ray()) as engine, pytest.raises(ConfigError) as caught:
        list(engine.run(range(3)))
    assert "headrace 0.0.0 and" in str(caught.value)
    monkeypatch.undo()
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace/__init__.py").write_text("raise ImportError('headrace is not installed')")
    broken = on_ray(runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})
    with Engine(Job(pids_of), num_workers=1, executor=broken) as engine, pytest.raises(ConfigError) as caught:
        list(engine.run(range(3)))
    assert "Ray cannot make a worker" in str(caught.value)
    assert "install headrace" in str(caught.value)


_TRAINER = """
import itertools, sys, time
import ray
from headrace.engine import Engine, Job
from test_ray_workers import on_ray, pids_of

ray.init(address=sys.argv[1], log_to_driver=False)
engine = Engine(Job(pids_of), num_workers=2, executor=on_ray())
for done in engine.run(itertools.count()):
    print("pid", done.value[1], flush=True)
"""


def start_trainer(cluster: Any) -> tuple[subprocess.Popen[str], set[int]]:
    """Return a trainer in a process of its own, and its two workers."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parent)])}
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, cluster.address], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    lines = (line.split() for line in trainer.stdout if line.startswith("pid"))  # Ray prints some of its own
    pids = set[int]()
    while len(pids) < 2:
        pids.add(int(next(lines)[1]))
    return trainer, pids


def test_a_trainer_that_is_killed_leaves_nothing_behind(cluster: Any, wait_until: Waiting) -> None:
    trainer, pids = start_trainer(cluster)
    trainer.kill()
    trainer.communicate()
    wait_until(lambda: not any(map(is_running, pids)), "a worker does not end")


@LONG
def test_two_trainings_at_once(cluster: Any) -> None:
    with (
        Engine(Job(pids_of), num_workers=1, executor=on_ray()) as one,
        Engine(Job(pids_of), num_workers=1, executor=on_ray()) as other,
    ):
        pairs = zip(one.run(range(200)), other.run(range(200)), strict=True)
        assert [(a.value[0], b.value[0]) for a, b in pairs] == [(n, n) for n in range(200)]


@LONG
def test_workers_and_a_trainer_that_are_paused_go_on(cluster: Any) -> None:
    with Engine(Job(pids_of), num_workers=2, executor=on_ray()) as engine:
        run, numbers = engine.run(itertools.count()), itertools.count()
        pids = take_until(run, numbers, lambda found: len(found) == 2)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        waker = subprocess.Popen(["sh", "-c", f"sleep 10; kill -CONT {' '.join(map(str, pids))}"])
        take_until(run, numbers, lambda _: waker.poll() is not None)
        waker = subprocess.Popen(["sh", "-c", f"sleep 15; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        assert waker.wait() == 0
        later = take_until(run, numbers, lambda found: len(found) == 2)
        assert (restarts(engine), later) == (0, pids)


@LONG
def test_a_node_that_is_drained_and_one_that_comes_change_nothing(cluster: Any) -> None:
    node = cluster.add(resources={"drained": 2.0})
    with Engine(Job(pids_of), num_workers=2, executor=on_ray(resources={"drained": 1.0})) as engine:
        run, numbers = engine.run(itertools.count()), itertools.count()
        pids = take_until(run, numbers, lambda found: len(found) == 2)
        reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=a notice of the cloud"]
        where = [f"--address={cluster.address}", f"--node-id={node.node_id}", "--deadline-remaining-seconds=600"]
        subprocess.run([Path(sys.executable).parent / "ray", "drain-node", *where, *reason], check=True)
        spare = cluster.add(resources={"drained": 2.0})
        node.kill_raylet()  # as a cloud does it after its notice
        take_until(run, numbers, lambda found: len(found - pids) == 2)
    cluster.remove_node(node)
    cluster.remove_node(spare)
