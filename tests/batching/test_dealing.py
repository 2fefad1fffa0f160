"""What holds for every share of an evaluation: equally many steps on all ranks, and each sequence in one of them."""

from collections import Counter

import numpy as np
import pytest
from batchings import batchings, frame_budgets, frames_of, keys, lengths, orders
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import BatchOrder, FixedCount, Pack, Pieces, WindowKey
from headrace.batching.dealing import Dealt
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=1, window=0)


def plans_of(batching, window, world_size, last_step, key=KEY, order=None):
    return [Dealt(batching, rank, world_size, last_step).plan_window(window, key, order) for rank in range(world_size)]


def pieces_of(batch, window):
    starts = np.zeros(len(batch), int) if batch.chunk_starts is None else batch.chunk_starts
    return list(zip(batch.members.tolist(), starts.tolist(), frames_of(batch, window).tolist(), strict=True))


def all_pieces(batching, window):
    pieces = batching.cut(Pieces.of_lengths(window))
    starts = np.zeros(len(pieces.frames), int) if pieces.starts is None else pieces.starts
    return Counter(zip(pieces.positions.tolist(), starts.tolist(), pieces.frames.tolist(), strict=True))


def gathered(plans, window):
    """Return the pieces that a library gathers from the ranks, step by step, which trims the last step."""
    steps = [[piece for batch in batches for piece in pieces_of(batch, window)] for batches in zip(*plans, strict=True)]
    rest = plans[0].counts.pieces % len(plans)
    if rest:
        assert len(steps[-1]) == len(plans)
        del steps[-1][rest:]
    return Counter(piece for step in steps for piece in step)


@given(batchings, lengths, st.integers(1, 5), keys, orders)
def test_a_library_that_trims_the_last_step_gathers_each_sequence_once(batching, window, world_size, key, order):
    plans = plans_of(batching, window, world_size, "repeat", key, order)
    assert len({plan.counts for plan in plans}) == 1
    assert len({tuple(plan.starts.tolist()) for plan in plans}) == 1
    found, expected, counts = gathered(plans, window), all_pieces(batching, window), plans[0].counts
    assert found.total() == counts.pieces
    assert found <= expected
    assert (expected - found).total() == counts.last


@given(batchings, lengths, st.integers(1, 5), keys, orders)
def test_where_nothing_trims_each_sequence_comes_once_by_itself(batching, window, world_size, key, order):
    expected = plans_of(batching, window, world_size, "repeat", key, order)
    try:
        plans = plans_of(batching, window, world_size, "split", key, order)
    except ConfigError:
        assert all(size == 1 for plan in expected for size in np.diff(plan.starts))
        assert expected[0].counts.pieces % world_size
        return
    assert [len(plan) for plan in plans] == [len(plan) for plan in expected]
    assert [plan.counts for plan in plans] == [plan.counts for plan in expected]
    found = Counter(piece for plan in plans for batch in plan for piece in pieces_of(batch, window))
    assert found == gathered(expected, window)
    assert all((np.diff(plan.starts) > 0).all() for plan in plans)


@given(frame_budgets, lengths, st.integers(1, 5), st.sampled_from(["repeat", "split"]))
def test_no_batch_of_a_rank_exceeds_the_budget(batching, window, world_size, last_step):
    try:
        plans = plans_of(batching, window, world_size, last_step)
    except ConfigError:
        return
    for batch in (batch for plan in plans for batch in plan):
        costs = batching.costs_of(frames_of(batch, window))
        cost = costs.max() * len(costs) if batching.padded else costs.sum()
        assert cost <= batching.max_frames or len(costs) == 1
        assert len(costs) <= (batching.max_seqs or len(costs))


def test_19_sequences_in_batches_of_4_for_2_ranks():
    members = {}
    for last_step in ("repeat", "split"):
        plans = plans_of(FixedCount(4), np.full(19, 5), 2, last_step, order=BatchOrder("keep", 1))
        members[last_step] = [[batch.members.tolist() for batch in plan] for plan in plans]
    assert members["repeat"] == [
        [[0, 2, 4, 6], [8, 10, 12, 14], [16], [18]],
        [[1, 3, 5, 7], [9, 11, 13, 15], [17], [18]],
    ]
    assert members["split"] == [
        [[0, 2, 4, 6], [8, 10, 12, 14], [16], [18]],
        [[1, 3, 5, 7], [9, 11, 13], [17], [15]],
    ]


def test_packed_rows_are_as_many_on_all_ranks():
    window = np.array([7, 3, 9, 1, 4, 4, 6, 2, 8])
    plans = plans_of(Pack(10, 2), window, 2, "split")
    assert {int(batch.rows.max()) + 1 for plan in plans for batch in plan} <= {1, 2}
    assert sorted(place for plan in plans for batch in plan for place in batch.members.tolist()) == list(range(9))


def test_batches_of_one_sequence_cannot_be_shared_equally_without_a_repeat():
    for rank in range(2):
        with pytest.raises(ConfigError, match="3 sequences cannot be shared equally among 2 ranks"):
            Dealt(FixedCount(1), rank, 2, "split").plan_window(np.ones(3, int), KEY)
