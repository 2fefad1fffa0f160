import numpy as np
import pytest
from batchings import lengths
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import BatchOrder, Buckets, FixedCount, FrameBudget, Pack, WindowKey
from headrace.batching.buckets import least_padding_bounds
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=1, window=0)
KEEP = BatchOrder("keep", group_batches=1)


def _speech(num_seqs, seed=0):
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(700), 0.7, num_seqs), 50, 3500).astype(np.int64)


def _members(batching, window):
    return [batch.members.tolist() for batch in batching.plan_window(np.array(window), KEY, KEEP)]


def test_sequences_meet_those_of_their_bucket_in_the_order_of_the_epoch():
    batching = Buckets(FixedCount(2), bounds=(10, 20))
    assert _members(batching, [5, 15, 10, 25, 20, 99]) == [[0, 2], [1, 4], [3, 5]]


def _slow_batches(batching, window):
    """Each bucket on its own, then what is left of all: plain loops."""
    kept, left = [], []
    for bucket in range(len(batching.bounds) + 1):
        members = [place for place in range(len(window)) if np.searchsorted(batching.bounds, window[place]) == bucket]
        batches = _slow_greedy(batching, window, members)
        if batches and len(batches[-1]) < min(_cap(batching, window[place]) for place in batches[-1]):
            left += batches.pop()
        kept += batches
    return kept + _slow_greedy(batching, window, left)


def _cap(batching, frames):
    budget = batching.budget
    if isinstance(budget, tuple):
        budget = budget[int(np.searchsorted(batching.bounds, frames))]
    return int(budget.caps(np.array([frames]))[0])


def _slow_greedy(batching, window, members):
    batches = []
    for place in members:
        batch = [*batches[-1], place] if batches else [place]
        if batches and len(batch) <= min(_cap(batching, window[member]) for member in batch):
            batches[-1] = batch
        else:
            batches.append([place])
    return batches


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "budget",
    [
        FrameBudget(1000),
        FrameBudget(1000, max_seqs=7, quadratic_length=200),
        FixedCount(5),
        tuple(FrameBudget(frames) for frames in (1000, 300, 2000, 500)),
        tuple(FixedCount(num_seqs) for num_seqs in (9, 4, 6, 1)),
    ],
    ids=["frames", "quadratic", "count", "frames by bucket", "counts by bucket"],
)
def test_the_vectorised_batches_are_those_of_the_slow_loops(budget, seed):
    window = np.random.default_rng(seed).integers(0, 400, 150)
    batching = Buckets(budget, bounds=(50, 120, 250))
    plan = batching.plan_window(window, KEY)
    assert sorted(batch.members.tolist() for batch in plan) == sorted(_slow_batches(batching, window))


def test_a_bucket_may_have_its_own_budget_and_the_last_takes_all_that_is_longer():
    batching = Buckets((FixedCount(4), FixedCount(2), FixedCount(1)), bounds=(10, 20))
    assert _members(batching, [1, 2, 3, 4, 11, 12, 99, 1000]) == [[0, 1, 2, 3], [4, 5], [6], [7]]


def test_what_is_left_of_the_buckets_is_joined_into_full_batches():
    batching = Buckets(FixedCount(4), bounds=tuple(range(10, 100, 10)))
    window = list(range(5, 105, 10))  # one sequence in each of ten buckets
    assert _members(batching, window) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    budget = FrameBudget(200)
    joined = Buckets(budget, bounds=tuple(range(10, 100, 10))).plan_window(np.array(window), KEY)
    alone = sum(1 for _ in window)
    assert len(joined) < alone / 2
    assert (joined.costs <= 200).all()


def test_a_small_last_batch_of_what_is_left_can_be_dropped():
    batching = Buckets(FixedCount(4, last="drop"), bounds=(10, 20))
    plan = batching.plan_window(np.array([5, 15, 25, 5, 15]), KEY)
    assert len(plan) == 1
    assert plan.counts.last == 1
    assert Buckets(FixedCount(4, last="drop"), bounds=(10,)).plan_window(np.array([5, 15]), KEY).counts.last == 2


@given(lengths, st.integers(1, 9))
def test_fixed_counts_are_full_but_for_one(window, num_seqs):
    batching = Buckets(FixedCount(num_seqs), num_buckets=5)
    sizes = np.diff(batching.plan_window(window, KEY).starts)
    assert len(sizes) == batching.count_batches(len(window)) == -(-len(window) // num_seqs)
    assert np.count_nonzero(sizes != num_seqs) <= 1
    assert batching.window_seqs() == FixedCount(num_seqs).window_seqs()


def _padding(window, bounds):
    """Padding as a share of the frames, if each sequence is padded to the longest of its bucket."""
    buckets = np.searchsorted(bounds, window)
    longest = np.zeros(len(bounds) + 1)
    np.maximum.at(longest, buckets, window)
    return longest[buckets].sum() / window.sum() - 1


def _least_padding(window, num_buckets):
    """The least that any bounds reach, by dynamic programming over all lengths that there are."""
    distinct, counts = np.unique(window, return_counts=True)
    ends = np.cumsum(counts)
    best = ends * distinct.astype(float)
    for _ in range(num_buckets - 1):
        joined = best[:, None] + (ends[None, :] - ends[:, None]) * distinct[None, :]
        joined[np.tril_indices(len(distinct))] = np.inf
        best = np.minimum(best, joined.min(axis=0))
    return best[-1] / window.sum() - 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: np.clip(rng.lognormal(5, 0.7, 5000), 10, 900),
        lambda rng: rng.integers(1, 500, 5000),
        lambda rng: rng.exponential(100, 5000) + 1,
        lambda rng: np.minimum(rng.lognormal(5, 0.7, 5000) + 1, 200),
    ],
    ids=["log-normal", "uniform", "exponential", "capped"],
)
@pytest.mark.parametrize("num_buckets", [8, 32])
def test_bounds_are_close_to_the_best_and_better_than_even_shares(draw, num_buckets):
    window = draw(np.random.default_rng(0)).astype(np.int64)
    ours = _padding(window, least_padding_bounds(window, num_buckets))
    ordered = np.sort(window)
    sums = np.cumsum(ordered)
    shared = ordered[np.searchsorted(sums, sums[-1] * np.arange(1, num_buckets) / num_buckets)]
    assert ours < 1.2 * _least_padding(window, num_buckets)
    assert ours < 0.97 * _padding(window, np.unique(shared))


@given(st.lists(st.integers(0, 2**40), max_size=50), st.integers(1, 100))
def test_bounds_are_ascending_lengths_of_the_window(numbers, num_buckets):
    bounds = least_padding_bounds(np.array(numbers, np.int64), num_buckets)
    assert len(bounds) < max(num_buckets, 1)
    assert (np.diff(bounds) > 0).all()
    assert len(bounds) == 0 or (bounds[0] >= 0 and bounds[-1] <= max(numbers) * 33 // 32 + 1)


def test_an_outlier_does_not_take_the_buckets_of_the_others():
    window = _speech(20_000)
    shares = [
        Buckets(FrameBudget(80_000), num_buckets=30).plan_window(part, KEY).counts.padded_frames
        for part in (window, np.append(window, 79_000))
    ]
    assert shares[1] - shares[0] < 79_000 + 0.01 * shares[0]


def test_more_buckets_mean_less_padding():
    window = _speech(60_000)
    shares = [
        Buckets(FrameBudget(80_000), num_buckets=num).plan_window(window, KEY).counts.padding_share
        for num in (1, 4, 16, 64)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6
    assert shares[-1] < 0.03


def test_padding_is_not_above_that_of_ideal_buckets_without_joining():
    """Each bucket on its own, with no end: what a sampler with the same buckets could reach at best."""
    window, budget = _speech(60_000), 80_000
    bounds = least_padding_bounds(window, 30)
    batching = Buckets(FrameBudget(budget), bounds=tuple(bounds.tolist()))
    buckets = np.searchsorted(bounds, window)
    padded = 0
    for bucket in range(len(bounds) + 1):
        longest = count = 0
        for frames in window[buckets == bucket].tolist():
            if max(longest, frames) * (count + 1) > budget:
                padded, longest, count = padded + longest * count, 0, 0
            longest, count = max(longest, frames), count + 1
        padded += longest * count
    plan = batching.plan_window(window, KEY)
    assert plan.counts.padding_share <= 1 - window.sum() / padded + 0.003


def test_equal_lengths_and_empty_windows_are_legal():
    assert _members(Buckets(FixedCount(2)), [7, 7, 7]) == [[0, 1], [2]]
    assert len(Buckets(FixedCount(2)).plan_window(np.zeros(0, int), KEY)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), (1,)), "no budget"),
        ((Pack(10, 1),), "a FrameBudget or a FixedCount"),
        ((100,), "a FrameBudget or a FixedCount"),
        ((FrameBudget(9, padded=False),), "must count padding"),
        ((FrameBudget(9), (3, 2)), "ascend"),
        ((FrameBudget(9), (2, 2)), "ascend"),
        ((FrameBudget(9), (-1, 2)), "bounds must be in"),
        ((FrameBudget(9), 5), "bounds must be lengths"),
        ((FrameBudget(9), tuple(range(5000))), "too many"),
        ((FrameBudget(9), (1,), 3), "exclude each other"),
        ((FrameBudget(9), None, 0), "num_buckets"),
        (((FixedCount(1), FixedCount(2)),), "needs bounds"),
        (((FixedCount(1), FixedCount(2)), (1, 2)), "2 budgets for 3 buckets"),
        (((FixedCount(1),), (1,)), "1 budgets for 2 buckets"),
        (((FixedCount(1), FrameBudget(2)), (1,)), "agree on too_long"),
        (((FrameBudget(1, too_long="chunk"), FrameBudget(2, too_long="chunk")), (1,)), "one budget for all"),
        (((FrameBudget(1, data_key="a"), FrameBudget(2, data_key="b")), (1,)), "agree on data_key"),
    ],
)
def test_wrong_options_are_refused_when_built(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Buckets(*arguments)


def test_the_data_key_is_that_of_the_budget():
    assert Buckets(FrameBudget(9, data_key="audio")).data_key == "audio"
    assert Buckets(FrameBudget(9)).data_key is None
