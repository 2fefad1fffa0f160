"""Batches hold what the items were, also where a map-style dataset fills the same memory again for the next one."""

import numpy as np
import pytest

from headrace import DataLoader, FixedCount, FrameBudget, Pack
from headrace.engine import EngineOptions, Skipping
from headrace.sources import MapSource

pytestmark = pytest.mark.usefixtures("warm_workers")

SKIP = EngineOptions(on_error=Skipping())
NUM_ITEMS = 23
LEAST, MOST = 1000, 1400  # frames of 16 bytes and more


def length(i, is_even):
    return MOST if is_even else LEAST + i * 7919 % (MOST - LEAST)


class Items:
    """Dicts of an array and a number, or plain tuples; each way to make them gives the same values."""

    def __init__(self, kind, is_even=False):
        self.kind, self.is_even = kind, is_even
        self.memory = np.zeros((MOST, 4), np.float32)
        self.ring = [np.zeros((MOST, 4), np.float32) for _ in range(2)]
        self.held = [self.made(i) for i in range(NUM_ITEMS)] if kind == "held" else None

    def __len__(self):
        return NUM_ITEMS

    def get_seq_len(self, i):
        return {"data": length(i, self.is_even)}

    def made(self, i):
        return np.random.default_rng(i).random((length(i, self.is_even), 4), np.float32)

    def __getitem__(self, i):
        array = self.made(i)
        if self.kind == "held":
            array = self.held[i]
        elif self.kind in ("one memory", "one memory, tuples", "one memory, strange"):
            self.memory[: len(array)] = array
            self.memory[len(array) :] = -1
            array = self.memory if self.is_even else self.memory[: len(array)]
        elif self.kind == "two memories":
            self.ring.reverse()
            memory = self.ring[0]
            memory[: len(array)] = array
            array = memory[: len(array)]
        if self.kind == "one memory, strange":  # not a plain dict, and not in C order
            array = np.asfortranarray(self.memory) if self.is_even else self.memory[: len(array)]
            return type("Item", (dict,), {})(data=array, number=i)
        return (array, np.array(i)) if "tuples" in self.kind else {"data": array, "number": i}


KINDS = ("new", "held", "one memory", "two memories", "one memory, strange", "one memory, tuples")
BATCHINGS = [FixedCount(1), FixedCount(5), FrameBudget(4000), Pack(4000, num_rows=2)]


def loader_over(items, **options):
    source = MapSource(items, specs={"data": {"shape": (None, 4)}, "number": {"shape": (), "dtype": "int64"}})
    return DataLoader(source, **options)


def rows_of(batch):
    """Yield the number and the frames of each sequence of a batch."""
    for row, number in enumerate(batch["number"].tolist()):
        if batch.packing is None:
            array, start = batch["data"][row], 0
        else:
            array, start = batch["data"][batch.packing.rows[row]], batch.packing.starts[row]
        stop = start + batch.lengths["data"][row]
        if batch.packing is None:
            assert not array[stop:].any()
        yield number, array[start:stop]


@pytest.mark.parametrize("is_even", [False, True])
@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_hold_the_items_whatever_the_dataset_does_with_its_memory(kind, batching, is_even):
    items = Items(kind, is_even)
    with loader_over(items, batching=batching, num_workers=0) as loader:
        batches = list(loader)
    found = dict(row for batch in batches for row in rows_of(batch))
    assert sorted(found) == list(range(NUM_ITEMS))
    for number, frames in found.items():
        np.testing.assert_array_equal(frames, items.made(number), strict=True)


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("kind", ["new", "one memory"])
def test_batches_of_workers_hold_the_items(kind, executor):
    items = Items(kind)
    num_workers = 2 if executor == "process" else 1  # threads share the memory of the dataset
    with loader_over(items, batching=FixedCount(4), num_workers=num_workers, executor=executor) as loader:
        found = dict(row for batch in list(loader) for row in rows_of(batch))
    assert sorted(found) == list(range(NUM_ITEMS))
    for number, frames in found.items():
        np.testing.assert_array_equal(frames, items.made(number), strict=True)


class FailsLate(Items):
    def __getitem__(self, i):
        item = super().__getitem__(i)
        if i % 5 == 3:
            raise ValueError("after the memory was overwritten")
        return item


def test_an_item_that_fails_after_it_wrote_to_the_memory_changes_no_other():
    items = FailsLate("one memory")
    with loader_over(items, batching=FixedCount(5), num_workers=0, engine_options=SKIP) as loader:
        found = dict(row for batch in list(loader) for row in rows_of(batch))
    assert sorted(found) == [i for i in range(NUM_ITEMS) if i % 5 != 3]
    for number, frames in found.items():
        np.testing.assert_array_equal(frames, items.made(number), strict=True)


@pytest.mark.parametrize("option", ["transform", "collate"])
def test_who_sees_the_arrays_gets_arrays_of_its_own(option):
    seen = []

    def keep(seqs):
        seen.extend(seqs if isinstance(seqs, list) else [seqs])
        return seqs if isinstance(seqs, dict) else len(seqs)

    items = Items("one memory")
    with loader_over(items, batching=FixedCount(5), num_workers=0, **{option: keep}) as loader:
        assert len(list(loader)) == -(-NUM_ITEMS // 5)
    assert len(seen) == NUM_ITEMS
    for seq in seen:
        np.testing.assert_array_equal(seq["data"], items.made(int(seq["number"])), strict=True)
