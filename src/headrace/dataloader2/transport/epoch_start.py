"""What a process needs to begin an epoch, or to continue in the middle of one: seeds and a snapshot.

They are in a memory file. Tickets name the file by its path under `/proc`, so that they stay short; a restarted worker
reads it once.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headrace.engine.process.channel import read_memfd, write_memfd
from headrace.engine.user.ship import ship, unship
from headrace.pipes.graph.seeds import SeedGenerator

from ..interface import ResetFn


def seed_globals_from(seeds: SeedGenerator, *, shared: bool = False) -> None:
    """Seed the global generators of Python, torch and NumPy from three successive seeds, as torchdata does.

    Args:
        seeds: The source of the seeds.
        shared: Use shared seeds instead of this worker's own.
    """
    of_python, of_torch, of_numpy = (
        seeds.generate_shared_seed() if shared else seeds.generate_seed() for _ in range(3)
    )
    random.seed(of_python)
    np.random.seed(of_numpy >> 32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(of_torch)


ITEM_PURPOSE = "pipes: item"  # of a draw from keyed global generators

_HEAD = struct.Struct("<qqq")  # bytes of the start; item of the snapshot; bytes of the snapshot, -1 if there is none


@dataclass(frozen=True)
class EpochStart:
    """How an epoch begins.

    Attributes:
        seeds: The seeds of the worker.
        reset_fn: A function to call with the graph after it was seeded.
        key: With keyed randomness, the key of the epoch; `None`: the global generators are seeded once per epoch.
    """

    seeds: SeedGenerator
    reset_fn: ResetFn | None = None
    key: int | None = None

    def to_bytes(self) -> bytes:
        """Encode it for a worker.

        Raises:
            ConfigError: The function cannot be pickled.
        """
        return ship(self, what="iter_reset_fn and seeds")


class Snapshot(NamedTuple):
    """The state of a worker's graph.

    Attributes:
        item: How many items the worker had given in the epoch.
        data: The states of its pipes and of the global generators, pickled by the worker.
    """

    item: int
    data: bytes


class StartFile:
    """The main process's side: one file, whose content changes."""

    def __init__(self) -> None:
        self._fd = -1

    @property
    def path(self) -> str:
        """The path by which a worker opens the file."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def write(self, start: bytes, snapshot: Snapshot | None) -> None:
        """Replace the content.

        Args:
            start: An encoded `EpochStart`.
            snapshot: Where the worker continues; `None`: at the start of the epoch.
        """
        item, data = (0, None) if snapshot is None else (snapshot.item, snapshot.data)
        head = _HEAD.pack(len(start), item, -1 if data is None else len(data))
        new = write_memfd("headrace-start", b"".join((head, start, data or b"")))
        if self._fd < 0:
            self._fd = new
            return
        os.dup2(new, self._fd, inheritable=False)
        os.close(new)

    def close(self) -> None:
        """Release the memory; harmless when closed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def read_start(path: str) -> tuple[EpochStart, Snapshot | None]:
    """Return the content of a file. Worker only."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = read_memfd(fd)
    finally:
        os.close(fd)
    num_start, item, num_snapshot = _HEAD.unpack_from(data)
    start: Any = unship(data[_HEAD.size : _HEAD.size + num_start])
    if num_snapshot < 0:
        return start, None
    return start, Snapshot(item, data[_HEAD.size + num_start :])
