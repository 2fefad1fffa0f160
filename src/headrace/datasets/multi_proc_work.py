"""What the workers of a `MultiProcDataset` do: read runs of consecutive sequences.

A worker builds the inner dataset once. In the method "seq_order" each ticket is a run of places with their corpus
indices: pure work, that any worker may do and do again. In "dedicated" a worker reads its own shard from its start to
its end. What comes out are the parts of a `SeqBlock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import WorkerInfo, is_in_place, note_place, note_places, skip_item
from headrace.errors import CacheError

from .base import Dataset
from .cached import CachedDataset, reads_plainly
from .configs import init_dataset
from .run_cutting import RunLimits
from .seq_block import Parts, make_columns, read_columns

Features = dict[str, NDArray[Any]]
RunOfSeqs = tuple[int, int, bytes, bytes | None]
"""Epoch, first place, `int64[n]` corpus indices and occurrences; as bytes, which are pickled in a tenth of the time."""


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
        self._add(seq.seq_tag, seq.corpus_idx, seq.complete_frac, _own(seq.features))
        return True

    def read_range(self, dataset: CachedDataset, first: int, indices: NDArray[np.int64], *, epoch: int) -> None:
        """Read sequences of a dataset with random access, whose tags are known without reading."""
        tags = dataset.source.tags_of(indices)
        go_to = note_places(tags, epoch)
        has_transform = dataset._transform is not None
        for offset, (corpus_idx, tag) in enumerate(zip(indices.tolist(), tags, strict=True)):
            go_to(offset)
            try:
                features = dataset.take_features(first + offset)
                if has_transform:
                    features = _own(features)
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                skip_item(error)
            else:
                self._add(tag, corpus_idx, None, features)

    def _add(self, tag: str, corpus_idx: int | None, complete_frac: float | None, features: Features) -> None:
        self.tags.append(tag)
        self.corpus_indices.append(-1 if corpus_idx is None else corpus_idx)
        self.complete_fracs.append(complete_frac)
        self.features.append(features)

    def parts(self) -> Parts:
        """Return the sequences as the parts of a block."""
        indices, fracs = self.corpus_indices, self.complete_fracs
        return (
            self.tags,
            None if set(indices) <= {-1} else [None if index < 0 else index for index in indices],
            None if set(fracs) <= {None} else fracs,
            make_columns(self.features),
        )


def _own(features: Features) -> Features:
    """Return arrays that later sequences of the run leave alone: user code may return the same ones each time.

    Those in the slot were made for this result.
    """
    return {key: array if is_in_place(array) else array.copy(order="K") for key, array in features.items()}


def _read_at_once(dataset: Dataset, indices: NDArray[np.int64], epoch: int) -> Parts | None:
    """Read sequences together, if dataset and source allow it and nothing goes wrong."""
    source = dataset.get_fast_source()
    if source is None:
        return None
    try:
        tags = source.tags_of(indices)
        note_places(tags, epoch)(-1)
        return tags, indices.tolist(), None, read_columns(source, indices)
    except CacheError:  # no room for them: they would not take less one by one
        raise
    except Exception:  # noqa: BLE001 - they are read one by one next, to find out which of them fails
        return None


@dataclass(frozen=True)
class OrderedWork:
    """Method "seq_order": builds the dataset, returns the function run of places -> parts of a block.

    Attributes:
        config: Of the inner dataset.
    """

    config: Mapping[str, Any]

    def __call__(self, info: WorkerInfo) -> Callable[[RunOfSeqs], Parts]:
        """Build the dataset in a worker."""
        del info  # any worker does any ticket
        dataset = init_dataset(self.config)
        plain = dataset if reads_plainly(dataset) else None

        def read_run(run: RunOfSeqs) -> Parts:
            epoch, first, index_bytes, occurrence_bytes = run
            indices = np.frombuffer(index_bytes, np.int64)
            parts = _read_at_once(dataset, indices, epoch)
            if parts is not None:
                return parts
            occurrences = None if occurrence_bytes is None else np.frombuffer(occurrence_bytes, np.int64)
            offset = dataset.init_part(epoch, first, indices, occurrences)
            seqs = ReadSeqs()
            if plain is not None:
                seqs.read_range(plain, offset, indices, epoch=epoch)
            else:
                for i, corpus_idx in enumerate(indices.tolist()):
                    name = f"(sequence {first + i}, corpus index {corpus_idx})"
                    seqs.read(dataset, offset + i, epoch=epoch, name=name)
            return seqs.parts()

        return read_run


@dataclass(frozen=True)
class DedicatedWork:
    """Method "dedicated": builds a shard of the dataset, returns the function epoch -> iterator over its runs.

    The iterator gives the number of sequences first, `None` if the dataset does not know it.

    Attributes:
        config: Of the inner dataset.
        num_shards: Shards of the outer dataset.
        shard_index: Which of them it is.
        buffer_size: Sequences that a worker may be ahead.
        max_bytes: Bytes that it may be ahead, if limited.
    """

    config: Mapping[str, Any]
    num_shards: int
    shard_index: int
    buffer_size: int
    max_bytes: int | None

    def __call__(self, info: WorkerInfo) -> Callable[[int], Iterator[int | Parts | None]]:
        """Build this worker's shard."""
        shards = {
            "_num_shards": self.num_shards * info.num_workers,
            "_shard_index": self.shard_index * info.num_workers + info.worker_idx,
        }
        dataset = init_dataset(self.config, shards)
        limits = RunLimits.of(dataset, self.buffer_size, self.max_bytes)

        def read_epoch(epoch: int) -> Iterator[int | Parts | None]:
            dataset.init_seq_order(epoch=epoch)
            try:
                yield dataset.num_seqs
            except NotImplementedError:
                yield None
            if reads_plainly(dataset):
                yield from _runs_of_order(dataset, epoch, limits)
            else:
                yield from _runs_to_the_end(dataset, epoch, limits)

        return read_epoch


def _runs_of_order(dataset: CachedDataset, epoch: int, limits: RunLimits) -> Iterator[Parts]:
    for first, indices in limits.cut(dataset.get_current_seq_order(), 0, 1):
        parts = _read_at_once(dataset, indices, epoch)
        if parts is None:
            seqs = ReadSeqs()
            seqs.read_range(dataset, first, indices, epoch=epoch)
            parts = seqs.parts()
        yield parts


def _runs_to_the_end(dataset: Dataset, epoch: int, limits: RunLimits) -> Iterator[Parts]:
    place, more = 0, True
    while more:
        seqs, first = ReadSeqs(), place
        num_bytes, stop = 0, place + limits.num_seqs
        while more and place < stop and num_bytes < limits.max_bytes:
            name = f"(sequence {place} of shard {dataset.shard_index} of {dataset.num_shards})"
            more = seqs.read(dataset, place, epoch=epoch, name=name)
            place += more
            if more and seqs.features:
                num_bytes += sum(array.nbytes for array in seqs.features[-1].values())
        if place > first:  # with nothing but skipped ones too: they are told of with it
            yield seqs.parts()
