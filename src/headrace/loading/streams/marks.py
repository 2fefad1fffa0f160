"""Whether all workers of a loader read the same stream: each tells marks of the windows that it has planned.

A stream that draws from a generator which nobody seeded is another one in each worker: sequences would be lost, and
others come twice, and nothing would be seen of it. Invariant: nothing that is marked depends on the process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import SourceError

_MAX_LEAVES = 8  # of one sequence
_MAX_VALUES = 64  # of one leaf, spread over it
_MAX_OPEN = 1024  # windows that not all workers have told of; more after restarts only

_ARRAYS, _LISTS, _NUMBERS = (np.ndarray, np.generic), (tuple, list), (int, float, complex)


def mark_of(value: Any) -> bytes:
    """Return some bytes of an item, by which it is told from most others; some microseconds."""
    parts: list[bytes] = []
    _add_marks(value, parts)
    return b"|".join(parts)


def _add_marks(value: Any, parts: list[bytes]) -> None:
    if len(parts) >= _MAX_LEAVES:
        return
    if isinstance(value, _ARRAYS) and not value.dtype.hasobject:
        flat = value.reshape(-1) if value.flags.c_contiguous else value.flat  # neither copies
        parts.append(b"%d %s" % (value.size, flat[:: value.size // _MAX_VALUES + 1].tobytes()))
    elif isinstance(value, dict | Mapping):
        for key in sorted(value, key=str):
            _add_marks(value[key], parts)
    elif isinstance(value, _LISTS):
        for part in value[:_MAX_LEAVES]:
            _add_marks(part, parts)
    elif isinstance(value, str):
        parts.append(value[:_MAX_VALUES].encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        parts.append(value[:_MAX_VALUES])
    elif isinstance(value, _NUMBERS):
        parts.append(repr(value).encode())
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        flat = value.detach().reshape(-1)
        parts.append(repr(flat[:: len(flat) // _MAX_VALUES + 1].tolist()).encode())
    else:
        parts.append(type(value).__name__.encode())


def mark_of_window(before: int, lengths: NDArray[np.int64], marks: Sequence[bytes]) -> int:
    """Return the mark of a window: of its sequences, and of all windows before it."""
    digest = xxhash.xxh3_64(before.to_bytes(8, "little"))
    digest.update(np.ascontiguousarray(lengths).data)
    for mark in marks:
        digest.update(mark)
        digest.update(b"\0")
    return digest.intdigest()


class WindowMarks:
    """Compares what the workers of one run tell.

    Args:
        name: Of the stream.
        epoch: That is read.
        num_workers: How many workers tell of each window.
    """

    def __init__(self, name: str, epoch: int, num_workers: int) -> None:
        self._name, self._epoch, self._num_workers = name, epoch, num_workers
        self._open: dict[int, tuple[int, int, int]] = {}  # window -> mark, who told it first, how many have told it
        self._last = -1

    def take(self, worker_idx: int, marks: Sequence[tuple[int, int]]) -> None:
        """Take note of windows and their marks.

        Raises:
            SourceError: Another worker has read something else.
        """
        for window, mark in marks:
            self._last = max(self._last, window)
            known, first, num_told = self._open.get(window, (mark, worker_idx, 0))
            if known != mark:
                raise self.difference(f"workers {first} and {worker_idx} differ in window {window}")
            self._open[window] = known, first, num_told + 1
            if num_told + 1 == self._num_workers or len(self._open) > _MAX_OPEN:
                del self._open[window if num_told + 1 == self._num_workers else next(iter(self._open))]

    def end(self, num_windows: int) -> None:
        """Take note of how many windows the worker has read that came to the end first.

        Raises:
            SourceError: Another worker has read more.
        """
        if self._last >= num_windows:
            raise self.difference(f"one worker has read {num_windows} windows, and another one more")

    def difference(self, what: str) -> SourceError:
        """Return the error."""
        return SourceError(
            f"the workers of the loader have read different streams: {what}",
            where=f"{self._name}, epoch {self._epoch}",
            fix="let it give the same for the same epoch in each process: seed what it draws by set_epoch(epoch), do "
            "not share it out among workers, and augment in transform=; or let one process read it, by num_workers=1",
        )
