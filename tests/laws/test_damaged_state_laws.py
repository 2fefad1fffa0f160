"""States that were damaged or edited, of every face: taken as they are, or refused with an error of ours."""

from __future__ import annotations

import copy
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace import DataLoader, DataLoader2, FixedCount, FrameBudget, LhotseDataLoader, StaticDataset
from headrace.errors import HeadraceError
from headrace.pipes.iter import IterableWrapper

_SEQS = [{"data": np.full(2 + n % 5, n, np.float32)} for n in range(40)]
_VALUES = (None, 0, 1, -1, 2**31, 2**63, 10**30, 1.5, "", "x", [], [1], {}, {"a": 1}, True)
_STOP = 5


class Stream:
    def __iter__(self):
        return iter(_SEQS)


class Sampler:
    """Has epochs, and a state of its own."""

    def __init__(self):
        self.epoch = self.place = 0

    def set_epoch(self, epoch):
        self.epoch, self.place = epoch, 0

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(16).tolist()
        self.place %= len(order)
        while self.place < len(order):
            self.place += 1
            yield order[self.place - 1]


class Noisy:
    def __getitem__(self, batch):
        return batch, np.random.rand()


def _noise(seq, rng):
    return {"data": seq["data"] + rng.random()}


def _of_order(**options):
    corpus = StaticDataset(_SEQS, seq_ordering="random")
    return DataLoader(corpus, batching=FrameBudget(12), transform=_noise, window_seqs=8, **options)


_FACES = {
    "DataLoader": _of_order,
    "DataLoader, a stream": lambda: DataLoader(Stream(), batching=FixedCount(3), transform=_noise),
    "LhotseDataLoader, replay": lambda: LhotseDataLoader(Noisy(), Sampler(), num_workers=0, resume="replay"),
    "LhotseDataLoader, snapshot": lambda: LhotseDataLoader(Noisy(), Sampler(), num_workers=0, resume="snapshot"),
    "DataLoader2": lambda: DataLoader2(IterableWrapper(list(range(40))).shuffle(buffer_size=8)),
}


def _content(batch):
    return repr((batch.tags, batch["data"].tobytes(), batch.epoch)) if hasattr(batch, "tags") else repr(batch)


def _read(iterator, num=10**6):
    end = object()  # not by a loop, which would ask for an iterator once more, and some loaders are their own
    batches = iter(lambda: next(iterator, end), end)
    return [_content(batch) for batch in itertools.islice(batches, num)]


def _close(loader):
    getattr(loader, "close", getattr(loader, "shutdown", None))()


def _saved(make):
    loader = make()
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(2)
    if isinstance(loader, DataLoader2):
        loader.seed(3)
    iterator = iter(loader)
    _read(iterator, _STOP)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = _read(iterator)
    _close(loader)
    return state, rest


def _places(value, path=()):
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], (*path, key))


def _changed(state, path, draw):
    changed = copy.deepcopy(state)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]]
    near = [old - 1, old + 1, old + 100] if type(old) is int else [old[:-1], old + "0"] if isinstance(old, str) else []
    inner[path[-1]] = draw(st.sampled_from([*near, *_VALUES]))
    return changed


@pytest.mark.parametrize("face", _FACES)
@examples(40)
@given(data=st.data())
def test_a_state_is_taken_as_it_was_saved_or_refused(face, data):
    make = _FACES[face]
    state, rest = _saved(make)
    path = data.draw(st.sampled_from(list(_places(state))))
    changed = _changed(state, path, data.draw)
    loader = make()
    try:
        loader.load_state_dict(changed)
        found = _read(iter(loader), len(rest) + 1)
    except HeadraceError:
        return
    finally:
        _close(loader)
    assert found[: len(rest)] == rest, f"{path}: {changed}"
