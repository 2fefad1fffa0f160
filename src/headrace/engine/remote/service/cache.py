"""Answers that are kept for others who may ask the same: a bounded number of bytes, the least recently used go first.

Invariant: what is kept never takes more than was allowed, not for a moment. Thread-safe: pools of several recipes share
one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import msgspec

from ...events import Done
from ...process.results import InlineArray, InlineResult

# Of an answer besides its value: objects, keys, and the place in the table; measured, and rounded up.
_OVERHEAD_BYTES = 1024


class KeptValue(msgspec.Struct, frozen=True):
    """A value as its worker has encoded it.

    Attributes:
        header: Header of the codec.
        data: The bytes.
    """

    header: bytes
    data: memoryview

    @property
    def num_bytes(self) -> int:
        """How many bytes."""
        return self.data.nbytes


Kept = Done[InlineArray | InlineResult | KeptValue]
"""What is kept: the answer of a worker to a ticket."""


def num_bytes_of(done: Kept) -> int:
    """Return what it takes to keep an answer."""
    result: Any = done.result
    header = result.header if isinstance(result, KeptValue | InlineResult) else b""
    return int(result.num_bytes) + len(header) + _OVERHEAD_BYTES


class ResultCache:
    """Answers by pool and ticket.

    Args:
        max_bytes: Limit on the bytes that are kept.

    Attributes:
        num_bytes: So many are.
        num_hits: How often what was asked for was there.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = self.num_hits = 0
        self._kept: OrderedDict[tuple[int, bytes], Kept] = OrderedDict()
        self._lock = threading.Lock()  # of all that is here; nothing is waited for while it is held

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, pool: int, key: bytes) -> Kept | None:
        """Return an answer, if it is kept."""
        with self._lock:
            done = self._kept.get((pool, key))
            if done is not None:
                self._kept.move_to_end((pool, key))
                self.num_hits += 1
            return done

    def put(self, pool: int, key: bytes, done: Kept) -> None:
        """Keep an answer, unless it alone is too large; others go that have not been asked for the longest."""
        num_bytes = num_bytes_of(done)
        with self._lock:
            self._drop((pool, key))
            if num_bytes > self.max_bytes:
                return
            while self.num_bytes + num_bytes > self.max_bytes:
                self._drop(next(iter(self._kept)))
            self._kept[pool, key] = done
            self.num_bytes += num_bytes

    def drop(self, pool: int) -> None:
        """Keep no answer of a pool any more."""
        with self._lock:
            for place in [place for place in self._kept if place[0] == pool]:
                self._drop(place)

    def _drop(self, place: tuple[int, bytes]) -> None:
        done = self._kept.pop(place, None)
        if done is not None:
            self.num_bytes -= num_bytes_of(done)
