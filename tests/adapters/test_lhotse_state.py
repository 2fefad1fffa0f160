"""The state of a `LhotseDataLoader`: stop anywhere, go on with other workers, and the stream is the same."""

import copy
import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace import LhotseDataLoader
from headrace.engine import EngineOptions
from headrace.errors import ResumeError
from servers.leaks import nothing_left


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


class Noisy:
    def __getitem__(self, batch):
        return batch, random.random(), float(np.random.rand())


class Shuffled:
    """A sampler with epochs and settings, such as lhotse's, and no state."""

    def __init__(self, num=20, seed=0, rank=0, world_size=1, shuffle=True):
        self.num, self.seed, self.rank, self.world_size, self.shuffle = num, seed, rank, world_size, shuffle
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = np.random.RandomState(self.seed + self.epoch).permutation(self.num).tolist()
        return iter(order[self.rank :: self.world_size])


class Stateful:
    """A sampler with a state of its own, which empties what it is given, and can tell how often it was asked."""

    def __init__(self, num=20):
        self.num, self.place, self.resumes = num, 0, False
        self.num_states = self.num_drawn = 0

    def state_dict(self):
        self.num_states += 1
        return {"place": self.place, "big": list(range(100))}

    def load_state_dict(self, state):
        self.place = state.pop("place")
        state.clear()
        self.resumes = True

    def __iter__(self):
        if not self.resumes:
            self.place = 0
        self.resumes = False
        return self

    def __next__(self):
        if self.place == self.num:
            raise StopIteration
        self.place += 1
        self.num_drawn += 1
        return self.place * self.place


def save_at(make, stop, workers, epoch=0):
    """Return what comes before a stop, the state there, and what comes after it."""
    with LhotseDataLoader(Noisy(), make(), num_workers=workers) as loader:
        loader.set_epoch(epoch)
        first = list(itertools.islice(loader, stop))
        state = loader.state_dict()
        return first, state, list(iter(loader.__next__, object()))


def whole_of(make, epoch=0):
    with LhotseDataLoader(Noisy(), make(), num_workers=0) as loader:
        loader.set_epoch(epoch)
        return list(loader)


@examples(15)
@given(
    stop=st.integers(0, 20),
    workers=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    epoch=st.integers(0, 3),
    make=st.sampled_from([Shuffled, Stateful]),
)
def test_it_goes_on_anywhere_with_any_number_of_workers(stop, workers, epoch, make):
    expected = whole_of(make, epoch)
    with LhotseDataLoader(Noisy(), make(), num_workers=workers[0]) as loader:
        loader.set_epoch(epoch)
        first = list(itertools.islice(loader, stop))
        state = json.loads(json.dumps(loader.state_dict()))
    with LhotseDataLoader(Noisy(), make(), num_workers=workers[1]) as loader:
        kept = copy.deepcopy(state)
        loader.load_state_dict(state)
        assert state == kept, "the state is not changed"
        assert loader.state_dict() == kept
        rest = list(itertools.islice(loader, 100))
    assert first + rest == expected


@examples(8)
@given(stops=st.lists(st.integers(0, 6), min_size=2, max_size=4), make=st.sampled_from([Shuffled, Stateful]))
def test_it_goes_on_again_and_again(stops, make):
    expected, found, state = whole_of(make), [], None
    assume(sum(stops) <= len(expected))  # behind its end a pass is over, and the next one begins
    for stop in [*stops, None]:
        with LhotseDataLoader(Noisy(), make(), num_workers=0) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += itertools.islice(loader, stop)
            state = loader.state_dict()
    assert found == expected


def test_the_state_is_that_of_what_was_handed_over():
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=2, prefetch_factor=4) as loader:
        for number, _ in enumerate(loader, 1):
            assert loader.state_dict()["batches"] == number


@pytest.mark.parametrize("workers", [0, 2])
def test_after_the_rest_come_whole_passes(workers):
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=workers) as loader:
        passes = [list(loader), list(loader)]
        loader.set_epoch(1)
        passes.append(list(loader))
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=workers) as loader:
        first = list(itertools.islice(loader, 8))
        state = loader.state_dict()
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=workers) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(0)  # as a loop over epochs does; it is the epoch of the state, which stays
        found = [first + list(loader), list(loader)]
        loader.set_epoch(1)
        assert [*found, list(loader)] == passes


def test_a_state_at_the_end_of_a_pass_leads_to_the_next_one():
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=1) as loader:
        loader.set_epoch(3)
        passes = [list(loader)]
        state = loader.state_dict()
        passes.append(list(loader))
    assert state["is_over"]
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=1) as loader:
        loader.load_state_dict(state)
        assert loader.epoch == 3
        assert list(loader) == passes[1]


def test_a_state_before_the_first_pass_is_that_of_its_start():
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=0) as loader:
        loader.set_epoch(2)
        state = loader.state_dict()
        expected = list(loader)
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=0) as loader:
        loader.load_state_dict(state)
        assert list(loader) == expected


def test_another_epoch_gives_up_the_loaded_position(caplog):
    _, state, _ = save_at(Shuffled, 5, 0)
    for use_loader in (True, False):
        sampler = Shuffled()
        with LhotseDataLoader(Noisy(), sampler, num_workers=0) as loader:
            loader.load_state_dict(state)
            (loader if use_loader else sampler).set_epoch(7)
            assert list(loader) == whole_of(Shuffled, 7)
    assert caplog.text.count("the loaded position") == 2


def test_loading_in_mid_pass_gives_up_that_pass():
    first, state, rest = save_at(Shuffled, 5, 1)
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=1) as loader:
        list(itertools.islice(loader, 9))
        loader.load_state_dict(state)
        assert next(loader) == (first + rest)[5]


def test_next_goes_on_too():
    _, state, rest = save_at(Shuffled, 11, 0)
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=0) as loader:
        loader.load_state_dict(state)
        assert next(loader) == rest[0]


def test_a_batch_that_failed_counts_when_the_next_one_was_handed_over():
    class Picky:
        def __getitem__(self, batch):
            if batch == 2:
                raise ValueError(batch)
            return batch

    with LhotseDataLoader(Picky(), range(5), num_workers=1) as loader:
        assert [next(loader), next(loader)] == [0, 1]
        with pytest.raises(ValueError, match="2"):
            next(loader)
        at_error = loader.state_dict()
        assert next(loader) == 3
        behind = loader.state_dict()
    for state, expected in ((at_error, 2), (behind, 4)):
        with LhotseDataLoader(Noisy(), range(5), num_workers=0) as loader:
            loader.load_state_dict(state)
            assert next(loader)[0] == expected


def test_a_sampler_with_a_state_is_not_drawn_from_the_start_again():
    _, state, rest = save_at(Stateful, 15, 0)
    sampler = Stateful()
    with LhotseDataLoader(Noisy(), sampler, num_workers=0) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest
    assert sampler.num_drawn < 20


def test_a_sampler_whose_state_is_dear_is_asked_for_it_now_and_then():
    class Dear(Stateful):
        def state_dict(self):
            sum(range(200_000))
            return super().state_dict()

    sampler = Dear(num=500)
    with LhotseDataLoader(Noisy(), sampler, num_workers=0) as loader:
        expected = list(loader)
        state_at = {}
        for number, _ in enumerate(loader):
            state_at[number] = loader.state_dict()
    assert sampler.num_states < 300
    for number in (0, 3, 250, 498):
        with LhotseDataLoader(Noisy(), Dear(num=500), num_workers=0) as loader:
            loader.load_state_dict(state_at[number])
            rest = list(loader)
        assert [value for value, *_ in rest] == [value for value, *_ in expected[number + 1 :]]


# --- what is refused ---


def go_on(loader, state):
    loader.load_state_dict(state)
    iter(loader)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Shuffled(num=21), "other batches than when the state was saved"),
        (lambda: Shuffled(num=3), "3 of 5 batches"),
        (lambda: Shuffled(seed=1), "whose seed is 0, and this one's is 1"),
        (lambda: Shuffled(shuffle=False), "whose shuffle is True, and this one's is False"),
        (lambda: Shuffled(world_size=2), "whose world_size is 1, and this one's is 2"),
        (Stateful, "whose type is 'Shuffled', and this one's is 'Stateful'"),
    ],
)
def test_another_sampler_is_refused(make, text):
    _, state, _ = save_at(Shuffled, 5, 0)
    with LhotseDataLoader(Noisy(), make(), num_workers=0) as loader, pytest.raises(ResumeError, match=text):
        go_on(loader, state)


def test_another_seed_of_the_loader_is_refused():
    _, state, _ = save_at(Shuffled, 5, 0)
    text = "seed=0, and this loader has seed=9"
    with LhotseDataLoader(Noisy(), Shuffled(), seed=9) as loader, pytest.raises(ResumeError, match=text):
        loader.load_state_dict(state)


def test_a_state_of_rank_0_serves_all_ranks():
    """Checkpoints are written by one rank and read by all."""
    _, state, _ = save_at(lambda: Shuffled(world_size=2), 5, 0)
    make = lambda: Shuffled(rank=1, world_size=2)  # noqa: E731
    with LhotseDataLoader(Noisy(), make(), num_workers=0) as loader:
        loader.load_state_dict(state)
        assert list(loader) == whole_of(make)[5:]


def test_ranks_draw_different_numbers():
    draws = [whole_of(lambda rank=rank: Shuffled(rank=rank, world_size=2)) for rank in (0, 1)]
    assert not {noise for _, noise, _ in draws[0]} & {noise for _, noise, _ in draws[1]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("batches"),
        lambda state: state.update(batches=-1),
        lambda state: state.update(batches="5"),
        lambda state: state.update(epoch=None),
        lambda state: state.update(digest="xyz"),
        lambda state: state.update(rank=1),
        lambda state: state.update(version=99),
        lambda state: state.update(sampler=[]),
        lambda state: state.clear(),
        lambda state: state.update(state_batches=6),
    ],
)
def test_a_damaged_state_is_refused(damage):
    _, state, _ = save_at(Shuffled, 5, 0)
    damage(state)
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=0) as loader, pytest.raises(ResumeError):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [None, 3, "text", [], {"epoch": 0, "drop_last": False}])
def test_what_is_no_state_is_refused(state):
    text = "not a state of a LhotseDataLoader"
    with LhotseDataLoader(Noisy(), Shuffled()) as loader, pytest.raises(ResumeError, match=text):
        loader.load_state_dict(state)


def test_a_sampler_that_refuses_its_state_says_why():
    class Refusing(Stateful):
        def load_state_dict(self, state):
            assert state["place"] < 0, "no"

    _, state, _ = save_at(Stateful, 5, 0)
    state["sampler"]["type"] = "Refusing"
    del state["checksum"]  # as in a state of an older version
    with LhotseDataLoader(Noisy(), Refusing(), num_workers=0) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ResumeError, match="the sampler refuses the state: AssertionError: no"):
            iter(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_iter_once_more_before_the_first_batch_changes_nothing(workers):
    for make in (Stateful, Shuffled):
        _, state, rest = save_at(make, 5, workers)
        with LhotseDataLoader(Noisy(), make(), num_workers=workers) as loader:
            loader.load_state_dict(state)
            assert list(iter(iter(loader))) == rest, "progress bars and itertools ask an iterator for its iterator"
            first = list(itertools.islice(loader, 3))
        with LhotseDataLoader(Noisy(), make(), num_workers=workers) as loader:
            loader.load_state_dict(state)
            list(loader)
            iter(loader)
            assert list(itertools.islice(loader, 3)) == first


def test_iter_once_more_is_a_new_pass_if_it_would_be_another():
    with LhotseDataLoader(Noisy(), Shuffled(), num_workers=0) as loader:
        loader.set_epoch(1)
        expected = list(loader)
        loader.set_epoch(0)
        iter(loader)
        loader.set_epoch(1)
        assert list(loader) == expected


def test_the_limit_of_a_stall_may_be_lifted():
    with LhotseDataLoader(Noisy(), Shuffled(), engine_options=EngineOptions(stall_seconds=0)) as loader:
        assert len(list(itertools.islice(loader, 3))) == 3
        assert len(list(loader)) == 20
