"""Grain: a map dataset over the same reading code, batches made in its worker processes.

Grain has no batches by length, so there are two ways. Batches of one number of sequences, so large that they hold as
many frames as a budget allows on average. And batches listed before by the sampler that torch gets, each of which is
one element for Grain; the list costs time and memory for the whole corpus.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np
from numpy.typing import NDArray

from headrace.sources import HDFSource

from .loader_contender import AHEAD, NUM_WORKERS, WORLD_SIZE, Batch, Contender, Saved, dear_work
from .loader_corpora import Corpus


class Sequences:
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


class ListedBatches:
    """Reads one batch of a list."""

    def __init__(self, corpus: Corpus, *, is_dear: bool) -> None:
        self.sequences = Sequences(corpus, is_dear=is_dear)
        self.batches = list_batches(corpus)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, idx: int) -> dict[str, NDArray[Any]]:
        """Return a batch."""
        return pad([self.sequences[seq] for seq in self.batches[idx]])


def list_batches(corpus: Corpus) -> list[list[int]]:
    """Return batches of like length."""
    from .loader_torch import BucketSampler

    return list(BucketSampler(corpus))


def pad(seqs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Pad into one new array."""
    lengths = np.array([len(seq) for seq in seqs])
    data = np.zeros((len(seqs), lengths.max(), *seqs[0].shape[1:]), seqs[0].dtype)
    for row, seq in zip(data, seqs, strict=True):
        row[: len(seq)] = seq
    return {"data": data, "lengths": lengths}


def count_of(corpus: Corpus) -> int:
    """Return how many sequences of average length the budget allows."""
    lengths = corpus.lengths()
    return max(int(corpus.budget / lengths[: 1 << 20].mean()), 1)


class Grain(Contender):
    """See the module.

    Args:
        lists_batches: The second way.
    """

    def __init__(self, *, lists_batches: bool) -> None:
        self.lists_batches = lists_batches

    def batches(self, corpus: Corpus, *, is_dear: bool) -> Any:
        """Return the batches of an epoch, with random access."""
        if self.lists_batches:
            return grain.MapDataset.source(ListedBatches(corpus, is_dear=is_dear)).shuffle(seed=1)
        seqs = grain.MapDataset.source(Sequences(corpus, is_dear=is_dear)).shuffle(seed=1)
        return seqs.batch(count_of(corpus), batch_fn=pad)

    def open(self, batches: Any) -> Any:
        """Return an iterator over batches that workers make."""
        reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)
        options = grain.MultiprocessingOptions(num_workers=NUM_WORKERS, per_worker_buffer_size=AHEAD)
        return iter(batches.to_iter_dataset(reading).mp_prefetch(options))

    def stream(self, corpus: Corpus, *, is_dear: bool) -> Iterator[Batch]:
        """See `Contender`."""
        for batch in self.open(self.batches(corpus, is_dear=is_dear).repeat()):
            yield batch["data"], batch["lengths"]

    def rank_lengths(self, corpus: Corpus, rank: int) -> Iterator[NDArray[Any]]:
        """See `Contender`."""
        lengths = corpus.lengths()
        if self.lists_batches:
            batches = grain.MapDataset.source(list_batches(corpus)).shuffle(seed=1)[rank::WORLD_SIZE]
            yield from (lengths[batch] for batch in batches)
        else:
            seqs = grain.MapDataset.range(len(lengths)).shuffle(seed=1)[rank::WORLD_SIZE]
            yield from (lengths[batch] for batch in seqs.batch(count_of(corpus), batch_fn=np.array))

    def save(self, corpus: Corpus, shares: Sequence[float]) -> list[Saved] | None:
        """See `Contender`."""
        dataset = self.batches(corpus, is_dear=False)
        batches, place = self.open(dataset), 0
        found: list[Saved] = []
        for share in shares:
            while place < int(len(dataset) * share):
                next(batches)
                place += 1
            state = copy.deepcopy(batches.get_state())
            found.append((state, next(batches)["lengths"].tolist()))
            place += 1
        return found

    def resume(self, corpus: Corpus, state: Any) -> Iterator[Batch]:
        """See `Contender`."""
        batches = self.open(self.batches(corpus, is_dear=False))
        batches.set_state(state)
        for batch in batches:
            yield batch["data"], batch["lengths"]
