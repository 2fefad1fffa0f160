"""The datasets that another one is made of, who owns them, and how they are started and read.

Each dataset has one current order, so one that is made of others has these for itself: `open_part` makes or copies
them. `MetaPart` starts a part with the order of the whole, and reads it at the same positions. A part whose corpus
indices are known gets them, and what it reads is right by construction. Any other is asked by tags, and each sequence
that it delivers must have the tag that was asked for.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, SourceError, takes_note
from headrace.index import CorpusIndex

from .base import Dataset, Owned, with_copied_parts
from .cached import CachedDataset
from .configs import DatasetConfig, init_dataset, resolve_class
from .corpus import Corpus
from .reading.reader import Reader


def open_part(
    config: DatasetConfig | Owned,
    default_kwargs: Mapping[str, Any] | None = None,
    *,
    parent_dataset: Dataset | None = None,
    owner: object = None,
) -> Dataset:
    """Return a part for a dataset that is made of others: initialized, and nobody else's.

    What is described by a config is made, and a dataset is copied, so that the part has a current order of its own.

    Args:
        config: As for `init_dataset`, whose other arguments these are; or a dataset that is `Owned`, which is taken.
        default_kwargs: See `init_dataset`.
        parent_dataset: See `init_dataset`.
        owner: The dataset that it becomes a part of. One that cannot be copied is taken as it is, as long as this is
            its only owner; `None`: somebody, for ever.

    Raises:
        ConfigError: An option is wrong; or the dataset cannot be copied, and has an owner.
    """
    while callable(config) and not isinstance(config, Dataset):
        config = config()
    if isinstance(config, Owned):
        return init_dataset(config.dataset)
    if isinstance(config, Dataset):
        return init_dataset(_own(config, owner))
    return init_dataset(config, default_kwargs=default_kwargs, parent_dataset=parent_dataset)


def open_apart(config: Any, *, in_thread: bool = False) -> Dataset:
    """Return an initialized dataset of a config, or a copy of one; the dataset itself if it cannot be copied.

    For who reads a dataset so that it does not matter if somebody else does between two reads.

    Args:
        config: As for `init_dataset`.
        in_thread: Whether it is for one of several threads: then it must be a copy.

    Raises:
        Exception: What its constructor raises, if it cannot be copied, and must be.
    """
    while callable(config) and not isinstance(config, Dataset):
        config = config()
    if isinstance(config, Owned):
        return init_dataset(config.dataset)
    if not isinstance(config, Dataset):
        return init_dataset(config if _copies_parts(config) else with_copied_parts(config))
    try:
        made = copy.copy(config)
    except Exception as error:
        if in_thread:
            takes_note(error, f"each thread needs a copy of the {type(config).__name__} {config.name!r}")
            raise
        made = config
    return init_dataset(made)


def open_reader(config: Any, *, in_thread: bool = False) -> Reader:
    """Return what reads a dataset by its corpus indices, wherever others are in it, see `open_apart`."""
    return open_apart(config, in_thread=in_thread).make_reader()


def _copies_parts(config: Any) -> bool:
    """Whether the class that a config names takes its parts by `open_part`, as all of ours do."""
    if not isinstance(config, Mapping) or "class" not in config:
        return True
    return resolve_class(config["class"]).__module__.startswith("headrace.")


def _own(dataset: Dataset, owner: object) -> Dataset:
    try:
        return copy.copy(dataset)
    except Exception as error:
        if dataset.claimed_by is not None and dataset.claimed_by() not in (None, owner):
            raise ConfigError(
                f"a {type(dataset).__name__} is a part of two datasets, and it cannot be copied: {error}",
                where=f"dataset {dataset.name!r}",
                fix="make one for each of them, by a config; or let copy.copy work: with the constructor's arguments",
            ) from error
    dataset.claimed_by = _for_ever if owner is None else weakref.ref(owner)
    return dataset


def tags_of(dataset: Dataset) -> CorpusIndex | None:
    """Return the tags of a dataset by corpus index, `None` if it does not tell them."""
    corpus = dataset.get_corpus()
    if corpus.is_indexed:
        return corpus.index()
    try:
        return CorpusIndex.from_columns(tags=dataset.get_corpus_tags(), lengths={})
    except NotImplementedError:
        return None


def taken_away(dataset: Dataset, reader: object) -> HeadraceError:
    """Return what is raised if a dataset is not where its reader left it: only one that cannot be copied can be so."""
    return HeadraceError(
        f"somebody else has started or ended an epoch of a dataset that is read as a part of {reader}",
        where=f"{type(dataset).__name__} {dataset.name!r}",
        fix="leave it to its owner, or give a config, of which each makes its own",
    )


def _for_ever() -> object:
    return _for_ever


class MetaPart:
    """A sub-dataset.

    Args:
        name: Its key among the sub-datasets.
        dataset: It.
        keys: Data key of the whole -> data key of this dataset; may be empty.
    """

    def __init__(self, name: str, dataset: Dataset, keys: Mapping[str, str]) -> None:
        self.name = name
        self.dataset = dataset
        self.keys = dict(keys)
        self._are_distinct = len(set(self.keys.values())) == len(self.keys)
        self._version: int | None = None  # its `order_version` with the current order of the whole
        self._reads_by_key = False  # whether data keys that nobody wants are left unread
        self._shift = 0  # from a place of the whole to the place here
        self._tags: list[str] | None = None  # that must come, from place `_first` of the whole on
        self._first = 0
        self._num_checked = 0

    @property
    def corpus(self) -> Corpus:
        """What is known of its corpus."""
        return self.dataset.get_corpus()

    @property
    def source(self) -> object:
        """What its tags come from: another object if they may be others now."""
        return self.dataset.source if isinstance(self.dataset, CachedDataset) else self.dataset

    def tag_index(self) -> CorpusIndex | None:
        """Return its tags, `None` if it does not tell them."""
        return tags_of(self.dataset)

    @property
    def is_started(self) -> bool:
        """Whether it has its share of the current order; not any more if somebody else has positioned it since."""
        return self._version == self.dataset.order_version

    def forget(self) -> None:
        """End the current order."""
        self._version = None
        self._tags = None

    def go(self, shift: int = 0) -> None:
        """Take it that the dataset is started.

        Args:
            shift: What is added to a place of the whole to get the place here.
        """
        dataset = self.dataset
        self._version, self._shift = dataset.order_version, shift
        self._reads_by_key = dataset.make_reader().reads_by_key() and not self._wants_all()

    def _wants_all(self) -> bool:
        return set(self.keys.values()) == set(self.dataset.get_data_keys())

    def start_at(
        self, epoch: int | None, first: int, indices: NDArray[np.int64], occurrences: NDArray[np.int64] | None
    ) -> None:
        """Start it with corpus indices, see `Dataset.init_part`; without an epoch number its occurrences do not count.

        Args:
            epoch: The epoch number.
            first: The place of the first sequence in the whole.
            indices: `int64[n]`, corpus indices of this dataset.
            occurrences: `int64[n]`, or `None` if none comes twice.
        """
        if epoch is None:
            self.dataset.start_order(None, indices)
            place = 0
        else:
            place = self.dataset.init_part(epoch, first, indices, occurrences)
        self.go(place - first)

    def start_by_tags(self, epoch: int | None, first: int, tags: list[str]) -> None:
        """Start it with tags; `first` is the place of the first of them in the whole."""
        self.dataset.start_given(epoch, seq_list=tags)
        self.go(-first)
        self._tags, self._first, self._num_checked = tags, first, 0

    # --- reading: all places are those of the whole ---

    def load(self, start: int, end: int) -> None:
        """Get sequences start..end ready, if they must be asked for in rising order."""
        if not self.keys or self._reads_by_key:
            return
        if end == start + 1 and self.dataset.reads_singly:
            end = start  # one alone is read when it is taken: only what lies before it is dropped
        self.dataset.load_seqs(start + self._shift, end + self._shift)

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key of the whole."""
        return self.dataset.get_data(self._place(seq_idx), self.keys[key])

    def get_data_slice(self, seq_idx: int, key: str, start_frame: int, end_frame: int) -> NDArray[Any]:
        """Return frames start..end of one data key of the whole."""
        return self.dataset.get_data_slice(self._place(seq_idx), self.keys[key], start_frame, end_frame)

    def get_features(self, seq_idx: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of all of its data keys of the whole; each is the caller's own."""
        place = self._place(seq_idx)
        dataset = self.dataset
        if self._reads_by_key:
            return {key: dataset.get_data(place, own) for key, own in self.keys.items()}
        features = dataset.get_seq(place).features
        if self._are_distinct:
            return {key: features[own] for key, own in self.keys.items()}
        return {key: features[own].copy() for key, own in self.keys.items()}

    def get_seq_lengths(self, seq_idx: int) -> dict[str, Any]:
        """Return data key of the whole -> number of frames."""
        lengths = self.dataset.get_seq_length(self._place(seq_idx))
        return {key: lengths[own] for key, own in self.keys.items()}

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return the length that the dataset sorts a sequence by."""
        return self.dataset.get_estimated_seq_length(self._place(seq_idx))

    def _place(self, seq_idx: int) -> int:
        """Return the place here, checked if the dataset was asked by tags."""
        place = seq_idx + self._shift
        if self._tags is not None and place >= self._num_checked:
            self._check_tag(place, self._tags)
            self._num_checked = place + 1
        return place

    def _check_tag(self, place: int, tags: Sequence[str]) -> None:
        found = self.dataset.get_tag(place) if self.dataset.is_less_than_num_seqs(place) else None
        if found == tags[place]:
            return
        what = f"it was asked for the tag {tags[place]!r}, and "
        what += f"delivers {found!r}" if found is not None else f"ends after {place} of {len(tags)} sequences"
        raise SourceError(
            f"the sub-dataset {self.name!r} does not deliver what it is asked for: {what}",
            where=f"{type(self.dataset).__name__} {self.dataset.name!r}, sequence {place + self._first}",
            fix=f"{type(self.dataset).__name__} must take init_seq_order(seq_list=...), or be the "
            "seq_order_control_dataset",
        )


class PartReader:
    """Reads a sub-dataset under the data keys of the whole.

    Args:
        name: Its key among the sub-datasets.
        dataset: It. Nobody else has it.
        keys: Data key of the whole -> data key of this dataset.
    """

    def __init__(self, name: str, dataset: Dataset, keys: Mapping[str, str]) -> None:
        self.name, self.keys = name, dict(keys)
        self.reader = dataset.make_reader()
        self._are_distinct = len(set(self.keys.values())) == len(self.keys)
        takes_all = set(self.keys.values()) == set(dataset.get_data_keys())
        self._reads_by_key = self.reader.reads_by_key() and not takes_all  # those that nobody wants stay unread

    def load(self, start: int, stop: int) -> None:
        """Get sequences ready, if they must be asked for in rising order."""
        if not self.keys or self._reads_by_key:
            return
        if stop == start + 1 and not self.reader.needs_load:
            stop = start  # one alone is read when it is taken: only what lies before it is dropped
        self.reader.load(start, stop)

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return the array of one data key of the whole."""
        return self.reader.array(number, self.keys[key])

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return frames start..stop of one data key of the whole."""
        return self.reader.frames(number, self.keys[key], start, stop)

    def features(self, number: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of all of its data keys of the whole; no two are one."""
        if self._reads_by_key:
            return {key: self.reader.array(number, own) for key, own in self.keys.items()}
        features = self.reader.features(number)
        if self._are_distinct:
            return {key: features[own] for key, own in self.keys.items()}
        return {key: features[own].copy() for key, own in self.keys.items()}

    def num_frames(self, number: int) -> dict[str, Any]:
        """Return data key of the whole -> number of frames."""
        frames = self.reader.num_frames(number)
        return {key: frames[own] for key, own in self.keys.items()}
