"""The corpora that another one is made of: opened from configs, or those of datasets that were made already.

A corpus is shared freely. Only a dataset that is asked by its epochs (`foreign.py`) has one current order: it becomes a
part as a copy, or as it is, for one owner.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, takes_note
from headrace.index import CorpusIndex

from .base import Dataset, with_copied_parts
from .configs import DatasetConfig, init_dataset, resolve_class
from .corpus import Corpus, IndexedFiles, check_files
from .foreign import ForeignCorpus
from .reading.reader import Reader

_owners: weakref.WeakKeyDictionary[Dataset, Any] = weakref.WeakKeyDictionary()  # of datasets that cannot be copied


def open_corpus(
    config: DatasetConfig | Corpus,
    default_kwargs: Mapping[str, Any] | None = None,
    *,
    owner: Dataset | None = None,
    parent_dataset: Dataset | None = None,
) -> Corpus:
    """Return the corpus of a part of a dataset that is made of others.

    Args:
        config: As for `init_dataset`, whose other arguments these are; a corpus stays as it is.
        default_kwargs: See `init_dataset`.
        owner: The dataset that it becomes a part of. One that cannot be copied is taken as it is, as long as this is
            its only owner; `None`: somebody, for ever.
        parent_dataset: See `init_dataset`.

    Raises:
        ConfigError: An option is wrong; or the dataset cannot be copied, and has an owner.
    """
    if isinstance(config, Corpus):
        return config
    corpus = open_part(config, default_kwargs, owner=owner, parent_dataset=parent_dataset).get_corpus()
    corpus.answer_alone()
    return corpus


def open_part(
    config: DatasetConfig,
    default_kwargs: Mapping[str, Any] | None = None,
    *,
    parent_dataset: Dataset | None = None,
    owner: Dataset | None = None,
) -> Dataset:
    """Return a part for a dataset that is made of others: initialized, and with a position of its own.

    What is described by a config is made, and a dataset is copied. The arguments are those of `open_corpus`.

    Raises:
        ConfigError: An option is wrong; or the dataset cannot be copied, and has an owner.
    """
    while callable(config) and not isinstance(config, Dataset):
        config = config()
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
    while callable(config) and not isinstance(config, Dataset):
        config = config()
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


def open_here(config: Any) -> Corpus:
    """Return the corpus of a config, or of a dataset that nobody else uses."""
    if isinstance(config, MadeElsewhere):
        return config()
    if isinstance(config, Corpus):
        return config
    corpus = init_dataset(config).get_corpus()
    corpus.answer_alone()
    return corpus


def open_reader(config: Any, *, in_thread: bool = False) -> Reader:
    """Return a reader of a dataset by its corpus indices, independent of other readers, see `open_apart`."""
    if isinstance(config, MadeElsewhere):
        return config(in_thread=in_thread).reader()
    if isinstance(config, Corpus):
        return (config.apart() if in_thread else config).reader()
    corpus = open_apart(config, in_thread=in_thread).get_corpus()
    corpus.answer_alone()
    return corpus.reader()


@dataclass(frozen=True)
class MadeElsewhere:
    """Makes the inner dataset in a worker, of the same files.

    Attributes:
        config: Its config, or a dataset that is copied.
        files: What they held when it was made here.
    """

    config: Mapping[str, Any] | Dataset | Corpus
    files: Sequence[IndexedFiles]

    @classmethod
    def of(cls, config: Mapping[str, Any] | Dataset | Corpus, inner: Corpus) -> MadeElsewhere:
        """Return an object that makes a corpus like `inner`, which was made here from the same config."""
        return cls({**config} if isinstance(config, Mapping) else config, inner.indexed_files())

    def with_orders(self, options: Mapping[str, Any]) -> MadeElsewhere:
        """Return an object that makes it with other options of the order."""
        config = self.config
        if isinstance(config, Corpus):
            return MadeElsewhere(config.with_orders(**options), self.files)
        if isinstance(config, Dataset):
            config = copy.copy(config)
            config.change_orders(**options)
            return MadeElsewhere(config, self.files)
        named = {"num_shards": "_num_shards", "shard_index": "_shard_index"}
        return MadeElsewhere(
            {**config, **{named.get(name, name): value for name, value in options.items()}}, self.files
        )

    def __call__(self, shard: tuple[int, int] | None = None, *, in_thread: bool = False) -> Corpus:
        """Make it.

        Args:
            shard: The number of shards, and which of them it is; `None`: as it says itself.
            in_thread: Whether it is for one of several threads.

        Raises:
            SourceError: Files were changed since.
        """
        config = self.config
        if isinstance(config, Corpus):
            corpus = config.apart() if in_thread else config
        else:
            if shard is not None and isinstance(config, Mapping):
                config, shard = {**config, "_num_shards": shard[0], "_shard_index": shard[1]}, None
            corpus = open_apart(config, in_thread=in_thread).get_corpus()
        corpus.answer_alone()
        if shard is not None:
            corpus = corpus.with_orders(num_shards=shard[0], shard_index=shard[1])
        check_files(corpus.indexed_files(), self.files)
        return corpus


def _copies_parts(config: Any) -> bool:
    """Whether the class that a config names takes its parts by `open_part`, as all of ours do."""
    if not isinstance(config, Mapping) or "class" not in config:
        return True
    return resolve_class(config["class"]).__module__.startswith("headrace.")


def _own(dataset: Dataset, owner: Dataset | None) -> Dataset:
    try:
        return copy.copy(dataset)
    except Exception as error:
        if dataset in _owners and _owners[dataset]() not in (None, owner):
            raise ConfigError(
                f"a {type(dataset).__name__} is a part of two datasets, and it cannot be copied: {error}",
                where=f"dataset {dataset.name!r}",
                fix="make one for each of them, by a config; or let copy.copy work: with the constructor's arguments",
            ) from error
    _owners[dataset] = _for_ever if owner is None else weakref.ref(owner)
    return dataset


def check_indexed(parts: Mapping[str, Corpus], owner: str) -> None:
    """Refuse corpora that are not indexed, as parts of one that joins corpora.

    Args:
        parts: The parts by name.
        owner: The name of the whole.

    Raises:
        ConfigError: One is not.
    """
    for name, part in parts.items():
        if not part.is_indexed:
            raise ConfigError(
                f"the sub-dataset {name!r} ({part.kind}) does not know its corpus: how many sequences "
                "it has, and which tag the n-th of them has",
                where=f"dataset {owner!r}",
                fix="let it be a MapDataset of an object with __len__, __getitem__ and get_seq_tag; a class of your "
                "own over Dataset has random access if it defines get_all_tags, by corpus index, and "
                "get_current_seq_order, and its init_seq_order takes seq_order; to read streams in turns, give the "
                "loader an iterable that does",
            )


def tags_of(part: Corpus) -> CorpusIndex | None:
    """Return the tags of a corpus by corpus index, `None` if it does not tell them."""
    if part.is_indexed:
        return part.index
    try:
        return CorpusIndex.from_columns(tags=part.all_tags(), lengths={})
    except NotImplementedError:
        return None


def check_tags(part: Corpus) -> None:
    """Have the tags of a user-defined class, here or in a part, compared with those of the sequences that are read."""
    if isinstance(part, ForeignCorpus):
        part.check_tags()
    for inner in part.parts:
        check_tags(inner)


def _for_ever() -> object:
    return _for_ever


def open_corpora(configs: Mapping[str, DatasetConfig], whole: Dataset) -> dict[str, Corpus]:
    """Open sub-datasets; the name of the whole and its seed offset are defaults.

    Raises:
        ConfigError: A config is wrong.
    """
    return {name: open_named(name, config, whole) for name, config in configs.items()}


def open_named(name: str, config: DatasetConfig, whole: Dataset, **defaults: Any) -> Corpus:
    """Open one of several sub-datasets, with more defaults, see `open_corpora`.

    Raises:
        ConfigError: The config is wrong.
    """
    own = {"name": f"{whole.name}_{name}", "random_seed_offset": whole.random_seed_offset}
    part = open_corpus(config, {**own, **defaults}, owner=whole)
    check_tags(part)
    return part


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
