"""How an order is cut into runs: nothing is lost, and no run is larger than it may be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.datasets import StaticDataset
from headrace.datasets.wrap.runs import MAX_RUN_BYTES, RunLimits, SeqBytes
from headrace.order import ArrayOrder
from headrace.sources import MapSource, MemorySource


def source_of(lengths):
    return MemorySource([{"data": np.zeros((n, 3), np.float32), "classes": np.zeros(n, np.int16)} for n in lengths])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.data())
def test_the_bytes_of_sequences_are_those_of_their_arrays(lengths, data):
    source = source_of(lengths)
    indices = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9)), np.int64)
    actual = [sum(array.nbytes for array in source.read_seq(i).values()) for i in indices.tolist()]
    seq_bytes = SeqBytes(source)
    assert seq_bytes.take(indices).tolist() == actual
    assert seq_bytes.largest() == max(lengths) * 14
    assert seq_bytes.mean() == max(sum(lengths) * 14 // len(lengths), 1)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    num_seqs=st.integers(1, 9),
    max_bytes=st.integers(1, 400),
    group=st.integers(1, 4),
    num_workers=st.integers(1, 3),
    first=st.integers(0, 3),
)
def test_runs_follow_one_another_and_keep_their_limits(lengths, num_seqs, max_bytes, group, num_workers, first):
    seq_bytes = SeqBytes(source_of(lengths))
    limits = RunLimits(num_seqs * group, max_bytes, group, seq_bytes)
    order = ArrayOrder(np.random.default_rng(0).permutation(len(lengths)))
    first = min(first * group, len(lengths) // group * group)
    place = first
    for num_runs, (start, indices) in enumerate(limits.cut(order, first, num_workers)):
        assert start == place
        assert len(indices)
        assert indices.tolist() == list(order)[start : start + len(indices)]
        place += len(indices)
        assert len(indices) % group == 0 or place == len(lengths)
        assert len(indices) <= min(limits.num_seqs, group * 2 ** (num_runs // num_workers))
        assert seq_bytes.take(indices).sum() <= max_bytes or len(indices) <= group
    assert place == len(lengths)


@pytest.mark.parametrize(
    ("num_frames", "buffer_size", "max_bytes", "num_seqs"),
    [
        (10, 1, None, 1),
        (10, 16, None, 8),
        (10, 10**6, None, 1024),
        (30_000, 10**6, None, MAX_RUN_BYTES // (30_000 * 4)),
        (10**6, 100, None, 1),
        (100, 100, 32_000, 10),
        (100, 100, 1, 1),
    ],
)
def test_a_run_is_half_of_the_buffer_but_not_too_large(num_frames, buffer_size, max_bytes, num_seqs):
    dataset = StaticDataset([{"data": np.zeros((num_frames, 1), np.float32)}] * 3)
    limits = RunLimits.of(dataset, buffer_size, max_bytes)
    assert (limits.num_seqs, limits.group) == (num_seqs, 1)
    assert (limits.seq_bytes is None) == (num_seqs * num_frames * 4 <= limits.max_bytes)


def test_frames_that_are_shuffled_together_stay_together():
    dataset = StaticDataset([{"data": np.zeros((10, 1), np.float32)}] * 9, shuffle_frames_of_nseqs=4)
    assert RunLimits.of(dataset, 5, None).num_seqs == 4
    assert RunLimits.of(dataset, 5, None).group == 4
    assert RunLimits.of(dataset, 5, 16).max_bytes == 2


def test_a_user_is_not_asked_for_the_length_of_each_of_his_items():
    class Words:
        def __len__(self):
            return 10**9

        def __getitem__(self, i):
            return {"data": np.zeros((2, 1), np.float32)}

        def get_seq_len(self, i):
            raise AssertionError("asked")

    dataset = StaticDataset([])
    dataset._set_source(MapSource(Words(), specs={"data": {"shape": (None, 1)}}))
    assert SeqBytes.of(dataset) is None
    assert RunLimits.of(dataset, 100, 1 << 20).num_seqs == 50
