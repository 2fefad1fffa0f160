import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import BatchOrder, Pack, WindowKey
from headrace.batching.pack import place_in_rows
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=1, window=0)


def _slow_rows(frames, row_tokens, strategy):
    """Place one sequence after the other, longest first."""
    rooms, rows = [], {}
    for place in sorted(range(len(frames)), key=lambda place: -max(frames[place], 1)):
        need = max(frames[place], 1)
        fitting = [row for row, room in enumerate(rooms) if room >= need]
        if strategy == "best_fit":
            fitting.sort(key=lambda row: rooms[row])
        if not fitting:
            fitting = [len(rooms)]
            rooms.append(row_tokens)
        rooms[fitting[0]] -= need
        rows[place] = fitting[0]
    return [rows[place] for place in range(len(frames))]


@given(st.lists(st.integers(0, 50), max_size=80), st.integers(50, 200), st.sampled_from(["first_fit", "best_fit"]))
def test_the_vectorised_placement_is_that_of_the_slow_loop(frames, row_tokens, strategy):
    rows = place_in_rows(np.array(frames, np.int64), row_tokens, strategy)
    assert rows.tolist() == _slow_rows(frames, row_tokens, strategy)


@given(st.integers(2049, 10**9), st.lists(st.floats(0, 1), max_size=60), st.sampled_from(["first_fit", "best_fit"]))
def test_long_rows_are_never_overfull(row_tokens, shares, strategy):
    frames = (np.array(shares) * row_tokens).astype(np.int64)
    rows = place_in_rows(frames, row_tokens, strategy)
    assert np.bincount(rows, frames).max(initial=0) <= row_tokens
    if len(frames):
        # at most one row is half empty or more, give or take what is lost by rounding
        used = np.sort(np.bincount(rows, frames))
        assert (used[1:] > row_tokens / 2 - len(frames) * row_tokens / 1024).all()


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit"])
def test_rows_are_nearly_full(strategy):
    window = np.clip(np.random.default_rng(0).lognormal(5.5, 0.8, 20_000), 10, 2048).astype(int)
    plan = Pack(2048, 8, strategy).plan_window(window, KEY)
    assert plan.counts.padding_share < 0.01


def test_long_and_short_sequences_come_all_over_the_window():
    window = np.clip(np.random.default_rng(0).lognormal(5.5, 0.8, 20_000), 10, 2048).astype(int)
    plan = Pack(2048, 8).plan_window(window, KEY, BatchOrder(group_batches=1))
    frames = window[plan.members]
    halves = np.array_split(frames, 2)
    assert halves[0].mean() == pytest.approx(halves[1].mean(), rel=0.1)


def test_other_rows_share_a_batch_in_each_epoch():
    window = np.random.default_rng(0).integers(1, 100, 2000)
    contents = []
    for epoch in (1, 2):
        plan = Pack(300, 4).plan_window(window, WindowKey(1, epoch, 0))
        contents.append({tuple(sorted(batch.members.tolist())) for batch in plan})
    assert len(contents[0] & contents[1]) < 0.05 * len(contents[0])


def test_sequences_of_a_row_keep_the_order_of_the_epoch():
    window = np.random.default_rng(0).integers(1, 100, 500)
    for batch in Pack(300, 4).plan_window(window, KEY):
        for row in range(batch.rows.max() + 1):
            members = batch.members[batch.rows == row]
            assert (np.diff(members) > 0).all()


def test_what_is_longer_than_a_row_may_be_a_batch_of_its_own_and_is_counted():
    plan = Pack(10, 2, too_long="alone").plan_window(np.array([5, 25, 5, 10, 7, 11]), KEY)
    alone = [batch for batch in plan if batch.cost > 20 or batch.cost == 11]
    assert sorted(batch.members.tolist() for batch in alone) == [[1], [5]]
    assert plan.counts.alone == 2


def test_what_is_longer_than_a_row_can_be_cut_dropped_or_refused():
    window = np.array([5, 25, 5])
    assert Pack(10, 2).plan_window(window, KEY).chunk_frames.max() == 9
    assert str(Pack(10, 2)) == str(Pack(10, 2, too_long="chunk")) == "Pack(row_tokens=10, num_rows=2, too_long='chunk')"
    assert Pack(10, 2, too_long="drop").plan_window(window, KEY).counts.too_long == 1
    with pytest.raises(ConfigError, match="25 frames"):
        Pack(10, 2, too_long="error").plan_window(window, KEY)


@pytest.mark.parametrize(
    "options",
    [
        {"row_tokens": 0, "num_rows": 1},
        {"row_tokens": 1, "num_rows": 0},
        {"row_tokens": 1, "num_rows": 1, "strategy": "next_fit"},
        {"row_tokens": 1, "num_rows": 1, "too_long": "cut"},
        {"row_tokens": 1, "num_rows": 1, "packed_keys": "data"},
        {"row_tokens": 1, "num_rows": 1, "data_key": ""},
    ],
)
def test_wrong_options_are_refused_when_built(options):
    with pytest.raises(ConfigError, match="Pack"):
        Pack(**options)
