"""Orders against RETURNN itself, over many combinations of options."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.order import OrderCorpus, OrderPlanner, OrderRecipe

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    returnn_datasets = pytest.importorskip("returnn.datasets.basic")

pytestmark = pytest.mark.filterwarnings("ignore")

_COUNTS = st.integers(1, 5)
_TAIL = st.sampled_from(["", ":1", ":2", ":3", ":0"])
_BINS = st.one_of(st.integers(1, 50).map(str), st.integers(1, 50).map(".{}".format))
_MODES = st.one_of(
    st.sampled_from(["default", "reverse", "sorted", "sorted_reverse", "laplace", "sort_bin_shuffle"]),
    st.integers(1, 8).map("default_every_n:{}".format),
    st.builds("{}{}".format, st.sampled_from(["random", "random_sample"]), _TAIL),
    st.builds("{}:{}{}".format, st.sampled_from(["laplace", "sort_bin_shuffle", "sort_bin_shuffle_x2"]), _BINS, _TAIL),
)


@settings(max_examples=600)
@given(
    mode=_MODES,
    num_seqs=st.one_of(st.integers(8, 80), st.integers(1000, 2000)),
    epoch=st.integers(1, 12),
    cut=st.one_of(
        st.fixed_dictionaries({"partition_epoch": _COUNTS}), st.fixed_dictionaries({"repeat_epoch": _COUNTS})
    ),
    num_shards=_COUNTS,
    seed=st.one_of(
        st.fixed_dictionaries({"random_seed_offset": st.integers(0, 100_000)}),
        st.fixed_dictionaries({"fixed_random_seed": st.integers(0, 2**32 - 1), "random_seed_offset": st.just(3)}),
    ),
    max_length=st.sampled_from([1, 10, 1000, 2**20, 2**45]),
    data=st.data(),
)
def test_every_order_equals_the_one_of_returnn(mode, num_seqs, epoch, cut, num_shards, seed, max_length, data):
    shard_index = data.draw(st.integers(0, num_shards - 1))
    lengths = np.random.default_rng(num_seqs).integers(0, max_length, size=num_seqs)
    dataset = returnn_datasets.Dataset(
        seq_ordering=mode, _num_shards=num_shards, _shard_index=shard_index, **cut, **seed
    )
    expected = dataset.get_seq_order_for_epoch(epoch, num_seqs, lengths.tolist().__getitem__)
    recipe = OrderRecipe(mode, num_shards=num_shards, shard_index=shard_index, **cut, **seed)
    order = OrderPlanner(recipe).order_for_epoch(epoch, OrderCorpus(num_seqs, lengths=lambda: lengths))
    assert list(order) == list(expected)


@pytest.mark.parametrize(
    "mode", ["random", "random_sample", "laplace:.100", "sorted", "sort_bin_shuffle:.100", "sort_bin_shuffle_x2:7"]
)
def test_a_larger_corpus_has_the_same_order(mode):
    num_seqs = 200_003
    lengths = np.random.default_rng(1).integers(0, 500_000, size=num_seqs)
    expected = returnn_datasets.Dataset(seq_ordering=mode, random_seed_offset=0).get_seq_order_for_epoch(
        2, num_seqs, lengths.tolist().__getitem__
    )
    order = OrderPlanner(OrderRecipe(mode)).order_for_epoch(2, OrderCorpus(num_seqs, lengths=lambda: lengths))
    assert (np.asarray(order) == np.asarray(expected)).all()
