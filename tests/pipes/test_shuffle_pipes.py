"""shuffle, in_batch_shuffle, sample_multiplexer, random_split: seeds and epochs."""

import random
from collections import Counter

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.pipes.graph.seeds import SeedGenerator, set_graph_random_seed
from headrace.pipes.iter import IterableWrapper, SampleMultiplexer, UnBatcher


def numbers(n=100):
    return IterableWrapper(range(n))


RANDOM = {
    "shuffle": lambda: numbers().shuffle(),
    "shuffle in a small buffer": lambda: numbers().shuffle(buffer_size=7),
    "in_batch_shuffle": lambda: numbers().batch(50).in_batch_shuffle(),
    "shuffled_flatmap": lambda: numbers(10).shuffled_flatmap(range, buffer_size=5),
    "sample multiplexer": lambda: SampleMultiplexer({numbers(30): 1, numbers(40): 2}),
}


@pytest.fixture(params=sorted(RANDOM))
def random_pipe(request):
    return RANDOM[request.param]


def test_a_seed_lasts_and_epochs_differ_but_repeat(random_pipe):
    pipe = random_pipe().set_seed(5)
    first = [list(pipe) for _ in range(3)]
    pipe.set_seed(5)
    again = [list(pipe) for _ in range(3)]
    assert first == again
    assert first[0] != first[1] != first[2]


def test_without_a_seed_epochs_differ_and_global_generators_stay(random_pipe):
    pipe, state, numpy_state = random_pipe(), random.getstate(), np.random.get_state()[1].tolist()
    assert list(pipe) != list(pipe)
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == numpy_state


def test_each_64_bit_seed_is_good(random_pipe):
    orders = {str(list(random_pipe().set_seed(seed))) for seed in (0, 1, 2**63, 2**64 - 1)}
    assert len(orders) == 4


def test_the_graphs_seed_reaches_it(random_pipe):
    one, two = (set_graph_random_seed(random_pipe(), SeedGenerator(3)) for _ in range(2))
    assert list(one) == list(two)


def test_shuffle_can_be_turned_off_and_on():
    pipe = numbers().shuffle().set_shuffle(False)
    assert list(pipe) == list(range(100))
    assert list(pipe.set_shuffle(True)) != list(range(100))
    assert list(numbers(4).batch(2).in_batch_shuffle().set_shuffle(False)) == [[0, 1], [2, 3]]


def test_a_small_buffer_moves_items_forward_by_no_more_than_its_size():
    order = list(numbers().shuffle(buffer_size=10).set_seed(0))
    assert all(item - place < 10 for place, item in enumerate(order))


def test_a_shuffle_in_one_buffer_is_uniform():
    counts = Counter(tuple(numbers(3).shuffle().set_seed(seed)) for seed in range(3000))
    assert len(counts) == 6
    assert min(counts.values()) > 400


def test_shuffle_takes_batches_apart():
    pipe = IterableWrapper([[1, 2], [3]]).shuffle(unbatch_level=1)
    assert isinstance(pipe.datapipe, UnBatcher)
    assert sorted(pipe) == [1, 2, 3]
    with pytest.raises(TypeError, match="length"):
        len(pipe)
    assert len(numbers(5).shuffle()) == 5


def test_a_buffer_has_one_item_at_least():
    with pytest.raises(ConfigError, match="buffer_size"):
        numbers().shuffle(buffer_size=0)


def test_the_sample_multiplexer_mixes_by_weight_until_all_have_ended():
    heavy, light = IterableWrapper("a" * 3000), IterableWrapper("b" * 3000)
    items = list(SampleMultiplexer({heavy: 3, light: 1}, seed=1))
    assert Counter(items) == {"a": 3000, "b": 3000}
    assert 0.7 < items[:1000].count("a") / 1000 < 0.8
    assert len(SampleMultiplexer({heavy: 3, light: 1})) == 6000


def test_the_sample_multiplexer_has_a_functional_form():
    pipe = numbers(3).sample_multiplexer(numbers(4), weights=[1, 9], seed=1)
    assert sorted(pipe) == [0, 0, 1, 1, 2, 2, 3]
    with pytest.raises(ConfigError, match="weights"):
        numbers().sample_multiplexer(numbers(), weights=[1])


@pytest.mark.parametrize("weights", [{}, {"w": -1}, {"w": 0}, {"w": float("inf")}, {"w": float("nan")}])
def test_the_sample_multiplexer_refuses_no_and_wrong_weights(weights):
    with pytest.raises(ConfigError, match=r"Empty dictionary|positive"):
        SampleMultiplexer({numbers(): weight for weight in weights.values()})


def test_a_random_split_is_the_same_each_epoch_and_exact():
    train, valid = numbers(10).random_split({"train": 7, "valid": 3}, seed=0)
    assert list(train) == list(train)
    assert sorted([*train, *valid]) == list(range(10))
    assert (len(train), len(list(train)), len(valid)) == (7, 7, 3)


def test_a_random_split_takes_shares_targets_and_other_seeds():
    options = {"weights": {"a": 0.5, "b": 0.5}, "seed": 1, "total_length": 20}
    a, b = numbers(20).random_split(**options)
    assert len(list(a)) == len(a) == 10
    only_b = numbers(20).random_split(**options, target="b")
    assert list(only_b) == list(b)
    before = list(b)
    a.override_seed(99)
    assert list(b) != before
    assert sorted([*a, *b]) == list(range(20))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": {"a": 1}, "target": "x"}, KeyError, "does not match"),
        ({"weights": {"a": 0}}, ConfigError, "positive"),
        ({"weights": {"a": -1, "b": 2}}, ConfigError, "negative"),
    ],
)
def test_a_random_split_checks_its_arguments(options, error, message):
    with pytest.raises(error, match=message):
        numbers(4).random_split(seed=0, **options)


def test_a_random_split_needs_the_true_length():
    with pytest.raises(TypeError, match="total_length"):
        numbers().filter(bool).random_split({"a": 1}, seed=0)
    with pytest.raises(ConfigError, match="more than total_length = 5"):
        list(numbers(10).random_split({"a": 7, "b": 3}, seed=0, total_length=5, target="a"))
    with pytest.raises(TypeError, match="cannot be known"):
        len(numbers(10).random_split({"a": 1, "b": 2}, seed=0, target="a"))


def test_weights_of_a_random_split_without_names_are_refused():
    with pytest.raises(ConfigError, match="needs a dict of weights"):
        numbers(10).random_split([7, 3], seed=0)
