"""The plan of an epoch is that of its windows one after the other, whoever asks for what: pure laws."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace import ConfigError, ResumeError
from headrace.batching import (
    BatchOrder,
    Buckets,
    Chunks,
    FixedCount,
    FrameBudget,
    LimitLengths,
    Pack,
    PlanCounts,
    WindowKey,
)
from headrace.loading.inputs import EpochOrder
from headrace.loading.plan import EpochPlan, PlanRecipe
from headrace.loading.steps import plan_steps
from headrace.order import ArrayOrder, occurrences

BATCH_ORDER = BatchOrder(group_batches=2)
BATCHINGS = (
    FixedCount(2),
    FixedCount(2, "drop"),
    FrameBudget(9),
    Buckets(FrameBudget(9), num_buckets=2),
    Chunks(FixedCount(3), 2, 1),
    LimitLengths(FrameBudget(9), 3),
    Pack(9, 2),
)


@st.composite
def epochs(draw):
    """Return the order of an epoch of few sequences, some more than once, and a recipe of small windows."""
    lengths = np.array(draw(st.lists(st.integers(1, 8), min_size=1, max_size=12)))
    indices = draw(st.lists(st.integers(0, len(lengths) - 1), max_size=25))
    order = ArrayOrder(indices, may_repeat=True)
    epoch = EpochOrder(draw(st.integers(1, 3)), order, lambda wanted: lengths[wanted], occurrences(order))
    batching, window_seqs = draw(st.sampled_from(BATCHINGS)), draw(st.sampled_from([2, 4, 6]))
    return epoch, PlanRecipe(batching, BATCH_ORDER, window_seqs, seed=7, checks_lengths=draw(st.booleans()))


def slow_plan(epoch, recipe):
    """Return the number of batches of each window, what each batch is, and the counts: all windows, in order."""
    sizes, batches, counts = [], [], PlanCounts()
    for window, start in enumerate(range(0, len(epoch.order), recipe.window_seqs)):
        indices = np.array(epoch.order[start : start + recipe.window_seqs], np.int64)
        lengths = epoch.lengths_of(indices)
        plan = recipe.batching.plan_window(lengths, WindowKey(recipe.seed, epoch.epoch, window), recipe.batch_order)
        sizes.append(len(plan))
        counts += plan.counts
        for batch in plan:
            has_frames = recipe.checks_lengths or batch.chunk_starts is not None
            others = batch.rows, batch.chunk_starts, batch.chunk_frames
            values = [None if array is None else array.tolist() for array in others]
            seq_idx = batch.members + start
            came = epoch.occurrences[seq_idx].tolist()
            frames = lengths[batch.members].tolist() if has_frames else None
            batches.append([seq_idx.tolist(), indices[batch.members].tolist(), came, *values, frames])
    return sizes, batches, counts


def batch_of(plan, number):
    task, seq_idx = plan.task(number)
    assert (task.epoch, task.number) == (plan.epoch, number)
    arrays = (seq_idx, task.indices, task.occurrences, task.rows, task.chunk_starts, task.chunk_frames, task.seq_frames)
    return [None if array is None else array.tolist() for array in arrays]


@given(epochs(), st.data())
def test_a_batch_is_the_same_in_any_order_and_from_wherever_the_plan_is_begun(of_epoch, data):
    epoch, recipe = of_epoch
    sizes, batches, _ = slow_plan(epoch, recipe)
    firsts = [0, *accumulate(sizes)]
    window = data.draw(st.integers(0, len(sizes)))
    plan = EpochPlan(epoch, recipe, (window, firsts[window]))
    for number in data.draw(st.lists(st.integers(0, len(batches) + 2), max_size=12)):
        assert plan.has(number) == (number < len(batches))
        if number < len(batches):
            place = bisect_right(firsts, number) - 1
            assert plan.locate(number) == (place, firsts[place])
            assert batch_of(plan, number) == batches[number]
    assert plan.num_batches() == len(batches)
    assert [plan.knows((at, first)) for at, first in enumerate(firsts)] == [True] * len(firsts)
    assert [batch_of(plan, number) for number in range(len(batches))] == batches


@given(epochs(), st.integers(1, 4), st.sampled_from(["drop", "pad", "keep"]))
def test_what_was_counted_on_the_way_is_what_is_counted_at_once(of_epoch, world_size, remainder):
    epoch, recipe = of_epoch
    _, batches, counts = slow_plan(epoch, recipe)
    assert EpochPlan(epoch, recipe).count_all() == counts
    plan = EpochPlan(epoch, recipe)
    for rank in range(world_size):
        for step in plan_steps(plan, rank, world_size, 0, remainder):
            plan.task(step.number)
    dropped = batches[len(batches) // world_size * world_size :] if remainder == "drop" else []
    expected = counts + PlanCounts(remainder=sum(len(batch[0]) for batch in dropped))
    if batches:
        assert plan.counts == expected


@given(epochs(), st.integers(0, 9), st.integers(0, 30))
def test_a_false_start_is_refused_at_the_latest_when_all_batches_are_counted(of_epoch, window, first):
    epoch, recipe = of_epoch
    sizes, _, _ = slow_plan(epoch, recipe)
    assume(not (window <= len(sizes) and sum(sizes[:window]) == first))
    if window > len(sizes) or window == 0:
        with pytest.raises(ResumeError, match="as it was saved"):
            EpochPlan(epoch, recipe, (window, first))
        return
    plan = EpochPlan(epoch, recipe, (window, first))
    with pytest.raises(ResumeError, match="which is wrong"):
        plan.num_batches()


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.integers(1, 8), st.sampled_from(["alone", "drop"]))
def test_a_budget_is_refused_only_if_no_sequence_fits_into_it(lengths, max_frames, too_long):
    lengths = np.array(lengths)
    order = EpochOrder(1, ArrayOrder(np.arange(len(lengths))), lambda wanted: lengths[wanted], shortest=lengths.min)
    plan = EpochPlan(order, PlanRecipe(FrameBudget(max_frames, too_long=too_long), BATCH_ORDER, 4, seed=0))
    if lengths.min() > max_frames:
        with pytest.raises(ConfigError, match="smaller than any sequence"):
            plan.count_all()
    else:
        assert plan.count_all().seqs == len(lengths)


def test_a_walk_plans_each_window_once_and_a_start_none_before_it():
    planned = []

    def lengths_of(indices):
        planned.append(indices[0] // 16)
        return np.ones(len(indices), np.int64)

    recipe = PlanRecipe(FrameBudget(2), BATCH_ORDER, 16, seed=0)
    epoch = EpochOrder(1, ArrayOrder(np.arange(64)), lengths_of)
    for rank in range(3):
        plan = EpochPlan(epoch, recipe)
        for step in plan_steps(plan, rank, 3, 0, "pad"):
            plan.task(step.number)
        assert planned == [0, 1, 2, 3, 0][: 5 if rank == 2 else 4]
        planned.clear()
    EpochPlan(epoch, recipe, (2, 16)).task(16)
    assert planned == [2]
