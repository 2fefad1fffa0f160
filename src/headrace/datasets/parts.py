"""The datasets that another one is made of: their ownership, what is known of them, and their readers.

Each dataset has one current order, so one that is made of others has these for itself: `open_part` makes or copies
them, and a `PartReader` reads one.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ConfigError, takes_note
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from .base import Dataset, Owned, with_copied_parts
from .configs import DatasetConfig, init_dataset, resolve_class
from .corpus import IndexedFiles, check_files
from .reading.reader import Reader


def open_part(
    config: DatasetConfig | Owned,
    default_kwargs: Mapping[str, Any] | None = None,
    *,
    parent_dataset: Dataset | None = None,
    owner: object = None,
) -> Dataset:
    """Return a part for a dataset that is made of others: initialized, and not shared.

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

    For reading a dataset that others may read, too, between two reads.

    Args:
        config: As for `init_dataset`.
        in_thread: Whether it is for one of several threads: then it must be a copy.

    Raises:
        Exception: What its constructor raises, if it cannot be copied, and must be.
    """
    if isinstance(config, MadeElsewhere):
        return config(in_thread=in_thread)
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
    made.initialize()
    return made


def open_reader(config: Any, *, in_thread: bool = False) -> Reader:
    """Return a reader of a dataset by its corpus indices, independent of other readers, see `open_apart`."""
    return open_apart(config, in_thread=in_thread).make_reader()


@dataclass(frozen=True)
class MadeElsewhere:
    """Makes the inner dataset in a worker, of the same files.

    Attributes:
        config: Its config, or a dataset that is copied.
        files: What they held when it was made here.
    """

    config: Mapping[str, Any] | Dataset
    files: Sequence[IndexedFiles]

    @classmethod
    def of(cls, config: Mapping[str, Any] | Dataset, inner: Dataset) -> MadeElsewhere:
        """Return an object that makes a dataset like `inner`, which was made here from the same config."""
        return cls(config if isinstance(config, Dataset) else {**config}, inner.indexed_files())

    def __call__(self, shard: tuple[int, int] | None = None, *, in_thread: bool = False) -> Dataset:
        """Make it.

        Args:
            shard: The number of shards, and which of them it is; `None`: as it says itself.
            in_thread: Whether it is for one of several threads.

        Raises:
            SourceError: Files were changed since.
        """
        if isinstance(self.config, Dataset):
            dataset = open_apart(self.config, in_thread=in_thread)
            if shard is not None:
                dataset.set_sharding(*shard)
        else:
            options = {} if shard is None else {"_num_shards": shard[0], "_shard_index": shard[1]}
            dataset = open_apart({**self.config, **options})
        check_files(dataset.indexed_files(), self.files)
        return dataset


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


def check_indexed(datasets: Mapping[str, Dataset], owner: str) -> None:
    """Refuse datasets that do not know their corpus, as parts of one that joins corpora.

    Args:
        datasets: The parts by name.
        owner: The name of the whole.

    Raises:
        ConfigError: One does not know its corpus.
    """
    for name, dataset in datasets.items():
        if not dataset.get_corpus().is_indexed:
            raise ConfigError(
                f"the sub-dataset {name!r} ({type(dataset).__name__}) does not know its corpus: how many sequences "
                "it has, and which tag the n-th of them has",
                where=f"dataset {owner!r}",
                fix="let it be a MapDataset of an object with __len__, __getitem__ and get_seq_tag; a class of your "
                "own over Dataset has random access if it defines get_all_tags, by corpus index, and "
                "get_current_seq_order, and its init_seq_order takes seq_order; to read streams in turns, give the "
                "loader an iterable that does",
            )


def tags_of(dataset: Dataset) -> CorpusIndex | None:
    """Return the tags of a dataset by corpus index, `None` if it does not tell them."""
    corpus = dataset.get_corpus()
    if corpus.is_indexed:
        return corpus.index()
    try:
        return CorpusIndex.from_columns(tags=dataset.get_corpus_tags(), lengths={})
    except NotImplementedError:
        return None


def _for_ever() -> object:
    return _for_ever


def spec_of(dataset: Dataset, key: str) -> DataSpec | None:
    """Return the layout of one data key of any dataset, `None` if only its first sequence tells it."""
    if dataset.num_outputs is None or key not in dataset.num_outputs:
        return None
    dim: int | None = dataset.get_data_dim(key)
    shape = tuple(dataset.get_data_shape(key))
    is_sparse = dataset.is_data_sparse(key)
    has_time = dataset.num_outputs[key][1] > len(shape)
    spec = DataSpec(dataset.get_data_dtype(key), shape, is_sparse, dim, has_time)
    known = dataset.get_corpus().specs.get(key)
    if known is None:
        return spec
    # What the epoch API cannot say.
    return replace(spec, dim=None if is_sparse and known.dim is None else dim, is_text=known.is_text)


def open_datasets(
    configs: Mapping[str, DatasetConfig], whole: Dataset, seed_offset: int | None = None
) -> dict[str, Dataset]:
    """Open sub-datasets; the name of the whole and the seed offset are defaults.

    Raises:
        ConfigError: A config is wrong.
    """
    datasets = {}
    for name, config in configs.items():
        defaults = {"name": f"{whole.name}_{name}", "random_seed_offset": seed_offset or 0}
        datasets[name] = open_part(config, defaults, owner=whole)
    return datasets


def check_no_cycle(config: Any, path: tuple[int, ...] = ()) -> None:
    """Refuse a config that contains itself: opening it would never end.

    Raises:
        ConfigError: It contains itself.
    """
    if not isinstance(config, Mapping | list | tuple):
        return
    if id(config) in path:
        raise ConfigError(
            "the config of a sub-dataset contains itself", fix="let each dataset have sub-datasets of its own"
        )
    for value in config.values() if isinstance(config, Mapping) else config:
        check_no_cycle(value, (*path, id(config)))
