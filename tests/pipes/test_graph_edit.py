"""Pipes are replaced and removed wherever they are read; the documented functions do the same with their own types."""

from collections import deque, namedtuple

import pytest
from graph_parts import Count, Join, Pass, Shuffled
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipes import IterPipe
from headrace.pipes.graph import (
    find_dps,
    list_dps,
    list_pipes,
    remove,
    remove_dp,
    replace,
    replace_dp,
    sources_of,
    traverse,
    traverse_dps,
)

Pair = namedtuple("Pair", "a b")


class Holds(IterPipe):
    def __init__(self, value):
        self.value = value


CONTAINERS = {
    "alone": lambda pipe: pipe,
    "list": lambda pipe: [1, pipe],
    "tuple": lambda pipe: (pipe, 1),
    "named tuple": lambda pipe: Pair(1, pipe),
    "dict value": lambda pipe: {"a": 1, "b": pipe, "c": 2},
    "dict key": lambda pipe: {"a": 1, pipe: 0.5, "c": 2},
    "set": lambda pipe: {pipe, 1},
    "frozen set": lambda pipe: frozenset({pipe, 1}),
    "deque": lambda pipe: deque([1, pipe], maxlen=5),
    "nested": lambda pipe: {"a": [(pipe, {pipe: [pipe]})]},
}


@pytest.mark.parametrize("wrap", CONTAINERS.values(), ids=CONTAINERS)
def test_a_pipe_is_replaced_in_every_container(wrap):
    old, new = Count(1), Count(2)
    pipe = Holds(wrap(old))
    assert replace(pipe, old, new) is pipe
    assert sources_of(pipe) == [new]
    expected = wrap(new)
    assert pipe.value == expected
    assert type(pipe.value) is type(expected)
    if isinstance(expected, dict):
        assert list(pipe.value) == list(expected)


def test_containers_without_the_pipe_stay_the_same_objects():
    old = Count()
    pipe = Holds({"a": (1, [Count()]), "b": old})
    kept = pipe.value["a"]
    replace(pipe, old, Count())
    assert pipe.value["a"] is kept


def test_a_pipe_is_wrapped_in_all_that_read_it():
    source = Count(3)
    left, right = Pass(source), Pass(source)
    end = Join(left, right)
    wrapped = Shuffled(source)
    replace(end, source, wrapped)
    assert left.datapipe is right.datapipe is wrapped
    assert wrapped.datapipe is source


def test_the_end_of_a_graph_is_replaced_by_returning_the_new_end():
    source = Count(2)
    new = Pass(source)
    assert replace(source, source, new) is new
    assert list(new) == [0, 1]


def test_a_pipe_with_one_source_is_removed():
    source = Count(2)
    middle = Pass(source)
    end = Pass(middle)
    assert remove(end, middle) is end
    assert end.datapipe is source
    assert remove(end, end) is source


def test_a_source_or_a_join_cannot_be_removed():
    source = Count()
    join = Join(source, Count())
    with pytest.raises(RuntimeError, match="Cannot remove the source DataPipe"):
        remove(join, source)
    with pytest.raises(
        RuntimeError, match=r"Cannot remove the receiving DataPipe having multiple sending DataPipes.*Join reads"
    ):
        remove(join, join)


def test_the_documented_functions_take_and_return_graphs():
    source = Count()
    shuffled = Shuffled(source)
    end = Pass(shuffled)
    graph = traverse_dps(end)
    assert list_dps(graph) == [end, shuffled, source]
    assert find_dps(graph, Pass) == [end]  # exact type: a Shuffled is another
    new = Pass(source)
    graph = replace_dp(graph, shuffled, new)
    assert list_dps(graph) == [end, new, source]
    graph = remove_dp(graph, new)
    assert graph == traverse(end) == {id(end): (end, {id(source): (source, {})})}
    graph = replace_dp(graph, end, Shuffled(end))
    assert [type(pipe) for pipe in list_dps(graph)] == [Shuffled, Pass, Count]
    with pytest.raises(RuntimeError, match="a graph has one end, got 0"):
        remove_dp({}, end)


def test_pipes_are_listed_breadth_first_from_the_end():
    a, b = Count(), Count()
    left = Pass(Pass(a))
    right = Pass(b)
    end = Join(left, right, a)
    assert list_dps(traverse_dps(end)) == [end, left, right, a, left.datapipe, b]


def test_excluded_pipes_are_left_out_with_all_upstream():
    a, b = Count(), Count()
    left, right = Pass(Pass(a)), Pass(b)
    end = Join(left, right)
    graph = traverse_dps(end)
    assert list_dps(graph, exclude_dps=left) == [end, right, b]
    assert list_dps(graph, exclude_dps=[left.datapipe, b]) == [end, left, right]
    assert list_dps(graph, end) == []


@given(st.data())
def test_wrapping_any_pipe_of_any_graph_puts_it_between_and_removing_it_undoes_that(data):
    pipes = [Count()]
    for _ in range(data.draw(st.integers(1, 8))):
        pipes.append(Join(*data.draw(st.lists(st.sampled_from(pipes), min_size=1, max_size=3))))
    end = pipes[-1]
    before = {id(pipe): sources_of(pipe) for pipe in list_pipes(end)}
    old = data.draw(st.sampled_from(list_pipes(end)))
    new = Pass(old)
    end = replace(end, old, new)
    assert [reader for reader in list_pipes(end) if any(source is old for source in sources_of(reader))] == [new]
    end = remove(end, new)
    assert {id(pipe): sources_of(pipe) for pipe in list_pipes(end)} == before
