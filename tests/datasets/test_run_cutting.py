"""How an order is cut into runs: nothing is lost, and no run is larger than it may be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.datasets import StaticDataset
from headrace.datasets.wrap.runs import MAX_RUN_BYTES, RunLimits, sizes_of
from headrace.order import ArrayOrder
from headrace.sources import MapSource


def dataset_of(lengths, **options):
    data = [{"data": np.zeros((n, 3), np.float32), "classes": np.zeros(n, np.int16)} for n in lengths]
    return StaticDataset(data, **options)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    num_seqs=st.integers(1, 9),
    max_bytes=st.integers(1, 400),
    group=st.integers(1, 4),
    num_workers=st.integers(1, 3),
    first=st.integers(0, 3),
)
def test_runs_follow_one_another_and_keep_their_limits(lengths, num_seqs, max_bytes, group, num_workers, first):
    limits = RunLimits(num_seqs * group, max_bytes, group, sizes_of(dataset_of(lengths)))
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
        assert sum(lengths[i] * 14 for i in indices) <= max_bytes or len(indices) <= group
    assert place == len(lengths)


@pytest.mark.parametrize(
    ("num_frames", "buffer_size", "max_bytes", "num_seqs", "num_in_shards"),
    [
        (10, 1, None, 1, 1),
        (10, 16, None, 8, 8),
        (10, 10**6, None, 1024, 1024),
        (30_000, 10**6, None, 1024, 2),
        (10**6, 100, None, 50, 1),
        (100, 100, 112_000, 50, 10),
        (100, 100, 1, 50, 1),
    ],
)
def test_a_run_is_half_of_the_buffer_but_not_too_large(num_frames, buffer_size, max_bytes, num_seqs, num_in_shards):
    dataset = dataset_of([num_frames] * 3)
    limits = RunLimits.of(dataset, buffer_size, max_bytes)
    assert (limits.num_seqs, limits.group) == (num_seqs, 1)
    assert (limits.sizes is None) == (num_seqs * num_frames * 14 <= limits.max_bytes)
    assert limits.max_bytes == min(MAX_RUN_BYTES, max((max_bytes or 10**9) // 8, 1))
    assert RunLimits.of(dataset, buffer_size, max_bytes, are_shards=True).num_seqs == num_in_shards


def test_frames_that_are_shuffled_together_stay_together():
    dataset = dataset_of([10] * 9, shuffle_frames_of_nseqs=4)
    assert RunLimits.of(dataset, 5, None).num_seqs == 4
    assert RunLimits.of(dataset, 5, None).group == 4
    assert RunLimits.of(dataset, 5, 16, are_shards=True).num_seqs == 4


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
    assert sizes_of(dataset) is None
    assert RunLimits.of(dataset, 100, 1 << 20).num_seqs == 50
    assert RunLimits.of(dataset, 100, 1 << 20, are_shards=True).num_seqs == 1
    assert RunLimits.of(dataset, 100, None, are_shards=True).num_seqs == 8
