"""Where nothing is said against it, the workers' items, in turn, are the same for any number of workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipes import IterPipe
from headrace.pipes.graph import split_graph
from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.graph.worker_order import explain_worker_order
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding


def _weigh(item: Any) -> int:
    return sum(map(ord, str(item)))


OPERATIONS: dict[str, Any] = {
    "batch": lambda pipe: pipe.batch(3),
    "cycle": lambda pipe: pipe.cycle(2),
    "enumerate": lambda pipe: pipe.enumerate(),
    "filter": lambda pipe: pipe.filter(lambda item: _weigh(item) % 3 > 0),
    "flatmap": lambda pipe: pipe.flatmap(lambda item: [item] * (_weigh(item) % 4)),
    "header": lambda pipe: pipe.header(5),
    "in_batch_shuffle": lambda pipe: pipe.batch(2).in_batch_shuffle(),
    "map": lambda pipe: pipe.map(lambda item: (item,)),
    "prefetch": lambda pipe: pipe.prefetch(2),
    "set_length": lambda pipe: pipe.set_length(7),
    "shard": lambda pipe: pipe.sharding_filter(),
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=4),
    "threadpool_map": lambda pipe: pipe.threadpool_map(str, max_workers=1),
    "zip": lambda pipe: pipe.zip(IterableWrapper(range(20))),
}
KEEPING = ["map", "prefetch", "set_length", "threadpool_map"]


def _chain(names: list[str]) -> Any:
    pipe: Any = IterableWrapper(range(23))
    for name in names:
        pipe = OPERATIONS[name](pipe)
    return pipe


def _stream(names: list[str], num_workers: int) -> list[Any]:
    """Return the items of so many workers in turn."""
    shares = []
    for worker_id in range(max(num_workers, 1)):
        pipe = apply_sharding(_chain(names), max(num_workers, 1), worker_id, SHARDING_PRIORITIES.MULTIPROCESSING)
        set_graph_random_seed(pipe, SeedGenerator(7).for_epoch(0).spawn(worker_id))
        shares.append([repr(item) for item in pipe])
    return [share[column] for column in range(max(map(len, shares))) for share in shares if column < len(share)]


@settings(deadline=None, max_examples=60)
@given(
    before=st.lists(st.sampled_from(sorted(OPERATIONS.keys() - {"shard"})), max_size=2),
    behind=st.lists(st.sampled_from(sorted(OPERATIONS.keys() - {"shard"})), max_size=2),
    is_sharded=st.booleans(),
    counts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_a_chain_about_which_nothing_is_said_gives_the_same_items_for_both_numbers(
    before: list[str], behind: list[str], is_sharded: bool, counts: tuple[int, int]
) -> None:
    names = [*before, *["shard"] * is_sharded, *behind]
    reason = explain_worker_order(split_graph(_chain(names)), counts, 1)
    if is_sharded and set(behind) <= set(KEEPING):
        assert reason is None
    if reason is None:
        assert _stream(names, counts[0]) == _stream(names, counts[1])


@pytest.mark.parametrize(
    "names", [["shuffle"], ["shard", "batch"], ["shard", "shuffle"], ["shard", "enumerate"], ["shard", "flatmap"]]
)
def test_a_chain_whose_items_differ_is_named(names: list[str]) -> None:
    assert _stream(names, 2) != _stream(names, 3)
    assert explain_worker_order(split_graph(_chain(names)), (2, 3), 1) is not None


class OwnShards(IterPipe[int]):
    """Deals items out as only its user knows."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def apply_sharding(self, num_of_instances: int, instance_id: int, sharding_group: Any = None) -> None:
        pass

    def __iter__(self) -> Any:
        yield from self.datapipe


def test_what_a_users_class_does_with_shares_is_not_known() -> None:
    parts = split_graph(OwnShards(IterableWrapper(range(4))).map(abs))
    assert explain_worker_order(parts, (2, 3), 1) is not None
    assert explain_worker_order(parts, (1, 0), 1) is None


def test_a_filter_for_ranks_and_workers_at_once_shares_by_the_product_of_both() -> None:
    parts = split_graph(IterableWrapper(range(4)).sharding_filter())
    assert explain_worker_order(parts, (2, 3), 1) is None
    assert explain_worker_order(parts, (2, 3), 2) is not None
    of_ranks = IterableWrapper(range(4)).sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)
    parts = split_graph(of_ranks.sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING))
    assert explain_worker_order(parts, (2, 3), 2) is None


def test_a_dispatching_process_shuffles_in_an_order_of_its_own() -> None:
    dispatched = IterableWrapper(range(4)).shuffle().sharding_round_robin_dispatch()
    assert explain_worker_order(split_graph(dispatched.map(abs)), (1, 3), 1) is None
    assert explain_worker_order(split_graph(dispatched.map(abs)), (0, 1), 1) is not None
    assert explain_worker_order(split_graph(dispatched.batch(2)), (1, 3), 1) is not None
