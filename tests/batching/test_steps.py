import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import Steps
from headrace.errors import ConfigError

worlds = st.integers(1, 9)
remainders = st.sampled_from(["drop", "pad", "keep"])


def _ranks(num_batches, world_size, position=0, remainder="drop"):
    return [Steps(num_batches, rank, world_size, position, remainder) for rank in range(world_size)]


def _delivered(ranks, num_steps=None):
    """The batches of all ranks, without those that are repeated."""
    return [
        steps.batch_at(step)
        for steps in ranks
        for step in range(len(steps) if num_steps is None else min(num_steps, len(steps)))
        if not steps.is_repeat(step)
    ]


@given(st.integers(0, 100), worlds, remainders, st.data())
def test_from_any_position_each_batch_that_is_left_comes_once_or_is_dropped(num_batches, world, remainder, data):
    position = data.draw(st.integers(0, num_batches))
    ranks = _ranks(num_batches, world, position, remainder)
    delivered = _delivered(ranks)
    assert len(set(delivered)) == len(delivered)
    left = num_batches - position
    assert sorted(delivered) == list(range(position, position + left - ranks[0].num_dropped))
    assert (ranks[0].num_dropped < world) == (ranks[0].num_repeated < world) is True
    if remainder == "keep":
        assert ranks[0].num_dropped == ranks[0].num_repeated == 0


@given(st.integers(0, 100), worlds, st.sampled_from(["drop", "pad"]), st.data())
def test_all_ranks_have_equal_steps(num_batches, world, remainder, data):
    position = data.draw(st.integers(0, num_batches))
    ranks = _ranks(num_batches, world, position, remainder)
    assert len({len(steps) for steps in ranks}) == 1
    total = sum(len(steps) for steps in ranks)
    assert total == num_batches - position - ranks[0].num_dropped + ranks[0].num_repeated


@given(st.integers(0, 100), worlds)
def test_keep_gives_the_remainder_to_the_first_ranks(num_batches, world):
    sizes = [len(steps) for steps in _ranks(num_batches, world, remainder="keep")]
    assert sum(sizes) == num_batches
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_step_s_on_rank_r_is_batch_b_plus_s_times_world_size_plus_r():
    steps = Steps(100, rank=2, world_size=8, position=5)
    assert [steps.batch_at(step) for step in range(3)] == [7, 15, 23]
    assert len(steps) == 11


@given(st.integers(0, 200), st.lists(st.tuples(worlds, st.integers(0, 20)), max_size=6), remainders)
def test_an_epoch_goes_on_with_any_other_number_of_ranks(num_batches, segments, remainder):
    position, delivered = 0, []
    for world, num_steps in segments:
        ranks = _ranks(num_batches, world, position, remainder)
        if num_steps >= len(ranks[0]):  # the job would have ended
            continue
        delivered += _delivered(ranks, num_steps)
        positions = {steps.position_after(num_steps) for steps in ranks}
        assert len(positions) == 1
        position = positions.pop()
        assert position == len(delivered)
    delivered += _delivered(_ranks(num_batches, 1, position, remainder))
    assert sorted(delivered) == list(range(num_batches))


@pytest.mark.parametrize(("before", "after"), [(8, 6), (1, 3), (6, 8), (3, 1)])
def test_ranks_may_change_in_the_middle_of_an_epoch(before, after):
    ranks = _ranks(100, before)
    delivered = _delivered(ranks, 5)
    position = ranks[0].position_after(5)
    resumed = [ranks[0].resume(position, rank, after) for rank in range(after)]
    delivered += _delivered(resumed)
    assert sorted(delivered) == list(range(100 - resumed[0].num_dropped))
    assert len({len(steps) for steps in resumed}) == 1


@given(st.integers(1, 100), worlds, remainders)
def test_the_position_at_the_end_is_the_end_of_the_epoch(num_batches, world, remainder):
    longest = max(len(steps) for steps in _ranks(num_batches, world, remainder=remainder))
    for steps in _ranks(num_batches, world, remainder=remainder):
        assert steps.num_steps_longest == longest
        assert steps.position_after(longest) == num_batches
        for step in range(longest):
            assert steps.position_after(step) == step * world


def test_padding_repeats_batches_from_the_start_of_the_epoch():
    ranks = _ranks(5, 4, remainder="pad")
    assert [[steps.batch_at(step) for step in range(2)] for steps in ranks] == [[0, 4], [1, 0], [2, 1], [3, 2]]
    assert [steps.is_repeat(1) for steps in ranks] == [False, True, True, True]
    assert ranks[0].num_repeated == 3
    few = _ranks(2, 5, remainder="pad")
    assert [steps.batch_at(0) for steps in few] == [0, 1, 0, 1, 0]


def test_a_step_outside_of_the_epoch_is_an_index_error():
    for steps in (Steps(3, 0, 2), Steps(0, remainder="pad"), Steps(3, 1, 2, 3)):
        for step in (-1, len(steps)):
            with pytest.raises(IndexError):
                steps.batch_at(step)


@pytest.mark.parametrize(
    "options",
    [
        {"num_batches": -1},
        {"num_batches": 3, "rank": 1},
        {"num_batches": 3, "rank": -1, "world_size": 2},
        {"num_batches": 3, "world_size": 0},
        {"num_batches": 3, "position": 4},
        {"num_batches": 3, "remainder": "wrap"},
    ],
)
def test_wrong_arguments_are_refused(options):
    with pytest.raises(ConfigError, match="Steps"):
        Steps(**options)
