"""Checks that a stream read a second time, because its reader died, gives the same sequences as before.

A stream that draws from an unseeded generator differs each time: some sequences would be lost and others come twice,
silently. Invariant: nothing that is marked depends on the process.
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
MAX_SEQS = 32  # of one block, spread over it: some microseconds each

_ARRAYS, _LISTS, _NUMBERS = (np.ndarray, np.generic), (tuple, list), (int, float, complex)


def mark_of(value: Any) -> bytes:
    """Return some bytes that distinguish an item from most others; takes some microseconds."""
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
    """Checks that a reader that was restarted reads the same stream as the one before.

    Args:
        name: Name of the stream.
        epoch: The epoch that is read.
    """

    def __init__(self, name: str, epoch: int) -> None:
        self._name, self._epoch = name, epoch
        self._last, self._mark = -1, 0  # the last window that was told of

    def take(self, marks: Sequence[tuple[int, int]]) -> None:
        """Check the mark of the first window, which was reported before, keep the last; see `StreamPlan.take_marks`.

        Raises:
            SourceError: They differ from those of the stream that was read before.
        """
        for window, mark in marks:
            if window == self._last and mark != self._mark:
                raise self._difference(f"they differ in window {window} or before it")
        if marks:
            self._last, self._mark = marks[-1]

    def end(self, num_windows: int) -> None:
        """Check that the stream does not end before the last window that was read before.

        Raises:
            SourceError: There were more before.
        """
        if self._last >= num_windows:
            raise self._difference(f"the first one has window {self._last}, and the second one ends before it")

    def _difference(self, what: str) -> SourceError:
        return SourceError(
            f"a stream was read again, because the worker that read it had died, and gave other sequences: {what}",
            where=f"{self._name}, epoch {self._epoch}",
            fix="let it give the same for the same epoch: seed what it draws by set_epoch(epoch), and augment in "
            "transform=; or make the death of a worker an error, by engine_options=EngineOptions(on_death=Raising())",
        )
