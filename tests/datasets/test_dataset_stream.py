"""`Dataset.stream`: the sequences of an epoch, one after the other, from where a dataset can begin."""

import numpy as np
import pytest

from headrace import ConfigError
from headrace.datasets import CachedDataset2, DatasetSeq
from headrace.loading import DataLoader


class Numbers(CachedDataset2):
    """Ten sequences, which nobody knows before they are read."""

    num_inputs, num_outputs = 1, {"data": (1, 2)}

    def __init__(self):
        super().__init__()
        self.read = []

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= 10:
            return None
        self.read.append(seq_idx)
        return DatasetSeq(seq_idx, np.full((1, 1), 100 * int(self.epoch) + seq_idx, np.float32))


class Anywhere(Numbers):
    """Gives any of them at once; it knows their number, else it would have to look for the end."""

    supports_jumps = True

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self._num_seqs = 10
        return True


def numbers_of(stream):
    return [int(seq.features["data"][0, 0]) for seq in stream]


def test_a_stream_begins_where_the_dataset_can_and_says_where_that_is():
    dataset = Numbers()
    stream = dataset.get_corpus().stream(2)
    assert not stream.jumps
    assert stream.position == 0
    assert numbers_of(stream) == list(range(200, 210))
    assert stream.position == 10
    assert dataset.read == list(range(10))

    dataset = Anywhere()
    stream = dataset.get_corpus().stream(3)
    assert stream.jumps
    stream.position = 7
    assert numbers_of(stream) == [307, 308, 309]
    assert dataset.read == [7, 8, 9]
    stream = dataset.get_corpus().stream(1)
    stream.position = 12
    assert numbers_of(stream) == []

    dataset = Numbers()
    stream = dataset.get_corpus().stream(1)
    next(stream)
    dataset.init_seq_order(epoch=2)
    with pytest.raises(ConfigError, match="stale"):
        next(stream)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_reads_nothing_before_the_window_where_a_dataset_can_begin_anywhere(workers):
    options = {"batch_size": 1, "window_seqs": 2, "num_workers": workers, "executor": "thread", "transform": dict}
    with DataLoader(Anywhere(), **options) as loader:
        for _ in zip(range(5), loader, strict=False):
            pass
        state = loader.state_dict()
    read = []

    class Watched(Anywhere):
        def _collect_single_seq(self, seq_idx):
            read.append(seq_idx)
            return super()._collect_single_seq(seq_idx)

    Watched.__name__ = Watched.__qualname__ = "Anywhere"
    with DataLoader(Watched(), **options) as loader:
        loader.load_state_dict(state)
        found = [int(batch["data"][0, 0, 0]) for batch in next(loader.epochs())]
    assert found == [105, 106, 107, 108, 109]
    assert sorted({*read} - {10}) == [4, 5, 6, 7, 8, 9]
