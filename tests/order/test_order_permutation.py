import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError
from headrace.order import Permutation, Permute

_NUM_KEYS = 4000


def _deviation_from_uniform(values: np.ndarray, size: int) -> float:
    """Return how many standard deviations the chi-square of values in 0..size-1 is above that of uniform ones."""
    num_cells = min(size, 100)
    counts = np.bincount(values * num_cells // size, minlength=num_cells)
    cell_sizes = np.diff([-(-cell * size // num_cells) for cell in range(num_cells + 1)])
    expected = len(values) * cell_sizes / size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - (num_cells - 1)) / np.sqrt(2 * (num_cells - 1))


def test_it_is_a_permutation_for_every_size_up_to_5000():
    for size in range(1, 5001):
        values = Permutation(size, seed=size % 7).at(np.arange(size))
        came = np.zeros(size, bool)
        came[values] = True
        assert came.all(), size


@pytest.mark.parametrize("size", [4095, 4096, 4097, 4225, 5000, 65_536, 65_537, 250_000])
def test_its_inverse_undoes_it_everywhere(size):
    permutation = Permutation(size, seed=3)
    positions = np.arange(size)
    values = permutation.at(positions)
    assert (permutation.position_of(values) == positions).all()
    assert (np.sort(values) == positions).all()


@examples(60)
@given(size=st.integers(4097, 2**62), seed=st.integers(-(2**63), 2**63 - 1), data=st.data())
@example(size=2**62, seed=0, data=None)
@example(size=2**62 - 1, seed=-1, data=None)
def test_it_is_injective_within_range_and_invertible_for_any_size(size, seed, data):
    permutation = Permutation(size, seed)
    starts = {0, size // 2, max(size - 2000, 0)}
    if data is not None:
        starts.add(data.draw(st.integers(0, size - 1)))
    positions = np.unique(np.concatenate([np.arange(start, min(start + 2000, size)) for start in starts]))
    values = permutation.at(positions)
    assert values.min() >= 0
    assert values.max() < size
    assert len(np.unique(values)) == len(positions)
    assert (permutation.position_of(values) == positions).all()


@given(size=st.integers(1, 2**62), seed=st.integers(0, 5), data=st.data())
def test_a_block_gives_what_single_positions_give(size, seed, data):
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=5)), np.int64)
    permutation = Permutation(size, seed)
    one_by_one = [int(permutation.at(positions[number : number + 1])[0]) for number in range(len(positions))]
    assert permutation.at(positions).tolist() == one_by_one


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [5, 6, 7, 16, 37, 64, 4097, 5000, 2**40 + 1])
def test_over_many_keys_each_position_gets_each_value_equally_often(size):
    positions = np.array([0, 1, size // 2, size - 1])
    values = np.array([Permutation(size, seed).at(positions) for seed in range(_NUM_KEYS)])
    for column in values.T:
        assert _deviation_from_uniform(column, size) < 5


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [5, 64, 4225, 65_536])
def test_over_many_keys_differences_of_neighbours_are_uniform(size):
    """With half the rounds this fails at 4225, whose two halves have the same size."""
    half = -(-size // (math.isqrt(size - 1) + 1))  # positions that far apart enter the cipher with one equal half
    values = np.array([Permutation(size, seed).at(np.array([0, 1, half])) for seed in range(3 * _NUM_KEYS)])
    for column in (1, 2):
        differences = (values[:, column] - values[:, 0]) % size - 1  # two positions never hold the same value
        assert _deviation_from_uniform(differences, size - 1) < 5
        if size > 4096:
            upper, lower = np.divmod(values, half)
            assert _deviation_from_uniform((lower[:, column] - lower[:, 0]) % half, half) < 5
            assert _deviation_from_uniform((upper[:, column] - upper[:, 0]) % half, half) < 5


@pytest.mark.parametrize("size", [5000, 100_003, 10**7, 2**62])
def test_successive_values_are_not_correlated(size):
    values = Permutation(size, seed=1).at(np.arange(min(size, 50_000))).astype(np.float64)
    for lag in (1, 2, 100, 256):
        assert abs(np.corrcoef(values[lag:], values[:-lag])[0, 1]) < 5 / np.sqrt(len(values))
    ascents = np.count_nonzero(values[1:] > values[:-1])
    assert abs(ascents - len(values) / 2) < 5 * np.sqrt(len(values) / 12)


def test_different_seeds_have_no_more_in_common_than_chance():
    size = 100_000
    one, other = (Permutation(size, seed).at(np.arange(size)) for seed in (1, 2))
    assert np.count_nonzero(one == other) < 10  # 1 is expected


@pytest.mark.parametrize("size", [-1, 2**62 + 1])
def test_a_size_out_of_range_is_refused(size):
    with pytest.raises(ConfigError, match="the size must be in"):
        Permutation(size, seed=1)


def test_an_empty_permutation_is_legal():
    assert Permutation(0, seed=1).at(np.arange(0)).tolist() == []
    assert list(Permute().plan(0, 1, None)) == []
