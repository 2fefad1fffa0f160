"""How an order is cut into runs, the pieces that workers read at a time.

A run is large enough that what each message costs is shared by many sequences, and small enough that several of them
fit into what a worker may be ahead, and that one kept sequence, which holds the memory of its whole run, holds little.
The first runs of an epoch are small: its first sequence should not wait for many others. None of this changes the
stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.order import Order
from headrace.sources import MapSource, Source

from .base import Dataset
from .cached import CachedDataset

MAX_RUN_BYTES = 1 << 20
_MAX_SEQS = 1024  # more gain nothing, as the cost of a message is shared by enough of them
_MIN_RUNS = 2  # before a worker: it reads one while the other is on its way
_SHARE_OF_RUN = 8  # runs that fit into a limit in bytes
_NUM_SAMPLED = 10_000  # lengths looked at


class SeqBytes:
    """How many bytes the sequences of a source have, by the lengths in its index.

    Args:
        source: One whose index knows the lengths of all data keys.
    """

    def __init__(self, source: Source) -> None:
        self._columns = [
            (source.index.lengths(key), np.dtype(spec.dtype).itemsize * math.prod(size or 1 for size in spec.shape))
            for key, spec in source.specs.items()
        ]

    @classmethod
    def of(cls, dataset: Dataset) -> SeqBytes | None:
        """Return the sizes for a dataset, `None` where they are not known without reading."""
        source = dataset.source if isinstance(dataset, CachedDataset) else dataset.get_fast_source()
        if source is None or isinstance(source, MapSource):
            return None  # a user's object would have to be asked for each of its lengths
        return cls(source) if all(source.index.has_lengths(key) for key in source.specs) else None

    def mean(self) -> int:
        """Return about how many bytes a sequence has, from some of them; at least 1."""
        total = num_seqs = 0  # in integers: a sum of rounded means may be one byte short
        for lengths, frame_bytes in self._columns:
            some = lengths[:: max(len(lengths) // _NUM_SAMPLED, 1)]
            total += int(some.sum(dtype=np.int64)) * frame_bytes
            num_seqs = len(some)  # the same for each column
        return max(total // max(num_seqs, 1), 1)

    def largest(self) -> int:
        """Return what no sequence exceeds. O(number of sequences)."""
        return sum(int(lengths.max(initial=0)) * frame_bytes for lengths, frame_bytes in self._columns)

    def take(self, corpus_indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of some sequences, `int64[n]`."""
        total = np.zeros(len(corpus_indices), np.int64)
        for lengths, frame_bytes in self._columns:
            total += lengths[corpus_indices].astype(np.int64) * frame_bytes
        return total


@dataclass(frozen=True)
class RunLimits:
    """How large runs may become.

    Attributes:
        num_seqs: Sequences in a run.
        max_bytes: Bytes in a run, as far as they are known; one of a single group may be larger.
        group: Sequences that must stay together.
        seq_bytes: Where to look up the bytes; `None` if they are not known, or never matter.
    """

    num_seqs: int
    max_bytes: int = MAX_RUN_BYTES
    group: int = 1
    seq_bytes: SeqBytes | None = None

    @classmethod
    def of(cls, dataset: Dataset, buffer_size: int, max_bytes: int | None) -> RunLimits:
        """Return the limits for a dataset.

        Args:
            dataset: What is read.
            buffer_size: Sequences that a worker may be ahead.
            max_bytes: Bytes that it may be ahead, if limited.
        """
        run_bytes = MAX_RUN_BYTES if max_bytes is None else min(MAX_RUN_BYTES, max(max_bytes // _SHARE_OF_RUN, 1))
        group = dataset.shuffle_frames_of_nseqs or 1  # frames are shuffled among the sequences of a whole group
        seq_bytes = SeqBytes.of(dataset)
        num_seqs = min(max(buffer_size // _MIN_RUNS, 1), _MAX_SEQS)
        if seq_bytes is not None:
            num_seqs = min(num_seqs, max(run_bytes // seq_bytes.mean(), 1))
        num_seqs = -(-num_seqs // group) * group
        if seq_bytes is not None and seq_bytes.largest() * num_seqs <= run_bytes:
            seq_bytes = None
        return cls(num_seqs, run_bytes, group, seq_bytes)

    def fitting(self, corpus_indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return as many of the first sequences as fit into a run."""
        if self.seq_bytes is None:
            return corpus_indices
        num_fitting = int(np.searchsorted(np.cumsum(self.seq_bytes.take(corpus_indices)), self.max_bytes, "right"))
        if num_fitting == len(corpus_indices):
            return corpus_indices
        return corpus_indices[: max(num_fitting // self.group, 1) * self.group]

    def cut(self, order: Order, first: int, num_workers: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the runs of an order from a place on: the place of the first sequence, and corpus indices `int64[n]`.

        Args:
            order: What is cut.
            first: A multiple of `group`.
            num_workers: Who take turns: after a run for each of them, the next ones are twice as large.
        """
        num_runs = 0
        place, end = first, len(order)
        while place < end:
            num_seqs = min(self.num_seqs, self.group << min(num_runs // num_workers, 60))
            indices = self.fitting(order.block(place, min(place + num_seqs, end)))
            yield place, indices
            place += len(indices)
            num_runs += 1
