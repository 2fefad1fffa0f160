"""What can be known of a dataset's corpus without reading it, whatever class the dataset is.

Datasets made of others need it: which tags there are and under which corpus index, what is sorted by, what repeats.
A class that says nothing here is driven by tags alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.index import CorpusIndex
from headrace.order import occurrences

from .base import Dataset
from .cached import CachedDataset
from .delegating import DelegatingDataset
from .generating import GeneratingDataset
from .multi_proc import MultiProcDataset


@dataclass(frozen=True)
class CorpusFacts:
    """What is known of a corpus. Functions are called only when their answer is needed.

    Attributes:
        index: The tags by corpus index; `init_seq_order(seq_order=...)` takes these numbers.
        sort_lengths: Returns `int[N]`: what sequences are sorted by.
        kept: Returns `bool[N]`: what the dataset's own filter keeps, `None` if it has no filter.
        draws_by_occurrence: Whether what is read depends on how often a sequence came before in the epoch.
        occurrences: Returns `int64[n]`: how often each sequence of the current order came before.
    """

    index: CorpusIndex
    sort_lengths: Callable[[], NDArray[Any]]
    kept: Callable[[], NDArray[np.bool_] | None]
    draws_by_occurrence: bool
    occurrences: Callable[[], NDArray[np.int64]]


@singledispatch
def facts_of(dataset: Dataset) -> CorpusFacts | None:
    """Return what is known of a dataset's corpus, `None` if its tags and their places are not. O(1)."""
    del dataset
    return None


def knows_corpus(dataset: Dataset) -> bool:
    """Tell whether a dataset has random access to its sequences, and says its order."""
    if facts_of(dataset) is None:
        return False
    try:
        dataset.get_current_seq_order()
    except NotImplementedError:
        return False
    return True


@facts_of.register
def _(dataset: CachedDataset) -> CorpusFacts:
    return CorpusFacts(
        index=dataset.source.index,
        sort_lengths=dataset._sort_lengths,
        kept=lambda: _kept(dataset),
        draws_by_occurrence=dataset._transform_wants_rng,
        occurrences=lambda: _occurrences(dataset),
    )


@facts_of.register
def _(dataset: GeneratingDataset) -> CorpusFacts | None:
    if dataset._corpus_num_seqs == math.inf:
        return None
    return CorpusFacts(
        index=CorpusIndex.from_columns(tags=dataset._corpus_tags(), lengths={}),
        sort_lengths=dataset._lengths,
        kept=lambda: _kept(dataset),
        draws_by_occurrence=False,
        occurrences=lambda: occurrences(dataset.get_current_seq_order()),
    )


@facts_of.register
def _(dataset: MultiProcDataset) -> CorpusFacts | None:
    return facts_of(dataset.inner) if dataset.sharding_method == "seq_order" else None  # "dedicated" takes no order


@facts_of.register
def _(dataset: DelegatingDataset) -> CorpusFacts | None:
    return facts_of(dataset.inner) if dataset.has_one_corpus else None


def _occurrences(dataset: CachedDataset) -> NDArray[np.int64]:
    dataset._count_occurrences()
    assert dataset._occurrences is not None
    return dataset._occurrences


def _kept(dataset: Dataset) -> NDArray[np.bool_] | None:
    return None if dataset._wanted_tags is None else dataset._keep_mask()
