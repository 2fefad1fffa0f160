"""Graphs are read by attributes, whatever these are, and nothing is copied."""

import tracemalloc
from collections import OrderedDict, deque, namedtuple

import numpy as np
import pytest
from graph_parts import Chain, Count, Join, Pass, Shuffled, Table
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.pipes import IterPipe
from headrace.pipes.graph import find, list_pipes, sources_of, traverse


class Holds(IterPipe):
    """Has any attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


Pair = namedtuple("Pair", "a b")


def test_sources_are_found_in_all_containers_in_order_and_once():
    a, b, c, d, e, f, g = (Count(n) for n in range(7))
    pipe = Holds(
        first=a,
        listed=[b, a],
        nested={"deep": [(c,), 3]},
        keys={d: 0.5},
        queue=deque([e]),
        named=Pair(f, 1),
        unordered={g},
        text="text",
    )
    assert sources_of(pipe) == [a, b, c, d, e, f, g]


def test_a_map_pipe_is_a_source_too():
    table = Table([1])
    pipe = Pass(table)
    assert list_pipes(pipe) == [table, pipe]


def test_items_in_hand_are_no_sources_even_if_they_are_pipes():
    source, item = Count(), Count()
    pipe = Holds(datapipe=source, _buffer=[item], item_cache={1: item}, pending=deque([item]))
    assert sources_of(pipe) == [source]
    assert sources_of(Holds(buffered=source)) == [source]


def test_a_container_that_holds_itself_is_read_once():
    endless = [Count()]
    endless.append(endless)
    assert sources_of(Holds(values=endless)) == endless[:1]


def test_the_iteration_and_functions_are_no_sources():
    source = Count()
    pipe = Pass(source, Table({0: "a"}).__getitem__)
    next(iter(pipe))
    assert sources_of(pipe) == [source]


def test_pipes_are_listed_sources_first_and_once():
    a = Count()
    b, c = Pass(a), Shuffled(a)
    end = Join(b, c, a)
    assert list_pipes(end) == [a, b, c, end]
    assert find(end, (Shuffled, Count)) == [a, c]
    assert find(end, Pass) == [b, c]  # a Shuffled is a Pass


def test_the_documented_form_holds_each_pipe_by_its_id():
    a = Count()
    b = Pass(a)
    end = Join(a, b)
    assert traverse(end) == {id(end): (end, {id(a): (a, {}), id(b): (b, {id(a): (a, {})})})}


def test_a_graph_with_many_paths_is_read_in_linear_time():
    pipe = Count()
    for _ in range(200):
        pipe = Join(pipe, pipe, Pass(pipe))  # 3 ** 200 paths
    assert len(list_pipes(pipe)) == 401
    assert len(traverse(pipe)) == 1


def test_a_deep_graph_does_not_recurse():
    pipe = Count()
    for _ in range(20_000):
        pipe = Pass(pipe)
    assert len(list_pipes(pipe)) == 20_001


@pytest.mark.parametrize("other", [None, 5, [Count()], Count, iter(Count())])
def test_what_is_no_pipe_has_no_graph(other):
    with pytest.raises(TypeError, match="Expected a pipe"):
        list_pipes(other)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_cycle_is_refused_with_its_path(length):
    first = pipe = Pass(None)
    for _ in range(length - 1):
        pipe = Shuffled(pipe)
    first.datapipe = pipe
    end = Chain(Count(), pipe)
    with pytest.raises(ConfigError, match="cycle") as info:
        list_pipes(end)
    path = info.value.what.split(": ")[1].split(" <- ")
    assert len(path) == length + 1
    assert path[0] == path[-1]
    with pytest.raises(ConfigError, match="cycle"):
        traverse(end)


def test_large_data_are_neither_copied_nor_walked():
    array = np.zeros(64 << 20, np.uint8)
    numbers = list(range(10**6))
    rows = [(n, n) for n in range(50_000)]
    pipe = Holds(array=array, numbers=numbers, rows=rows, arrays=[array] * 1000, text="x" * (1 << 20), datapipe=Count())
    tracemalloc.start()
    try:
        assert len(sources_of(pipe)) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


def test_what_refuses_to_be_pickled_compared_or_asked_for_its_truth_is_no_hindrance():
    class Prickly:
        def __reduce_ex__(self, protocol):
            raise AssertionError("pickled")

        def __eq__(self, other):
            raise AssertionError("compared")

        def __bool__(self):
            raise AssertionError("asked for its truth")

        __hash__ = None

    source = Count()
    pipe = Holds(one=Prickly(), several=[Prickly(), source, np.zeros(3)], table=OrderedDict(a=Prickly()))
    assert sources_of(pipe) == [source]


@given(st.data())
def test_sources_come_before_readers_in_any_graph(data):
    pipes = [Count()]
    for _ in range(data.draw(st.integers(1, 12))):
        chosen = data.draw(st.lists(st.sampled_from(pipes), min_size=1, max_size=3))
        pipes.append(Join(*chosen))
    listed = list_pipes(pipes[-1])
    places = {id(pipe): place for place, pipe in enumerate(listed)}
    assert len(places) == len(listed)
    assert listed[-1] is pipes[-1]
    for pipe in listed:
        assert all(places[id(source)] < places[id(pipe)] for source in sources_of(pipe))
