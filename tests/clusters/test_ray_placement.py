"""Workers on a Ray cluster are placed near the data, if there is room, and the stream is the same wherever they are."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError

ray = pytest.importorskip("ray", reason="needs headrace[ray]")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
PATIENT = 30.0  # seconds: a busy machine is not a dead one


def on_ray(**options: Any) -> hr.RayExecutor:
    return hr.RayExecutor(**{"num_cpus": 0.1, "dead_seconds": PATIENT, **options})


class Rows(hr.Source):
    """Items that say on which node they were read; a source of its own that knows where its data lie."""

    specs: ClassVar[Any] = {"x": hr.DataSpec("float32", ()), "raylet": hr.DataSpec("int64", (), has_time=False)}
    labels: ClassVar[Any] = {}
    index = hr.CorpusIndex.from_columns(
        tags=[f"seq-{number}" for number in range(200)],
        lengths={"x": [1 + number % 7 for number in range(200)], "raylet": [1] * 200},
    )

    def __init__(self, hosts: Any = None) -> None:
        self.hosts = {} if hosts is None else hosts

    def data_hosts(self) -> Any:
        return self.hosts

    def read(self, corpus_idx: int, data_key: str) -> Any:
        if data_key == "raylet":
            return np.array(os.environ.get("RAY_RAYLET_PID", 0), np.int64)
        return np.full(1 + corpus_idx % 7, corpus_idx, np.float32)


def load(hosts: Any, wanted: set[int] | None = None, **options: Any) -> tuple[list[Any], Counter[int]]:
    """Return the batches, and how many sequences were read on the node of each raylet.

    It tries thrice to have all of them read on the nodes that are wanted: where one has no room at that moment (Ray may
    not have noticed yet that what the test before had is free), Ray takes another one.
    """
    dataset = hr.SourceDataset(Rows(hosts))
    for _ in range(3):
        with hr.DataLoader(dataset, batch_size=4, shuffle=True, seed=3, **options) as loader:
            found = [(batch.tags, batch["x"].tolist(), batch["raylet"].tolist()) for batch in loader]
        raylets = Counter(pid for *_, pids in found for pid in pids)
        if wanted is None or set(raylets) <= wanted:
            break
    return [batch[:2] for batch in found], raylets


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def test_workers_are_where_the_source_says_that_its_data_lie_and_the_stream_is_that_of_none(cluster: Any) -> None:
    expected, _ = load({})
    for node in (cluster.first, cluster.second):
        wanted = {raylet_of(node)}
        hosts = {node.node_id: 1 << 30, "elsewhere": 1 << 40}
        found, raylets = load(hosts, wanted, num_workers=2, executor=on_ray())
        assert found == expected
        assert set(raylets) == wanted
    both = {cluster.first.node_id: 5.0, cluster.second.node_id: 5.0}
    wanted = {raylet_of(cluster.first), raylet_of(cluster.second)}
    found, raylets = load(both, wanted, num_workers=2, executor=on_ray())
    assert found == expected
    assert set(raylets) <= wanted  # one of them may have done everything


def test_a_node_without_room_is_no_obstacle(cluster: Any) -> None:
    expected, _ = load({})
    near = {cluster.first.node_id: 1.0}
    found, raylets = load(near, num_workers=3, executor=on_ray(num_cpus=1.0))  # it has two processors
    assert found == expected
    assert raylet_of(cluster.first) in raylets or raylet_of(cluster.second) in raylets
    found, raylets = load(near, num_workers=1, executor=on_ray(resources={"second": 1.0}))  # it has none of these
    assert found == expected
    assert set(raylets) == {raylet_of(cluster.second)}
    found, raylets = load({"f" * 56: 1.0}, num_workers=1, executor=on_ray())  # there is none of this name
    assert found == expected


def test_what_the_executor_is_told_goes_before_what_the_source_knows(cluster: Any) -> None:
    where = raylet_of(cluster.second)
    of_first = {cluster.first.node_id: 1.0}
    for options in (
        {"near": {cluster.second.node_id: 1}},
        {"label_selector": {"ray.io/node-id": cluster.second.node_id}},
    ):
        _, raylets = load(of_first, {where}, num_workers=2, executor=on_ray(**options))
        assert set(raylets) == {where}
    for wrong in ({"near": ["node"]}, {"near": {"node": 1}, "scheduling_strategy": "SPREAD"}):
        with pytest.raises(ConfigError, match="near"):
            on_ray(**wrong)


def test_an_answer_that_is_none_is_an_error_that_shows_it(cluster: Any) -> None:
    with pytest.raises(ConfigError, match=r"mapping of hosts to bytes, not \{'node': 'much'\}"):
        load({"node": "much"}, num_workers=1, executor=on_ray())
