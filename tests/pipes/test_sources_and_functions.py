"""IterableWrapper, SequenceWrapper, map, filter, flatmap: what is documented of them."""

import threading

import numpy as np
import pytest
from tests.pipes.random_chains import add_one, count_up, total, twice

from headrace.errors import ConfigError
from headrace.pipes.iter import IterableWrapper, StreamWrapper
from headrace.pipes.map import SequenceWrapper


def add(a, b):
    return a + b


def negate(a):
    return -a


def numbers(n=5):
    return IterableWrapper(range(n))


def test_whoever_changes_an_item_does_not_change_the_original():
    original = [{"words": ["a"]}, {"words": []}]
    pipe = IterableWrapper(original)
    for _ in range(2):
        for item in pipe:
            item["words"].append("b")
    assert original == [{"words": ["a"]}, {"words": []}]


def test_without_deepcopy_items_are_the_original_ones():
    original = [[1], [2]]
    assert next(iter(IterableWrapper(original, deepcopy=False))) is original[0]


def test_what_is_added_to_a_list_while_it_is_read_comes_in_the_next_epoch():
    original = [1, 2]
    pipe = IterableWrapper(original)
    iterator = iter(pipe)
    next(iterator)
    original.append(3)
    assert list(iterator) == [2]
    assert list(pipe) == [1, 2, 3]


def test_what_cannot_be_copied_is_given_as_it_is_with_a_warning():
    lock = threading.Lock()
    with pytest.warns(UserWarning, match="cannot be deepcopied"):
        assert list(IterableWrapper([lock])) == [lock]


def test_a_generator_gives_one_epoch():
    with pytest.warns(UserWarning, match="cannot be deepcopied"):
        assert list(IterableWrapper(count_up(3))) == [0, 1, 2]


def test_a_sequence_wrapper_keeps_its_own_copy_and_takes_dicts():
    original = {"a": [1]}
    pipe = SequenceWrapper(original)
    original["a"].append(2)
    assert (pipe["a"], len(pipe)) == ([1], 1)


@pytest.mark.parametrize(
    ("item", "fn", "input_col", "output_col", "expected"),
    [
        (3, negate, None, None, -3),
        ((1, 2, 3), add, [0, 2], None, (4, 2)),
        ((1, 2, 3), add, [0, 2], -1, (1, 2, 3, 4)),
        ([1, 2, 3], negate, 0, None, [-1, 2, 3]),
        ((1, 2, 3), negate, 0, 1, (1, -1, 3)),
        ((1, 2, 3), negate, 0, [1], (1, -1, 3)),
        ({"a": 1, "b": 2}, negate, "a", "c", {"a": 1, "b": 2, "c": -1}),
        ({"a": 1, "b": 2}, add, ["b", "a"], None, {"b": 3}),
    ],
)
def test_map_takes_and_sets_columns(item, fn, input_col, output_col, expected):
    pipe = IterableWrapper([item], deepcopy=False).map(fn, input_col, output_col)
    assert list(pipe) == [expected]


def test_map_does_not_change_the_item_of_its_source():
    row = [1, 2]
    assert list(IterableWrapper([row], deepcopy=False).map(negate, input_col=0)) == [[-1, 2]]
    assert row == [1, 2]


@pytest.mark.parametrize(
    ("fn", "input_col", "output_col", "message"),
    [
        (negate, 0, [1, 2], "single-element"),
        (negate, None, 0, "must be None when"),
        (add, 0, None, "takes .a, b., but 1"),
        (add, None, None, "takes"),
        (add, [0, 1, 2], None, "but 3 positional"),
        (lambda a, *, key: a, 0, None, "key"),
    ],
)
def test_columns_that_do_not_fit_are_refused_when_built(fn, input_col, output_col, message):
    with pytest.raises(ValueError, match=message):
        numbers().map(fn, input_col, output_col)


def test_what_is_no_function_is_refused_when_built():
    with pytest.raises(TypeError, match="callable"):
        numbers().map(5)


def test_functions_without_a_signature_pass():
    assert list(IterableWrapper(["1"]).map(int)) == [1]


def test_an_error_names_its_pipe():
    with pytest.raises(IndexError) as caught:
        list(IterableWrapper([(1, 2)]).map(negate, input_col=5))
    assert "Mapper" in caught.value.__notes__[0]


def test_filter_keeps_what_is_true_also_in_numpys_sense():
    assert list(numbers().filter(lambda number: number % 2 == 0)) == [0, 2, 4]
    assert list(numbers().filter(lambda number: np.bool_(number > 2))) == [3, 4]
    assert list(IterableWrapper([(1, 2), (3, 0)]).filter(lambda value: value > 1, input_col=0)) == [(3, 0)]


@pytest.mark.parametrize("answer", [1, None, "yes"])
def test_filter_refuses_answers_that_are_no_bools(answer):
    with pytest.raises(ValueError, match="Boolean output is required"):
        list(numbers().filter(lambda _: answer))


def test_filter_closes_the_streams_of_what_it_drops(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    streams = [StreamWrapper(path.open()) for _ in range(2)]
    rows = [{"keep": False, "files": [streams[0]]}, {"keep": True, "files": [streams[1]]}]
    kept = list(IterableWrapper(rows, deepcopy=False).filter(lambda keep: keep, input_col="keep"))
    assert [stream.closed for stream in streams] == [True, False]
    assert kept == [rows[1]]


def test_flatmap_gives_what_is_in_what_the_function_returns():
    assert list(numbers(3).flatmap(twice)) == [0, 0, 1, -1, 2, -2]
    assert list(numbers(3).flatmap(count_up)) == [0, 0, 1]
    assert list(IterableWrapper([[1, 2], [3]]).flatmap()) == [1, 2, 3]
    assert list(IterableWrapper([([1, 2], 3)]).flatmap(input_col=0)) == [1, 2]
    assert list(IterableWrapper(["ab"]).flatmap()) == ["a", "b"]


def test_flatmap_has_no_length_and_wants_iterables():
    with pytest.raises(TypeError, match="relies on the output"):
        len(numbers().flatmap(twice))
    with pytest.raises(TypeError, match="not iterable"):
        list(numbers().flatmap(add_one))


def test_shuffled_flatmap_with_one_open_iterable_is_flatmap():
    assert list(numbers(3).shuffled_flatmap(twice, buffer_size=1)) == [0, 0, 1, -1, 2, -2]
    assert list(numbers(3).shuffled_flatmap(twice).set_shuffle(False)) == [0, 0, 1, -1, 2, -2]


def test_shuffled_flatmap_keeps_the_order_within_each_iterable_and_few_open():
    opened, most = set(), 0

    def values(shard):
        nonlocal most
        opened.add(shard)
        most = max(most, len(opened))
        yield from ((shard, place) for place in range(4))
        opened.discard(shard)

    given = list(numbers(8).shuffled_flatmap(values, buffer_size=3).set_seed(1))
    assert most == 3
    assert sorted(given) == [(shard, place) for shard in range(8) for place in range(4)]
    assert all([place for each, place in given if each == shard] == [0, 1, 2, 3] for shard in range(8))
    assert given != sorted(given)


def test_shuffled_flatmap_knows_the_length_of_lists():
    assert len(IterableWrapper([[1, 2], [3]]).shuffled_flatmap()) == 3
    with pytest.raises(TypeError, match="relies on the output"):
        len(numbers().shuffled_flatmap(twice))


def test_buffer_sizes_are_checked_when_built():
    with pytest.raises(ConfigError, match="buffer_size"):
        numbers().shuffled_flatmap(buffer_size=0)


def test_a_sum_of_columns_may_come_from_any_callable():
    assert list(IterableWrapper([[1, 2], [3]]).map(total)) == [3, 3]
