"""A position of `headrace.torch.DataLoader` is saved in mid-epoch, and resumed by a loader of another process."""

from __future__ import annotations

import json
import pickle
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="headrace.torch is a loader for PyTorch")

import torch_cases as cases  # noqa: E402
from torch.utils import data as torch_data  # noqa: E402

from headrace import ResumeError  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.extra


def drawn(i):
    return i, torch.rand(1), np.random.rand(), random.random()


DATASET = cases.Items(drawn, 13)


class Moody(torch_data.Sampler):
    """Draws its order from all of the global generators."""

    def __iter__(self):
        numbers = [random.random() + np.random.rand() + torch.rand(1).item() for _ in range(13)]
        return iter(np.argsort(numbers).tolist())

    def __len__(self):
        return 13


def distributed():
    sampler = torch_data.DistributedSampler(DATASET, num_replicas=2, rank=1)
    sampler.set_epoch(3)
    return {"sampler": sampler}


ORDERS = {
    "as they are": dict,
    "shuffled": lambda: {"shuffle": True},
    "by a generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(1)},
    "weighted": lambda: {"sampler": torch_data.WeightedRandomSampler([1.0] * 13, 20)},
    "of one's own": lambda: {"sampler": Moody()},
    "distributed": distributed,
}


def open_loader(order, num_workers=0):
    return DataLoader(DATASET, batch_size=2, num_workers=num_workers, **ORDERS[order]())


def take(iterator, num=None):
    """Return batches as data; the whole rest by default."""
    found = []
    while num is None or len(found) < num:
        batch = next(iterator, None)
        if batch is None:
            break
        found.append([part.tolist() for part in batch])
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("order", ORDERS)
def test_a_run_resumed_at_any_batch_goes_on_as_the_whole_and_leaves_the_generators_alone(order):
    torch.manual_seed(9)
    loader = open_loader(order)
    iterator = iter(loader)
    whole, states = [], []
    while batch := take(iterator, 1):
        whole += batch
        torch.rand(2)  # what a training does
        states.append(json.loads(json.dumps(loader.state_dict())))
    for number, state in enumerate(states[:-1], start=1):  # the last one means the next epoch
        torch.manual_seed(number)
        random.seed(number)
        before = torch.get_rng_state()
        again = open_loader(order)
        again.load_state_dict(state)
        assert again.state_dict() == state
        rest = iter(again)
        assert take(rest) == whole[number:]
        assert torch.equal(before, torch.get_rng_state())
    assert all(len(json.dumps(state)) < (9_000 if "generator" in order else 20_000) for state in states)


def test_workers_may_be_others_after_a_resume():
    torch.manual_seed(9)
    loader = open_loader("shuffled", num_workers=2)
    iterator = iter(loader)
    first, state = take(iterator, 3), loader.state_dict()
    rest = take(iterator)
    assert len(first + rest) == 7
    for num_workers in (0, 1):
        torch.manual_seed(1)
        again = open_loader("shuffled", num_workers)
        again.load_state_dict(state)
        assert take(iter(again)) == rest


def test_epochs_after_a_resume_are_the_same_where_the_loader_has_a_generator():
    loader = open_loader("by a generator")
    take(iter(loader))
    iterator = iter(loader)
    take(iterator, 4)
    states = [loader.state_dict()]
    rest = take(iterator)
    states.append(loader.state_dict())
    epochs = [take(iter(loader)) for _ in range(2)]
    for state, expected in zip(states, ([rest, *epochs], epochs), strict=True):
        again = open_loader("by a generator")
        again.load_state_dict(state)
        assert [take(iter(again)) for _ in expected] == expected


def test_workers_that_stay_draw_on_after_a_resume_in_a_later_epoch():
    def open_loader():
        generator = torch.Generator().manual_seed(1)
        return DataLoader(
            DATASET, batch_size=2, shuffle=True, generator=generator, num_workers=1, persistent_workers=True
        )

    loader = open_loader()
    for state_epoch in range(3):
        iterator = iter(loader)
        first = take(iterator, 2)
        if state_epoch != 1:
            state = loader.state_dict()
            rest = take(iterator)
            assert len(first + rest) == 7
            again = open_loader()
            again.load_state_dict(state)
            assert take(iter(again)) == rest
            loader.load_state_dict(state)  # its workers are there
            assert take(iter(loader)) == rest
    later = take(iter(loader))
    assert take(iter(again)) == later


def test_a_state_between_two_epochs_begins_the_next_one():
    loader = DataLoader(range(4))
    for state in (loader.state_dict(), (list(loader), loader.state_dict())[1]):
        again = DataLoader(range(4))
        again.load_state_dict(state)
        assert cases.plain(again) == [[0], [1], [2], [3]]


def test_the_state_after_a_loop_that_was_left_is_where_it_was_left():
    loader = DataLoader(range(6), num_workers=1)
    for batch in loader:
        if batch.item() == 2:
            break
    state = loader.state_dict()
    again = DataLoader(range(6))
    again.load_state_dict(state)
    assert cases.plain(again) == [[3], [4], [5]]
    assert cases.plain(again) == [[n] for n in range(6)]


class Stream(torch_data.IterableDataset):
    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        info = torch_data.get_worker_info()
        who = 0 if info is None else info.id
        for i in range(self.lengths[who]):
            yield who * 100 + i, torch.rand(1), np.random.rand(), random.random()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_is_resumed_at_any_batch_also_behind_the_end_of_a_worker(num_workers):
    torch.manual_seed(4)
    loader = DataLoader(Stream((4, 9)), batch_size=2, num_workers=num_workers, persistent_workers=bool(num_workers))
    iterator = iter(loader)
    whole, states = [], []
    while batch := take(iterator, 1):
        whole += batch
        states.append(loader.state_dict())
    assert len(whole) == (7 if num_workers else 2)
    for number, state in enumerate(states[:-1], start=1):  # the last one means the next epoch
        loader.load_state_dict(state)
        assert take(iter(loader)) == whole[number:]


def test_what_is_no_state_or_does_not_fit_is_refused():
    loader = DataLoader(range(8), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    for wrong in ({}, {"format": 1}, {**state, "batches": 3}, {**state, "extra": 1}):
        with pytest.raises(ResumeError):
            loader.load_state_dict(wrong)
    with pytest.raises(ResumeError, match="num_workers=None, and there are 0"):
        DataLoader(Stream((4,))).load_state_dict(state)
    for other in (
        DataLoader(range(8), batch_size=3),
        DataLoader(range(8), batch_size=2, sampler=[3, 1, 2, 0]),
        DataLoader([]),
    ):
        other.load_state_dict(state)
        for _ in range(2):  # it does not begin at the start instead
            with pytest.raises(ResumeError, match="does not give the 1 batches"):
                next(iter(other))
    lacking = DataLoader(range(8), batch_size=2, shuffle=True, generator=torch.Generator())
    lacking.load_state_dict(state)
    with pytest.raises(ResumeError, match="0 generators"):
        next(iter(lacking))


class ShuffledByTheWorker(torch_data.IterableDataset):
    """Its order is that of the seed that torch gives each worker."""

    def __iter__(self):
        yield from np.random.default_rng(torch_data.get_worker_info().seed).permutation(12).tolist()


@pytest.mark.parametrize("stays", [False, True])
def test_a_resumed_stream_has_the_order_of_its_workers_seed(stays):
    def opened():
        return DataLoader(ShuffledByTheWorker(), batch_size=2, num_workers=1, persistent_workers=stays)

    torch.manual_seed(1)
    with opened() as loader:
        iterator = iter(loader)
        first = [next(iterator).tolist() for _ in range(2)]
        state = loader.state_dict()
        rest = [batch.tolist() for batch in iterator]
        torch.manual_seed(7)
        assert [batch.tolist() for batch in loader][2:] != rest  # whether workers stay makes no difference
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest
    torch.manual_seed(9)
    with opened() as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert [batch.tolist() for batch in loader] == rest
    assert sorted(number for batch in first + rest for number in batch) == list(range(12))


class Keys(torch_data.Dataset):
    def __getitem__(self, key):
        return str(key)[:3]


def test_keys_that_no_format_has_are_keys_all_the_same():
    keys = [2**70, "\udcff.wav", "plain"]
    loader = DataLoader(Keys(), sampler=keys, batch_size=1)
    iterator = iter(loader)
    assert next(iterator) == ["118"]
    state = loader.state_dict()
    loader = DataLoader(Keys(), sampler=keys, batch_size=1)
    loader.load_state_dict(state)
    assert len(list(loader)) == 2


def test_it_shows_itself_in_one_line_and_as_html():
    loader = DataLoader(list(range(5)), batch_size=2, num_workers=2)
    assert repr(loader) == "<headrace.torch.DataLoader: dataset list, batch_size 2, 2 workers>"
    assert "2 workers" in loader._repr_html_()


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_a_state_after_the_last_batch_means_the_next_epoch_from_its_start(num_workers, options):
    """Lightning saves there, and then asks for the next epoch: it must not get an empty one for it."""

    def make():
        given = options if num_workers else {}
        generator = torch.Generator().manual_seed(2)
        return DataLoader(DATASET, 5, shuffle=True, generator=generator, num_workers=num_workers, **given)

    def epoch_of(batches):
        return [numbers.tolist() for numbers, *_ in batches]

    with make() as loader, make() as again, make() as used:
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
        state = loader.state_dict()
        assert next(batches, None) is None
        expected = [epoch_of(loader) for _ in range(2)]
        assert expected[0] != expected[1]
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert [epoch_of(again) for _ in range(2)] == expected
        list(used)
        used.load_state_dict(state)  # by workers that stay
        assert [epoch_of(used) for _ in range(2)] == expected


# --- laws: whoever makes the batches, and wherever the state was saved ---

WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 1, "persistent_workers": True},
    {"num_workers": 2, "persistent_workers": True},
]
EPOCHS = 3


def run(loader, globals_at, states=None, epochs=EPOCHS):
    """Return the batches of epochs; note the states of the loader and torch's generator after each batch and epoch."""
    found = []
    for _ in range(epochs):
        batches, iterator = [], iter(loader)
        while batch := take(iterator, 1):
            batches += batch
            torch.rand(1)  # what a training does
            if states is not None:
                states.append((len(found), len(batches), loader.state_dict()))
        if states is not None:
            states.append((len(found) + 1, 0, loader.state_dict()))
            globals_at.append(torch.get_rng_state())
        found.append(batches)
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("has_generator", [False, True])
def test_epochs_and_what_follows_any_state_are_the_same_whoever_makes_the_batches(workers, has_generator):
    def opened(workers):
        generator = torch.Generator().manual_seed(6) if has_generator else None
        return DataLoader(DATASET, 4, shuffle=True, generator=generator, **workers)

    torch.manual_seed(2)
    expected = run(opened({"num_workers": 0}), [])
    states, globals_at = [], []
    torch.manual_seed(2)
    with opened(workers) as loader:
        assert run(loader, globals_at, states) == expected
    for epoch, number, state in [states[6], states[9]]:  # in the second epoch; between it and the third
        torch.manual_seed(8)
        if not has_generator and number == 0:
            torch.set_rng_state(globals_at[epoch - 1])
        with opened(workers) as again:
            again.load_state_dict(json.loads(json.dumps(state)))
            epochs = EPOCHS - epoch if has_generator or number == 0 else 1
            wanted = [expected[epoch][number:], *expected[epoch + 1 :]]
            assert run(again, [], epochs=epochs) == wanted[:epochs]


class OwnGenerator(torch_data.IterableDataset):
    """Draws from a generator that goes on from pass to pass."""

    def __init__(self):
        self.rng = random.Random(0)

    def __iter__(self):
        return (self.rng.randrange(1000) for _ in range(5))


class TellsWhereItIs(OwnGenerator):
    """A dataset as torchdata's `Stateful`."""

    position = 0

    def __iter__(self):
        while self.position < 5:
            self.position += 1
            yield self.rng.randrange(1000)
        self.position = 0

    def state_dict(self):
        return {"position": self.position, "rng": self.rng.getstate()}

    def load_state_dict(self, state):
        self.position = state["position"]
        self.rng.setstate(state["rng"])


class Counting:
    """An iterator as torchdata's `Stateful`; reading anew from the start would be seen."""

    def __init__(self, first):
        self.next, self.end, self.num_read = first, first + 5, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == self.end:
            raise StopIteration
        self.next, self.num_read = self.next + 1, self.num_read + 1
        return self.next

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        assert self.num_read == 0
        self.next = state["next"]


class WithIterator(torch_data.IterableDataset):
    def __iter__(self):
        info = torch_data.get_worker_info()
        return Counting(10 * (0 if info is None else info.id))


@pytest.mark.sample(4)
@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("kind", [TellsWhereItIs, WithIterator, OwnGenerator])
def test_a_stream_is_resumed_exactly_or_refused_in_any_epoch(kind, workers):
    def opened():
        return DataLoader(kind(), 2, collate_fn=list, **workers)

    states, found = [], []
    with opened() as loader:
        for epoch in range(2):
            batches = []
            for batch in loader:
                batches.append(batch)
                states.append((epoch, len(batches), loader.state_dict()))
            if kind is not OwnGenerator:
                states.append((epoch + 1, 0, loader.state_dict()))
            found.append(batches)
    goes_on = workers.get("persistent_workers", workers["num_workers"] == 0)
    assert (found[0] == found[1]) is (kind is WithIterator or not goes_on)
    in_second = [(number, state) for epoch, number, state in states if epoch == 1]
    for number, state in [in_second[0], in_second[2]]:  # the first one: between both, where that can be told
        with opened() as again:
            again.load_state_dict(pickle.loads(pickle.dumps(state)))
            if kind is OwnGenerator and goes_on:
                with pytest.raises(ResumeError, match="does not give the"):
                    list(again)
            else:
                assert list(again) == found[1][number:]


def test_a_dataset_with_a_state_of_its_own_gets_it_back():
    class Grows(cases.Items):
        stage = 0

        def __getitem__(self, index):
            return index + 100 * self.stage

        def state_dict(self):
            return {"stage": self.stage}

        def load_state_dict(self, state):
            self.stage = state["stage"]

    for num_workers in (0, 1):
        dataset = Grows(None, 6)
        dataset.stage = 2
        loader = DataLoader(dataset, 2, num_workers=num_workers)
        iterator = iter(loader)
        next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        again = DataLoader(Grows(None, 6), 2, num_workers=num_workers)
        again.load_state_dict(state)
        assert cases.plain(again) == cases.plain(iterator) == [[202, 203], [204, 205]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_after_the_last_batch_goes_with_the_number_of_the_next_epoch(num_workers):
    def opened(epoch):
        sampler = torch_data.DistributedSampler(range(8), num_replicas=2, rank=0)
        sampler.set_epoch(epoch)
        return DataLoader(range(8), 2, sampler=sampler, num_workers=num_workers)

    loader, states = opened(0), []
    for _ in loader:
        states.append(loader.state_dict())
    expected = cases.plain(opened(1))
    again = opened(1)
    again.load_state_dict(states[-1])
    assert cases.plain(again) == expected
    again.load_state_dict(states[0])
    with pytest.raises(ResumeError, match="does not give the 1 batches"):
        next(iter(again))
