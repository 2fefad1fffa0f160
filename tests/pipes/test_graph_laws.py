"""Laws over any tree of our pipes: it repeats with its seeds, it can be begun again, and it goes on from anywhere."""

import pickle
from itertools import islice

from hypothesis import example, given
from hypothesis import strategies as st
from tests.pipes.random_chains import OPERATIONS, total

from examples_of_laws import examples
from headrace.pipes.graph import list_pipes
from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.iter import IterableWrapper, SampleMultiplexer

JOINS = {
    "zip": lambda first, other: first.zip(other).map(total),
    "zip_longest": lambda first, other: first.zip_longest(other).map(total),
    "concat": lambda first, other: first.concat(other),
    "mux": lambda first, other: first.mux(other),
    "mux_longest": lambda first, other: first.mux_longest(other),
    "sample": lambda first, other: SampleMultiplexer({first: 1.0, other: 1.0}, seed=3),
}
TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), inner),
        st.tuples(st.sampled_from(sorted(JOINS)), inner, inner),
    ),
    max_leaves=4,
)
SOME = examples(80)


def build(tree):
    return set_graph_random_seed(build_part(tree), SeedGenerator(1))


def build_part(tree):
    if isinstance(tree, int):
        return IterableWrapper(range(tree))
    name, *inner = tree
    make = OPERATIONS[name] if len(inner) == 1 else JOINS[name]
    return make(*map(build_part, inner))


@SOME
@given(TREES)
def test_a_graph_repeats_with_its_seeds_and_can_be_begun_again_anywhere(tree):
    pipe = build(tree)
    whole = list(iter(pipe))
    assert list(iter(build(tree))) == whole
    set_graph_random_seed(pipe, SeedGenerator(1))
    iterator = iter(pipe)
    for _ in range(len(whole) // 2):
        next(iterator)
    set_graph_random_seed(pipe, SeedGenerator(1))
    assert list(iter(pipe)) == whole


@SOME
@given(TREES, st.integers(0, 40), st.integers(0, 3))
def test_a_graph_goes_on_from_anywhere_and_can_be_begun_anew_and_restored_again(tree, taken, more):
    whole = list(iter(build(tree)))
    pipe = build(tree)
    iterator = iter(pipe)
    taken = min(taken, len(whole))
    assert list(islice(iterator, taken)) == whole[:taken]
    state = graph_state(pipe)
    assert state is not None
    state = pickle.loads(pickle.dumps(state))
    assert list(iterator) == whole[taken:]
    other = build(tree)
    restore_graph(other, state)
    got = list(islice(iter(other), more))
    assert got == whole[taken : taken + more]
    set_graph_random_seed(other, SeedGenerator(1))
    assert list(iter(other)) == whole
    restore_graph(other, state)
    iterator = iter(other)
    assert list(islice(iterator, more)) == got
    assert list(iterator) == whole[taken + more :]


@SOME
@given(TREES)
@example(("flatmap of generators", 2))  # of which one is open
@example(("shuffled_flatmap of generators", 2))
def test_a_copy_of_a_graph_has_the_same_graph(tree):
    pipe = build(tree)
    next(iter(pipe), None)
    other = pickle.loads(pickle.dumps(pipe))
    names = [[repr(each) for each in list_pipes(end)] for end in (pipe, other)]
    assert names[0] == names[1]
