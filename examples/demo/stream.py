"""What an epoch delivered, and how it is told: counts, a picture of the lengths, and a digest of the stream.

The digest is the one that `headrace run` prints: it covers tags, data keys, dtypes, shapes and bytes, in their order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from rich.filesize import decimal

from headrace.datasets import Dataset, DatasetSeq

_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass
class EpochRead:
    """What one epoch delivered, in order.

    Attributes:
        epoch: The epoch number.
        tags: Of the sequences.
        lengths: Of "data", in frames.
        num_bytes: Of all arrays.
        seconds: How long it took.
        first_seconds: How long the first sequence took to come.
    """

    epoch: int
    tags: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    num_bytes: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    _hash: Any = field(default_factory=xxhash.xxh3_128, repr=False)

    def add(self, seq: DatasetSeq) -> None:
        """Count one sequence, and take it into the digest."""
        self.tags.append(seq.tag)
        self.lengths.append(len(seq["data"]))
        self._add_text(seq.tag)
        for key, array in seq.features.items():
            self._add_text(f"{key} {array.dtype.str} {array.shape}")
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            self.num_bytes += array.nbytes

    def _add_text(self, text: str) -> None:
        encoded = text.encode()
        self._hash.update(len(encoded).to_bytes(8, "little"))  # so that ("ab", "c") and ("a", "bc") differ
        self._hash.update(encoded)

    def hexdigest(self) -> str:
        """Return the digest of the sequences so far."""
        return self._hash.hexdigest()


def read_epoch(dataset: Dataset, epoch: int, step_seconds: float = 0.0) -> EpochRead:
    """Read an epoch, taking some time for each sequence, as a training does."""
    result = EpochRead(epoch)
    start = time.perf_counter()
    for seq in dataset.epoch(epoch):
        if not result.tags:
            result.first_seconds = time.perf_counter() - start
        result.add(seq)
        if step_seconds:
            time.sleep(step_seconds)
    result.seconds = time.perf_counter() - start
    return result


def stream_digest(epochs: list[EpochRead]) -> str:
    """Return one digest for several epochs: over their numbers and digests in order."""
    return xxhash.xxh3_128("".join(f"{each.epoch}:{each.hexdigest()};" for each in epochs).encode()).hexdigest()


def describe_rate(epochs: list[EpochRead]) -> str:
    """Return how much came, in which time, how fast."""
    num_seqs, num_bytes = sum(len(each.tags) for each in epochs), sum(each.num_bytes for each in epochs)
    seconds = sum(each.seconds for each in epochs)
    rate = f"{num_seqs / seconds:,.0f} seq/s, {decimal(round(num_bytes / seconds))}/s"
    return f"{num_seqs:,} sequences, {decimal(num_bytes)} in {seconds:.3f} s: {rate}"


def draw_lengths(lengths: list[int], width: int) -> str:
    """Return one line of at most `width` columns, whose heights are the mean lengths of its parts."""
    means = np.array([part.mean() for part in np.array_split(np.array(lengths), min(width, len(lengths)))])
    scaled = (means - means.min()) / max(means.max() - means.min(), 1e-9)
    return "".join(_LEVELS[level] for level in np.round(scaled * (len(_LEVELS) - 1)).astype(int))
