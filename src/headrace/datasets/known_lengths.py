"""Lengths of the sequences of any dataset, where they are known without reading."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import Dataset
from .cached import CachedDataset
from .delegating import DelegatingDataset
from .meta import MetaDataset
from .multi_proc import MultiProcDataset
from .postprocessing import PostprocessingDataset


def known_lengths(dataset: Dataset, key: str) -> NDArray[Any] | None:
    """Return the lengths of a data key by corpus index, `int[N]`; `None` if they are not known without reading."""
    if isinstance(dataset, MultiProcDataset) or (isinstance(dataset, DelegatingDataset) and dataset.has_one_corpus):
        return known_lengths(dataset.inner, key)
    if isinstance(dataset, PostprocessingDataset):
        return known_lengths(dataset.inner, key) if dataset.keeps_lengths_of(key) else None
    if isinstance(dataset, CachedDataset):
        index = dataset.source.index
        return index.lengths(key) if index.has_lengths(key) else None
    if isinstance(dataset, MetaDataset):
        part, corpus = dataset._part(key), dataset.corpus
        lengths = known_lengths(part.dataset, part.keys[key])
        return None if lengths is None else lengths[corpus.places(part.name, np.arange(len(corpus.index)))]
    return None


def may_change_lengths(dataset: Dataset) -> bool:
    """Tell whether what is read may have other lengths than `known_lengths` says: a transform may change them."""
    if isinstance(dataset, MultiProcDataset | PostprocessingDataset | DelegatingDataset):
        return may_change_lengths(dataset.inner)
    if isinstance(dataset, MetaDataset):
        return any(may_change_lengths(part.dataset) for part in dataset._parts.values())
    return isinstance(dataset, CachedDataset) and (
        dataset._transform is not None or getattr(dataset, "joins_changed_seqs", False) is True
    )
