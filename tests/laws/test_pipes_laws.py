"""Laws of the native pipes, over random graphs of them."""

import ast
import copy
import inspect
import pickle
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipes import random_chains
from tests.pipes.random_chains import NOT_HERE, OPERATIONS, PERMUTING, build, recipes

from examples_of_laws import examples
from headrace.pipes import IterPipe, MapPipe
from headrace.pipes.core.registry import list_functions
from headrace.pipes.graph.state import graph_state, restore_graph

MAX_ITEMS = 2000  # several operations multiply


def few(pipe):
    return list(islice(pipe, MAX_ITEMS))


def check_resume(recipe, seed, num_before):
    pipe = build(recipe, seed)
    iterator = iter(pipe)
    before = list(islice(iterator, num_before))
    state = graph_state(pipe)
    assert state is not None
    rest = few(iterator)
    fresh = build(recipe, seed)
    restore_graph(fresh, pickle.loads(pickle.dumps(state)))
    again = few(fresh)
    if num_before > len(before):  # it had ended: the next iteration is the next epoch
        rest = few(pipe)
        if "in_memory_cache" in recipe[2]:
            return pipe, fresh  # a cache repeats the order that it has seen, and is no part of a state
    assert again == rest
    return pipe, fresh


def test_every_operation_is_in_these_laws_or_elsewhere():
    tree = ast.parse(inspect.getsource(random_chains))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {"sample_multiplexer"}  # by its class
    ours = {
        name
        for kind in (IterPipe, MapPipe)
        for name, function in list_functions(kind).items()
        if function.__module__.startswith("headrace.")
    }
    assert not ours - used - NOT_HERE.keys(), "make a recipe of it in random_chains.py"
    assert not NOT_HERE.keys() - ours
    assert not NOT_HERE.keys() & used


@pytest.mark.sample(34)
@pytest.mark.parametrize("name", sorted(OPERATIONS))
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(0, 25), num_before=st.integers(1, 60))
@examples(25)
def test_each_operation_goes_on_where_its_state_was_taken(name, seed, length, num_before):
    check_resume(("range", length, [name]), seed, num_before)


@given(recipe=recipes(), seed=st.integers(0, 2**64 - 1), num_before=st.integers(1, 60))
@examples(150)
def test_a_graph_goes_on_where_its_state_was_taken(recipe, seed, num_before):
    check_resume(recipe, seed, num_before)


@given(
    recipe=recipes(),
    seed=st.integers(0, 2**64 - 1),
    num_epochs=st.integers(1, 2),
    num_before=st.integers(1, 20),
    was_read=st.booleans(),
)
@examples(150)
def test_a_later_epoch_goes_on_where_its_state_was_taken_in_a_new_graph_or_one_that_was_read(
    recipe, seed, num_epochs, num_before, was_read
):
    pipe = build(recipe, seed)
    for _ in range(num_epochs):
        few(pipe)
    iterator = iter(pipe)
    if len(list(islice(iterator, num_before))) < num_before:
        return
    state = graph_state(pipe)
    assert state is not None
    other = build(recipe, seed + 1 if was_read else seed)
    if was_read:
        few(other)
    restore_graph(other, pickle.loads(pickle.dumps(state)))
    assert few(other) == few(iterator)


@given(
    recipe=recipes([name for name in OPERATIONS if name != "in_memory_cache"]),
    seed=st.integers(0, 2**64 - 1),
    num_before=st.integers(1, 15),
)
@examples(100)
def test_the_epochs_after_a_resumed_one_are_the_same_too(recipe, seed, num_before):
    pipe, fresh = check_resume(recipe, seed, num_before)
    assert few(pipe) == few(fresh)


@given(recipe=recipes(), seed=st.integers(0, 2**64 - 1), num_before=st.integers(0, 20))
@examples(100)
def test_a_seed_repeats_whatever_was_read_before(recipe, seed, num_before):
    one, two = build(recipe, seed), build(recipe, seed + 1000)
    if any("cache" in name for name in recipe[2]):
        return
    list(islice(two, num_before))
    seeds = build(recipe, seed)
    assert few(one) == few(seeds)
    copied = copy.deepcopy(build(recipe, seed))
    assert few(copied) == few(pickle.loads(pickle.dumps(build(recipe, seed))))


@given(recipe=recipes(PERMUTING), seed=st.integers(0, 2**64 - 1))
@examples(100)
def test_reordering_loses_and_adds_nothing(recipe, seed):
    _, length, _ = recipe
    pipe = build(recipe, seed)
    for _ in range(2):
        assert Counter(pipe) == Counter(range(length))


@given(recipe=recipes(), seed=st.integers(0, 2**64 - 1))
@examples(60)
def test_a_length_that_is_known_is_right(recipe, seed):
    pipe = build(recipe, seed)
    if "set_length" in recipe[2]:
        return
    try:
        length = len(pipe)
    except (TypeError, UserWarning):  # unknown, or guessed and said so
        return
    assert len(few(pipe)) == min(length, MAX_ITEMS)


@given(
    length=st.integers(20, 60),
    seed=st.integers(0, 2**64 - 1),
    name=st.sampled_from(["shuffle", "in_batch_shuffle", "shuffled_flatmap"]),
)
@examples(50)
def test_epochs_differ_and_another_seed_gives_another_order(length, seed, name):
    recipe = ("range", length, [name, "shuffle", name])
    pipe = build(recipe, seed)
    epochs = [tuple(pipe), tuple(pipe), tuple(build(recipe, seed + 77))]
    assert len(set(epochs)) == 3
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1
