"""Generators of the process that are seeded when they are drawn from: nobody can tell that from what is drawn."""

import copy
import gc
import os
import pickle
import random
import threading
from random import seed as seed_bound_before
from random import setstate as setstate_bound_before

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.rng import lazy
from headrace.rng.process import globals_state, kept_globals, seed_globals, set_globals_state


def own_generator():
    own, shared = np.random.PCG64(3), np.random.get_bit_generator()
    np.random.set_bit_generator(own)
    drawn = np.random.random(), np.random.randn()
    np.random.set_bit_generator(shared)
    return drawn


def own_for_good():
    np.random.set_bit_generator(np.random.PCG64(3))
    return np.random.random()


def twister_for_good():
    np.random.set_bit_generator(np.random.MT19937(3))
    return np.random.random()


def put_back_later():
    shared = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    drawn = np.random.random(), shared.random_raw(), shared.state
    np.random.set_bit_generator(shared)
    return drawn


def within_kept():
    with kept_globals():
        return random.random(), np.random.random()


def shared_generator():
    return np.random.Generator(np.random.get_bit_generator()).random(3)


def state_set_again():
    np.random.get_bit_generator().state = np.random.get_bit_generator().state
    return np.random.random()


TWISTER = np.random.MT19937(5).state
PYTHON_STATE = random.Random(4).getstate()
OPERATIONS = {
    "random": lambda: random.random(),
    "getrandbits": lambda: random.getrandbits(70),
    "randint": lambda: random.randint(1, 1000),
    "gauss": lambda: random.gauss(0, 1),
    "normalvariate": lambda: random.normalvariate(0, 1),
    "choices": lambda: random.choices(range(9), k=4),
    "sample": lambda: random.sample(range(99), 5),
    "shuffle": lambda: (numbers := list(range(9)), random.shuffle(numbers)),
    "randbytes": lambda: random.randbytes(5),
    "getstate": lambda: random.getstate(),
    "copy": lambda: copy.copy(random._inst).random(),
    "seed": lambda: random.seed(3),
    "seed bound before": lambda: seed_bound_before(5),
    "setstate": lambda: random.setstate(PYTHON_STATE),
    "setstate bound before": lambda: setstate_bound_before(PYTHON_STATE),
    "np.random": lambda: np.random.random(),
    "np.random, many": lambda: np.random.random(700),
    "np.randn": lambda: np.random.randn(),  # holds back every second one
    "np.normal": lambda: np.random.standard_normal(3),
    "np.randint": lambda: np.random.randint(0, 1 << 40, 3),
    "np.bytes": lambda: np.random.bytes(5),
    "np.permutation": lambda: np.random.permutation(9),
    "np.choice": lambda: np.random.choice(9, 3, replace=False),
    "np.poisson": lambda: np.random.poisson(30, 3),
    "np.get_state": lambda: np.random.get_state(),
    "np.get_state, dict": lambda: np.random.get_state(legacy=False),
    "np.set_state": lambda: np.random.set_state({"bit_generator": "MT19937", "state": TWISTER["state"]}),
    "np.seed": lambda: np.random.seed(6),
    "np.seed, array": lambda: np.random.seed([1, 2]),
    "np.RandomState": lambda: np.random.mtrand._rand.randint(9),
    "np.pickle": lambda: pickle.loads(pickle.dumps(np.random.mtrand._rand)).randint(99),
    "bit generator: raw": lambda: np.random.get_bit_generator().random_raw(3),
    "bit generator: state": lambda: np.random.get_bit_generator().state,
    "bit generator: set state": state_set_again,
    "bit generator: copy": lambda: copy.deepcopy(np.random.get_bit_generator()).random_raw(),
    "bit generator: C": lambda: (each := np.random.get_bit_generator().ctypes).next_double(each.state),
    "bit generator: shared": shared_generator,
    "bit generator: jumped": lambda: np.random.get_bit_generator().jumped().random_raw(),
    "of the user's own": own_generator,
    "of the user's own, for good": own_for_good,
    "another twister, for good": twister_for_good,
    "put back later": put_back_later,
    "globals_state": lambda: globals_state(),
    "within kept_globals": within_kept,
    "work": None,
}


@pytest.fixture(autouse=True)
def _put_back():
    before = globals_state()
    yield
    np.random.set_bit_generator(np.random.MT19937(0))  # one that nobody holds
    set_globals_state(before)


@pytest.fixture
def fresh(monkeypatch):
    """Generators that are watched whenever that can be."""
    lazy.of_python.take()
    lazy.settled_bit_generator()
    gc.collect()  # tracebacks of other tests may hold functions of `random`
    monkeypatch.setattr(lazy, "_FIRST_PAUSE", 0)
    for one in (lazy.of_python, lazy.of_numpy):
        monkeypatch.setattr(one, "_pause", 0)
        monkeypatch.setattr(one, "_num_left", 0)
    yield
    lazy.of_python.take()
    lazy.settled_bit_generator()


def results(operations, *, lazily):
    found = []
    np.random.set_bit_generator(np.random.MT19937(0))
    seed_globals(1, "test", number=100, lazily=lazily)
    for number, operation in enumerate(operations):
        if operation == "work":
            seed_globals(1, "test", number=number, lazily=lazily)
        else:
            try:
                found.append(OPERATIONS[operation]())
            except (TypeError, ValueError, AttributeError) as error:  # not for a generator of the user's own
                found.append(str(error))
    state = random.getstate(), np.random.get_state(legacy=False)
    np.random.set_bit_generator(np.random.MT19937(0))
    return repr(found), repr(state)


@pytest.mark.filterwarnings("ignore:get_state and legacy")
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_the_first_look_finds_what_a_generator_seeded_at_once_has(watched, operation):
    for after in ("random", "gauss", "np.random", "np.randn", "np.get_state", "getstate", "work"):
        assert results([operation, after, operation], lazily=True) == results(
            [operation, after, operation], lazily=False
        )


@pytest.mark.filterwarnings("ignore:get_state and legacy")
@given(st.lists(st.sampled_from([*OPERATIONS, "work", "work"]), max_size=12))
@example(["put back later", "np.randn", "within kept_globals"])
def test_whatever_is_drawn_is_the_same(operations):
    for one in (lazy.of_python, lazy.of_numpy):  # so that no earlier example has them seeded at once
        one._pause = one._num_left = 0
    assert results(operations, lazily=True) == results(operations, lazily=False)


@pytest.fixture
def watched(fresh, monkeypatch):
    """The same, whoever else in this process holds functions of Python's generator."""
    for name in lazy._METHODS:
        monkeypatch.setattr(random, name, getattr(random._inst, name))


def test_what_is_not_drawn_from_is_not_seeded(watched):
    untouched = random.Random.getstate(random._inst)
    address = np.random.get_bit_generator().ctypes.state_address
    memory = lazy.ctypes.string_at(address, 2500)
    for number in range(3):
        seed_globals(1, "test", number=number, lazily=True)
    assert random.Random.getstate(random._inst)[1] == untouched[1]
    assert lazy.ctypes.string_at(address, 2500) == memory


def test_drawing_leaves_the_generators_as_python_and_numpy_have_them(watched):
    def seen():
        return {name: id(getattr(random, name)) for name in dir(random)}, id(np.random.get_bit_generator())

    functions, of_numpy = seen()  # by their ids: who holds one of them is served at once
    seed_globals(1, "test", lazily=True)
    assert id(random.random) != functions["random"]
    assert id(np.random.get_bit_generator()) != of_numpy
    random.random(), np.random.rand()
    assert seen() == (functions, of_numpy)
    assert type(random._inst) is random.Random


def test_who_holds_a_function_that_draws_or_the_generator_itself_is_served_too(watched):
    draw, generator = random.random, np.random.Generator(np.random.get_bit_generator())
    seed_globals(1, "test", number=3, lazily=True)
    found = draw(), generator.random()
    seed_globals(1, "test", number=3)
    assert found == (draw(), generator.random())


def test_a_function_that_was_taken_while_a_seed_was_noted_draws_for_ever(watched):
    seed_globals(1, "test", number=3, lazily=True)
    draw, bits = random.random, np.random.get_bit_generator()
    found = [(draw(), bits.random_raw()) for _ in range(3)]
    seed_globals(1, "test", number=3)
    assert found == [(random.random(), np.random.get_bit_generator().random_raw()) for _ in range(3)]
    for number in range(3):
        seed_globals(1, "test", number=number, lazily=True)
        found = draw(), bits.random_raw()
        seed_globals(1, "test", number=number)
        assert found == (random.random(), np.random.get_bit_generator().random_raw())


def test_who_always_draws_is_soon_seeded_at_once(watched):
    one = lazy.of_python
    one._pause = 16
    num_noted = 0
    for number in range(1000):
        seed_globals(1, "test", number=number, lazily=True)
        num_noted += type(random._inst) is not random.Random
        random.random()
    assert 1 <= num_noted <= 7


def test_functions_that_somebody_has_replaced_stay(fresh, monkeypatch):
    monkeypatch.setattr(random, "random", lambda: 0.5)
    for number in range(3):
        seed_globals(1, "test", number=number, lazily=True)
        assert random.random() == 0.5
    seed_globals(1, "test", number=2)
    expected = random.getrandbits(40)
    seed_globals(1, "test", number=2, lazily=True)
    assert random.getrandbits(40) == expected


def test_a_thread_that_draws_gets_numbers(watched):
    seed_globals(1, "test", lazily=True)
    drawn = []
    thread = threading.Thread(target=lambda: drawn.extend((random.random(), np.random.random())))
    thread.start()
    thread.join()
    seed_globals(1, "test")
    assert drawn == [random.random(), np.random.random()]


def test_a_forked_child_draws_as_it_would_have(watched):
    def drawn_in_child():
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, pickle.dumps((random.random(), np.random.random())))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            drawn = pickle.loads(file.read())
        assert os.waitpid(pid, 0)[1] == 0
        return drawn

    of_python, of_numpy = set(), set()
    for _ in range(3):
        seed_globals(1, "test", lazily=True)
        drawn = drawn_in_child()
        of_python.add(drawn[0])
        of_numpy.add(drawn[1])
    seed_globals(1, "test")
    assert len(of_python) == 3  # Python seeds each child anew
    assert of_numpy == {np.random.random()}


@pytest.mark.parametrize("refused", [lambda: np.random.seed(-1), lambda: np.random.set_state(("MT19937", [1]))])
def test_what_refuses_a_seed_or_a_state_leaves_the_one_before(refused):
    def drawn(lazily):
        seed_globals(3, "a test", lazily=lazily)
        with pytest.raises((ValueError, TypeError, IndexError)):
            refused()
        return np.random.random(3).tolist()

    assert drawn(lazily=True) == drawn(lazily=False)
