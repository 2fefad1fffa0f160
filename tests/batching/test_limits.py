import numpy as np
import pytest
from batchings import keys, lengths, plain
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget, LimitLengths, WindowKey
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=1, window=0)


@given(plain, lengths, keys, st.integers(0, 60), st.integers(0, 60))
def test_the_plan_is_that_of_the_sequences_within_the_limits(batching, window, key, lowest, spread):
    limited = LimitLengths(batching, lowest, lowest + spread)
    is_kept = (window >= lowest) & (window <= lowest + spread)
    plan, expected = limited.plan_window(window, key), batching.plan_window(window[is_kept], key)
    np.testing.assert_array_equal(plan.members, np.flatnonzero(is_kept)[expected.members])
    np.testing.assert_array_equal(plan.costs, expected.costs)
    assert plan.counts.too_short == (window < lowest).sum()
    assert plan.counts.too_long == (window > lowest + spread).sum() + expected.counts.too_long
    assert plan.counts.left_out_frames == window[~is_kept].sum() + expected.counts.left_out_frames


def test_what_is_left_out_is_said_with_its_reason():
    counts = LimitLengths(FixedCount(2), 3, 10).plan_window(np.array([1, 5, 20, 30, 6]), KEY).counts
    assert (counts.seqs, counts.too_short, counts.too_long, counts.left_out) == (5, 1, 2, 3)
    assert "left out: 2 too long, 1 too short; 51 frames left out" in str(counts)


def test_a_window_in_which_nothing_is_left_is_legal():
    plan = LimitLengths(FrameBudget(9), 100).plan_window(np.array([1, 2]), KEY)
    assert len(plan) == 0
    assert plan.counts.left_out == 2


def test_limits_outside_of_chunks_are_for_sequences_and_inside_for_chunks():
    window = np.array([4, 25])
    outside = LimitLengths(Chunks(FixedCount(1), 10), min_frames=6).plan_window(window, KEY)
    inside = Chunks(LimitLengths(FixedCount(1), min_frames=6), 10).plan_window(window, KEY)
    assert sorted(outside.chunk_frames.tolist()) == [5, 10, 10]
    assert sorted(inside.chunk_frames.tolist()) == [10, 10]
    assert (outside.counts.too_short, inside.counts.too_short) == (1, 2)


def test_what_the_other_batching_says_is_passed_on():
    limited = LimitLengths(Chunks(FixedCount(48, data_key="audio"), 10, whole_keys=("speaker",)), 3)
    assert (limited.data_key, limited.whole_keys) == ("audio", ("speaker",))
    assert LimitLengths(FixedCount(48), 3).window_seqs(100) == 96
    assert LimitLengths(FixedCount(48), 3).count_batches(100) is None


def test_each_batch_is_within_the_limits():
    window = np.random.default_rng(0).integers(0, 100, 1000)
    for batch in LimitLengths(Buckets(FrameBudget(500)), 20, 80).plan_window(window, KEY):
        assert window[batch.members].min() >= 20
        assert window[batch.members].max() <= 80


@pytest.mark.parametrize(
    "arguments", [(FixedCount,), (None,), (FixedCount(1), -1), (FixedCount(1), 5, 4), (FixedCount(1), 1.5), ("x", 3)]
)
def test_wrong_options_are_refused_when_built(arguments):
    with pytest.raises(ConfigError, match="LimitLengths"):
        LimitLengths(*arguments)
