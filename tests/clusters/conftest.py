"""Ray clusters on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}


@contextmanager
def _started() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0})
    cluster.add = lambda **options: cluster.add_node(**{**_NODE, **options})
    for _ in range(2):
        cluster.add()
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head, on which no worker finds room, and two nodes with two processors each; `add` starts another one."""
    with _started() as cluster:
        yield cluster


@pytest.fixture
def start_cluster() -> Callable[[], Any]:
    """Return what starts one of its own, for tests that break it."""
    return _started
