"""A cluster that starts without room for workers: its autoscaler starts nodes because they wait, and they join.

When the loader is closed, nothing of these nodes is in use, so an autoscaler may end them. (Ray's provider for tests
starts others in place of those that it ends.)
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.engine.process.proc_tree import descendants_of

pytest.importorskip("ray", reason="needs headrace[ray]")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

# Nodes are processes of this machine, which Ray's provider for tests starts. The example that comes with it as a
# default is not in the package, and the class of Ray's for such clusters ends all others on the machine.
_CONFIG = {
    "cluster_name": "test",
    "max_workers": 2,
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 5,
    "auth": {},
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "loaders": {"resources": {"CPU": 1, "object_store_memory": 80 << 20}, "node_config": {}, "max_workers": 2},
    },
    "file_mounts": {},
    "cluster_synced_files": [],
    **{f"{what}_commands": [] for what in ("initialization", "setup", "head_setup", "worker_setup")},
    **{f"{who}_start_ray_commands": [] for who in ("head", "worker")},
}
_TRAINING = """
import hashlib, json, sys, time
import numpy as np
import ray
import headrace as hr

until = time.monotonic() + 120
while True:
    try:
        ray.init(address=sys.argv[1], log_to_driver=False)
        break
    except (ConnectionError, RuntimeError, ValueError):
        assert time.monotonic() < until
        time.sleep(0.5)
items = [{"x": np.full(1 + number % 7, float(number))} for number in range(400)]

def noisy(seq, rng):
    return {"x": seq["x"] + rng.standard_normal(len(seq["x"]))}

def digest(**options):
    found = hashlib.sha256()
    with hr.DataLoader(items, batch_size=4, shuffle=True, seed=1, transform=noisy, **options) as loader:
        for batch in loader:
            found.update(batch["x"].tobytes() + repr(batch.tags).encode())
        workers = loader.report.workers
        assert sum(worker.num_restarts for worker in workers) == 0
    return found.hexdigest()

def num_nodes():
    return sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())

before = num_nodes()
executor = hr.RayExecutor(num_cpus=1, dead_seconds=30.0)
patience = hr.EngineOptions(stall_seconds=3.0)  # a node takes longer than that
found = digest(num_workers=2, executor=executor, engine_options=patience)
after, until = num_nodes(), time.monotonic() + 60
while (free := ray.available_resources().get("CPU", 0)) < ray.cluster_resources()["CPU"] and time.monotonic() < until:
    time.sleep(0.2)
print(json.dumps([before, after, free >= after, found == digest()]))
"""


def test_nodes_that_the_autoscaler_adds_for_waiting_workers_join_and_the_stream_is_that_of_none(
    tmp_path: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    services = pytest.importorskip("ray._private.services")
    pytest.importorskip("ray.autoscaler._private.fake_multi_node.node_provider")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{services.get_node_ip_address()}:{server.getsockname()[1]}"
    # Names of sockets have to be short.
    config, folder = tmp_path / "cluster.json", Path("/tmp") / f"ray-{os.getpid()}"
    config.write_text(json.dumps({**_CONFIG, "provider": {"type": "fake_multinode", "gcs_address": address}}))
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}
    environment = {**os.environ, **quiet, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    options = ["--num-cpus=0", "--object-store-memory=80000000", "--include-dashboard=false", f"--temp-dir={folder}"]
    port = address.rpartition(":")[2]
    command = ["ray", "start", "--head", "--block", f"--port={port}", f"--autoscaling-config={config}", *options]
    command[0] = str(Path(sys.executable).parent / "ray")
    with (tmp_path / "head.txt").open("w") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        training = subprocess.run(
            [sys.executable, "-c", _TRAINING, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        pids = _end(head)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the cluster does not end")
    assert training.returncode == 0, training.stderr + (tmp_path / "head.txt").read_text()
    before, after, is_free, is_equal = json.loads(training.stdout.splitlines()[-1])
    assert (before, is_free, is_equal) == (0, True, True)
    assert after in (1, 2)  # the first node may have done everything before the second one was there


def _end(head: subprocess.Popen[bytes]) -> set[int]:
    """End the cluster, with the nodes that its autoscaler has started; return the ids of all its processes."""
    pids = {head.pid, *descendants_of(head.pid)}
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    head.wait()
    return pids
