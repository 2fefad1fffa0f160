"""What the workers of a `MultiProcDataset` do: read runs of consecutive sequences.

A worker builds the inner dataset once. In the method "seq_order" each ticket is a run of places with their corpus
indices: pure work, that any worker may do and do again. In "dedicated" a worker reads its own shard from its start to
its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import WorkerInfo, note_place, skip_item

from .base import Dataset
from .cached import CachedDataset
from .configs import init_dataset

Features = dict[str, NDArray[Any]]
RunOfSeqs = tuple[int, int, NDArray[np.int64], NDArray[np.int64] | None]  # epoch, first place, indices, occurrences


@dataclass(slots=True)
class ReadSeqs:
    """Sequences that a worker has read, in order; those that failed and were skipped are not there.

    Attributes:
        corpus_indices: Place of each in the corpus; -1 where the dataset has no such thing.
        tags: Their tags.
        complete_fracs: What the sequences themselves say of the progress.
        features: Data key -> array, for each.
    """

    corpus_indices: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    complete_fracs: list[float | None] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)

    def read(self, dataset: Dataset, seq_idx: int, *, epoch: int, name: str) -> bool:
        """Read one sequence of a dataset; tell whether it has one at this place.

        Args:
            dataset: Where to read.
            seq_idx: Its place there.
            epoch: The epoch.
            name: What the sequence is called if it fails: its tag may not be known before it is read.
        """
        if not dataset.is_less_than_num_seqs(seq_idx):
            return False
        try:
            note_place(name, epoch)
            dataset.load_seqs(seq_idx, seq_idx + 1)
            seq = dataset.get_seq(seq_idx)
        except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
            skip_item(error)
            return True
        self._add(seq.seq_tag, seq.corpus_idx, seq.complete_frac, seq.features)
        return True

    def read_range(self, dataset: CachedDataset, first: int, indices: NDArray[np.int64], *, epoch: int) -> None:
        """Read sequences of a dataset with random access, whose tags are known without reading."""
        tags = dataset.source.tags_of(indices)
        for seq_idx, (corpus_idx, tag) in enumerate(zip(indices.tolist(), tags, strict=True), start=first):
            try:
                note_place(tag, epoch)
                features = dataset.take_features(seq_idx)
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                skip_item(error)
            else:
                self._add(tag, corpus_idx, None, features)

    def _add(self, tag: str, corpus_idx: int | None, complete_frac: float | None, features: Features) -> None:
        self.tags.append(tag)
        self.corpus_indices.append(-1 if corpus_idx is None else corpus_idx)
        self.complete_fracs.append(complete_frac)
        self.features.append(features)


@dataclass(frozen=True)
class OrderedWork:
    """Method "seq_order": builds the dataset, returns the function run of places -> sequences.

    Attributes:
        config: Of the inner dataset.
    """

    config: Mapping[str, Any]

    def __call__(self, info: WorkerInfo) -> Callable[[RunOfSeqs], ReadSeqs]:
        """Build the dataset in a worker."""
        del info  # any worker does any ticket
        dataset = init_dataset(self.config)

        def read_run(run: RunOfSeqs) -> ReadSeqs:
            epoch, first, indices, occurrences = run
            offset = dataset.init_part(epoch, first, indices, occurrences)
            seqs = ReadSeqs()
            if isinstance(dataset, CachedDataset):
                seqs.read_range(dataset, offset, indices, epoch=epoch)
            else:
                for i, corpus_idx in enumerate(indices.tolist()):
                    name = f"(sequence {first + i}, corpus index {corpus_idx})"
                    seqs.read(dataset, offset + i, epoch=epoch, name=name)
            return seqs

        return read_run


@dataclass(frozen=True)
class DedicatedWork:
    """Method "dedicated": builds a shard of the dataset, returns the function epoch -> iterator over its runs.

    Attributes:
        config: Of the inner dataset.
        num_shards: Shards of the outer dataset.
        shard_index: Which of them it is.
        run_size: Sequences in a run.
    """

    config: Mapping[str, Any]
    num_shards: int
    shard_index: int
    run_size: int

    def __call__(self, info: WorkerInfo) -> Callable[[int], Iterator[int | ReadSeqs | None]]:
        """Build this worker's shard."""
        shards = {
            "_num_shards": self.num_shards * info.num_workers,
            "_shard_index": self.shard_index * info.num_workers + info.worker_idx,
        }
        dataset = init_dataset(self.config, shards)

        def read_epoch(epoch: int) -> Iterator[int | ReadSeqs | None]:
            dataset.init_seq_order(epoch=epoch)
            try:
                yield dataset.num_seqs
            except NotImplementedError:
                yield None
            place, more = 0, True
            while more:
                seqs = ReadSeqs()
                stop = place + self.run_size
                while place < stop and more:
                    name = f"(sequence {place} of shard {dataset.shard_index} of {dataset.num_shards})"
                    more = seqs.read(dataset, place, epoch=epoch, name=name)
                    place += more
                if seqs.tags or more:
                    yield seqs

        return read_epoch
