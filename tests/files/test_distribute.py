from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.files.plan import FilePlan, distribute_in_order, distribute_largest_first

SIZES = st.lists(
    st.one_of(st.integers(0, 3), st.integers(0, 200), st.integers(1, 2**40), st.sampled_from([1, 10, 100])),
    min_size=1,
    max_size=60,
)


def _in_order(sizes: list[int], num_bins: int) -> list[list[int]]:
    bounds = distribute_in_order(sizes, num_bins)
    return [sizes[start:stop] for start, stop in itertools.pairwise(bounds)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 10, 1, 1], [[1], [10], [1, 1]]),
        ([1, 1, 78, 120], [[1], [1], [78], [120]]),
        ([120, 78, 1, 1], [[120], [78], [1], [1]]),
        ([1, 1, 1, 56, 141], [[1], [1], [1], [56], [141]]),
        ([1, 1, 1, 56, 141], [[1, 1], [1], [56], [141]]),
        ([5, 5, *[10] * 7], [[5, 5, 10], [10, 10], [10], [10], [10, 10]]),
        ([1] * 29, [[1] * n for n in (4, 4, 4, 3, 3, 3, 4, 4)]),
        ([1] * 10, [[1, 1]] * 5),
        ([100, 1, 1, 1], [[100], [1, 1, 1]]),
        ([0] * 4, [[0, 0, 0], [0]]),
        ([10] * 7, [[10, 10], [10, 10], [10, 10, 10]]),
        ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [[3, 1, 4, 1, 5], [9, 2], [6, 5], [3, 5, 8]]),
        ([1000, *[1] * 10], [[1000], [1] * 5, [1] * 5]),
    ],
)
def test_files_are_distributed_in_order_as_documented(sizes: list[int], expected: list[list[int]]) -> None:
    assert _in_order(sizes, len(expected)) == expected


def _slow_in_order(sizes: list[int], num_bins: int) -> list[list[int]]:
    """Do what the documentation says, file by file."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    average, current, seen = sum(sizes) / num_bins, 0, 0
    for place, size in enumerate(sizes):
        seen += size
        taken = sum(bins[current])
        is_last = current == num_bins - 1
        fits = is_last or taken + size <= average
        must_move = len(sizes) - place <= num_bins - current - 1
        if not must_move and (fits or not bins[current] or abs(taken + size - average) <= abs(taken - average)):
            bins[current].append(size)
            if fits:
                continue
            current += 1
        else:
            current += 1
            bins[current].append(size)
        average = (sum(sizes) - seen) / (num_bins - current)
    return bins


@examples(500)
@given(sizes=SIZES | st.lists(st.integers(2**50, 2**63 - 1), min_size=1, max_size=30), data=st.data())
def test_the_fast_way_gives_the_same_bins_as_the_slow_one(sizes: list[int], data: st.DataObject) -> None:
    num_bins = data.draw(st.integers(1, len(sizes)))
    bins = _in_order(sizes, num_bins)
    assert bins == _slow_in_order(sizes, num_bins)
    assert all(bins)


def _sums(sizes: list[int], bins: list[Any]) -> list[int]:
    return [sum(sizes[file] for file in files) for files in bins]


def _best_possible(sizes: list[int], num_bins: int) -> int:
    """Return the bytes of the fullest bin of the best distribution, by trying all."""
    return min(
        max(sum(size for size, bin_idx in zip(sizes, choice, strict=True) if bin_idx == b) for b in range(num_bins))
        for choice in itertools.product(range(num_bins), repeat=len(sizes))
    )


@given(sizes=SIZES, rng_seed=st.none() | st.integers(-(2**63), 2**63 - 1), data=st.data())
def test_largest_first_takes_each_file_once_and_bins_differ_by_a_file_at_most(
    sizes: list[int], rng_seed: int | None, data: st.DataObject
) -> None:
    num_bins = data.draw(st.integers(1, len(sizes)))
    bins = distribute_largest_first(sizes, num_bins, rng_seed)
    assert len(bins) == num_bins
    assert all(len(files) for files in bins)
    assert sorted(itertools.chain(*(files.tolist() for files in bins))) == list(range(len(sizes)))
    sums = _sums(sizes, bins)
    fullest = int(np.argmax(sums))
    # in its class the last file may be any, so: the smallest file of the fullest bin is at least 8/9 of the last one
    assert max(sums) - min(sums) <= max(sizes)
    assert max(sums) - min(sums) <= min(sizes[file] for file in bins[fullest]) * 9 / 8


@examples(150)
@given(
    sizes=st.lists(st.integers(0, 40) | st.integers(64, 72) | st.integers(0, 10**9), min_size=2, max_size=7),
    num_bins=st.integers(2, 3),
    rng_seed=st.none() | st.integers(0, 1000),
)
def test_largest_first_keeps_its_bound(sizes: list[int], num_bins: int, rng_seed: int | None) -> None:
    num_bins = min(num_bins, len(sizes))
    fullest = max(_sums(sizes, distribute_largest_first(sizes, num_bins, rng_seed)))
    assert 8 * num_bins * fullest <= (11 * num_bins - 3) * _best_possible(sizes, num_bins)


def test_files_of_like_size_are_mixed_anew_by_each_seed_and_the_same_for_the_same_seed() -> None:
    sizes = np.random.RandomState(1).randint(1000, 1100, 64)
    ways = {
        rng_seed: frozenset(frozenset(files.tolist()) for files in distribute_largest_first(sizes, 8, rng_seed))
        for rng_seed in range(20)
    }
    assert len(set(ways.values())) == 20
    again = distribute_largest_first(sizes, 8, 7)
    assert ways[7] == frozenset(frozenset(files.tolist()) for files in again)


def test_files_of_very_different_sizes_keep_their_company_but_the_bins_change_places() -> None:
    sizes = [4**exponent for exponent in range(8)]
    largest = {int(np.argmax(_sums(sizes, distribute_largest_first(sizes, 4, rng_seed)))) for rng_seed in range(50)}
    assert largest == {0, 1, 2, 3}


def test_without_a_seed_largest_first_keeps_ties_and_the_files_of_a_bin_in_the_order_of_the_list() -> None:
    bins = distribute_largest_first([5, 5, 5, 5, 100, 7], 2, None)
    assert [files.tolist() for files in bins] == [[0, 1, 2, 3, 5], [4]]
    bins = distribute_largest_first([1] * 5, 2, None)
    assert [files.tolist() for files in bins] == [[0, 2, 4], [1, 3]]


def test_what_largest_first_gives_is_pinned() -> None:
    """A resumed run must find the same bins, so these numbers may not change."""
    sizes = [100, 90, 80, 70, 60, 50, 40, 30, 20, 10, 0, 104]
    bins = [files.tolist() for files in distribute_largest_first(sizes, 3, 1)]
    assert bins == [[10, 11, 4, 5], [6, 3, 0, 9], [8, 7, 1, 2]]


def test_empty_files_do_not_pile_up_in_one_bin() -> None:
    assert [len(files) for files in distribute_largest_first([0] * 12, 4, 5)] == [3, 3, 3, 3]


@pytest.mark.parametrize("distribute", [distribute_in_order, lambda s, n: distribute_largest_first(s, n, 1)])
@pytest.mark.parametrize(
    ("sizes", "num_bins", "error", "what"),
    [
        ([1, 2], 3, ConfigError, "2 files cannot be distributed over 3 bins"),
        ([], 1, ConfigError, "0 files"),
        ([1, -1], 1, SourceError, r"size -1 is not in 0\.\."),
        (np.array([1, 2**63], np.uint64), 1, SourceError, "size 9223372036854775808 is not in"),
        ([1.5], 1, SourceError, "whole number"),
    ],
)
def test_sizes_that_cannot_be_distributed_are_refused(
    distribute: Any, sizes: Any, num_bins: int, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        distribute(sizes, num_bins)


# --- FilePlan ---


def _bytes(plan, epoch, shard):
    return int(plan.sizes[plan.files_of(epoch, shard)].sum())


def _files(plan: FilePlan, epoch: int, shard: int) -> list[int]:
    return plan.files_of(epoch, shard).tolist()


def test_a_shuffled_plan_has_the_documented_files() -> None:
    plan = FilePlan([10] * 8, partition_epoch=3, ordering="random")
    assert [_files(plan, epoch, 0) for epoch in range(1, 7)] == [
        [7, 2, 1],
        [6, 0, 4],
        [3, 5],
        [4, 1, 6],
        [2, 3, 7],
        [5, 0],
    ]


def test_bins_are_shard_major() -> None:
    plan = FilePlan([1] * 8, partition_epoch=2, num_shards=2)
    assert {(epoch, shard): _files(plan, epoch, shard) for epoch in (1, 2) for shard in (0, 1)} == {
        (1, 0): [0, 1],
        (2, 0): [2, 3],
        (1, 1): [4, 5],
        (2, 1): [6, 7],
    }


PLANS = st.fixed_dictionaries(
    {
        "partition_epoch": st.integers(1, 4),
        "ordering": st.sampled_from(["default", "random"]),
        "balance": st.sampled_from(["in_order", "largest_first"]),
        "random_seed_offset": st.integers(0, 5),
        "fixed_random_seed": st.none() | st.integers(0, 5),
    }
)


@given(
    options=PLANS,
    num_shards=st.integers(1, 5),
    num_canonical=st.none() | st.integers(5, 12),
    num_more=st.integers(0, 30),
    full_epoch=st.integers(0, 3),
)
def test_the_sub_epochs_and_shards_of_a_full_epoch_are_each_file_exactly_once(
    options: Any, num_shards: int, num_canonical: int | None, num_more: int, full_epoch: int
) -> None:
    parts = options["partition_epoch"]
    num_files = parts * (num_canonical or num_shards) + num_more
    sizes = np.random.default_rng(num_files).integers(0, 100, num_files)
    plan = FilePlan(sizes, num_shards=num_shards, num_canonical_shards=num_canonical, **options)
    epochs = range(full_epoch * parts + 1, full_epoch * parts + parts + 1)
    bins = [_files(plan, epoch, shard) for epoch in epochs for shard in range(num_shards)]
    assert all(bins)
    assert sorted(itertools.chain(*bins)) == list(range(num_files))
    num_bytes = [_bytes(plan, epoch, shard) for epoch in epochs for shard in range(num_shards)]
    assert num_bytes == [sizes[files].sum() for files in bins]


@given(
    options=PLANS,
    num_canonical=st.integers(1, 12),
    num_more=st.integers(0, 30),
    epoch=st.integers(1, 9),
    data=st.data(),
)
def test_canonical_shards_are_the_same_for_every_number_of_ranks(
    options: Any, num_canonical: int, num_more: int, epoch: int, data: st.DataObject
) -> None:
    sizes = np.random.default_rng(num_more).integers(0, 100, options["partition_epoch"] * num_canonical + num_more)

    def plan_for(world_size: int) -> FilePlan:
        return FilePlan(sizes, num_shards=world_size, num_canonical_shards=num_canonical, **options)

    whole = plan_for(num_canonical)
    expected = [_files(whole, epoch, shard) for shard in range(num_canonical)]
    world_size = data.draw(st.integers(1, num_canonical))
    plan = plan_for(world_size)
    assert plan.digest == whole.digest
    shares = [plan.canonical_shards_of(epoch, rank) for rank in range(world_size)]
    assert all(shares)
    assert sorted(itertools.chain(*shares)) == list(range(num_canonical))
    for rank, share in enumerate(shares):
        assert share == sorted(share)
        assert _files(plan, epoch, rank) == list(itertools.chain(*(expected[shard] for shard in share)))


@given(sizes=st.lists(st.integers(0, 1000), min_size=12, max_size=40), world_size=st.integers(1, 12), options=PLANS)
def test_ranks_share_canonical_shards_by_bytes(sizes: list[int], world_size: int, options: Any) -> None:
    options = {**options, "partition_epoch": 1}
    plan = FilePlan(sizes, num_shards=world_size, num_canonical_shards=12, **options)
    shard_bytes = [sum(sizes[file] for file in plan.files_of_canonical_shard(3, shard)) for shard in range(12)]
    of_ranks = [_bytes(plan, 3, rank) for rank in range(world_size)]
    assert sum(of_ranks) == sum(shard_bytes)
    assert max(of_ranks) - min(of_ranks) <= max(shard_bytes)


def test_epoch_0_counts_as_1_and_negative_ones_are_refused() -> None:
    plan = FilePlan([1] * 9, 3, ordering="random")
    assert _files(plan, 0, 0) == _files(plan, 1, 0)
    with pytest.raises(ConfigError, match="epoch must be at least 0"):
        plan.files_of(-1, 0)


def test_the_seed_is_the_documented_one() -> None:
    order = np.random.RandomState(1 + 1 + 7).permutation(6).tolist()
    plan = FilePlan([1] * 6, 2, ordering="random", random_seed_offset=7)
    assert _files(plan, 3, 0) + _files(plan, 4, 0) == order
    fixed = FilePlan([1] * 6, 2, ordering="random", random_seed_offset=7, fixed_random_seed=9)
    for epoch in (1, 3, 5):
        assert _files(fixed, epoch, 0) + _files(fixed, epoch + 1, 0) == order


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"num_shards": 3}, True),
        ({"partition_epoch": 3}, False),
        ({"num_canonical_shards": 5}, False),
        ({"balance": "largest_first"}, False),
        ({"ordering": "default"}, False),
        ({"random_seed_offset": 1}, False),
        ({"fixed_random_seed": 1}, False),
        ({"sizes": [1] * 30 + [2]}, False),
    ],
)
def test_the_digest_changes_with_what_decides_the_bins(change: dict[str, Any], same: bool) -> None:
    options = {"sizes": [1] * 31, "partition_epoch": 2, "num_shards": 2, "ordering": "random"}
    options["num_canonical_shards"] = 6
    assert (FilePlan(**options).digest == FilePlan(**{**options, **change}).digest) is same


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"partition_epoch": 4, "num_shards": 3}, r"10 files cannot .* 12 bins \(4 sub-epochs x 3 shards\)"),
        ({"partition_epoch": 2, "num_canonical_shards": 6}, r"12 bins \(2 sub-epochs x 6 canonical shards\)"),
        ({"num_shards": 8, "num_canonical_shards": 4}, "8 shards cannot share 4 canonical shards"),
        ({"partition_epoch": 0}, "partition_epoch must be at least 1"),
        ({"num_canonical_shards": 0}, "num_canonical_shards must be at least 1"),
        ({"ordering": "laplace"}, "ordering='laplace'"),
        ({"balance": "largest"}, "(?s)balance='largest'.*did you mean 'largest_first'"),
        ({"fixed_random_seed": -1}, "fixed_random_seed must be in"),
    ],
)
def test_wrong_options_are_refused_when_the_plan_is_built(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        FilePlan(**{"sizes": [1] * 10, **options})


def test_a_shard_index_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shard_index must be in 0\.\.1, got 2"):
        FilePlan([1] * 4, num_shards=2).files_of(1, 2)
