import numpy as np
import pytest
from batchings import keys
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import BatchOrder, Buckets, FixedCount, FrameBudget, WindowKey
from headrace.errors import ConfigError

KEY = WindowKey(seed=1, epoch=1, window=0)
costs = st.lists(st.integers(0, 20), max_size=100).map(lambda numbers: np.array(numbers, np.int64))


@given(costs, keys, st.sampled_from(["shuffle", "keep"]), st.integers(1, 20))
def test_an_order_of_batches_has_each_of_them_once(batch_costs, key, arrange, group_batches):
    order = BatchOrder(arrange, group_batches).permute(batch_costs, np.arange(len(batch_costs)), key)
    assert sorted(order.tolist()) == list(range(len(batch_costs)))


@given(costs, keys, st.integers(2, 20))
def test_groups_are_sorted_up_and_down_in_turn_and_a_window_ends_as_it_begins(batch_costs, key, group_batches):
    sequence = batch_costs[BatchOrder("shuffle", group_batches).permute(batch_costs, np.arange(len(batch_costs)), key)]
    num_groups = 2 * -(-len(sequence) // (2 * group_batches))
    groups = np.arange(len(sequence)) * num_groups // max(len(sequence), 1)
    assert num_groups % 2 == 0
    for number in range(num_groups):
        group = sequence[groups == number]
        assert len(group) <= group_batches
        steps = np.diff(group)
        assert ((steps >= 0) if number % 2 == 0 else (steps <= 0)).all()


@given(costs, keys)
def test_kept_batches_come_by_their_first_place(batch_costs, key):
    places = np.random.default_rng(0).permutation(len(batch_costs)).astype(np.int32)
    order = BatchOrder("keep", group_batches=1).permute(batch_costs, places, key)
    assert (np.diff(places[order]) > 0).all()


def test_a_dev_set_comes_in_its_own_order():
    window = np.arange(100)
    plan = FixedCount(7).plan_window(window, KEY, BatchOrder("keep", group_batches=1))
    assert plan.members.tolist() == list(range(100))
    plan = Buckets(FixedCount(7), num_buckets=3).plan_window(window[::-1], KEY, BatchOrder("keep", group_batches=1))
    firsts = [plan[number].members.min() for number in range(len(plan))]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_the_batches_of_a_step_cost_alike_for_any_number_of_ranks(world_size):
    window = np.clip(np.random.default_rng(0).lognormal(np.log(700), 0.7, 30_000), 50, 3500).astype(int)

    def waiting(batching, group_batches):
        """Share of its time that a rank waits for the slowest, if time is cost."""
        plans = [
            batching.plan_window(part, WindowKey(1, 1, number), BatchOrder(group_batches=group_batches))
            for number, part in enumerate(np.array_split(window, 3))
        ]
        batch_costs = np.concatenate([plan.costs for plan in plans])
        steps = batch_costs[: len(batch_costs) // world_size * world_size].reshape(-1, world_size)
        return 1 - steps.mean() / steps.max(axis=1).mean()

    for batching in (FixedCount(32), FrameBudget(80_000), Buckets(FrameBudget(80_000))):
        assert waiting(batching, 64) < 0.7 * waiting(batching, 1)
    assert waiting(FrameBudget(80_000), 64) < 0.05
    assert waiting(Buckets(FrameBudget(80_000)), 64) < 0.01


def test_no_rank_always_gets_the_cheap_batches():
    window = np.clip(np.random.default_rng(0).lognormal(np.log(700), 0.7, 60_000), 50, 3500).astype(int)
    for world_size in (2, 4, 8, 32):
        batch_costs = FixedCount(16).plan_window(window, KEY).costs
        steps = batch_costs[: len(batch_costs) // world_size * world_size].reshape(-1, world_size)
        by_rank = steps.mean(axis=0)
        assert by_rank.max() / by_rank.min() < 1.1


@given(keys, st.integers(0, 300))
def test_a_shuffle_moves_every_place_with_the_same_chance(key, num_batches):
    shuffled = BatchOrder(group_batches=1).permute(np.zeros(num_batches, np.int64), np.arange(num_batches), key)
    if num_batches > 20:
        # the correlation with the order before is that of two random orders
        correlation = np.corrcoef(np.arange(num_batches), shuffled)[0, 1]
        assert abs(correlation) < 6 / np.sqrt(num_batches)


@pytest.mark.parametrize("options", [("sorted",), (None,), ("shuffle", 0), ("keep", "64"), ("keep", 1.5)])
def test_wrong_options_are_refused_when_built(options):
    with pytest.raises(ConfigError, match="BatchOrder"):
        BatchOrder(*options)
