"""How far the thread of the sampler is ahead of the training. Neither lhotse nor torch."""

import itertools
import threading
import weakref

import numpy as np
import pytest

from headrace import LhotseDataLoader
from headrace.adapters.lhotse.ahead import Ahead
from headrace.adapters.lhotse.draws import Drawing
from headrace.adapters.lhotse.sampler import SamplerSide
from headrace.engine import EngineOptions, Skipping
from servers.leaks import nothing_left


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


class Watched:
    """A sampler that counts its draws, and notes whether they were ever more than `most`."""

    def __init__(self, most, num=20):
        self.most, self.num = most, num
        self.drawn, self.is_exceeded, self.changed = 0, False, threading.Condition()

    def __iter__(self):
        for number in range(self.num):
            with self.changed:
                self.drawn += 1
                self.is_exceeded |= self.drawn > self.most
                self.changed.notify()
            yield number

    def wait_for(self, num):
        with self.changed:
            assert self.changed.wait_for(lambda: self.drawn >= num, 120)


class Arrays:
    def __getitem__(self, batch):
        return np.full(4, batch)


class Identity:
    def __getitem__(self, batch):
        return batch


@pytest.mark.parametrize(("workers", "factor", "stop"), [(0, 2, 3), (1, 1, 7), (1, 3, 0), (2, 3, 1), (3, 2, 4)])
def test_as_many_batches_are_drawn_as_documented_and_a_state_counts_those_that_were_taken(workers, factor, stop):
    ahead = workers * factor

    def watch(loader, sampler, first):
        iter(loader)
        for number in range(first, sampler.num):
            # Without workers the first batch is drawn by `iter`: a sampler may draw from global generators there.
            sampler.wait_for(min(max(number + ahead, first + 1), sampler.num))
            yield
            sampler.most = number + 1 + ahead
            assert next(loader) == number
        assert not sampler.is_exceeded

    sampler = Watched(max(ahead, 1))
    with LhotseDataLoader(Identity(), sampler, workers, factor) as loader:
        for _ in itertools.islice(watch(loader, sampler, 0), stop + 1):
            state = loader.state_dict()
        assert state["batches"] == stop
        assert not sampler.is_exceeded
    resumed = Watched(stop + max(ahead, 1))
    with LhotseDataLoader(Identity(), resumed, workers, factor) as loader:
        loader.load_state_dict(state)
        assert len(list(watch(loader, resumed, stop))) == resumed.num - stop


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_that_are_skipped_are_drawn_for(workers):
    """The training asks for one batch, and the engine skips more than are drawn ahead."""

    class Locked:
        def __getitem__(self, batch):
            return threading.Lock() if batch < 15 else batch

    options = EngineOptions(on_error=Skipping())
    with LhotseDataLoader(Locked(), range(20), workers, 1, engine_options=options) as loader:
        assert list(loader) == list(range(15, 20))


@pytest.mark.parametrize("num_ahead", [1, 4])
def test_what_is_asked_for_is_drawn_though_nothing_was_delivered(num_ahead):
    num = 3000
    drawing = Drawing(SamplerSide(range(num)), packs=True)
    drawing.begin()
    ahead = Ahead(drawing, drawing.draw(), num_ahead, 120.0, "range")
    assert [ahead.take().content for _ in range(num)] == list(range(num))
    assert ahead.take().is_end
    assert ahead.close(seconds=120.0)


def test_a_batch_is_there_as_soon_as_it_is_drawn():
    may_go_on = threading.Semaphore(0)

    def hesitant():
        for number in range(50):
            yield number
            assert may_go_on.acquire(timeout=120.0)  # the next one is not drawn before this one was taken

    drawing = Drawing(SamplerSide(hesitant()), packs=True)
    drawing.begin()
    ahead = Ahead(drawing, drawing.draw(), 100, 120.0, "hesitant")
    for number in range(50):
        assert ahead.take().content == number
        may_go_on.release()
    assert ahead.take().is_end
    assert ahead.close(seconds=120.0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_was_given_is_held_no_longer(num_workers):
    with LhotseDataLoader(Arrays(), range(3000), num_workers=num_workers) as loader:
        num = 0
        for array in loader:
            assert array[0] == num
            num += 1
            given = weakref.ref(array)
            del array
            assert given() is None
        assert num == 3000


class Refilled:
    """A dataset whose values are all in one array."""

    def __init__(self):
        self.buffer = np.zeros(4, np.int64)

    def __getitem__(self, batch):
        self.buffer[:] = batch
        return {"data": self.buffer, "batch": batch}


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_values_that_are_all_in_one_array_come_as_they_were_given(num_workers):
    with LhotseDataLoader(Refilled(), list(range(700)), num_workers=num_workers) as loader:
        found = [(value["batch"], value["data"].tolist()) for value in loader]
    assert found == [(batch, [batch] * 4) for batch in range(700)]
