"""Exactly once, for every order that promises it, however it is cut."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import OrderCorpus, OrderPlanner, OrderRecipe, parse_seq_ordering

_COUNTS = st.integers(1, 6)
_SEEDS = st.one_of(st.just(""), st.integers(0, 2**63 - 1).map(lambda seed: f":seed={seed}"))
_EPOCHS = st.one_of(st.just(""), _COUNTS.map(lambda num_epochs: f":{num_epochs}"))
_BINS = st.one_of(_COUNTS.map(str), _COUNTS.map(lambda size: f".{size}"))

EXHAUSTIVE = st.one_of(
    st.sampled_from(["default", "reverse", "sorted", "sorted_reverse"]),
    st.builds("{}{}{}".format, st.sampled_from(["random", "permute"]), _EPOCHS, _SEEDS),
    st.builds(
        "{}:{}{}{}".format,
        st.sampled_from(["laplace", "sort_bin_shuffle", "sort_bin_shuffle_x2"]),
        _BINS,
        _EPOCHS,
        _SEEDS,
    ),
)
OTHERS = st.one_of(_COUNTS.map("default_every_n:{}".format), _SEEDS.map("random_sample{}".format))
SIZES = st.one_of(st.integers(0, 40), st.integers(4000, 4200))


def _corpus(num_seqs: int, seed: int = 0) -> OrderCorpus:
    lengths = np.random.default_rng(seed).integers(0, 20, size=num_seqs)
    return OrderCorpus(num_seqs, lengths=lambda: lengths)


def _parts(mode, corpus, *, full_epoch, num_sub_epochs, num_shards, offset=0):
    """Return the orders of all shards of all sub-epochs, each from a planner of its own, as on many machines."""
    parts = []
    for sub_epoch in range(num_sub_epochs):
        for shard_index in range(num_shards):
            recipe = OrderRecipe(
                mode,
                random_seed_offset=offset,
                partition_epoch=num_sub_epochs,
                num_shards=num_shards,
                shard_index=shard_index,
            )
            epoch = full_epoch * num_sub_epochs + sub_epoch + 1
            parts.append(list(OrderPlanner(recipe).order_for_epoch(epoch, corpus)))
    return parts


def _joined(parts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


@given(mode=EXHAUSTIVE, num_seqs=SIZES, num_sub_epochs=_COUNTS, num_shards=_COUNTS, full_epoch=st.integers(0, 5))
def test_each_sequence_comes_exactly_once_over_sub_epochs_and_shards(
    mode, num_seqs, num_sub_epochs, num_shards, full_epoch
):
    assert parse_seq_ordering(mode).is_exhaustive
    corpus = _corpus(num_seqs)
    parts = _parts(mode, corpus, full_epoch=full_epoch, num_sub_epochs=num_sub_epochs, num_shards=num_shards)
    assert sorted(_joined(parts)) == list(range(num_seqs))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(mode=st.one_of(EXHAUSTIVE, OTHERS), num_seqs=SIZES, num_sub_epochs=_COUNTS, num_shards=_COUNTS)
def test_cutting_an_order_does_not_change_it(mode, num_seqs, num_sub_epochs, num_shards):
    corpus = _corpus(num_seqs)
    whole = _parts(mode, corpus, full_epoch=2, num_sub_epochs=1, num_shards=1)[0]
    parts = _parts(mode, corpus, full_epoch=2, num_sub_epochs=num_sub_epochs, num_shards=num_shards)
    assert _joined(parts) == whole


@given(
    mode=st.one_of(EXHAUSTIVE, OTHERS),
    num_seqs=st.integers(0, 60),
    epochs=st.lists(st.integers(0, 20), max_size=8),
    num_sub_epochs=_COUNTS,
)
def test_an_order_does_not_depend_on_which_epochs_were_asked_for_before(mode, num_seqs, epochs, num_sub_epochs):
    recipe, corpus = OrderRecipe(mode, partition_epoch=num_sub_epochs), _corpus(num_seqs)
    planner = OrderPlanner(recipe)
    for epoch in epochs:
        assert list(planner.order_for_epoch(epoch, corpus)) == list(OrderPlanner(recipe).order_for_epoch(epoch, corpus))


@given(mode=EXHAUSTIVE, num_seqs=st.integers(0, 60), num_sub_epochs=_COUNTS, num_shards=_COUNTS, data=st.data())
def test_filter_and_unique_tags_leave_each_kept_tag_exactly_once(mode, num_seqs, num_sub_epochs, num_shards, data):
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=num_seqs, max_size=num_seqs)), bool)
    tags = data.draw(st.lists(st.integers(0, 9), min_size=num_seqs, max_size=num_seqs))
    keep_tag = [keep[tags.index(tag)] for tag in tags]  # a tag filter keeps all sequences of a tag or none
    first_of_tag = np.array([tags.index(tag) for tag in tags], np.int64)
    base = _corpus(num_seqs)
    corpus = OrderCorpus(
        num_seqs, base.lengths, keep=lambda: np.array(keep_tag, bool), first_of_tag=lambda: first_of_tag
    )
    parts = _parts(mode, corpus, full_epoch=1, num_sub_epochs=num_sub_epochs, num_shards=num_shards)
    delivered = [tags[index] for index in _joined(parts)]
    assert sorted(delivered) == sorted({tag for tag, kept in zip(tags, keep_tag, strict=True) if kept})


@given(mode=EXHAUSTIVE, num_seqs=st.integers(0, 60), num_repeats=_COUNTS, epoch=st.integers(1, 9))
def test_an_epoch_gives_each_sequence_that_is_kept_as_often_as_it_is_repeated(mode, num_seqs, num_repeats, epoch):
    planner = OrderPlanner(OrderRecipe(mode, repeat_epoch=num_repeats))
    keep = np.arange(num_seqs) % 3 != 0
    order = planner.order_for_epoch(epoch, OrderCorpus(num_seqs, _corpus(num_seqs).lengths, keep=lambda: keep))
    assert sorted(order) == sorted(np.flatnonzero(keep).tolist() * num_repeats)


@pytest.mark.parametrize("mode", ["random", "laplace:3", "sort_bin_shuffle:3", "sort_bin_shuffle_x2:3", "permute"])
def test_an_order_is_another_one_in_the_next_full_epoch_only(mode):
    corpus = _corpus(200)
    one, again, other = (
        _joined(_parts(f"{mode}:2", corpus, full_epoch=full_epoch, num_sub_epochs=3, num_shards=2))
        for full_epoch in (0, 1, 2)
    )
    assert one == again
    assert one != other
