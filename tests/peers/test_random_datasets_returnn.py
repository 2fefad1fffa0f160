"""Random small datasets with random options: what our class delivers is what RETURNN's does."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets import init_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset

pytestmark = pytest.mark.filterwarnings("ignore")

ORDERINGS = ["default", "reverse", "random", "random:2", "sorted", "sorted_reverse", "laplace:2", "laplace:.3"]
ORDERINGS += ["sort_bin_shuffle:2", "sort_bin_shuffle_x2:.4", "default_every_n:2", "random_sample"]


@st.composite
def options(draw):
    found = {"seq_ordering": draw(st.sampled_from(ORDERINGS)), "random_seed_offset": draw(st.integers(0, 5))}
    kind = draw(st.sampled_from(["whole", "sub-epochs", "repeats"]))
    if kind != "whole":
        found["partition_epoch" if kind == "sub-epochs" else "repeat_epoch"] = draw(st.integers(1, 4))
    if draw(st.booleans()):
        found["fixed_random_seed"] = draw(st.integers(0, 9))
    if draw(st.booleans()):
        found["chunking"] = draw(st.sampled_from(["3", "4:2", (2, 1), {"data": 3, "classes": 3}]))
        found["min_chunk_size"] = draw(st.integers(0, 2))
    return found


LENGTHS = st.lists(st.integers(1, 9), min_size=4, max_size=20)


def delivered(dataset, epochs):
    """Return all that a user sees of some epochs."""
    shown = {
        key: (dataset.get_data_dim(key), dataset.is_data_sparse(key), dataset.get_data_dtype(key))
        for key in sorted(dataset.get_data_keys())
    }
    seqs = []
    for epoch in epochs:
        dataset.init_seq_order(epoch=epoch)
        number, seq_idx = dataset.num_seqs, 0
        chunks = [
            (i, *(part if isinstance(part, int) else (part["data"], part["classes"]) for part in parts))
            for i, *parts in dataset.iterate_seqs()
        ]
        dataset.init_seq_order(epoch=epoch)
        while dataset.is_less_than_num_seqs(seq_idx):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            arrays = [dataset.get_data(seq_idx, key) for key in shown]
            seqs.append((dataset.get_tag(seq_idx), [(array.dtype.name, array.tolist()) for array in arrays]))
            seq_idx += 1
        seqs.append((number, seq_idx, chunks))
    return shown, seqs


def assert_same(config, epochs=(1, 2, 5)):
    ours, theirs = delivered(init_dataset(config), epochs), delivered(peer_init_dataset(config), epochs)
    assert ours[1] == theirs[1]
    assert ours[0] == theirs[0]


@given(LENGTHS, options())
@examples(60)
def test_static_datasets(lengths, given_options):
    data = [
        {"data": np.full((n, 2), i, "float32"), "classes": np.arange(n, dtype="int32") % 5 - i % 2}
        for i, n in enumerate(lengths)
    ]
    outputs = {"data": (2, 2), "classes": (5, 1)}
    assert_same({"class": "StaticDataset", "data": data, "output_dim": outputs, "input_dim": 2, **given_options})
