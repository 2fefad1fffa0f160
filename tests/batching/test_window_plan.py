import hashlib
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from headrace.batching import (
    PLAN_VERSION,
    Batching,
    Buckets,
    Chunks,
    FixedCount,
    FrameBudget,
    Groups,
    LimitLengths,
    Pack,
    PlanCounts,
    WindowKey,
)
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=2, window=3)


def _window(num_seqs=5000):
    """The same lengths for ever: the legacy generator's stream is frozen."""
    return np.random.RandomState(7).randint(0, 3000, num_seqs)


GOLDEN = {
    FixedCount(16): "48e24eca140ac175",
    FrameBudget(40_000): "5831a0cad6731665",
    FrameBudget(40_000, max_seqs=20, padded=False): "5224de9198493929",
    FrameBudget(2_500, too_long="chunk", quadratic_length=9_000): "141f5b6cdd25b850",
    Buckets(FrameBudget(40_000)): "2e965d79bd5e9c8a",
    Buckets((FixedCount(32), FixedCount(16), FixedCount(8)), bounds=(500, 1500)): "750e6b95b3ae964b",
    Pack(4_000, 8): "f2d3679ca38a5382",
    Pack(4_000, 8, "best_fit"): "f78c1fbd6efe796a",
    LimitLengths(Chunks(FixedCount(16), 100, 50, context=(2, 2)), 40): "a2dcf6238b49499b",
}


@pytest.mark.parametrize(("batching", "digest"), GOLDEN.items(), ids=str)
def test_plans_never_change_between_releases_and_machines(batching, digest):
    """If this fails, a job that was saved by the last release would resume into other batches: raise PLAN_VERSION."""
    plan = batching.plan_window(_window(), KEY)
    arrays = (plan.members, plan.starts, plan.costs, plan.rows, plan.chunk_starts, plan.chunk_frames)
    data = b"".join(array.astype("<i8").tobytes() for array in arrays if array is not None)
    assert (PLAN_VERSION, hashlib.sha256(data).hexdigest()[:16]) == (1, digest)


def test_a_plan_is_small():
    window = np.random.RandomState(7).randint(50, 3000, 65_536)
    assert Buckets(FrameBudget(80_000)).plan_window(window, KEY).nbytes < 5 * 65_536
    assert Pack(4000, 16).plan_window(window, KEY).nbytes < 9 * 65_536


def test_a_plan_cannot_be_written_to():
    plan = Chunks(Pack(4000, 8), 100).plan_window(_window(), KEY)
    for name in ("members", "starts", "costs", "rows", "chunk_starts", "chunk_frames"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(plan, name)[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        plan[0].members[0] = 1


def test_a_batch_outside_of_its_window_is_an_index_error():
    plan = FixedCount(2).plan_window(np.arange(5), KEY)
    assert len(plan[2]) in (1, 2)
    for number in (3, -1):
        with pytest.raises(IndexError, match="3 batches"):
            plan[number]


def test_the_lengths_that_were_given_are_not_changed_or_kept():
    window = _window()
    before = window.copy()
    plan = FrameBudget(9000, too_long="chunk").plan_window(window, KEY)
    window[:] = 0
    assert plan.counts.frames == before.sum()
    assert window.flags.writeable


def test_batchings_plans_and_counts_survive_pickling():
    batching = LimitLengths(Chunks(Buckets(FrameBudget(900)), 100), 5)
    assert pickle.loads(pickle.dumps(batching)) == batching
    plan = batching.plan_window(_window(100), KEY)
    copy = pickle.loads(pickle.dumps(plan))
    np.testing.assert_array_equal(copy.members, plan.members)
    assert copy.counts == plan.counts


def test_counts_add_up_and_say_nothing_of_what_did_not_happen():
    first = PlanCounts(seqs=3, pieces=3, frames=60, padded_frames=80)
    total = sum([first, PlanCounts(seqs=2, alone=1, frames=20, padded_frames=20)], PlanCounts())
    assert total == PlanCounts(seqs=5, pieces=3, alone=1, frames=80, padded_frames=100)
    assert total.padding_share == pytest.approx(0.2)
    assert str(first) == "3 sequences in batches with 25.0% padding"
    assert str(PlanCounts()) == "0 sequences in batches with 0.0% padding"


def test_a_batching_of_your_own_needs_only_a_group_method():
    @dataclass(frozen=True)
    class Singles(Batching):
        def group(self, frames, key):
            return Groups(np.arange(len(frames)), np.arange(len(frames) + 1), frames)

    plan = Singles().plan_window(np.array([5, 7, 6]), KEY)
    assert sorted(plan.members.tolist()) == [0, 1, 2]
    assert str(Singles()) == "Singles()"
    assert LimitLengths(Singles(), 6).plan_window(np.array([5, 7, 6]), KEY).counts.too_short == 1


def test_a_batching_of_your_own_that_puts_sequences_into_rows_must_say_how_long_these_are():
    @dataclass(frozen=True)
    class Paired(Batching):
        def group(self, frames, key):
            return Groups(np.arange(2), np.array([0, 2]), frames[:1], rows=np.array([0, 0], np.int32))

    class LaidOut(Paired):
        def row_layout(self, rows):
            return Pack(16, 1).row_layout(rows)

    rows = Paired().plan_window(np.array([5, 7]), KEY)[0].rows
    with pytest.raises(ConfigError, match="does not say how long rows are"):
        LimitLengths(Paired()).row_layout(rows)
    layout = LimitLengths(LaidOut()).row_layout(rows)
    assert (layout.row_tokens, layout.num_rows, layout.rows.tolist()) == (16, 1, [0, 0])


def test_large_seeds_and_epochs_are_keys_too():
    plan = FixedCount(2).plan_window(np.arange(5), WindowKey(-(2**63), 2**63 - 1, 2**40))
    assert sorted(plan.members.tolist()) == [0, 1, 2, 3, 4]
