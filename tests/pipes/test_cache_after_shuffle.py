"""A cache filled in random order: a copy that goes on in a later epoch gives exactly the items that are left."""

import pytest

from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.iter import IterableWrapper


def numbers():
    return IterableWrapper(range(12)).shuffle()


CHAINS = {
    "cached": lambda: numbers().map(abs).shuffle(buffer_size=3).in_memory_cache(),
    "sharded and batched": lambda: numbers().sharding_filter().in_memory_cache().batch(2),
    "cycled": lambda: numbers().in_memory_cache().cycle(3),
}


def seeded(chain, seed):
    pipe = CHAINS[chain]()
    set_graph_random_seed(pipe, SeedGenerator(seed))
    return pipe


@pytest.mark.parametrize("chain", CHAINS)
def test_a_copy_fills_the_cache_in_the_order_of_the_first_epoch(chain):
    pipe = seeded(chain, 1)
    list(pipe)
    items, states = [], []
    for item in pipe:
        items.append(item)
        states.append(graph_state(pipe))
    for number, state in enumerate(states, 1):
        copy = seeded(chain, 2)
        restore_graph(copy, state)
        assert list(copy) == items[number:]


def test_a_copy_that_has_a_cache_of_its_own_drops_it():
    pipe, copy = seeded("cached", 1), seeded("cached", 2)
    assert list(pipe) != list(copy)
    iterator = iter(pipe)
    next(iterator)
    restore_graph(copy, graph_state(pipe))
    assert list(copy) == list(iterator)
