"""Laws over workers: the stream is that of the dataset itself, whoever loads it and however it is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets import MultiProcDataset, StaticDataset

pytestmark = pytest.mark.usefixtures("warm_workers")

ORDERINGS = st.sampled_from(
    ["default", "random", "laplace:3", "sorted_reverse", "random_sample", "permute", "sort_bin_shuffle:2"]
)
LENGTHS = st.lists(st.integers(0, 9), max_size=30)


def corpus(lengths):
    return [
        {"data": np.full((n, 1), i, np.float32), "classes": np.full(n, i % 3, np.int32)} for i, n in enumerate(lengths)
    ]


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.random(features["data"].shape, dtype=np.float32)}


def stream(dataset, epoch):
    return [
        (seq.seq_idx, seq.tag, seq.corpus_idx, seq["data"].tobytes(), seq["classes"].tobytes())
        for seq in dataset.epoch(epoch)
    ]


def check(lengths, ordering, num_workers, buffer_size, epochs, executor, early):
    config = {"class": "StaticDataset", "data": corpus(lengths), "seq_ordering": ordering, "transform": add_noise}
    plain = StaticDataset(corpus(lengths), seq_ordering=ordering, transform=add_noise)
    dataset = MultiProcDataset(config, num_workers, buffer_size, executor=executor)
    try:
        for epoch in epochs:
            for _ in zip(range(early), dataset.epoch(epoch), strict=False):  # read some, leave
                pass
            assert stream(dataset, epoch) == stream(plain, epoch)
    finally:
        dataset.close()


@pytest.mark.parametrize("executor", ["inline", "thread"])
@given(
    LENGTHS,
    ORDERINGS,
    st.integers(0, 5),
    st.integers(1, 40),
    st.lists(st.integers(1, 5), max_size=3),
    st.integers(0, 9),
)
@examples(40)
def test_workers_do_not_change_the_stream(executor, lengths, ordering, num_workers, buffer_size, epochs, early):
    check(lengths, ordering, num_workers, buffer_size, epochs, executor, early)


@given(
    LENGTHS,
    ORDERINGS,
    st.integers(1, 5),
    st.integers(1, 40),
    st.lists(st.integers(1, 5), max_size=3),
    st.integers(0, 9),
)
@examples(15)
def test_worker_processes_do_not_change_the_stream(lengths, ordering, num_workers, buffer_size, epochs, early):
    check(lengths, ordering, num_workers, buffer_size, epochs, "process", early)


@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@given(lengths=LENGTHS, num_workers=st.integers(1, 4), buffer_size=st.integers(1, 9), epoch=st.integers(1, 3))
@examples(10)
def test_dedicated_workers_deliver_each_sequence_once_in_a_fixed_order(
    executor, lengths, num_workers, buffer_size, epoch
):
    config = {"class": "StaticDataset", "data": corpus(lengths), "seq_ordering": "random", "transform": add_noise}
    expected = sorted(
        row[1:] for row in stream(StaticDataset(**{k: v for k, v in config.items() if k != "class"}), epoch)
    )
    dataset = MultiProcDataset(config, num_workers, buffer_size, "dedicated", executor=executor)
    try:
        first = stream(dataset, epoch)
        assert sorted(row[1:] for row in first) == expected
        assert [row[0] for row in first] == list(range(len(lengths)))
        assert stream(dataset, epoch) == first
    finally:
        dataset.close()
