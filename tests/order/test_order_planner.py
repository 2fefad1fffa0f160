from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, InternalError
from headrace.order import (
    ArrayOrder,
    Laplace,
    OrderCorpus,
    OrderPlanner,
    OrderRecipe,
    Policy,
    Random,
    derive_order_seed,
    full_epoch_of,
    slice_bounds,
)


@dataclass(frozen=True)
class CountingPolicy(Policy):
    """A fake that remembers with which seeds it was asked to plan."""

    num_epochs: int = 1
    seed: int | None = None
    seeds: list[int] = field(default_factory=list, hash=False, compare=False)
    name = "counting"
    is_random = True

    def plan(self, num_seqs, rng_seed, lengths):
        self.seeds.append(rng_seed)
        return ArrayOrder(np.roll(np.arange(num_seqs), rng_seed), may_repeat=False)

    def __str__(self):
        return self.name


def _order(options, epoch, num_seqs=10, **corpus):
    return list(OrderPlanner(OrderRecipe(**options)).order_for_epoch(epoch, OrderCorpus(num_seqs, **corpus)))


def test_the_documented_examples_of_slices():
    sizes = lambda n, parts: [stop - start for start, stop in (slice_bounds(n, e + 1, parts) for e in range(parts))]  # noqa: E731
    assert sizes(10, 3) == [4, 3, 3]
    assert sizes(11, 3) == [4, 4, 3]
    assert sizes(3, 5) == [1, 1, 1, 0, 0]
    assert [slice_bounds(7, 1, 1, 2, shard) for shard in (0, 1)] == [(0, 4), (4, 7)]
    # all shards of a sub-epoch are side by side
    assert [slice_bounds(12, epoch, 2, 3, shard) for epoch in (1, 2) for shard in (0, 1, 2)] == [
        (start, start + 2) for start in range(0, 12, 2)
    ]
    assert slice_bounds(10, 0, 3) == slice_bounds(10, 1, 3) == slice_bounds(10, 4, 3)


def test_the_documented_examples_of_seeds():
    seeds = [derive_order_seed(e, partition_epoch=4, random_seed_offset=5) for e in (0, 1, 2, 4, 5, 8, 9)]
    assert seeds == [6, 6, 6, 6, 7, 7, 8]
    assert [derive_order_seed(e, num_epochs=3) for e in range(1, 8)] == [1, 1, 1, 2, 2, 2, 3]
    # the number of epochs counts full passes
    assert [derive_order_seed(e, num_epochs=2, partition_epoch=2) for e in range(1, 10)] == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert derive_order_seed(7, partition_epoch=2, fixed_random_seed=0, random_seed_offset=5) == 0
    assert [full_epoch_of(e, 2) for e in (0, 1, 2, 3, 4, 5)] == [0, 0, 0, 1, 1, 2]


def test_the_full_order_is_planned_once_for_all_its_sub_epochs():
    policy = CountingPolicy()
    planner = OrderPlanner(OrderRecipe(policy, partition_epoch=4))
    corpus = OrderCorpus(10)
    parts = [list(planner.order_for_epoch(epoch, corpus)) for epoch in (1, 2, 3, 4)]
    assert policy.seeds == [1]
    assert np.concatenate(parts).tolist() == np.roll(np.arange(10), 1).tolist()
    planner.order_for_epoch(5, corpus)
    planner.order_for_epoch(8, corpus)
    assert policy.seeds == [1, 2]
    planner.order_for_epoch(1, corpus)  # only the last one is kept
    assert policy.seeds == [1, 2, 1]


def test_the_filter_and_the_lengths_are_asked_for_once_as_well():
    calls = []

    def lengths():
        calls.append("lengths")
        return np.arange(10)

    def keep():
        calls.append("keep")
        return np.arange(10) % 2 == 0

    def first_of_tag():
        calls.append("tags")
        return np.arange(10)

    planner = OrderPlanner(OrderRecipe("sorted", partition_epoch=2))
    corpus = OrderCorpus(10, lengths, keep, first_of_tag)
    # an order without chance is the same in every full epoch
    assert [list(planner.order_for_epoch(epoch, corpus)) for epoch in (1, 2, 3)] == [[0, 2, 4], [6, 8], [0, 2, 4]]
    assert sorted(calls) == ["keep", "lengths", "tags"]


def test_lengths_are_not_asked_for_by_an_order_that_needs_none():
    def lengths():
        raise AssertionError

    assert _order({"seq_ordering": "reverse"}, 1, 3, lengths=lengths) == [2, 1, 0]


def test_the_same_shuffle_is_not_planned_again_for_the_next_full_epochs():
    policy = CountingPolicy(num_epochs=3)
    planner = OrderPlanner(OrderRecipe(policy))
    for epoch in range(1, 7):
        planner.order_for_epoch(epoch, OrderCorpus(10))
    assert policy.seeds == [1, 2]


def test_a_changed_corpus_is_planned_again():
    policy = CountingPolicy()
    planner = OrderPlanner(OrderRecipe(policy))
    planner.order_for_epoch(1, OrderCorpus(10))
    assert len(planner.order_for_epoch(1, OrderCorpus(11))) == 11
    planner.invalidate()
    planner.order_for_epoch(1, OrderCorpus(11))
    assert policy.seeds == [1, 1, 1]


def test_a_failure_leaves_nothing_stale_behind():
    planner = OrderPlanner(OrderRecipe(lambda epoch: "default" if epoch == 1 else "sorted"))
    assert list(planner.order_for_epoch(1, OrderCorpus(2))) == [0, 1]
    for _ in range(2):
        with pytest.raises(ConfigError, match="'sorted' needs the length"):
            planner.order_for_epoch(2, OrderCorpus(2))
    assert list(planner.order_for_epoch(1, OrderCorpus(2))) == [0, 1]


def test_the_filter_comes_before_slicing_so_that_sub_epochs_stay_even():
    keep = np.arange(12) >= 6
    options = {"partition_epoch": 2, "seq_ordering": "default"}
    assert _order(options, 1, 12, keep=lambda: keep) == [6, 7, 8]
    assert _order(options, 2, 12, keep=lambda: keep) == [9, 10, 11]


def test_of_equal_tags_the_first_in_the_order_is_kept():
    first_of_tag = np.array([0, 1, 0, 1, 4])
    assert _order({"seq_ordering": "default"}, 1, 5, first_of_tag=lambda: first_of_tag) == [0, 1, 4]
    assert _order({"seq_ordering": "reverse"}, 1, 5, first_of_tag=lambda: first_of_tag) == [4, 3, 2]


def test_duplicates_go_before_the_filter_sees_them():
    # the reverse order meets 2 before 0; the filter then drops 2, and 0 does not come back
    first_of_tag, keep = np.array([0, 1, 0]), np.array([True, True, False])
    options = {"seq_ordering": "reverse"}
    assert _order(options, 1, 3, first_of_tag=lambda: first_of_tag, keep=lambda: keep) == [1]


def test_repeating_does_not_shuffle_again():
    once = _order({"seq_ordering": "random"}, 2)
    assert _order({"seq_ordering": "random", "repeat_epoch": 3}, 2) == once * 3


def test_no_epoch_is_no_data_and_zero_is_the_first():
    planner = OrderPlanner(OrderRecipe("random"))
    assert list(planner.order_for_epoch(None, OrderCorpus(10))) == []
    assert list(planner.order_for_epoch(0, OrderCorpus(10))) == list(planner.order_for_epoch(1, OrderCorpus(10)))
    with pytest.raises(ConfigError, match="epoch must be at least 1, got -1"):
        planner.order_for_epoch(-1, OrderCorpus(10))


@pytest.mark.parametrize("mode", ["default", "default_every_n:3", "random", "random_sample", "laplace", "permute"])
def test_an_empty_corpus_has_an_empty_order(mode):
    corpus = {"lengths": lambda: np.zeros(0, np.int32), "keep": lambda: np.zeros(0, bool)}
    assert _order({"seq_ordering": mode, "repeat_epoch": 2}, 1, 0, **corpus) == []


def test_a_function_decides_anew_for_each_epoch():
    asked = []

    def ordering(epoch):
        asked.append(epoch)
        return "default" if epoch == 1 else Laplace(num_bins=1)

    planner = OrderPlanner(OrderRecipe(ordering))
    corpus = OrderCorpus(3, lengths=lambda: np.array([2, 1, 0]))
    assert [list(planner.order_for_epoch(epoch, corpus)) for epoch in (1, 2, 2)] == [[0, 1, 2], [2, 1, 0], [2, 1, 0]]
    assert asked == [1, 2, 2]


@pytest.mark.parametrize("returned", [None, 3, ["default"], Random])
def test_a_function_that_returns_something_else_is_refused(returned):
    planner = OrderPlanner(OrderRecipe(lambda epoch: returned))
    with pytest.raises(ConfigError, match=r"the function given as seq_ordering returned .*\n.*epoch 4"):
        planner.order_for_epoch(4, OrderCorpus(3))


def test_a_function_that_returns_a_wrong_string_is_refused():
    with pytest.raises(ConfigError, match="invalid seq_ordering 'rndom'"):
        _order({"seq_ordering": lambda epoch: "rndom"}, 1)


def test_a_seed_that_the_legacy_generator_cannot_take_is_refused():
    with pytest.raises(ConfigError, match="the seed of this epoch is -4"):
        _order({"seq_ordering": "random", "random_seed_offset": -5}, 1)
    assert len(_order({"seq_ordering": "permute", "random_seed_offset": -5}, 1)) == 10
    assert len(_order({"seq_ordering": "random:seed=1", "random_seed_offset": -5}, 1)) == 10


def test_orders_with_different_seeds_are_not_shifted_copies_of_each_other():
    """Adding seed and epoch would make seed 1, epoch 2 equal to seed 2, epoch 1."""
    orders = {
        (mode, seed, epoch): tuple(_order({"seq_ordering": f"{mode}:seed={seed}"}, epoch, 50))
        for mode in ("random", "permute")
        for seed in range(4)
        for epoch in range(1, 5)
    }
    assert len(set(orders.values())) == len(orders)


def test_epoch_offset_and_fixed_seed_act_on_a_spelt_out_seed_too():
    base = {"seq_ordering": "random:seed=42"}
    assert _order(base, 3) == _order({**base, "random_seed_offset": 2}, 1)
    fixed = {**base, "fixed_random_seed": 7}
    assert _order(fixed, 1) == _order(fixed, 5)
    assert _order(fixed, 1) != _order({"seq_ordering": "random:seed=43", "fixed_random_seed": 7}, 1)


def test_a_column_of_another_size_is_an_internal_error():
    with pytest.raises(InternalError, match="column of shape"):
        _order({}, 1, 5, keep=lambda: np.ones(4, bool))


_changes = st.lists(st.tuples(st.sampled_from(["lengths", "keep", "labels"]), st.integers(0, 4), st.integers(0, 3)))


@given(_changes, st.booleans(), st.booleans())
def test_a_corpus_that_may_change_is_ordered_as_by_a_new_planner(changes, has_filter, has_tags):
    columns = {"lengths": np.arange(5), "keep": np.ones(5, bool), "labels": np.arange(5)}
    corpus = OrderCorpus(
        5,
        lengths=lambda: columns["lengths"],
        keep=(lambda: columns["keep"]) if has_filter else None,
        first_of_tag=(lambda: _first_of_equal(columns["labels"])) if has_tags else None,
        is_fixed=False,
    )
    planner = OrderPlanner(OrderRecipe("sorted"))
    for column, seq, value in [("lengths", 0, 0), *changes]:
        columns[column][seq] = value  # in place: what the planner remembers must be its own
        expected = OrderPlanner(OrderRecipe("sorted")).order_for_epoch(1, corpus)
        assert list(planner.order_for_epoch(1, corpus)) == list(expected)


def _first_of_equal(labels):
    return np.array([labels.tolist().index(label) for label in labels])


@given(st.integers(1, 3), st.sampled_from([(1, 1), (1, 2), (3, 1)]), st.integers(0, 12))
def test_all_shards_of_a_sub_epoch_count_each_sequence_up_together(num_shards, parts_and_repeats, num_seqs):
    partition_epoch, repeats = parts_and_repeats
    corpus = OrderCorpus(num_seqs, keep=lambda: np.arange(num_seqs) % 4 != 1)
    counted = []
    for shard in range(num_shards):
        options = {"partition_epoch": partition_epoch, "repeat_epoch": repeats}
        planner = OrderPlanner(OrderRecipe("random_sample", **options, num_shards=num_shards, shard_index=shard))
        order = planner.order_for_epoch(2, corpus)
        counts = planner.counter(2)()
        assert (len(order), order.may_repeat) == (len(counts), True)
        counted += zip(order, counts.tolist(), strict=True)
    for seq in {seq for seq, _ in counted}:
        times = sorted(count for other, count in counted if other == seq)
        assert times == list(range(len(times)))
