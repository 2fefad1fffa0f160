"""batch, unbatch, collate, groupby, buckets: what is documented of them."""

import collections

import numpy as np
import pytest
from tests.pipes.random_chains import parity

from headrace.errors import ConfigError
from headrace.pipes.iter import DataChunk, IterableWrapper

Point = collections.namedtuple("Point", "x y")
WORDS = ["a", "bbb", "cc", "dddd", "e", "ff"]


def numbers(n=5):
    return IterableWrapper(range(n))


def test_batches_are_lists_with_the_documented_extras():
    batch = next(iter(numbers().batch(2)))
    assert type(batch) is DataChunk
    assert (batch, batch.as_str("  "), list(batch.raw_iterator()), batch.items) == ([0, 1], "  [0, 1]", [0, 1], [0, 1])


def test_the_last_batch_is_short_or_dropped():
    assert list(numbers().batch(2)) == [[0, 1], [2, 3], [4]]
    assert list(numbers().batch(2, drop_last=True, wrapper_class=tuple)) == [(0, 1), (2, 3)]
    assert (len(numbers().batch(2)), len(numbers().batch(2, drop_last=True)), len(numbers(4).batch(2))) == (3, 2, 2)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_batch_has_one_item_at_least(size):
    with pytest.raises(ConfigError, match="batch_size"):
        numbers().batch(size)


def test_unbatch_removes_levels_of_lists_only():
    nested = [[[1], [2]], [[3]], [[(4, 5)]]]
    assert list(IterableWrapper(nested).unbatch()) == [[1], [2], [3], [(4, 5)]]
    assert list(IterableWrapper(nested).unbatch(2)) == [1, 2, 3, (4, 5)]
    assert list(IterableWrapper([[[1], 2], [[[3]]]]).unbatch(-1)) == [1, 2, 3]
    assert list(IterableWrapper(nested).unbatch(0)) == nested


def test_unbatch_says_when_there_are_fewer_levels():
    with pytest.raises(IndexError, match="unbatch_level 3 exceeds the depth of the DataPipe"):
        list(IterableWrapper([[[1]]]).unbatch(3))
    with pytest.raises(ValueError, match="unbatch_level must be -1 or >= 0"):
        numbers().unbatch(-2)


def test_collate_joins_part_by_part():
    rows = [
        {"x": np.arange(2), "n": 1, "name": "a", "p": Point(1, 2.0)},
        {"x": np.ones(2), "n": 2, "name": "b", "p": Point(3, 4.0)},
    ]
    (batch,) = IterableWrapper(rows).batch(2).collate()
    assert batch["x"].tolist() == [[0, 1], [1, 1]]
    assert batch["n"].tolist() == [1, 2]
    assert batch["name"] == ["a", "b"]
    assert batch["p"].x.tolist() == [1, 3]
    assert isinstance(batch["p"], Point)


def test_collate_takes_a_function_or_functions_of_columns():
    assert list(numbers(4).batch(2).collate(sum)) == [1, 5]
    assert list(numbers(4).batch(2).collate(collate_fn=max)) == [1, 3]
    (batch,) = IterableWrapper([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]).batch(2).collate({"b": "".join})
    assert (batch["a"].tolist(), batch["b"]) == ([1, 2], "xy")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": 1}, {"b": 1}], "different keys"),
        ([(1, 2), (1,)], "different lengths"),
        ([np.zeros(1), np.zeros(2)], "shape"),
    ],
)
def test_collate_refuses_items_that_do_not_fit(rows, message):
    with pytest.raises(ValueError, match=message):
        list(IterableWrapper(rows).batch(2).collate())


def test_collate_refuses_unknown_columns():
    with pytest.raises(KeyError, match="zz"):
        list(IterableWrapper([{"a": 1}]).batch(1).collate({"zz": sum}))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_token_count": 4}, [["a", "e", "cc"], ["ff"], ["bbb"], ["dddd"]]),
        ({"max_token_count": 5, "include_padding": True}, [["a", "e"], ["cc", "ff"], ["bbb"], ["dddd"]]),
        ({"max_token_count": 5, "min_len": 2, "max_len": 3}, [["cc", "ff"], ["bbb"]]),
        ({"max_token_count": 3}, [["a", "e"], ["cc"], ["ff"], ["bbb"]]),
        ({"max_token_count": 5, "buffer_size": 2}, [["a", "cc"], ["bbb", "e"], ["ff"], ["dddd"]]),
    ],
)
def test_max_token_bucketize_makes_the_documented_batches(options, expected):
    assert list(IterableWrapper(WORDS).max_token_bucketize(**options)) == expected


def test_max_token_bucketize_needs_no_order_of_items():
    items = [{"n": 1}, {"n": 1}, {"n": 1}]
    assert list(IterableWrapper(items).max_token_bucketize(2, len_fn=lambda item: item["n"])) == [items[:2], items[2:]]


@pytest.mark.parametrize(
    "options",
    [{"min_len": -1}, {"min_len": 4, "max_len": 3}, {"max_len": 9}, {"buffer_size": 0}],
)
def test_max_token_bucketize_refuses_limits_that_contradict(options):
    with pytest.raises(ValueError, match=r"min_len|max_token_count|buffer_size"):
        IterableWrapper(WORDS).max_token_bucketize(5, **options)


def test_bucketbatch_sorts_buckets_and_shuffles_batches():
    batches = list(numbers(10).bucketbatch(2, batch_num=2, sort_key=sorted))
    assert sorted(batches) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [sorted(batches[:2]), sorted(batches[2:4])] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_bucketbatch_without_sort_key_is_random():
    pipe = numbers(50).bucketbatch(5, use_in_batch_shuffle=False)
    items = [item for batch in pipe for item in batch]
    assert sorted(items) == list(range(50))
    assert items != list(range(50))


@pytest.mark.parametrize("option", ["batch_size", "batch_num", "bucket_num"])
def test_bucketbatch_checks_its_numbers(option):
    with pytest.raises(ConfigError, match=option):
        numbers().bucketbatch(**({"batch_size": 2} | {option: 0}))


def test_groupby_gives_groups_when_full_and_at_the_end():
    assert list(numbers(7).groupby(parity)) == [[0, 2, 4, 6], [1, 3, 5]]
    assert list(numbers(7).groupby(parity, group_size=2)) == [[0, 2], [1, 3], [4, 6], [5]]
    assert list(numbers(7).groupby(parity, keep_key=True)) == [(0, [0, 2, 4, 6]), (1, [1, 3, 5])]


def test_groupby_with_a_full_buffer_gives_the_largest_with_its_own_key():
    groups = list(numbers(9).groupby(lambda number: number % 3, buffer_size=4, keep_key=True))
    assert groups == [(0, [0, 3]), (1, [1, 4]), (2, [2, 5]), (0, [6]), (1, [7]), (2, [8])]


def test_groupby_says_when_no_group_is_large_enough_or_drops_it():
    options = {"buffer_size": 3, "group_size": 3, "guaranteed_group_size": 2}
    with pytest.raises(RuntimeError, match="Failed to group items"):
        list(numbers(7).groupby(lambda number: number % 3, **options))
    dropped = list(numbers(7).groupby(lambda number: number % 3, **options, drop_remaining=True))
    assert 0 not in [item for group in dropped for item in group]


@pytest.mark.parametrize(
    "options",
    [
        {"buffer_size": 4, "group_size": 5},
        {"guaranteed_group_size": 5},
        {"group_size": 3, "guaranteed_group_size": 5},
        {"group_size": 0},
        {"buffer_size": 0},
    ],
)
def test_groupby_refuses_sizes_that_contradict(options):
    with pytest.raises(ConfigError, match="size"):
        numbers().groupby(parity, **options)
