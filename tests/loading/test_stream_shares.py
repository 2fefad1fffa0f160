"""A stream that asks which worker reads it, or draws anew in each process, comes whole, each sequence once."""

import random

import numpy as np
import pytest

from headrace.batching import FixedCount
from headrace.engine import get_worker_info
from headrace.loading import DataLoader

pytestmark = pytest.mark.usefixtures("warm_workers")


class Stream:
    """Gives what a function says, anew in each epoch."""

    def __init__(self, numbers, make=lambda number: {"data": np.full(3, number)}):
        self.numbers, self.make = numbers, make

    def __iter__(self):
        return map(self.make, self.numbers())


def worker():
    info = get_worker_info()
    return (0, 1) if info is None else (info.worker_idx, info.num_workers)


def copy_of(seq):
    return dict(seq)


def numbers_of(stream, executor="process", **options):
    options = {"batching": FixedCount(4), "window_seqs": 12, "num_workers": 2, "transform": copy_of, **options}
    with DataLoader(stream, executor=executor, **options) as loader:
        return [number for batch in loader for number in batch["data"][:, 0].tolist()]


@pytest.mark.parametrize("transform", [None, copy_of])
@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_stream_that_shares_itself_out_among_workers_is_read_whole_as_one_worker_reads_it(executor, transform):
    def share():
        return range(worker()[0], 60, worker()[1])

    found = numbers_of(Stream(share), executor, num_workers=3, transform=transform)
    assert found == list(range(60))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stream_that_nobody_seeded_gives_each_sequence_once(workers):
    stream = Stream(lambda: random.Random().sample(range(60), 60))
    assert sorted(numbers_of(stream, num_workers=workers)) == list(range(60))


def test_items_of_a_stream_may_hold_what_is_no_array():
    def make(number):
        return {"data": np.full(3, number), "anything": {object(): {1, 2}}, "objects": np.array([object()])}

    def collate(seqs):
        return {"data": np.stack([seq["data"] for seq in seqs])}

    found = numbers_of(Stream(lambda: range(60), make), collate=collate, executor="thread", transform=None)
    assert found == list(range(60))
