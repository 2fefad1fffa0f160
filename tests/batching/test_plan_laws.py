"""What holds for every batching, every window and every key."""

import numpy as np
import pytest
from batchings import batchings, buckets, frame_budgets, frames_of, keys, lengths, orders, packs, plain
from hypothesis import given
from hypothesis import strategies as st

import headrace.batching
from headrace.batching import (
    BatchOrder,
    BatchTable,
    Buckets,
    FixedCount,
    FrameBudget,
    Pack,
    PlanCounts,
    Steps,
    WindowKey,
    num_windows,
    window_bounds,
)


@given(plain, lengths, keys, orders)
def test_each_sequence_comes_once_or_in_chunks_that_cover_it_or_is_counted(batching, window, key, order):
    plan = batching.plan_window(window, key, order)
    covered = [np.zeros(length, int) for length in window]
    times = np.zeros(len(window), int)
    for batch in plan:
        for number, place in enumerate(batch.members):
            start = 0 if batch.chunk_starts is None else batch.chunk_starts[number]
            covered[place][start : start + frames_of(batch, window)[number]] += 1
            times[place] += 1
    counts = plan.counts
    assert counts.seqs == len(window)
    assert counts.pieces == times.sum()
    assert np.count_nonzero(times == 0) <= counts.left_out
    assert len(window) - counts.chunked + counts.chunks == counts.pieces + counts.left_out
    assert all((frames <= 1).all() for frames in covered)
    missing = sum(int((frames == 0).sum()) for frames in covered)
    assert missing == counts.left_out_frames
    if counts.left_out == 0:
        assert missing == 0
        assert (times[window > 0] > 0).all()
        assert (times > 0).all()


@given(batchings, lengths, keys, orders)
def test_counts_and_arrays_of_a_plan_agree(batching, window, key, order):
    plan = batching.plan_window(window, key, order)
    assert plan.members.dtype == plan.starts.dtype == np.int32
    assert plan.costs.dtype == np.int64
    assert plan.starts[0] == 0
    assert plan.starts[-1] == len(plan.members) == plan.counts.pieces
    assert (np.diff(plan.starts) > 0).all()
    assert len(plan) == len(plan.costs) == len(plan.starts) - 1
    frames = [frames_of(batch, window) for batch in plan]
    assert plan.counts.frames == sum(int(part.sum()) for part in frames)
    if plan.rows is None:
        assert plan.counts.padded_frames == sum(int(part.max()) * len(part) for part in frames)
    else:
        assert plan.counts.padded_frames == plan.costs.sum()
    assert 0 <= plan.counts.padding_share <= 1


@given(frame_budgets | buckets(), lengths, keys, orders)
def test_no_batch_exceeds_its_budget_but_a_sequence_that_is_alone(batching, window, key, order):
    plan = batching.plan_window(window, key, order)
    num_over = 0
    for batch in plan:
        frames = np.maximum(frames_of(batch, window), 1)
        budgets = batching.budget if isinstance(batching, Buckets) else batching
        if isinstance(budgets, tuple):
            budgets = budgets[int(np.searchsorted(batching.bounds, frames.max() if window.any() else 0))]
        if isinstance(budgets, FixedCount):
            assert len(batch) <= budgets.num_seqs
            continue
        assert batch.cost == _slow_cost(budgets, frames)
        assert budgets.max_seqs is None or len(batch) <= budgets.max_seqs
        if batch.cost > budgets.max_frames:
            assert len(batch) == 1
            assert budgets.too_long == "alone"
            num_over += 1
    assert num_over == plan.counts.alone


def _slow_cost(budget, frames):
    quadratic = budget.quadratic_length
    costs = [int(f) + (0 if quadratic is None else -(-(int(f) ** 2) // quadratic)) for f in frames]
    return max(costs) * len(costs) if budget.padded else sum(costs)


@given(batchings, lengths, keys, orders)
def test_the_same_arguments_give_the_same_plan(batching, window, key, order):
    first = batching.plan_window(window, key, order)
    second = batching.plan_window(window.astype(np.int32).copy(), WindowKey(*_parts(key)), order)
    _assert_same(first, second)


def _parts(key):
    return key.seed, key.epoch, key.window


def _assert_same(first, second):
    assert first.counts == second.counts
    for name in ("members", "starts", "costs", "rows", "chunk_starts", "chunk_frames"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@given(batchings, st.lists(st.integers(0, 60), max_size=60), st.integers(1, 30), st.randoms())
def test_windows_may_be_planned_by_anyone_in_any_order(batching, numbers, window_seqs, random):
    epoch = np.array(numbers, np.int64)
    windows = list(range(num_windows(len(epoch), window_seqs)))

    def plan(window):
        first, end = window_bounds(window, len(epoch), window_seqs)
        return batching.plan_window(epoch[first:end], WindowKey(1, 2, window))

    in_order = [plan(window) for window in windows]
    random.shuffle(windows)
    for window in windows:
        _assert_same(plan(window), in_order[window])
    total = sum((part.counts for part in in_order), PlanCounts())
    assert total.seqs == len(epoch)


@given(
    plain,
    st.lists(st.integers(0, 60), max_size=150),
    st.integers(5, 60),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6)), max_size=4),
)
def test_an_epoch_comes_once_over_windows_ranks_and_restarts_with_other_ranks(batching, numbers, window_seqs, jobs):
    """Jobs of so many ranks do so many steps each, then the epoch is finished by one more, of one rank."""
    epoch = np.array(numbers, np.int64)
    window_seqs = batching.window_seqs(window_seqs)
    bounds = [window_bounds(number, len(epoch), window_seqs) for number in range(num_windows(len(epoch), window_seqs))]
    plans = [batching.plan_window(epoch[a:b], WindowKey(1, 2, number)) for number, (a, b) in enumerate(bounds)]
    table = BatchTable(np.array([len(plan) for plan in plans], int))
    position, seen, frames = 0, np.zeros(len(epoch), int), 0
    for world_size, num_steps in [*jobs, (1, table.num_batches)]:
        ranks = [Steps(table.num_batches, rank, world_size, position) for rank in range(world_size)]
        num_steps = min(num_steps, len(ranks[0]))
        for steps in ranks:
            for step in range(num_steps):
                window, number = table.locate(steps.batch_at(step))
                batch = plans[window][number]
                np.add.at(seen, bounds[window][0] + batch.members, 1)
                frames += int(frames_of(batch, epoch[slice(*bounds[window])]).sum())
        position += num_steps * world_size
    counts = sum((plan.counts for plan in plans), PlanCounts())
    assert seen.sum() == counts.pieces
    assert frames == counts.frames == epoch.sum() - counts.left_out_frames
    if counts.chunked == 0:
        assert (seen <= 1).all()
        assert (seen == 0).sum() == counts.left_out


@given(batchings, lengths, keys)
def test_the_key_decides_where_a_batch_comes_and_never_what_is_in_it(batching, window, key):
    if "Pack" in str(batching):
        return  # rows are shuffled before they form batches
    other = WindowKey(key.seed + 1, key.epoch, key.window)
    contents = [
        sorted(
            tuple(batch.members.tolist()) + (() if batch.chunk_starts is None else tuple(batch.chunk_starts.tolist()))
            for batch in batching.plan_window(window, used)
        )
        for used in (key, other)
    ]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "batching", [FixedCount(2), FrameBudget(900), Buckets(FrameBudget(900)), Pack(1000, 2)], ids=lambda b: str(b)
)
def test_seed_epoch_and_window_each_give_another_order(batching):
    window = np.random.default_rng(0).integers(1, 300, 400)
    orders = {
        batching.plan_window(window, WindowKey(*parts), BatchOrder(group_batches=1)).members.tobytes()
        for parts in [(1, 1, 0), (2, 1, 0), (1, 2, 0), (1, 1, 1), (0, 2, 0), (0, 1, 1)]
    }
    assert len(orders) == 6


@given(batchings, lengths)
def test_the_number_of_batches_does_not_depend_on_the_key(batching, window):
    counts = {len(batching.plan_window(window, WindowKey(seed, 1, 0))) for seed in range(3)}
    assert len(counts) == 1
    known = batching.count_batches(len(window))
    assert known is None or counts == {known}


@given(batchings)
def test_equal_texts_mean_equal_batchings_and_texts_evaluate_to_them(batching):
    assert eval(str(batching), vars(headrace.batching)) == batching


@given(packs, lengths, keys, orders)
def test_rows_hold_what_fits_and_batches_hold_their_rows(batching, window, key, order):
    plan = batching.plan_window(window, key, order)
    small = 0
    for batch in plan:
        frames = frames_of(batch, window)
        in_rows = np.bincount(batch.rows, frames)
        assert (np.diff(batch.rows) >= 0).all()
        assert set(batch.rows) == set(range(len(in_rows)))  # no row is empty
        if in_rows.max() > batching.row_tokens:
            assert len(batch) == 1
            assert batch.cost == frames[0]
        else:
            assert len(in_rows) <= batching.num_rows
            assert batch.cost == len(in_rows) * batching.row_tokens
            small += len(in_rows) < batching.num_rows
    assert small <= 1
