import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import WINDOW_SEQS, BatchOrder, FixedCount, WindowKey
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=1, window=0)
KEEP = BatchOrder("keep", group_batches=1)


def test_batches_hold_consecutive_sequences_and_the_last_may_be_small():
    plan = FixedCount(3).plan_window(np.arange(8), KEY, KEEP)
    assert plan.members.tolist() == list(range(8))
    assert plan.starts.tolist() == [0, 3, 6, 8]
    assert plan.costs.tolist() == [6, 15, 14]


def test_a_small_last_batch_can_be_dropped_and_is_counted():
    plan = FixedCount(3, last="drop").plan_window(np.arange(8), KEY, KEEP)
    assert plan.members.tolist() == list(range(6))
    assert (plan.counts.last, plan.counts.left_out, plan.counts.left_out_frames) == (2, 2, 13)
    assert "2 in a last batch" in str(plan.counts)


@given(st.integers(1, 200_000), st.integers(0, 1_000_000), st.sampled_from(["keep", "drop"]))
def test_only_the_last_batch_of_an_epoch_is_small(num_seqs, corpus, last):
    batching = FixedCount(num_seqs, last)
    window = batching.window_seqs()
    assert window % num_seqs == 0
    assert window == num_seqs or window <= WINDOW_SEQS
    sizes = [min(window, corpus - first) for first in range(0, corpus, window)]
    total = sum(batching.count_batches(size) for size in sizes)
    assert total == (corpus // num_seqs if last == "drop" else -(-corpus // num_seqs))


def test_lengths_do_not_matter_but_for_the_cost():
    batching = FixedCount(3)
    assert not batching.needs_lengths
    plans = [batching.plan_window(window, KEY, KEEP) for window in (np.arange(8), np.ones(8, int))]
    assert np.array_equal(plans[0].members, plans[1].members)


@pytest.mark.parametrize("options", [(0,), (True + 0.5,), ("3",), (3, "pad"), (3, "keep", "")])
def test_wrong_options_are_refused_when_built(options):
    with pytest.raises(ConfigError, match="FixedCount"):
        FixedCount(*options)
