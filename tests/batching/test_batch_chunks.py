import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import (
    BatchOrder,
    Buckets,
    Chunking,
    Chunks,
    FixedCount,
    FrameBudget,
    NumbersDict,
    WindowKey,
    plan_chunks,
)
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=1, window=0)
KEEP = BatchOrder("keep", group_batches=1)


@given(st.integers(0, 90), st.integers(1, 30), st.integers(1, 30), st.integers(0, 12))
def test_the_chunks_of_a_sequence_are_the_documented_ones(length, frames, step, min_frames):
    step = min(step, frames)
    plan = Chunks(FixedCount(10**6), frames, step, min_frames).plan_window(np.array([length]), KEY)
    chunking = Chunking(NumbersDict({"data": frames}), NumbersDict({"data": step}))
    documented = plan_chunks(NumbersDict({"data": length}), chunking, min_frames)
    expected = [(int(start["data"]), int(end["data"])) for start, end in documented]
    ends = plan.chunk_starts + plan.chunk_frames
    assert list(zip(plan.chunk_starts.tolist(), ends.tolist(), strict=True)) == expected
    covered = max(end for _, end in expected)
    assert plan.counts.left_out_frames == length - covered


def test_each_chunk_has_context_on_both_sides():
    plan = Chunks(FixedCount(10), 10, context=(2, 3)).plan_window(np.array([25]), KEY, KEEP)
    assert plan.chunk_starts.tolist() == [-2, 8, 18]
    assert plan.chunk_frames.tolist() == [15, 15, 10]
    assert plan.costs.tolist() == [45]


def test_budgets_count_the_context():
    plan = Chunks(FrameBudget(30), 10, context=(2, 3)).plan_window(np.array([40]), KEY)
    assert np.diff(plan.starts).tolist() == [2, 2]


def test_chunks_can_be_bucketed():
    window = np.array([25, 100, 7, 51])
    batching = Chunks(Buckets(FixedCount(2), num_buckets=3), 10)
    plan = batching.plan_window(window, KEY)
    assert plan.counts.pieces == 3 + 10 + 1 + 6
    for batch in plan:
        assert (batch.chunk_starts + batch.chunk_frames <= window[batch.members]).all()


def test_overlapping_chunks_are_cut_again_where_they_are_too_long():
    plan = Chunks(FrameBudget(6, too_long="chunk"), 10, step=5).plan_window(np.array([12]), KEY, KEEP)
    pairs = sorted(zip(plan.chunk_starts.tolist(), plan.chunk_frames.tolist(), strict=True))
    assert pairs == [(0, 5), (5, 4), (5, 5), (9, 3), (10, 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 0}, "frames"),
        ({"frames": 10, "step": 11}, "in no chunk"),
        ({"frames": 10, "step": 0}, "step"),
        ({"frames": 10, "min_frames": -1}, "min_frames"),
        ({"frames": 10, "context": 3}, "left, right"),
        ({"frames": 10, "context": (1, -1)}, "context"),
        ({"frames": 10, "whole_keys": "classes"}, "tuple of data keys"),
    ],
)
def test_wrong_options_are_refused_when_built(options, message):
    with pytest.raises(ConfigError, match=message):
        Chunks(FixedCount(1), **options)
