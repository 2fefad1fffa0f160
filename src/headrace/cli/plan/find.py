"""Finds the dataset to plan: a `DistributeFilesDataset` at any depth of a config, or else the whole dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.datasets import Dataset, init_dataset, resolve_class
from headrace.datasets.base import DistributesFiles
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
_STORED = "sequences and frames are those in the files; --count finds which are read"


@dataclass(frozen=True)
class _Found:
    """A dataset that distributes files.

    Attributes:
        dataset: Its options, or itself if it is built already.
        path: The classes around it, from the outermost one on.
        num_workers: Number of workers that share the files of a rank.
    """

    dataset: Mapping[str, Any] | Dataset
    path: tuple[str, ...]
    num_workers: int


def open_subject(config: Mapping[str, Any] | Dataset, *, count: bool, progress: Progress) -> Subject:
    """Return the subject of a plan. Starts no process and copies no file.

    Args:
        config: The dataset of a job.
        count: Whether to open each file, for the number of sequences and frames in it.
        progress: Called with the number of files done.

    Raises:
        ConfigError: The config is wrong, has several file lists, or its files cannot be counted here.
        SourceError: A file is missing.
    """
    found = list(_find(config, (), 1))
    if len(found) > 1:
        raise ConfigError(
            f"the config has {len(found)} datasets that distribute files, and one can be planned at a time",
            fix="write a config with only one of them",
        )
    if found:
        return _files_subject(found[0], count=count, progress=progress)
    if count:
        raise ConfigError("--count is for files, and the config has no DistributeFilesDataset", fix="omit it")
    return _order_subject(config)


def _find(value: Any, path: tuple[str, ...], num_workers: int) -> Iterator[_Found]:
    """Yield the datasets that distribute files in a config, or in datasets that are built already."""
    if isinstance(value, Dataset):
        workers = value.get_workers()
        if value.distributes_files:
            yield _Found(value, path, num_workers)
        elif workers is not None and workers.dataset not in (None, value):
            yield from _find(workers.dataset, (*path, type(value).__name__), num_workers * workers.num_shards)
    elif isinstance(value, Mapping):
        yield from _find_in_options(value, path, num_workers)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _find(item, path, num_workers)


def _find_in_options(options: Mapping[str, Any], path: tuple[str, ...], num_workers: int) -> Iterator[_Found]:
    cls = _class_of(options)
    if cls is not None and cls.distributes_files:
        yield _Found(options, path, num_workers)
        return
    if cls is not None:
        path = (*path, cls.__name__)
        inner, num_shards = cls.unwrap_options(options)
        if inner is not options:
            yield from _find(inner, path, num_workers * num_shards)
            return
    for value in options.values():
        yield from _find(value, path, num_workers)


def _class_of(options: Mapping[str, Any]) -> type[Dataset] | None:
    try:
        return resolve_class(options["class"])
    except (KeyError, ConfigError):
        return None  # other things may have a class, too; a wrong one is an error when the dataset is made


def _files_subject(found: _Found, *, count: bool, progress: Progress) -> FilesSubject:
    given = found.dataset
    if not isinstance(given, Dataset):
        dataset, options = _make_dataset(given, in_process=count), given
        about_ranks = _ranks_of(given)
    elif not count:
        dataset, options, about_ranks = given, {}, {"num_ranks": given.num_shards}
    else:
        raise ConfigError(
            f"--count would start the workers of a {type(given).__name__} that is built already",
            fix="let the program define `dataset` as a dict of options, or a function that returns one",
        )
    facts = replace(_facts(dataset, options, found.path, found.num_workers), **about_ranks)
    files = dataset.distributed_files()
    assert files is not None
    try:
        if count:
            _check_countable(files)
            files.count_files(progress)  # the counts are cached, where the table finds them
        table = FileTable.of(files.files, progress=progress)
        if not count and (table.num_seqs != UNKNOWN).any():
            facts = replace(facts, remark=_STORED)
        return FilesSubject(dataset, files, facts, table, is_counted=count)
    except BaseException:
        dataset.close()
        raise


def _make_dataset(options: Mapping[str, Any], *, in_process: bool) -> Dataset:
    """Make the dataset as if there were one process: the ranks of this machine are not those of the plan."""
    kept = {name: value for name, value in options.items() if name not in _ABOUT_RANKS}
    if in_process:
        kept |= {"use_worker_proc": False, "remainder": "keep"}  # since each rank's own number is needed
    return init_dataset(kept)


def _check_countable(files: DistributesFiles) -> None:
    remote = next((leaf for tree in files.files for leaf in tree_leaves(tree) if is_url(leaf)), None)
    if remote is not None:
        raise ConfigError(
            "--count would have to copy files to this machine to count their sequences",
            where=remote,
            fix="count where the files are, or let the training do it: `count_files` caches the counts",
        )


def _ranks_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of ranks, from the config or else from the environment.

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
    while (workers := dataset.get_workers()) is not None and workers.dataset not in (None, dataset):
        num_workers *= workers.num_shards  # the order is that of the inner dataset
        dataset, path = workers.dataset, (*path, type(dataset).__name__)
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
