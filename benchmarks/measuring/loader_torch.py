"""torch: `DataLoader` over a map-style dataset, with a batch sampler that buckets by length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from headrace.sources import HDFSource

from .loader_contender import AHEAD, NUM_WORKERS, WORLD_SIZE, Batch, Contender, dear_work
from .loader_corpora import Corpus

POOL_BATCHES = 100  # so many batches' worth of a random order are sorted by length together
LOADING = {"num_workers": NUM_WORKERS, "persistent_workers": True, "prefetch_factor": AHEAD}


class Sequences(Dataset[NDArray[Any]]):
    """Reads one sequence."""

    def __init__(self, corpus: Corpus, *, is_dear: bool) -> None:
        self.source = HDFSource(corpus.file("hdf"))
        self.is_dear = is_dear

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, idx: int) -> NDArray[Any]:
        """Return the data of a sequence."""
        data = self.source.read(idx, "data")
        return dear_work(data) if self.is_dear else data


class BucketSampler(Sampler[list[int]]):
    """Batches of like length within a budget of padded frames, shuffled; another order in each epoch."""

    def __init__(self, corpus: Corpus, rank: int = 0, world_size: int = 1) -> None:
        self.lengths, self.budget = corpus.lengths(), corpus.budget
        self.rank, self.world_size = rank, world_size
        sample = self.lengths[:: max(len(self.lengths) // 1000, 1)]
        self.pool_seqs = max(int(POOL_BATCHES * self.budget / sample.mean()), 1)
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.epoch += 1
        for number, batch in enumerate(self.all_batches()):
            if number % self.world_size == self.rank:
                yield batch

    def all_batches(self) -> Iterator[list[int]]:
        """Yield the batches of all ranks."""
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).numpy()
        for start in range(0, len(order), self.pool_seqs):
            pool = order[start : start + self.pool_seqs]
            lengths = self.lengths[pool]
            by_length = np.argsort(lengths)
            batches = list(self.cut(pool[by_length].tolist(), lengths[by_length].tolist()))
            for number in torch.randperm(len(batches), generator=generator).tolist():
                yield batches[number]

    def cut(self, seqs: list[int], lengths: list[int]) -> Iterator[list[int]]:
        """Cut sequences of ascending length into batches."""
        first = 0
        for place, length in enumerate(lengths):
            if place > first and (place + 1 - first) * length > self.budget:
                yield seqs[first:place]
                first = place
        yield seqs[first:]


def pad_tensors(seqs: list[NDArray[Any]]) -> Batch:
    """Pad into one new tensor."""
    data = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(seq) for seq in seqs], batch_first=True)
    return data, torch.tensor([len(seq) for seq in seqs])


def pad_arrays(seqs: list[NDArray[Any]]) -> Batch:
    """Pad into one new array."""
    lengths = np.array([len(seq) for seq in seqs])
    data = np.zeros((len(seqs), lengths.max(), *seqs[0].shape[1:]), seqs[0].dtype)
    for row, seq in zip(data, seqs, strict=True):
        row[: len(seq)] = seq
    return data, lengths


class Torch(Contender):
    """See the module.

    Args:
        makes_tensors: Whether workers pad into tensors, which travel in shared memory; arrays are pickled.
    """

    def __init__(self, *, makes_tensors: bool = True) -> None:
        self.pad = pad_tensors if makes_tensors else pad_arrays

    def stream(self, corpus: Corpus, *, is_dear: bool) -> Iterator[Batch]:
        """See `Contender`."""
        sampler = BucketSampler(corpus)
        loader = DataLoader(Sequences(corpus, is_dear=is_dear), batch_sampler=sampler, collate_fn=self.pad, **LOADING)
        while True:
            yield from loader

    def rank_lengths(self, corpus: Corpus, rank: int) -> Iterator[NDArray[Any]]:
        """See `Contender`."""
        lengths = corpus.lengths()
        yield from map(partial(np.take, lengths), BucketSampler(corpus, rank, WORLD_SIZE))
