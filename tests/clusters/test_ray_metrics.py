"""What `RayMetrics` reports of a loader arrives where Ray gives its metrics to Prometheus and the dashboard."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="needs headrace[ray]")
pytest.importorskip("aiohttp_cors", reason="needs ray[default], without which Ray has no dashboard")

pytestmark = pytest.mark.extra

_TRAINING = """
import re, socket, time, urllib.request
import numpy as np
import ray
import headrace as hr
from headrace.adapters.ray_metrics import RayMetrics

with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
options = {"include_dashboard": True, "object_store_memory": 80 << 20, "log_to_driver": False}
ray.init(num_cpus=1, _metrics_export_port=port, **options)
items = [np.full(100, number, np.float32) for number in range(400)]
with hr.DataLoader(items, batch_size=4, num_workers=1, executor="ray") as loader:
    with RayMetrics(loader, name="train", interval_seconds=1.0):
        num_batches = sum(1 for epoch in range(3) for batch in loader)
    num_bytes = sum(worker.num_bytes for worker in loader.report.workers)
wanted = {"batches_total": num_batches, "bytes_total": num_bytes, "workers": 1}
assert num_batches == 300
until = time.monotonic() + 120
found = {}
while any(found.get(name) != value for name, value in wanted.items()):
    assert time.monotonic() < until, (found, wanted)
    time.sleep(1)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
    except OSError:
        continue
    lines = re.findall(r'^ray_headrace_(\\w+){.*loader="train".*rank="0".*} (\\S+)$', text, re.MULTILINE)
    found = {name: float(value) for name, value in lines}
assert 0 <= found["waiting_share"] <= 1
"""


@pytest.mark.timeout(300)
def test_the_counts_of_a_loader_are_among_the_metrics_of_the_cluster() -> None:
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", _TRAINING], env=environment, check=True, timeout=240)
