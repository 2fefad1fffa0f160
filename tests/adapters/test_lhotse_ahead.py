"""How far the thread of the sampler is ahead of the training. Neither lhotse nor torch."""

import itertools
import threading
import weakref

import numpy as np
import pytest

from headrace import LhotseDataLoader
from headrace.adapters.lhotse.ahead import MAX_AHEAD_BYTES, Ahead
from headrace.adapters.lhotse.draws import Drawing
from headrace.adapters.lhotse.sampler import SamplerSide
from servers.leaks import nothing_left


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


class Heavy:
    """A sampler whose batches carry megabytes, which notes in which threads it is asked and how far ahead it is."""

    def __init__(self, num, num_bytes):
        self.num, self.content = num, np.random.default_rng(0).bytes(num_bytes)
        self.drawn, self.threads = 0, set()

    def __iter__(self):
        self.drawn = 0
        for number in range(self.num):
            self.drawn += 1
            self.threads.add(threading.current_thread().name)
            yield [number, self.content]


class Arrays:
    def __getitem__(self, batch):
        return np.full(4, batch)


class Lengths:
    def __getitem__(self, batch):
        return batch[0], len(batch[1])


def test_a_sampler_runs_in_its_thread_and_its_audio_does_not_pile_up():
    num_bytes = 1 << 20
    sampler = Heavy(80, num_bytes)
    with LhotseDataLoader(Lengths(), sampler, num_workers=1) as loader:
        for number, (found, length) in enumerate(loader):
            assert (found, length) == (number, num_bytes)
            # What waits for the workers, the tickets that they have, and the batch that is being drawn.
            assert sampler.drawn <= number + 1 + MAX_AHEAD_BYTES // num_bytes + 12
    assert sampler.threads == {threading.current_thread().name, "headrace-sampler"}


def test_small_batches_are_drawn_far_ahead_but_not_without_end():
    sampler = Heavy(100_000, 1)
    with LhotseDataLoader(Lengths(), sampler, num_workers=2) as loader:
        for number, (found, _) in enumerate(itertools.islice(loader, 6_000)):
            assert found == number
            assert sampler.drawn < number + 40_000


@pytest.mark.parametrize("sizes", [[1], [1, 7, 2, 300], [100], [300, 1, 1, 1]])
def test_the_thread_hears_in_time_what_was_taken(sizes):
    """A thread that believed that enough waits, while nothing does, would wait for ever."""
    num = 3000
    drawing = Drawing(SamplerSide(range(num)), iter(range(num)), packs=True)
    ahead = Ahead(drawing, drawing.draw(), 4, 120.0, "range")
    found = []
    for size in itertools.cycle(sizes):
        taken = ahead.take(size)
        assert 1 <= len(taken) <= size
        found += [one.content for one in taken if not one.is_end]
        if ahead.end is not None:
            break
    assert found == list(range(num))
    assert ahead.close(seconds=120.0)


def test_a_batch_is_there_as_soon_as_it_is_drawn():
    may_go_on = threading.Semaphore(0)

    def hesitant():
        for number in range(50):
            yield number
            assert may_go_on.acquire(timeout=120.0)  # the next one is not drawn before this one was taken

    drawing = Drawing(SamplerSide(range(50)), hesitant(), packs=True)
    ahead = Ahead(drawing, drawing.draw(), 100, 120.0, "hesitant")
    for number in range(50):
        assert [one.content for one in ahead.take(64)] == [number]
        may_go_on.release()
    assert ahead.take(64)[0].is_end
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
