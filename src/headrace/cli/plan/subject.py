"""The subject of a plan: a dataset that is asked which files, or how many sequences, each rank gets.

`open_subject` finds it: a `DistributeFilesDataset` at any depth of a config, or else the whole dataset.

The dataset itself is asked, so that the plan agrees with a run. Invariant: no worker process is started, and no
file is copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.datasets import Dataset, init_dataset, resolve_class
from headrace.datasets.corpus import Corpus
from headrace.errors import ConfigError
from headrace.files.lists.sizes import FileTable
from headrace.files.lists.tree import tree_key, tree_leaves
from headrace.files.locations import is_url
from headrace.ranks import Ranks, find_ranks
from headrace.show.drawing import format_bytes, format_count

from .amounts import UNKNOWN, Amounts

if TYPE_CHECKING:
    from headrace.datasets import DistributeFilesDataset

Progress = Callable[[int, int], None]  # (how many are done, of how many)

_OPTIONS_SHOWN = ("partition_epoch", "seq_ordering", "balance", "num_canonical_shards")
_ABOUT_RANKS = ("distrib_shard_files", "rank", "world_size", "_num_shards", "_shard_index")
_NO_FILES = "it distributes no files: it cuts one order of sequences into parts"
_STORED = "sequences and frames are those in the files; --count finds which are read"


@dataclass(frozen=True)
class SubjectFacts:
    """Facts about the dataset of a plan.

    Attributes:
        name: Its class, and where it was found.
        options: Options of the distribution in the config: option -> value.
        num_ranks: Number of ranks in the config or the environment.
        ranks_source: Which of them; empty if neither.
        num_workers: Number of workers that share the data of a rank, as with `sharding_method="dedicated"`.
        remark: A remark on it.
        remark_on_several: A remark for several ranks.
    """

    name: str
    options: Mapping[str, str]
    num_ranks: int = 1
    ranks_source: str = ""
    num_workers: int = 1
    remark: str = ""
    remark_on_several: str = ""

    def remarks(self, num_ranks: int) -> list[str]:
        """Return the remarks on a plan for this number of ranks, a line each."""
        is_found = bool(self.ranks_source) and num_ranks == self.num_ranks
        remarks = [f"number of ranks: {num_ranks} ({self.ranks_source})"] if is_found else []
        if self.num_workers > 1:
            remarks.append(f'the data of a rank are divided among its {self.num_workers} workers ("dedicated")')
        return [*filter(None, [self.remark, self.remark_on_several if num_ranks > 1 else ""]), *remarks]


class PlannedDataset(ABC):
    """A dataset whose distribution is planned.

    Args:
        dataset: The dataset, which must not be used elsewhere from now on.
        facts: Facts about it.
    """

    def __init__(self, corpus: Corpus, facts: SubjectFacts) -> None:
        self.corpus, self.facts = corpus, facts

    @property
    def first_pass(self) -> range:
        """The sub-epochs of the first pass over the corpus."""
        return range(1, self.corpus.orders.recipe.num_sub_epochs + 1)

    @property
    @abstractmethod
    def size(self) -> str:
        """Size of the corpus, as text."""

    @abstractmethod
    def measure(self, epochs: range, num_ranks: int, progress: Progress) -> Amounts:
        """Return what each of `num_ranks` ranks has in some sub-epochs.

        Raises:
            ConfigError: That number of ranks is impossible.
            SourceError: A file is missing.
        """


class FilesSubject(PlannedDataset):
    """Files that are distributed.

    Args:
        files: The dataset that distributes them.
        facts: What is known of it.
        table: Counts of its files: the sequences and frames that they hold, before any filter.
        is_counted: Whether the dataset has counted what it delivers.
    """

    def __init__(
        self, files: DistributeFilesDataset, facts: SubjectFacts, table: FileTable, *, is_counted: bool
    ) -> None:
        super().__init__(files.get_corpus(), facts)
        self._files = files
        self._is_counted = is_counted
        self._bytes, self._seqs, self._frames = table.sizes, table.num_seqs, table.num_frames
        # Equal entries of the list have equal amounts, so any of them will do.
        self._positions = {tree_key(tree): position for position, tree in enumerate(files.files)}

    @property
    def size(self) -> str:
        """Number and bytes of the files, and of their sequences if known."""
        num_seqs = self._files.get_total_num_seqs(fast=True) if self._is_counted else _sum_if_known(self._seqs)
        amounts = {"sequences": num_seqs, "frames": self._frames_of(slice(None), num_seqs)}
        return ", ".join(
            [
                f"{format_count(len(self._files.files))} files",
                format_bytes(int(self._bytes.sum())),
                *(f"{format_count(amount)} {name}" for name, amount in amounts.items() if amount != UNKNOWN),
            ]
        )

    def measure(self, epochs: range, num_ranks: int, progress: Progress) -> Amounts:
        """See `PlannedDataset.measure`."""
        self._files.set_sharding(num_ranks * self.facts.num_workers, 0)
        names = ("files", "bytes", "sequences", "frames")
        amounts = {name: np.zeros((len(epochs), num_ranks), np.int64) for name in names}
        for row, epoch in enumerate(epochs):
            for rank in range(num_ranks):
                for name, amount in zip(names, self._measure_bin(epoch, rank), strict=True):
                    amounts[name][row, rank] = amount
            progress(row + 1, len(epochs))
        return Amounts(epochs, amounts)

    def _measure_bin(self, epoch: int, rank: int) -> tuple[int, int, int, int]:
        """Return the files, bytes, sequences and frames of one rank in one sub-epoch."""
        shards = range(rank * self.facts.num_workers, (rank + 1) * self.facts.num_workers)
        trees = [tree for shard in shards for tree in self._files.get_files(epoch, shard)]
        positions = np.array([self._positions[tree_key(tree)] for tree in trees], np.int64)
        if self._is_counted:
            num_seqs = sum(self._files.num_seqs_of(epoch, shard) or 0 for shard in shards)
        else:
            num_seqs = _sum_if_known(self._seqs[positions])
        return len(positions), int(self._bytes[positions].sum()), num_seqs, self._frames_of(positions, num_seqs)

    def _frames_of(self, positions: NDArray[np.int64] | slice, num_seqs: int) -> int:
        """Return the frames of some files, known if all sequences in them are read."""
        all_are_read = num_seqs != UNKNOWN and num_seqs == _sum_if_known(self._seqs[positions])
        return _sum_if_known(self._frames[positions]) if all_are_read else UNKNOWN


class OrderSubject(PlannedDataset):
    """Any other dataset: sub-epochs and shards are parts of its order."""

    @property
    def size(self) -> str:
        """Number of sequences, if known."""
        try:
            return f"{format_count(self.corpus.num_seqs())} sequences"
        except NotImplementedError:
            return "an unknown number of sequences"

    def measure(self, epochs: range, num_ranks: int, progress: Progress) -> Amounts:
        """See `PlannedDataset.measure`. Frames are those that are stored, before any transform."""
        lengths, num_shards = _stored_lengths(self.corpus), num_ranks * self.facts.num_workers
        if num_shards > 1 and not self.corpus.can_be_sharded():
            raise ConfigError(f"{self.corpus.kind} cannot be divided into {num_shards} shards")
        names = ("sequences",) if lengths is None else ("sequences", "frames")
        amounts = {name: np.zeros((len(epochs), num_ranks), np.int64) for name in names}
        for shard in range(num_shards):
            rank, corpus = (
                shard // self.facts.num_workers,
                self.corpus.with_orders(num_shards=num_shards, shard_index=shard),
            )
            for row, epoch in enumerate(epochs):
                order = corpus.order(epoch)[0] if corpus.knows_order() else None
                num_seqs = corpus.stream(epoch).num_seqs if order is None else len(order)
                if num_seqs is None:
                    raise ConfigError(
                        f"{corpus.kind} has no files to distribute, and does not know its number of sequences before "
                        "reading them",
                        fix="plan a DistributeFilesDataset, or a dataset with an index, such as HDFDataset",
                    )
                amounts["sequences"][row, rank] += num_seqs
                if lengths is not None and order is not None:
                    amounts["frames"][row, rank] += lengths[np.asarray(order)].sum(dtype=np.int64)
            progress(shard + 1, num_shards)
        return Amounts(epochs, amounts)


def _stored_lengths(corpus: Corpus) -> NDArray[Any] | None:
    """Return the frames of each sequence of the corpus, of its main data key, if that needs no reading."""
    keys = list(corpus.layout() or ())
    if not corpus.has_fixed_lengths or not keys or not corpus.knows_order():
        return None
    lengths_of = corpus.lengths("data" if "data" in keys else keys[0], True)
    return None if lengths_of is None else lengths_of(np.arange(corpus.size() or 0))


def _sum_if_known(amounts: NDArray[np.int64]) -> int:
    return UNKNOWN if (amounts == UNKNOWN).any() else int(amounts.sum())


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


def open_subject(config: Mapping[str, Any] | Dataset, *, count: bool, progress: Progress) -> PlannedDataset:
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
    if isinstance(value, Dataset) and value.distributes_files:
        yield _Found(value, path, num_workers)
    elif isinstance(value, Dataset | Corpus):
        corpus = value.get_corpus() if isinstance(value, Dataset) else value
        workers, dataset = corpus.workers, getattr(corpus, "dataset", None)
        if dataset is not None and dataset.distributes_files:
            yield _Found(dataset, path, num_workers)
        elif workers is not None and workers.corpus not in (None, corpus):
            yield from _find(workers.corpus, (*path, corpus.kind), num_workers * workers.num_shards)
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
    facts = replace(_facts(dataset.get_corpus(), options, found.path, found.num_workers), **about_ranks)
    files = cast("DistributeFilesDataset", dataset)
    try:
        if count:
            _check_countable(files)
            files.count_files(progress)  # the counts are cached, where the table finds them
        table = FileTable.of(files.files, progress=progress)
        if not count and (table.num_seqs != UNKNOWN).any():
            facts = replace(facts, remark=_STORED)
        return FilesSubject(files, facts, table, is_counted=count)
    except BaseException:
        dataset.close()
        raise


def _make_dataset(options: Mapping[str, Any], *, in_process: bool) -> Dataset:
    """Make the dataset as if there were one process: the ranks of this machine are not those of the plan."""
    kept = {name: value for name, value in options.items() if name not in _ABOUT_RANKS}
    if in_process:
        kept |= {"use_worker_proc": False, "remainder": "keep"}  # since each rank's own number is needed
    return init_dataset(kept)


def _check_countable(files: DistributeFilesDataset) -> None:
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
    corpus = init_dataset(config).get_corpus()
    path: tuple[str, ...] = ()
    num_workers = 1
    while (workers := corpus.workers) is not None and workers.corpus not in (None, corpus):
        num_workers *= workers.num_shards  # the order is that of the inner dataset
        corpus, path = workers.corpus, (*path, corpus.kind)
    num_shards = corpus.orders.recipe.num_shards
    return OrderSubject(corpus, replace(_facts(corpus, {}, path, num_workers), num_ranks=num_shards, remark=_NO_FILES))


def _facts(corpus: Corpus, options: Mapping[str, Any], path: tuple[str, ...], num_workers: int) -> SubjectFacts:
    said = {"partition_epoch": corpus.orders.recipe.num_sub_epochs, "seq_ordering": corpus.orders.seq_ordering}
    shown = {name: options.get(name, said.get(name)) for name in _OPTIONS_SHOWN}
    return SubjectFacts(
        name=" in ".join([corpus.kind, *reversed(path)]),
        options={name: str(value) for name, value in shown.items() if value is not None},
        num_workers=num_workers,
    )
