"""The subject of a plan: a dataset that is asked which files, or how many sequences, each rank gets.

The dataset itself is asked, so that the plan agrees with a run. Invariant: no worker process is started, and no
file is copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets import Dataset
from headrace.datasets.base import DistributesFiles
from headrace.errors import ConfigError
from headrace.files.cache.options import format_bytes
from headrace.files.lists.sizes import FileTable
from headrace.files.lists.tree import tree_key

from ..drawing import format_count
from .amounts import UNKNOWN, Amounts

Progress = Callable[[int, int], None]  # (how many are done, of how many)


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


class Subject(ABC):
    """A dataset whose distribution is planned.

    Args:
        dataset: The dataset, which must not be used elsewhere from now on.
        facts: Facts about it.
    """

    def __init__(self, dataset: Dataset, facts: SubjectFacts) -> None:
        self.dataset = dataset
        self.facts = facts

    @property
    def first_pass(self) -> range:
        """The sub-epochs of the first pass over the corpus."""
        return range(1, self.dataset.partition_epoch + 1)

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


class FilesSubject(Subject):
    """Files that are distributed.

    Args:
        dataset: The dataset that distributes them.
        files: Its files and their distribution.
        facts: What is known of it.
        table: Counts of its files: the sequences and frames that they hold, before any filter.
        is_counted: Whether the dataset has counted what it delivers.
    """

    def __init__(
        self, dataset: Dataset, files: DistributesFiles, facts: SubjectFacts, table: FileTable, *, is_counted: bool
    ) -> None:
        super().__init__(dataset, facts)
        self._files = files
        self._is_counted = is_counted
        self._bytes, self._seqs, self._frames = table.sizes, table.num_seqs, table.num_frames
        # Equal entries of the list have equal amounts, so any of them will do.
        self._positions = {tree_key(tree): position for position, tree in enumerate(files.files)}

    @property
    def size(self) -> str:
        """Number and bytes of the files, and of their sequences if known."""
        num_seqs = self.dataset.get_total_num_seqs(fast=True) if self._is_counted else _sum_if_known(self._seqs)
        amounts = {"sequences": num_seqs, "frames": self._frames_of(slice(None), num_seqs)}
        return ", ".join(
            [
                f"{format_count(len(self._files.files))} files",
                format_bytes(int(self._bytes.sum())),
                *(f"{format_count(amount)} {name}" for name, amount in amounts.items() if amount != UNKNOWN),
            ]
        )

    def measure(self, epochs: range, num_ranks: int, progress: Progress) -> Amounts:
        """See `Subject.measure`."""
        self.dataset.set_sharding(num_ranks * self.facts.num_workers, 0)
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


class OrderSubject(Subject):
    """Any other dataset: sub-epochs and shards are parts of its order."""

    @property
    def size(self) -> str:
        """Number of sequences, if known."""
        try:
            return f"{format_count(self.dataset.get_total_num_seqs())} sequences"
        except NotImplementedError:
            return "an unknown number of sequences"

    def measure(self, epochs: range, num_ranks: int, progress: Progress) -> Amounts:
        """See `Subject.measure`. Frames are those that are stored, before any transform."""
        lengths = _stored_lengths(self.dataset)
        names = ("sequences",) if lengths is None else ("sequences", "frames")
        amounts = {name: np.zeros((len(epochs), num_ranks), np.int64) for name in names}
        for rank, row in self._visit(epochs, num_ranks, progress):
            amounts["sequences"][row, rank] += self._num_seqs()
            if lengths is not None:
                order = self.dataset.get_current_seq_order()
                amounts["frames"][row, rank] += lengths[np.asarray(order)].sum(dtype=np.int64)
        return Amounts(epochs, amounts)

    def _visit(self, epochs: range, num_ranks: int, progress: Progress) -> Iterator[tuple[int, int]]:
        """Start each sub-epoch of each shard in turn; yield (rank, which of the sub-epochs)."""
        num_shards = num_ranks * self.facts.num_workers
        if num_shards > 1 and not self.dataset.supports_sharding():
            raise ConfigError(f"{type(self.dataset).__name__} cannot be divided into {num_shards} shards")
        for shard in range(num_shards):
            self.dataset.set_sharding(num_shards, shard)
            for row, epoch in enumerate(epochs):
                self.dataset.init_seq_order(epoch=epoch)
                yield shard // self.facts.num_workers, row
            progress(shard + 1, num_shards)

    def _num_seqs(self) -> int:
        num_seqs = self.dataset.known_num_seqs()
        if num_seqs is None:
            raise ConfigError(
                f"{type(self.dataset).__name__} has no files to distribute, and does not know its number of sequences "
                "before reading them",
                fix="plan a DistributeFilesDataset, or a dataset with an index, such as HDFDataset",
            )
        return num_seqs


def _stored_lengths(dataset: Dataset) -> NDArray[Any] | None:
    """Return the frames of each sequence of the corpus, of its main data key, if that needs no reading."""
    corpus, keys = dataset.get_corpus(), dataset.get_data_keys()
    if not corpus.has_fixed_lengths or not keys:
        return None
    lengths_of = corpus.lengths("data" if "data" in keys else keys[0], True)
    return None if lengths_of is None else lengths_of(np.arange(corpus.size() or 0))


def _sum_if_known(amounts: NDArray[np.int64]) -> int:
    return UNKNOWN if (amounts == UNKNOWN).any() else int(amounts.sum())
