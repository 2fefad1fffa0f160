"""Mixtures: any position at once, shares kept everywhere, each corpus through its own epochs."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order import ArrayOrder, Lane, MixedOrder, Mixture, occurrences

WEIGHTS = st.lists(st.one_of(st.integers(0, 20), st.floats(0, 1e6), st.fractions(0, 5)), min_size=1, max_size=9).filter(
    any
)
SEEDS = st.none() | st.integers(0, 5)


def draws_one_by_one(mixture, num):
    counts = np.zeros(mixture.num_lanes, int)
    lanes, draws = mixture.locate(np.arange(num))
    for lane, draw in zip(lanes.tolist(), draws.tolist(), strict=True):
        yield lane, draw, counts
        counts[lane] += 1


@given(WEIGHTS, SEEDS)
def test_draws_of_each_lane_are_numbered_in_a_row(weights, seed):
    for lane, draw, counts in draws_one_by_one(Mixture(weights, shuffle_seed=seed), 300):
        assert draw == counts[lane]


@given(WEIGHTS, st.integers(0, 2**61))
def test_every_prefix_keeps_the_shares(weights, position):
    mixture = Mixture(weights)
    shares = [Fraction(unit, int(mixture.units.sum())) for unit in mixture.units.tolist()]
    for number in (position, position % 50):
        counts = mixture.num_draws(number).tolist()
        assert sum(counts) == number
        for count, share in zip(counts, shares, strict=True):
            assert abs(count - number * share) <= 1 + np.ceil(np.log2(len(weights))) / 2
            assert share or not count


@given(WEIGHTS, SEEDS, st.integers(0, 2**60), st.integers(0, 5000))
@settings(max_examples=30)
def test_a_position_far_away_is_the_same_alone_and_in_a_block(weights, seed, start, num):
    mixture = Mixture(weights, shuffle_seed=seed)
    lanes, draws = mixture.locate(np.arange(start, start + num))
    before, after = mixture.num_draws(start), mixture.num_draws(start + num)
    assert (np.bincount(lanes, minlength=mixture.num_lanes) == after - before).all()
    for lane in range(mixture.num_lanes):
        assert (draws[lanes == lane] == np.arange(before[lane], after[lane])).all()
    for offset in range(0, num, 997):
        lane, draw = mixture.locate(np.array([start + offset]))
        assert (lane[0], draw[0]) == (lanes[offset], draws[offset])


def test_a_shuffled_mixture_holds_the_same_draws_in_another_order_in_each_block():
    even, shuffled = Mixture([3, 1, 2]), Mixture([3, 1, 2], shuffle_seed=1)
    orders = []
    for block in range(3):
        positions = np.arange(block * 4096, (block + 1) * 4096)
        assert sorted(zip(*map(np.ndarray.tolist, even.locate(positions)), strict=True)) == sorted(
            zip(*map(np.ndarray.tolist, shuffled.locate(positions)), strict=True)
        )
        orders.append(shuffled.locate(positions)[0].tolist())
        assert orders[-1] != even.locate(positions)[0].tolist()
    assert orders[0] != orders[1]
    assert Mixture([3, 1, 2], shuffle_seed=2).locate(np.arange(4096))[0].tolist() != orders[0]


def test_the_documented_orders_stay_what_they_are():
    assert Mixture([2, 1]).locate(np.arange(9))[0].tolist() == [0, 1, 0, 0, 1, 0, 0, 1, 0]
    assert Mixture([0.5, 0.25, 0.25]).locate(np.arange(8))[0].tolist() == [0, 1, 0, 2, 0, 1, 0, 2]
    assert Mixture([1, 0, 1]).locate(np.arange(4))[0].tolist() == [0, 2, 0, 2]
    assert Mixture([2, 1], shuffle_seed=7).locate(np.arange(12))[0].tolist() == [0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("weights", "units"),
    [([0.7, 0.3], [7, 3]), ([2, 4], [1, 2]), ([1 / 3, 2 / 3], [1, 2]), ([0.1, 0.2, 0.7], [1, 2, 7]), ([5], [1])],
)
def test_ratios_are_what_was_meant(weights, units):
    assert Mixture(weights).units.tolist() == units


def test_tiny_weights_are_not_lost():
    assert Mixture([1e12, 1e-3, 0]).units[1] == 1
    assert Mixture([1e12, 1e-3, 0]).units[2] == 0


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [float("nan")], [float("inf"), 1], ["1"], [True, 1]])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(ConfigError):
        Mixture(weights)


@given(WEIGHTS, SEEDS, st.data())
@settings(max_examples=15)
def test_the_first_position_with_so_many_draws_is_found(weights, seed, data):
    mixture = Mixture(weights, shuffle_seed=seed)
    used = np.flatnonzero(mixture.units * 1000 > mixture.units.sum())
    mixture = Mixture([weights[lane] for lane in used], shuffle_seed=seed)
    goal = [data.draw(st.integers(0, 30)) for _ in used]
    for wanted, reached in (("any", any), ("all", all)):
        found = mixture.first_position_with(goal, reached_by=wanted)
        assert reached(mixture.num_draws(found) >= goal)
        assert found == 0 or not reached(mixture.num_draws(found - 1) >= goal)


def lanes_of(sizes, parts):
    """Make lanes whose epochs are keyed shuffles of 0..size-1, in `parts` sub-epochs."""
    lanes, offset = [], 0
    for number, size in enumerate(sizes):
        bounds = np.linspace(0, size, parts + 1).astype(int)

        def order_of(epoch, number=number, size=size, bounds=bounds):
            full, part = divmod(epoch - 1, parts)
            shuffled = np.random.RandomState((1000 * number + full) % 2**32).permutation(size)
            return ArrayOrder(shuffled[bounds[part] : bounds[part + 1]], may_repeat=False)

        lanes.append(Lane(np.diff(bounds), order_of, offset))
        offset += size
    return lanes


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 3), SEEDS, st.data())
@settings(max_examples=20)
def test_each_corpus_goes_through_whole_epochs_of_its_own(sizes, parts, seed, data):
    weights = [data.draw(st.integers(1, 5)) for _ in sizes]
    mixture, lanes = Mixture(weights, shuffle_seed=seed), lanes_of(sizes, parts)
    size = 200
    order = MixedOrder(mixture, lanes, range(size))
    indices, (chosen, _) = order.block(0, size), mixture.locate(np.arange(size))
    for number, lane in enumerate(lanes):
        mine = indices[chosen == number] - lane.offset
        for start in range(0, len(mine) - sizes[number], sizes[number]):
            assert sorted(mine[start : start + sizes[number]]) == list(range(sizes[number]))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), SEEDS, st.integers(0, 10**12), st.data())
@settings(max_examples=40)
def test_a_slice_is_that_part_and_knows_whether_it_repeats(sizes, seed, start, data):
    mixture = Mixture([data.draw(st.integers(1, 5)) for _ in sizes], shuffle_seed=seed)
    order = MixedOrder(mixture, lanes_of(sizes, 2), range(start, start + 40))
    first, last = sorted((data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))))
    part = order.slice(first, last)
    assert part == order.block(first, last).tolist()
    assert part.may_repeat == order.may_repeat or not len(part)
    assert part.may_repeat or not occurrences(ArrayOrder(part.block(0, len(part)))).any()
