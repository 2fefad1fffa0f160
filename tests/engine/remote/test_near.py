"""Which nodes workers are to be near: in proportion to what lies there, as far as the nodes are known."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.remote.ray import check_hosts, choose_node
from headrace.errors import ConfigError

NODES = {"a1": ("10.0.0.1", "alpha"), "b2": ("10.0.0.2", "beta"), "c3": ("10.0.0.3", "gamma")}


@given(st.dictionaries(st.sampled_from(sorted(NODES)), st.floats(0.1, 100.0), min_size=1), st.integers(1, 200))
def test_nodes_have_as_many_workers_as_their_share_of_the_data(hosts: dict[str, float], num_workers: int) -> None:
    chosen = Counter(choose_node(hosts, NODES, worker_idx) for worker_idx in range(num_workers))
    assert chosen.keys() <= hosts.keys()
    for node, weight in hosts.items():
        assert abs(chosen[node] - num_workers * weight / sum(hosts.values())) <= 3  # discrepancy of the golden ratio


@pytest.mark.parametrize("num_nodes", range(1, 9))
def test_where_all_nodes_have_as_much_each_has_a_worker_before_one_has_three(num_nodes: int) -> None:
    hosts = {str(node): 5.0 for node in range(num_nodes)}
    chosen = Counter(choose_node(hosts, dict.fromkeys(hosts, ()), worker_idx) for worker_idx in range(num_nodes))
    assert max(chosen.values()) <= 2
    assert len(chosen) >= num_nodes - 1


def test_a_host_is_known_by_its_name_its_address_or_the_id_of_its_node() -> None:
    for host, node in [("alpha", "a1"), ("10.0.0.2", "b2"), ("c3", "c3")]:
        assert {choose_node({host: 1.0}, NODES, worker_idx) for worker_idx in range(9)} == {node}
    assert choose_node({"delta": 1.0}, NODES, 0) is None
    assert choose_node({}, NODES, 0) is None
    assert {choose_node({"delta": 9.0, "alpha": 1.0}, NODES, worker_idx) for worker_idx in range(9)} == {"a1"}


def test_a_host_that_has_several_nodes_divides_its_workers_among_them() -> None:
    nodes = {"a1": ("here",), "b2": ("here",)}
    assert Counter(choose_node({"here": 1.0}, nodes, worker_idx) for worker_idx in range(20)) == {"a1": 10, "b2": 10}


@pytest.mark.parametrize("wrong", [["alpha"], {1: 2}, {"alpha": "much"}, {"alpha": -1}, {"alpha": float("nan")}, None])
def test_what_is_no_mapping_of_hosts_to_weights_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="mapping of hosts to bytes"):
        check_hosts(wrong, "here")
    assert check_hosts({"alpha": 2, "beta": 0}, "here") == {"alpha": 2.0}
