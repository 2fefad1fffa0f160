"""A Ray cluster of three nodes on this machine, for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

_NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head, on which no worker finds room, and two nodes; `node_options` are those of another one."""
    ray = pytest.importorskip("ray", reason="needs headrace[ray]")
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0})
    cluster.node_options = _NODE
    cluster.first = cluster.add_node(**_NODE, resources={"first": 4.0})
    cluster.second = cluster.add_node(**_NODE, resources={"second": 4.0})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name)
        else:
            os.environ[name] = value
