"""Lhotse: `DynamicBucketingSampler` over cuts from a manifest, and torch's `DataLoader`.

The cuts only say which sequence to read; it is read by `HDFSource`, as for torch.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from .loader_contender import WORLD_SIZE, Batch, Contender, Saved
from .loader_corpora import FRAMES_PER_SECOND, Corpus
from .loader_torch import LOADING, Sequences, pad_tensors

NUM_BUCKETS = 64  # as many as ours
MAX_EAGER = 50_000  # cuts; up to here they are kept in memory, which is quicker than to parse them in each epoch


def frames_of(cuts: CutSet) -> list[int]:
    return [round(cut.duration * FRAMES_PER_SECOND) for cut in cuts]


def open_sampler(corpus: Corpus, rank: int = 0, world_size: int = 1) -> DynamicBucketingSampler:
    cuts = CutSet.from_jsonl_lazy(corpus.file("jsonl"))
    return DynamicBucketingSampler(
        cuts.to_eager() if len(corpus.lengths()) <= MAX_EAGER else cuts,
        max_duration=corpus.budget / FRAMES_PER_SECOND,
        num_buckets=NUM_BUCKETS,
        shuffle=True,
        seed=1,
        rank=rank,
        world_size=world_size,
    )


class Batches(Dataset[Batch]):
    """Reads the cuts of a batch and pads them."""

    def __init__(self, corpus: Corpus, *, is_dear: bool) -> None:
        self.sequences = Sequences(corpus, is_dear=is_dear)

    def __getitem__(self, cuts: CutSet) -> Batch:
        """Return a batch."""
        return pad_tensors([self.sequences[cut.custom["idx"]] for cut in cuts])


class Lhotse(Contender):
    """See the module."""

    def stream(self, corpus: Corpus, *, is_dear: bool) -> Iterator[Batch]:
        """See `Contender`."""
        sampler = open_sampler(corpus)
        loader = DataLoader(Batches(corpus, is_dear=is_dear), sampler=sampler, batch_size=None, **LOADING)
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    def rank_lengths(self, corpus: Corpus, rank: int) -> Iterator[NDArray[Any]]:
        """See `Contender`."""
        for cuts in open_sampler(corpus, rank, WORLD_SIZE):
            yield np.array(frames_of(cuts))

    def save(self, corpus: Corpus, shares: Sequence[float]) -> list[Saved] | None:
        """See `Contender`."""
        total = sum(1 for _ in open_sampler(corpus))
        sampler = open_sampler(corpus)
        batches, place = iter(sampler), 0
        found: list[Saved] = []
        for share in shares:
            for _ in itertools.islice(batches, int(total * share) - place):
                pass
            state = sampler.state_dict()
            found.append((state, frames_of(next(batches))))
            place = int(total * share) + 1
        return found

    def resume(self, corpus: Corpus, state: Any) -> Iterator[Batch]:
        """See `Contender`."""
        sampler = open_sampler(corpus)
        sampler.load_state_dict(copy.deepcopy(state))  # it empties what it gets
        yield from DataLoader(Batches(corpus, is_dear=False), sampler=sampler, batch_size=None, **LOADING)
