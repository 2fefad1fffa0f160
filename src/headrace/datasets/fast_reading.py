"""Whether sequences can be read together, straight from the source of a dataset.

That is quicker than asking the dataset for one after the other. It must not be seen in what comes out: so nothing may
stand between source and reader, neither an option of the dataset nor a sub-class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from headrace.sources import Source

from .base import Dataset
from .cached import CachedDataset

_WAYS = ("load_seqs", "get_seq", "get_data", "get_tag", "take_features")


def reads_plainly(dataset: Dataset) -> TypeGuard[CachedDataset]:
    """Tell whether it is a `CachedDataset`, and no sub-class has changed how sequences are read."""
    return isinstance(dataset, CachedDataset) and all(
        getattr(type(dataset), way) is getattr(CachedDataset, way) for way in _WAYS
    )


def fast_source(dataset: Dataset) -> Source | None:
    """Return the source of a dataset if its sequences come out as they are in it, and it reads many at once quickly.

    Datasets made of several say so by a method `get_fast_source`.
    """
    if reads_plainly(dataset) and dataset._reads_by_key() and dataset.source.has_fast_rows:
        return dataset.source
    get_fast_source: Callable[[], Source | None] | None = getattr(dataset, "get_fast_source", None)
    return None if get_fast_source is None else get_fast_source()
