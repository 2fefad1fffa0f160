"""Laws of iterators: an epoch is used up by its first batch, whoever calls `iter`, keeps iterators, or drops them."""

import gc
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import HeadraceError, ResumeError, StaticDataset
from headrace.batching import FixedCount
from headrace.loading import DataLoader

NUMBERS = st.integers(0, 3)
OPERATIONS = st.one_of(
    st.tuples(st.just("iter")),
    st.tuples(st.just("iter_epoch"), st.integers(1, 4)),
    st.tuples(st.just("next"), NUMBERS),
    st.tuples(st.just("next"), NUMBERS),
    st.tuples(st.just("drop"), NUMBERS),
    st.tuples(st.just("set_epoch"), st.integers(1, 4)),
    st.tuples(st.just("len")),
    st.tuples(st.just("load")),
    st.tuples(st.just("resume"), st.integers(0, 2)),
)


class Given:
    """An iterator, as it should be."""

    def __init__(self, epoch):
        self.epoch, self.position, self.state = epoch, 0, "new"


class Model:
    """A loader without workers, runs or prefetching: what its user should see."""

    def __init__(self, num_batches):
        self.num_batches, self.next_epoch, self.place, self.loaded, self.live = num_batches, 1, (1, 0), None, None

    def place_of(self, epoch):
        epoch = epoch or self.next_epoch
        return self.loaded if self.loaded is not None and self.loaded[0] == epoch else (epoch, 0)

    def iter(self, epoch):
        if epoch is not None and self.live is None and self.place[0] != epoch:
            self.place = self.place_of(epoch)
        return Given(epoch)

    def next(self, iterator):
        """Return the epoch and the number of a batch, or why there is none."""
        if iterator.state in ("over", "superseded"):
            return iterator.state
        is_first = iterator.state == "new"
        if is_first:
            if self.live is not None:
                self.live.state = "superseded"
            iterator.epoch, iterator.position = self.place_of(iterator.epoch)
            iterator.state, self.live = "live", iterator
            self.next_epoch, self.loaded = iterator.epoch + 1, None
        if iterator.position == self.num_batches[iterator.epoch]:
            iterator.state, self.live, self.place = "over", None, (iterator.epoch + 1, 0)
            return "over"
        iterator.position += 1
        self.place = iterator.epoch, iterator.position
        return iterator.epoch, iterator.position - 1

    def drop(self, iterator):
        if self.live is iterator:
            self.live = None

    def set_epoch(self, epoch):
        self.next_epoch = epoch
        if self.loaded is not None and self.loaded[0] != epoch:
            self.loaded = None
        if self.live is None:
            self.place = self.loaded or (epoch, 0)

    def load(self, place):
        self.loaded, self.place, self.next_epoch = place, place, place[0]


def open_loader(num_seqs, workers):
    seqs = [{"data": np.full(2, i)} for i in range(num_seqs)]
    dataset = StaticDataset(seqs, seq_ordering="random", partition_epoch=2)
    return DataLoader(dataset, batching=FixedCount(2), num_workers=workers, executor="thread")


def outcome_of(iterator):
    try:
        batch = next(iterator)
    except StopIteration:
        return "over"
    except HeadraceError as error:
        return "superseded" if "another iteration" in str(error) else str(error)
    return batch.epoch, batch.position


@given(st.sampled_from([0, 1, 8]), st.integers(0, 2), st.lists(OPERATIONS, max_size=25))
@settings(max_examples=60)
def test_only_batches_that_were_delivered_move_a_loader(num_seqs, workers, operations):
    with open_loader(num_seqs, 0) as loader:
        model = Model({epoch: loader.num_steps(epoch) for epoch in range(1, 40)})
    loader, iterators = open_loader(num_seqs, workers), []
    try:
        for name, *arguments in operations:
            if name == "iter":
                iterators.append((iter(loader), model.iter(None)))
            elif name == "iter_epoch":
                epoch = next(loader.epochs(arguments[0]))
                assert epoch.epoch == (arguments[0] if model.loaded is None else model.next_epoch)
                iterators.append((iter(epoch), model.iter(epoch.epoch)))
            elif name == "next" and iterators:
                real, expected = iterators[arguments[0] % len(iterators)]
                assert outcome_of(real) == model.next(expected)
            elif name == "drop" and iterators:
                model.drop(iterators.pop(arguments[0] % len(iterators))[1])
                real = expected = None
                gc.collect()
            elif name == "set_epoch":
                loader.set_epoch(arguments[0])
                model.set_epoch(arguments[0])
            elif name == "len":
                assert len(loader) == loader.num_steps(model.place[0])
            elif name == "load":
                state = loader.state_dict()
                if model.live is None:
                    loader.load_state_dict(state)
                    model.load(model.place)
                else:
                    with pytest.raises(ResumeError, match="too late"):
                        loader.load_state_dict(state)
            elif name == "resume":
                state = json.loads(json.dumps(loader.state_dict()))
                loader.close()
                loader, iterators = open_loader(num_seqs, arguments[0]), []
                loader.load_state_dict(state)
                model.live = None
                model.load(model.place)
            assert (loader.position.epoch, loader.position.position) == model.place
            assert loader.is_iterating == (model.live is not None)
    finally:
        loader.close()
