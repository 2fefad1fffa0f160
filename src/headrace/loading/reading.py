"""How a worker reads the sequences of a batch: from a dataset of its own, or item by item from the user's object.

A `Reading` is carried to the workers and opened there. A sequence that cannot be read does not keep the others from
being read: its error takes its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.base import Dataset
from headrace.datasets.cached import CachedDataset
from headrace.datasets.configs import init_dataset
from headrace.engine import WorkerInfo, note_place
from headrace.specs import DataSpec


@dataclass(frozen=True, slots=True)
class Wish:
    """Sequences of one epoch that a worker is to read.

    Attributes:
        epoch: Its number.
        indices: Corpus indices, `int64[n]`.
        occurrences: How often each of them came before in the epoch, `int64[n]`; None if never.
        seqs: What was read already: tag and data of each; None if nothing was.
    """

    epoch: int
    indices: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None
    seqs: list[tuple[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """What stands for a sequence that could not be read or transformed."""

    error: Exception


class Reader(ABC):
    """Reads in one worker. Not thread-safe."""

    @abstractmethod
    def read(self, wish: Wish) -> Iterator[tuple[str, Any]]:
        """Yield for each sequence of the wish, in order, its tag and what was read; or a `Failed`."""


class Reading(ABC):
    """What is carried to the workers.

    Attributes:
        specs: What is known of the layout, by data key.
        is_by_key: Whether sequences are arrays by data key, and not just items.
    """

    specs: Mapping[str, DataSpec]
    is_by_key: bool

    @abstractmethod
    def open(self, info: WorkerInfo) -> Reader:
        """Get ready to read, in a worker."""


@dataclass(frozen=True)
class DatasetReading(Reading):
    """Reads from a dataset that each worker builds for itself.

    Args:
        config: Of the dataset, or one that is copied.
        specs: What is known of its layout.
    """

    config: Any
    specs: Mapping[str, DataSpec] = field(default_factory=dict)
    is_by_key = True

    def open(self, info: WorkerInfo) -> Reader:
        """Build the dataset. What was carried to another process is a copy already."""
        config = self.config if info.executor == "process" else copy_datasets(self.config)
        return _DatasetReader(init_dataset(config))


class _DatasetReader(Reader):
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def read(self, wish: Wish) -> Iterator[tuple[str, Any]]:
        dataset = self._dataset
        first = dataset.init_part(wish.epoch, 0, wish.indices, wish.occurrences)
        is_cached = isinstance(dataset, CachedDataset)
        tags = dataset.source.tags_of(wish.indices) if isinstance(dataset, CachedDataset) else None
        for number, corpus_idx in enumerate(wish.indices.tolist()):
            tag = f"(corpus index {corpus_idx})" if tags is None else tags[number]
            note_place(tag, wish.epoch)
            try:
                if is_cached:
                    features = dataset.take_features(first + number)  # type: ignore[attr-defined]
                else:
                    dataset.load_seqs(first + number, first + number + 1)
                    seq = dataset.get_seq(first + number)
                    tag, features = seq.seq_tag, dict(seq.features)
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                yield tag, Failed(error)
            else:
                yield tag, features


def copy_datasets(value: Any) -> Any:
    """Return a value, such as a config, in which each dataset is a new one of the same arguments; arrays are shared.

    Datasets may hold others, which `copy.copy` would share and `copy.deepcopy` would copy with all that they hold.
    """
    if isinstance(value, Dataset):
        function, arguments = value.__reduce__()
        return function(*copy_datasets(arguments))
    if type(value) in (list, tuple):
        return type(value)(map(copy_datasets, value))
    if type(value) is dict:
        return {key: copy_datasets(item) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class ItemsReading(Reading):
    """Reads items of the user's object, as they are.

    Args:
        items: Anything with `__getitem__`.
    """

    items: Any
    specs: Mapping[str, DataSpec] = field(default_factory=dict)
    is_by_key = False

    def open(self, info: WorkerInfo) -> Reader:
        """Get ready to read: there is nothing to be done."""
        del info
        return _ItemsReader(self.items)


class _ItemsReader(Reader):
    def __init__(self, items: Any) -> None:
        self._items = items
        self._get_tag = getattr(items, "get_seq_tag", "seq-{}".format)

    def read(self, wish: Wish) -> Iterator[tuple[str, Any]]:
        for corpus_idx in wish.indices.tolist():
            tag = f"(item {corpus_idx})"
            note_place(tag, wish.epoch)
            try:
                tag, item = str(self._get_tag(corpus_idx)), self._items[corpus_idx]
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                yield tag, Failed(error)
            else:
                yield tag, item
