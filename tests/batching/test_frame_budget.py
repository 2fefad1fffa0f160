import numpy as np
import pytest
from batchings import frame_budgets, lengths
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import BatchOrder, FixedCount, FrameBudget, WindowKey
from headrace.errors import ConfigError, SourceError

KEY = WindowKey(seed=1, epoch=1, window=0)
KEEP = BatchOrder("keep", group_batches=1)


def _plan(batching, numbers):
    return batching.plan_window(np.array(numbers, np.int64), KEY, KEEP)


def _members(batching, numbers):
    return [batch.members.tolist() for batch in _plan(batching, numbers)]


def test_a_batch_ends_where_the_documented_example_ends_it():
    numbers = [5, 3, 8, 2, 9, 1, 1, 4]
    assert _members(FrameBudget(10), numbers) == [[0, 1], [2], [3], [4], [5, 6], [7]]
    assert _members(FrameBudget(10, max_seqs=1), numbers) == [[number] for number in range(8)]
    assert _members(FrameBudget(100, max_seqs=3), numbers) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def _slow_batches(budget, numbers):
    """One sequence after the other, as a person would do it."""
    costs = [max(t, 1) + (0 if (q := budget.quadratic_length) is None else -(-(max(t, 1) ** 2) // q)) for t in numbers]
    batches = [[]]
    for number in range(len(numbers)):
        batch = [*batches[-1], number]
        all_costs = [costs[member] for member in batch]
        cost = max(all_costs) * len(batch) if budget.padded else sum(all_costs)
        if batches[-1] and (cost > budget.max_frames or len(batch) > (budget.max_seqs or len(batch))):
            batches.append([])
        batches[-1].append(number)
    return batches if numbers else []


@given(frame_budgets, lengths)
def test_the_vectorised_batches_are_those_of_the_slow_loop(budget, window):
    plan = _plan(budget, window)
    numbers = window[window <= budget.longest] if budget.too_long == "drop" else window
    if plan.chunk_frames is not None:
        numbers = plan.chunk_frames
    expected = _slow_batches(budget, numbers.tolist())
    assert np.diff(plan.starts).tolist() == [len(batch) for batch in expected]
    if budget.too_long == "alone":
        assert [batch.members.tolist() for batch in plan] == expected


@given(st.integers(2, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_the_longest_is_the_last_that_fits(max_frames, quadratic_length):
    budget = FrameBudget(max_frames, quadratic_length=quadratic_length)
    costs = budget.costs_of(np.array([budget.longest, budget.longest + 1]))
    assert costs[0] <= max_frames < costs[1]
    assert FrameBudget(max_frames).longest == max_frames


def test_a_long_sequence_is_alone_by_default_and_counted():
    plan = _plan(FrameBudget(10), [3, 3, 50, 3, 3])
    assert [batch.members.tolist() for batch in plan] == [[0, 1], [2], [3, 4]]
    assert plan.costs.tolist() == [6, 50, 6]
    assert plan.counts.alone == 1
    assert "1 over the budget, each alone in a batch" in str(plan.counts)


def test_a_long_sequence_can_be_dropped_and_is_counted_with_its_frames():
    plan = _plan(FrameBudget(10, too_long="drop"), [3, 3, 50, 3, 3])
    assert plan.members.tolist() == [0, 1, 3, 4]
    assert (plan.counts.too_long, plan.counts.left_out, plan.counts.left_out_frames) == (1, 1, 50)
    assert "left out: 1 too long; 50 frames left out (80.65%)" in str(plan.counts)


def test_a_long_sequence_can_be_cut_into_chunks_of_equal_length():
    plan = _plan(FrameBudget(10, too_long="chunk"), [3, 31, 2])
    chunks = sorted(zip(plan.members.tolist(), plan.chunk_starts.tolist(), plan.chunk_frames.tolist(), strict=True))
    assert chunks == [(0, 0, 3), (1, 0, 8), (1, 8, 8), (1, 16, 8), (1, 24, 7), (2, 0, 2)]
    assert (plan.counts.chunked, plan.counts.chunks, plan.counts.left_out_frames) == (1, 4, 0)
    assert "1 cut into 4 chunks" in str(plan.counts)


def test_a_window_without_long_sequences_has_no_chunks():
    plan = _plan(FrameBudget(10, too_long="chunk"), [3, 2])
    assert plan.chunk_starts is None
    assert plan.chunk_frames is None


def test_a_long_sequence_can_be_an_error_that_says_which_and_what_to_do():
    with pytest.raises(ConfigError, match=r"50 frames.*allows 10 \(1 such") as error:
        _plan(FrameBudget(10, too_long="error"), [3, 3, 50, 3])
    assert error.value.where == "position 2, window 0 of epoch 1"
    assert "chunk" in error.value.fix


def test_a_budget_below_every_sequence_makes_batches_of_one():
    plan = _plan(FrameBudget(1), [5, 6, 7])
    assert [batch.members.tolist() for batch in plan] == [[0], [1], [2]]
    assert plan.counts.alone == 3


def test_empty_sequences_count_as_one_frame():
    assert _members(FrameBudget(3), [0] * 7) == [[0, 1, 2], [3, 4, 5], [6]]
    assert _members(FrameBudget(3, padded=False), [0] * 7) == [[0, 1, 2], [3, 4, 5], [6]]


def test_absurd_lengths_do_not_overflow():
    plan = _plan(FrameBudget(2**31 - 1, quadratic_length=1), [2**40, 1, 3_100_000_000])
    assert [batch.members.tolist() for batch in plan] == [[0], [1], [2]]
    assert (plan.costs > 0).all()
    plan = _plan(FixedCount(2), [2**40] * 2)
    assert plan.costs.tolist() == [2**41]
    with pytest.raises(ConfigError, match="more than 67108864 chunks"):
        _plan(FrameBudget(1, too_long="chunk"), [2**40] * 100)


@pytest.mark.parametrize("window", [np.array([1, -1]), np.array([2**41]), np.array([1.5]), np.zeros((2, 2), int)])
def test_lengths_that_are_none_are_refused(window):
    with pytest.raises(SourceError, match="length") as error:
        FrameBudget(10).plan_window(window, KEY)
    assert "window 0 of epoch 1" in error.value.where


@pytest.mark.parametrize(
    "options",
    [
        {"max_frames": 0},
        {"max_frames": 2**31},
        {"max_frames": 1.5},
        {"max_frames": None},
        {"max_frames": 10, "max_seqs": 0},
        {"max_frames": 10, "padded": 1},
        {"max_frames": 10, "too_long": "ignore"},
        {"max_frames": 10, "data_key": 3},
        {"max_frames": 10, "quadratic_length": 0},
        {"max_frames": 1, "quadratic_length": 9},
    ],
)
def test_wrong_options_are_refused_when_built(options):
    with pytest.raises(ConfigError, match="FrameBudget"):
        FrameBudget(**options)


def test_the_text_has_only_what_is_not_default():
    assert str(FrameBudget(10)) == "FrameBudget(max_frames=10)"
    assert str(FrameBudget(np.int64(10), too_long="drop")) == "FrameBudget(max_frames=10, too_long='drop')"
