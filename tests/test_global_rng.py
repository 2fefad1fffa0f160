"""The generators of the whole process: seeded for a moment, and put back as if nothing had been."""

import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.rng.process import globals_state, kept_globals, seed_globals, set_globals_state

DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.random,
    "normal": np.random.standard_normal,
    "legacy normal": np.random.randn,  # holds back every second one
    "seed": lambda: np.random.seed(5),
    "state": lambda: np.random.set_state(np.random.get_state()),
}
OPERATIONS = st.lists(st.one_of(st.sampled_from(sorted(DRAWS)), st.sampled_from(["work"])), max_size=30)


@pytest.fixture(autouse=True)
def _put_back():
    before = globals_state()
    yield
    set_globals_state(before)


def work(number):
    with kept_globals():
        seed_globals(1, "test", number=number)
        return random.random(), random.gauss(0, 1), np.random.random(), np.random.randn(), np.random.randn()


@given(OPERATIONS)
@example(["legacy normal", "work", "legacy normal", "work", "legacy normal"])
def test_work_that_is_seeded_is_not_seen_by_who_draws_around_it(operations):
    drawn = []
    for is_disturbed in (False, True):
        random.seed(3)
        np.random.seed(3)
        found = []
        for operation in operations:
            if operation in DRAWS:
                found.append(DRAWS[operation]())
            elif is_disturbed:
                assert work(7) == work(7) != work(8)
        drawn.append(found)
    assert drawn[0] == drawn[1]


def test_a_generator_of_the_users_own_is_put_back_too():
    own, twister = np.random.PCG64(3), np.random.get_bit_generator()
    np.random.set_bit_generator(own)
    try:
        expected = np.random.Generator(np.random.PCG64(3)).bit_generator.random_raw(4).tolist()
        found = [own.random_raw(), work(1) and own.random_raw(), own.random_raw(), work(2) and own.random_raw()]
        assert found == expected
        assert np.random.get_bit_generator() is own
    finally:
        np.random.set_bit_generator(twister)
    assert work(1) == work(1)
