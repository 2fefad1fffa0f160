"""Laws of going on at a later item: the same items as if those before it had been made, and few of them are."""

from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.pipes.random_chains import OPERATIONS, add_one, build

from headrace.errors import TransformError
from headrace.pipes.graph.state import can_skip_ahead, graph_state, restore_graph, skip_ahead
from headrace.pipes.iter import IterableWrapper, Mapper

MAX_ITEMS = 2000
_SKIPPING = ["collate", "drop", "map", "prefetch", "set_length", "shuffle", "threadpool_map"]


def few(pipe):
    return list(islice(pipe, MAX_ITEMS))


def note_nothing():
    pass


@given(
    operations=st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=2),
    skipping=st.lists(st.sampled_from(_SKIPPING), min_size=1, max_size=5),
    length=st.integers(0, 60),
    seed=st.integers(0, 2**64 - 1),
    num_before=st.integers(0, 60),
    epoch=st.integers(0, 1),
)
@example(operations=[], skipping=["collate", "shuffle"], length=47, seed=0, num_before=19, epoch=0)  # a short batch
@settings(max_examples=400)
def test_a_graph_goes_on_at_a_later_item_as_if_it_had_given_those_before(
    operations, skipping, length, seed, num_before, epoch
):
    recipe = ("range", length, [*operations, *skipping])
    pipe, other = build(recipe, seed), build(recipe, seed)
    for _ in range(epoch):
        assert few(pipe) == few(other)
    iterator = iter(pipe)
    if len(list(islice(iterator, num_before))) < num_before or not can_skip_ahead(pipe):
        return
    skip_ahead(other, num_before, note_nothing)
    expected = iter(other)
    assert list(islice(expected, 3)) == list(islice(iterator, 3))
    state = graph_state(other)
    rest = few(iterator)
    assert few(expected) == rest
    if state is not None and rest:
        restored = build(recipe, seed)
        restore_graph(restored, state)
        assert few(restored) == rest
    if "in_memory_cache" not in operations:
        assert few(other) == few(pipe)  # the next epoch


def test_only_what_is_held_is_made_again():
    made = []

    def graph():
        return IterableWrapper(range(500)).map(lambda number: made.append(number) or number).shuffle(buffer_size=5)

    pipe = graph().batch(2)
    pipe.datapipe.set_seed(3)
    iterator = iter(pipe)
    list(islice(iterator, 50))
    again = graph().batch(2)
    again.datapipe.set_seed(3)
    made.clear()
    skip_ahead(again, 50, note_nothing)
    iterator_again = iter(again)
    first = next(iterator_again)
    assert len(made) == 5 + 2
    assert [first, *iterator_again] == list(iterator)


def test_signs_of_life_come_for_each_item_that_is_made_in_vain():
    notes = []
    pipe = IterableWrapper(range(20)).filter(lambda number: True).map(add_one)
    skip_ahead(pipe, 7, lambda: notes.append(1))
    assert list(pipe) == list(range(8, 21))
    assert len(notes) == 7
    assert list(pipe) == list(range(1, 21))


def test_a_source_that_has_become_shorter_is_an_error():
    pipe = IterableWrapper(range(6)).shuffle(buffer_size=3)
    skip_ahead(pipe, 20, note_nothing)
    with pytest.raises(TransformError, match=r"had given more than \d+ items before, and only 6"):
        list(pipe)


class Twice(Mapper):
    """A pipe that a user derived from one of ours."""

    def __iter__(self):
        for item in super().__iter__():
            yield item
            yield item


def test_pipes_that_cannot_skip_are_read_from_the_start():
    assert not can_skip_ahead(Twice(IterableWrapper(range(5)), add_one))
    pipe = Twice(IterableWrapper(range(5)), add_one).map(add_one)
    assert can_skip_ahead(pipe)
    skip_ahead(pipe, 3, note_nothing)
    assert list(pipe) == [3, 4, 4, 5, 5, 6, 6]


def test_a_shuffle_whose_source_has_ended_is_no_place_to_skip_to():
    pipe = IterableWrapper(range(9)).shuffle(buffer_size=3)
    iterator = iter(pipe)
    can_skip = [can_skip_ahead(pipe) for _ in iterator]
    assert can_skip == [True] * 6 + [False] * 3
