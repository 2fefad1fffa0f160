"""Which sequences go to which file of a conversion. Pure: the same corpus and options give the same files."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.sources import Source

_MIN_DIGITS = 5  # of the number of a shard; names sort as numbers do


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a conversion, and its sequences: `start` to `stop` (exclusive) of the corpus."""

    path: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return os.path.basename(self.path)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a corpus is cut into files; without either bound it is one file.

    Attributes:
        max_seqs: How many sequences a file holds.
        max_bytes: How many bytes the arrays of a file have. A sequence that is larger has a file of its own.

    Raises:
        ConfigError: Both are given.
    """

    max_seqs: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse two bounds: it would be unclear which of them ended a file."""
        if self.max_seqs is not None and self.max_bytes is not None:
            raise ConfigError("both --shard-seqs and --shard-bytes are given", fix="give one of them")

    @property
    def is_one_file(self) -> bool:
        """Whether there is one file, without a number in its name."""
        return self.max_seqs is None and self.max_bytes is None


def plan_shards(source: Source, out: str, suffix: str, sharding: Sharding) -> list[Shard]:
    """Return the files of a conversion, at least one.

    Args:
        source: The corpus.
        out: The target named by the user. With shards, their number comes before the suffix: `name-00000.hdf`.
        suffix: Suffix of the format.
        sharding: How the corpus is cut.

    Raises:
        ConfigError: The sizes of sequences are not known without reading them.
    """
    if sharding.is_one_file:
        return [Shard(out, 0, len(source))]
    starts = (
        _starts_by_seqs(len(source), sharding.max_seqs) if sharding.max_seqs else _starts_by_bytes(source, sharding)
    )
    stops = [*starts[1:], len(source)]
    stem, suffix = split_suffix(out, suffix)
    digits = max(_MIN_DIGITS, len(str(len(starts) - 1)))
    return [
        Shard(f"{stem}-{number:0{digits}d}{suffix}", start, stop)
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]


def list_unplanned(shards: list[Shard], out: str, suffix: str) -> list[str]:
    """Return the files that have names of shards of this target, and are none of these."""
    stem, suffix = split_suffix(out, suffix)
    planned = {shard.path for shard in shards}
    numbered = re.compile(re.escape(stem) + rf"-\d{{{_MIN_DIGITS},}}" + re.escape(suffix))
    found = glob.glob(f"{glob.escape(stem)}-*{glob.escape(suffix)}")
    return sorted(path for path in found if path not in planned and numbered.fullmatch(path))


def split_suffix(path: str, suffix: str) -> tuple[str, str]:
    """Return a path without its suffix, and the suffix: that of the format, or else the one it has."""
    if suffix and path.endswith(suffix) and os.path.basename(path) != suffix:
        return path[: -len(suffix)], suffix
    return os.path.splitext(path)


def _starts_by_seqs(num_seqs: int, max_seqs: int) -> list[int]:
    return list(range(0, num_seqs, max_seqs)) or [0]


def _starts_by_bytes(source: Source, sharding: Sharding) -> list[int]:
    assert sharding.max_bytes is not None
    ends = np.cumsum(_bytes_of_seqs(source))
    starts = [0]
    while True:
        taken = int(ends[starts[-1] - 1]) if starts[-1] else 0
        stop = int(np.searchsorted(ends, taken + sharding.max_bytes, side="right"))
        stop = max(stop, starts[-1] + 1)
        if stop >= len(ends):
            return starts
        starts.append(stop)


def _bytes_of_seqs(source: Source) -> NDArray[np.int64]:
    """Return the bytes of the arrays of each sequence, `int64[N]`."""
    sizes: NDArray[Any] = np.zeros(len(source), np.int64)
    for key, spec in source.specs.items():
        if None in spec.shape or not source.index.has_lengths(key):
            raise ConfigError(
                f"the sizes of {key!r} are not known without reading the sequences",
                where="--shard-bytes",
                fix="give --shard-seqs",
            )
        frame_bytes = int(np.prod([size or 0 for size in spec.shape], dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        sizes += np.asarray(source.index.lengths(key), np.int64) * frame_bytes
    return sizes
