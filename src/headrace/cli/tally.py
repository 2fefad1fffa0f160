"""What was delivered: counts by data key, and a digest of the stream. Knows nothing of terminals.

The digest covers tags, data keys, dtypes, shapes and bytes in the order of delivery, so two runs delivered the same
stream if and only if (barring a collision of XXH3-128) their digests are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets import DatasetSeq


class SeqsDigest:
    """XXH3-128 over tags, data keys, dtypes, shapes and bytes of sequences, in the order in which they come."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, tag: str, features: Mapping[str, NDArray[Any]]) -> None:
        """Add one sequence; its keys count in the order given."""
        update = self._hash.update
        _hash_text(update, tag)
        for key, array in features.items():
            _hash_text(update, f"{key} {array.dtype.str} {array.shape}")
            _hash_array(update, array)

    def hexdigest(self) -> str:
        """Return the digest of the sequences so far, 32 hexadecimal digits."""
        return self._hash.hexdigest()


@dataclass
class KeyTally:
    """Counts of one data key.

    Attributes:
        frames: Sum of lengths; an array without a time axis counts 1.
        num_bytes: Sum of the sizes of the arrays.
        shortest: Smallest length, 0 without sequences.
        longest: Largest length, 0 without sequences.
    """

    frames: int = 0
    num_bytes: int = 0
    shortest: int = 0
    longest: int = 0


@dataclass
class EpochTally:
    """What one epoch delivered.

    Attributes:
        epoch: The epoch number.
        num_seqs: Number of sequences.
        keys: Data key -> counts, in the order of first occurrence.
        seconds: Wall-clock time of the epoch, the digest included.
        first_tags: Tags of the first sequences.
        last_tags: Tags of the last sequences.
        num_bytes: Sum of the sizes of all arrays.
    """

    epoch: int
    num_seqs: int = 0
    keys: dict[str, KeyTally] = field(default_factory=dict)
    seconds: float = 0.0
    first_tags: list[str] = field(default_factory=list)
    last_tags: list[str] = field(default_factory=list)
    num_bytes: int = 0
    _hash: SeqsDigest = field(default_factory=SeqsDigest, repr=False)

    def add(self, seq: DatasetSeq, num_tags: int = 3) -> None:
        """Count one sequence; `num_tags` first and last tags are kept."""
        if self.num_seqs < num_tags:
            self.first_tags.append(seq.tag)
        self.last_tags.append(seq.tag)
        if len(self.last_tags) > num_tags:
            del self.last_tags[0]
        self._hash.add(seq.tag, seq.features)
        for key, array in seq.features.items():
            length = len(array) if array.ndim else 1
            tally = self.keys.get(key)
            if tally is None:
                tally = self.keys[key] = KeyTally(shortest=length)
            tally.frames += length
            tally.num_bytes += array.nbytes
            tally.shortest = min(tally.shortest, length)
            tally.longest = max(tally.longest, length)
            self.num_bytes += array.nbytes
        self.num_seqs += 1

    @property
    def digest(self) -> str:
        """XXH3-128 over the sequences so far, 32 hexadecimal digits."""
        return self._hash.hexdigest()

    @property
    def seqs_per_second(self) -> float:
        """Sequences per second, 0 before any time has passed."""
        return self.num_seqs / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second, 0 before any time has passed."""
        return self.num_bytes / self.seconds if self.seconds > 0 else 0.0

    def rates_to_json(self) -> dict[str, Any]:
        """Return how much was delivered and how fast, as plain JSON data."""
        return {
            "num_seqs": self.num_seqs,
            "bytes": self.num_bytes,
            "seconds": round(self.seconds, 6),
            "seqs_per_second": round(self.seqs_per_second, 1),
            "bytes_per_second": round(self.bytes_per_second, 1),
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything, as plain JSON data."""
        return {
            "epoch": self.epoch,
            **self.rates_to_json(),
            "keys": {
                key: {
                    "frames": tally.frames,
                    "bytes": tally.num_bytes,
                    "min_length": tally.shortest,
                    "mean_length": round(tally.frames / self.num_seqs, 3),
                    "max_length": tally.longest,
                }
                for key, tally in self.keys.items()
            },
            "first_tags": self.first_tags,
            "last_tags": self.last_tags,
            "digest": self.digest,
        }


def sum_tallies(tallies: list[EpochTally]) -> EpochTally:
    """Return the sums over several epochs: only counts, bytes and seconds are meaningful."""
    return EpochTally(
        epoch=0,
        num_seqs=sum(tally.num_seqs for tally in tallies),
        num_bytes=sum(tally.num_bytes for tally in tallies),
        seconds=sum(tally.seconds for tally in tallies),
    )


def derive_stream_digest(epochs: list[EpochTally]) -> str:
    """Return one digest, XXH3-128, for several epochs: over their numbers and digests in order."""
    digest = xxhash.xxh3_128()
    for tally in epochs:
        digest.update(f"{tally.epoch}:{tally.digest};".encode())
    return digest.hexdigest()


def _hash_text(update: Any, text: str) -> None:
    encoded = text.encode("utf-8", "surrogateescape")
    update(len(encoded).to_bytes(8, "little"))  # so that ("ab", "c") and ("a", "bc") differ
    update(encoded)


def _hash_array(update: Any, array: NDArray[Any]) -> None:
    if array.dtype.hasobject:
        for item in array.ravel().tolist():
            _hash_text(update, item if isinstance(item, str) else repr(item))
    elif array.nbytes:
        update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
