"""Seeds: shared where workers must agree, different elsewhere, new in each epoch, and the same when run again."""

import copy
import pickle
import random

import numpy as np
import pytest
from graph_parts import Chain, Count, Join, Pass, Shares, Shuffled
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipes.graph.seeds import (
    SeedGenerator,
    draw_seed,
    is_random_pipe,
    set_datapipes_seed,
    set_graph_random_seed,
)

SEEDS = st.integers(0, 2**64 - 1)


def draw(generator, count=5):
    return [generator.generate_shared_seed() for _ in range(count)], [generator.generate_seed() for _ in range(count)]


@given(SEEDS)
def test_the_same_seed_gives_the_same_numbers(seed):
    assert draw(SeedGenerator(seed)) == draw(SeedGenerator(seed)) == draw(SeedGenerator().seed(seed))


def test_numbers_do_not_repeat_over_kinds_epochs_workers_and_seeds():
    numbers = []
    for seed in (0, 1, 2, 2**63, 2**64 - 1):
        for epoch in range(4):
            generator = SeedGenerator(seed).for_epoch(epoch)
            shared, local = draw(generator)
            numbers += shared + local
            for worker in range(3):
                numbers += draw(SeedGenerator(seed).for_epoch(epoch).spawn(worker))[1]
                numbers += draw(SeedGenerator(seed).for_epoch(epoch).spawn(worker).spawn(0))[1]
    assert all(0 <= number < 2**64 for number in numbers)
    assert len(set(numbers)) == len(numbers)


@given(SEEDS, st.integers(0, 100), st.integers(0, 5))
def test_workers_share_shared_seeds_and_nothing_else(seed, worker, before):
    parent = SeedGenerator(seed)
    draw(parent, before)
    first, second = parent.spawn(worker), parent.spawn(worker + 1)
    expected = draw(copy.copy(parent))
    assert draw(first)[0] == draw(second)[0] == expected[0]
    assert not set(draw(first)[1]) & set(draw(second)[1])
    assert draw(parent) == expected  # the parent has not moved


@given(SEEDS, st.integers(0, 9), st.integers(0, 9))
def test_epoch_and_worker_may_be_chosen_in_any_order(seed, epoch, worker):
    one = SeedGenerator(seed).spawn(worker).for_epoch(epoch)
    other = SeedGenerator(seed).for_epoch(epoch).spawn(worker)
    assert one == other
    assert draw(one) == draw(other)


def test_an_epoch_does_not_depend_on_what_was_drawn_in_the_one_before():
    generator = SeedGenerator(7)
    expected = draw(generator.for_epoch(3))
    draw(generator, 50)
    assert draw(generator.for_epoch(3)) == expected
    assert draw(generator.for_epoch(2)) != expected


def test_spawning_in_place_changes_the_generator_itself():
    generator = SeedGenerator(5)
    expected = draw(generator.spawn(3))
    assert generator.spawn(3, inplace=True) is generator
    assert draw(generator) == expected


def test_a_generator_survives_pickling_where_it_is():
    generator = SeedGenerator(5).spawn(2)
    draw(generator, 3)
    other = pickle.loads(pickle.dumps(generator))
    assert other == generator
    assert draw(other) == draw(generator)
    assert "seed=5" in repr(other)


@pytest.mark.parametrize("seed", [2**64, -1])
def test_seeds_of_more_than_64_bits_are_refused(seed):
    with pytest.raises(ValueError, match="from 0 to 2"):
        SeedGenerator(seed)
    with pytest.raises(ValueError, match="from 0 to 2"):
        SeedGenerator(1).seed(seed)


def test_a_negative_worker_is_refused():
    with pytest.raises(ValueError, match="Expected `worker_id` equal or larger than 0"):
        SeedGenerator(1).spawn(-1)


def test_no_seed_means_a_new_one_and_touches_no_global_generator():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    seeds = {draw_seed() for _ in range(20)} | {SeedGenerator().generate_seed() for _ in range(20)}
    assert len(seeds) == 40
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


def test_random_pipes_before_sharding_get_shared_seeds_and_others_their_own():
    def build():
        before, after, beside = Shuffled(Count()), None, Shuffled(Count())
        after = Shuffled(Shares(Pass(before)))
        return Join(after, beside), before, after, beside

    given_seeds = []
    for worker in range(2):
        end, *pipes = build()
        assert set_graph_random_seed(end, SeedGenerator(3).spawn(worker)) is end
        given_seeds.append([pipe.seed_given for pipe in pipes])
    first, second = given_seeds
    assert first[0] == second[0] == SeedGenerator(3).generate_shared_seed()
    assert first[1] != second[1]
    assert first[2] != second[2]
    assert len({*first, *second}) == 5


def test_a_branch_that_is_not_sharded_does_not_make_its_neighbour_shared():
    source = Shuffled(Count())
    beside = Shuffled(source)
    end = Chain(Shares(source), beside)
    set_graph_random_seed(end, SeedGenerator(1))
    generator = SeedGenerator(1)
    assert source.seed_given == generator.generate_shared_seed()
    assert beside.seed_given == generator.generate_seed()


def test_a_list_of_pipes_is_seeded_as_told():
    pipes = [Shuffled(Count()), Pass(Count()), Shuffled(Count())]
    assert [is_random_pipe(pipe) for pipe in pipes] == [True, False, True]
    set_datapipes_seed(pipes, SeedGenerator(1), distributed_shared=True)
    assert [pipes[0].seed_given, pipes[2].seed_given] == draw(SeedGenerator(1), 2)[0]
    set_datapipes_seed(pipes, SeedGenerator(1), False)
    assert [pipes[0].seed_given, pipes[2].seed_given] == draw(SeedGenerator(1), 2)[1]
