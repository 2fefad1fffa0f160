"""The files that this process will need, in order, published to all processes that share the folder.

A plan is a file that its process keeps locked: when the process is gone, so is the lock, and any process may remove the
file. Its first line is the position that the process has reached, overwritten in place; the second the digests of the
sources. Invariant: a plan only affects the order of eviction; a wrong or truncated one costs time, never a file in use.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..locks import FileLock, lock_exclusive_nowait, lock_shared_nowait
from .entry import derive_source_digest

# How much of a plan other processes see. Files that are needed later than this count as unplanned for them.
_MAX_PUBLISHED = 65_536
_POSITION_WIDTH = 20


class FuturePlan:
    """The plan of this process; safe to call from several threads.

    Args:
        folder: Where plans are published.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # Protects all below; never held while waiting for anything else. Reentrant: the finalizer of a cache may close
        # this in the thread that holds it, which is the prefetching one.
        self._mutex = threading.RLock()
        self._lock: FileLock | None = None
        self._sources: list[str] = []
        self._positions: dict[str, deque[int]] = {}  # by digest: the positions at which it is still needed
        self._is_used = bytearray()
        self._position = 0

    def replace(self, sources: Sequence[str]) -> None:
        """Plan these from now on.

        If the plan cannot be written (a full disk), it holds for this process only.

        Raises:
            CacheError: No more files can be opened.
        """
        digests = [derive_source_digest(source) for source in sources]
        positions: dict[str, deque[int]] = {}
        for at, digest in enumerate(digests):
            positions.setdefault(digest, deque()).append(at)
        with self._mutex:
            self._withdraw()
            self._sources, self._positions, self._is_used, self._position = (
                list(sources),
                positions,
                bytearray(len(digests)),
                0,
            )
            if digests:
                with contextlib.suppress(OSError):
                    self._lock = _publish(self._folder, digests[:_MAX_PUBLISHED])

    def note_used(self, source: str) -> None:
        """Note that a source is needed now: its next position in the plan is done."""
        with self._mutex:
            positions = self._positions.get(derive_source_digest(source))
            if not positions:
                return
            self._is_used[positions.popleft()] = 1
            position = self._is_used.find(0, self._position)
            position = len(self._is_used) if position < 0 else position
            if position != self._position:
                self._position = position
                if self._lock is not None:
                    with contextlib.suppress(OSError):  # a full disk: others then see an older position
                        os.pwrite(self._lock.descriptor, _first_line(position), 0)

    def remaining(self) -> list[str]:
        """Return the sources that are still needed, in order."""
        with self._mutex:
            return [source for source, is_used in zip(self._sources, self._is_used, strict=True) if not is_used]

    def distance_of(self, source: str) -> float:
        """Return how many files are needed before this one; infinite if it is not in the plan."""
        with self._mutex:
            positions = self._positions.get(derive_source_digest(source))
            return positions[0] - self._position if positions else math.inf

    def close(self) -> None:
        """Withdraw the plan. A second call does nothing."""
        with self._mutex:
            self._withdraw()
            self._sources, self._positions, self._is_used, self._position = [], {}, bytearray(), 0

    def _withdraw(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            if lock.is_current:
                os.unlink(lock.path)
            lock.close()


def read_distances(folder: str) -> dict[str, float]:
    """Return, by the digest of a source, the least number of files that any live plan needs before it.

    Removes the plans of processes that are gone. Reads each plan whole.
    """
    distances: dict[str, float] = {}
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        dead = lock_shared_nowait(path)
        if dead is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            dead.close()
            continue
        position, digests = _read(path)
        for at in range(len(digests) - 1, position - 1, -1):
            digest, distance = digests[at], float(at - position)
            if distance < distances.get(digest, math.inf):
                distances[digest] = distance
    return distances


def _publish(folder: str, digests: list[str]) -> FileLock:
    while True:
        lock = lock_exclusive_nowait(os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(8)}.json"))
        if lock is not None:  # else another process removed it as abandoned, between opening and locking
            break
    try:
        lock.write(_first_line(0) + msgspec.json.encode(digests))
    except BaseException:
        os.unlink(lock.path)
        lock.close()
        raise
    return lock


def _first_line(position: int) -> bytes:
    return f'{{"position":{position:{_POSITION_WIDTH}}}}\n'.encode()


def _read(path: str) -> tuple[int, list[str]]:
    try:
        first, _, rest = Path(path).read_bytes().partition(b"\n")
        position = msgspec.json.decode(first, type=dict[str, int])["position"]
        return max(0, position), msgspec.json.decode(rest, type=list[str])
    except (OSError, KeyError, msgspec.MsgspecError):
        return 0, []
