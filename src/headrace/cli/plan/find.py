"""Finds what `headrace plan` is about: a `DistributeFilesDataset` at any depth of a config, or else the dataset."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.datasets import Dataset, MultiProcDataset, init_dataset, resolve_class
from headrace.datasets.distribute.dataset import DistributeFilesDataset
from headrace.errors import ConfigError
from headrace.files.fetch.fetch import is_url
from headrace.files.lists.sizes import FileTable
from headrace.files.lists.tree import tree_leaves
from headrace.ranks import Ranks, find_ranks

from .amounts import UNKNOWN
from .subject import FilesSubject, OrderSubject, Progress, Subject, SubjectFacts

_OPTIONS_SHOWN = ("partition_epoch", "seq_ordering", "balance", "num_canonical_shards")
_ABOUT_RANKS = ("distrib_shard_files", "rank", "world_size", "_num_shards", "_shard_index")
_NO_FILES = "it distributes no files: it cuts one order of sequences into parts"
_STORED = "sequences and frames are those in the files; --count tells which are read"
_OF_MULTI_PROC = frozenset(inspect.signature(MultiProcDataset.__init__).parameters) | {"class", "name"}


@dataclass(frozen=True)
class _Found:
    """A dataset that distributes files.

    Attributes:
        dataset: Its options, or itself if it is built already.
        path: The classes around it, from the outermost one on.
        num_workers: How many workers share what a rank has.
    """

    dataset: Mapping[str, Any] | DistributeFilesDataset
    path: tuple[str, ...]
    num_workers: int


def open_subject(config: Mapping[str, Any] | Dataset, *, count: bool, progress: Progress) -> Subject:
    """Return what is to be planned, ready to be asked. Starts no process and copies no file.

    Args:
        config: The dataset of a job.
        count: Whether to open each file, for the number of sequences and frames in it.
        progress: Is told how many files are done.

    Raises:
        ConfigError: The config is wrong, has several file lists, or its files cannot be counted here.
        SourceError: A file is missing.
    """
    found = list(_find(config, (), 1))
    if len(found) > 1:
        raise ConfigError(
            f"the config has {len(found)} datasets that distribute files, and one can be planned at a time",
            fix="write a config of that one alone",
        )
    if found:
        return _files_subject(found[0], count=count, progress=progress)
    if count:
        raise ConfigError("--count is for files, and the config has no DistributeFilesDataset", fix="leave it out")
    return _order_subject(config)


def _find(value: Any, path: tuple[str, ...], num_workers: int) -> Iterator[_Found]:
    """Yield the datasets that distribute files in a config, or in datasets that are built already."""
    if isinstance(value, DistributeFilesDataset):
        yield _Found(value, path, num_workers)
    elif isinstance(value, MultiProcDataset):
        num_workers *= _num_sharing(value.sharding_method, value.num_workers)
        yield from _find(value.inner, (*path, type(value).__name__), num_workers)
    elif isinstance(value, Mapping):
        yield from _find_in_options(value, path, num_workers)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _find(item, path, num_workers)


def _find_in_options(options: Mapping[str, Any], path: tuple[str, ...], num_workers: int) -> Iterator[_Found]:
    cls = _class_of(options)
    if cls is not None and issubclass(cls, DistributeFilesDataset):
        yield _Found(options, path, num_workers)
        return
    if cls is not None:
        path = (*path, cls.__name__)
    inner: Any = options.get("dataset")
    if cls is not None and issubclass(cls, MultiProcDataset) and isinstance(inner, Mapping):
        num_workers *= _num_sharing(options.get("sharding_method"), options.get("num_workers"))
        defaults = {name: value for name, value in options.items() if name not in _OF_MULTI_PROC}
        options = {"dataset": {**defaults, **inner}}
    for value in options.values():
        yield from _find(value, path, num_workers)


def _class_of(options: Mapping[str, Any]) -> type[Dataset] | None:
    try:
        return resolve_class(options["class"])
    except (KeyError, ConfigError):
        return None  # other things may have a class, too; a wrong one is an error when the dataset is made


def _num_sharing(sharding_method: Any, num_workers: Any) -> int:
    return max(num_workers, 1) if sharding_method == "dedicated" and isinstance(num_workers, int) else 1


def _files_subject(found: _Found, *, count: bool, progress: Progress) -> FilesSubject:
    given = found.dataset
    if not isinstance(given, Dataset):
        dataset, options, about_ranks = _make_dataset(given, in_process=count), given, _ranks_of(given)
    elif not count:
        dataset, options, about_ranks = given, {}, {"num_ranks": given.num_shards}
    else:
        raise ConfigError(
            f"--count would start the workers of a {type(given).__name__} that is built already",
            fix="let the program define `dataset` as a dict of options, or a function that returns one",
        )
    facts = replace(_facts(dataset, options, found.path, found.num_workers), **about_ranks)
    try:
        if count:
            _check_countable(dataset)
            dataset.count_files(progress)  # what it finds in the files is kept, where the table finds it
        table = FileTable.of(dataset.files, progress=progress)
        if not count and (table.num_seqs != UNKNOWN).any():
            facts = replace(facts, remark=_STORED)
        return FilesSubject(dataset, facts, table, is_counted=count)
    except BaseException:
        dataset.close()
        raise


def _make_dataset(options: Mapping[str, Any], *, in_process: bool) -> DistributeFilesDataset:
    """Make the dataset as if there were one process: the ranks of this machine are not those of the plan."""
    kept = {name: value for name, value in options.items() if name not in _ABOUT_RANKS}
    if in_process:
        kept |= {"use_worker_proc": False, "remainder": "keep"}  # each rank's own number is asked for
    dataset = init_dataset(kept)
    assert isinstance(dataset, DistributeFilesDataset)
    return dataset


def _check_countable(dataset: DistributeFilesDataset) -> None:
    remote = next((leaf for tree in dataset.files for leaf in tree_leaves(tree) if is_url(leaf)), None)
    if remote is not None:
        raise ConfigError(
            "--count would have to copy files here to count what is in them",
            where=remote,
            fix="count where the files are, or let the training do it: `count_files` keeps what it finds",
        )


def _ranks_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said about ranks: by the config, or else by the environment.

    Raises:
        ConfigError: It contradicts itself.
    """
    rank, world_size = options.get("rank"), options.get("world_size")
    if options.get("distrib_shard_files"):
        is_given = world_size is not None
        ranks = find_ranks(rank or 0, world_size) if is_given else find_ranks(rank, None)
        return {"num_ranks": ranks.world_size, "ranks_source": "from the config" if is_given else ranks.source}
    ranks = Ranks(options.get("_shard_index", 0), options.get("_num_shards", 1), "from the config")
    if ranks.world_size > 1:
        return {"num_ranks": ranks.world_size, "ranks_source": ranks.source}
    return {"remark_on_several": "distrib_shard_files is off: without it each rank reads all files"}


def _order_subject(config: Mapping[str, Any] | Dataset) -> OrderSubject:
    dataset = init_dataset(config)
    path: tuple[str, ...] = ()
    num_workers = 1
    while isinstance(dataset, MultiProcDataset):  # the order is that of what is inside
        num_workers *= _num_sharing(dataset.sharding_method, dataset.num_workers)
        dataset, path = dataset.inner, (*path, type(dataset).__name__)
    facts = replace(_facts(dataset, {}, path, num_workers), num_ranks=dataset.num_shards, remark=_NO_FILES)
    return OrderSubject(dataset, facts)


def _facts(dataset: Dataset, options: Mapping[str, Any], path: tuple[str, ...], num_workers: int) -> SubjectFacts:
    said = {"partition_epoch": dataset.partition_epoch, "seq_ordering": dataset.seq_ordering}
    shown = {name: options.get(name, said.get(name)) for name in _OPTIONS_SHOWN}
    return SubjectFacts(
        name=" in ".join([type(dataset).__name__, *reversed(path)]),
        options={name: str(value) for name, value in shown.items() if value is not None},
        num_workers=num_workers,
    )
