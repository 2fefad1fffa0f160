"""The layouts of files that this process read last: who opens them again, in another order or with others, has them.

A dataset that reads other files in each sub-epoch opens every file once a full epoch, which costs some milliseconds; a
layout that is kept, 0.02. Invariants: the layouts take no more than `_MAX_BYTES`, and one is handed out only while its
file is the same, by inode, size and both times. A file that was changed just before it was read is not kept, since a
second change within the same tick of the file system's clock could not be seen.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from .layout import FileLayout

_MAX_BYTES = 16 << 20  # in each process; some 300,000 sequences
_MIN_AGE_NS = 1_000_000_000  # far more than a tick of any clock
_SEQ_BYTES = 8  # of a number

_Mark = tuple[int, ...]


class RecentLayouts:
    """Keeps the layouts that were used last. Thread-safe.

    Args:
        max_bytes: How much they may take together; a layout of more than an eighth of it is not kept.
        min_age_ns: How long ago a file must have been changed, in nanoseconds.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES, min_age_ns: int = _MIN_AGE_NS) -> None:
        self._max_bytes, self._min_age_ns = max_bytes, min_age_ns
        self.forget()

    def forget(self) -> None:
        """Drop all of them."""
        self._lock = threading.Lock()  # protects what follows, for a few lines; no finalizer or signal handler takes it
        self._kept: dict[str, tuple[_Mark, int, FileLayout]] = {}  # what was used last comes last
        self._num_bytes = 0

    def layouts(self, paths: Sequence[str], read: Callable[[Sequence[str]], Iterable[FileLayout]]) -> list[FileLayout]:
        """Return the layouts of files; those that are not kept are read.

        Args:
            paths: Absolute paths.
            read: Reads the layouts of some of them, in order.

        Raises:
            Exception: What `read` raises.
        """
        marks = [_mark_of(path) for path in paths]
        found = [self._get(path, mark) for path, mark in zip(paths, marks, strict=True)]
        missing = [number for number, layout in enumerate(found) if layout is None]
        if missing:
            now = time.time_ns()
            for number, layout in zip(missing, read([paths[number] for number in missing]), strict=True):
                found[number] = layout
                mark = marks[number]
                if mark is not None and max(mark[-2:]) <= now - self._min_age_ns and _mark_of(paths[number]) == mark:
                    self._put(paths[number], mark, layout)
        return [layout for layout in found if layout is not None]

    def _get(self, path: str, mark: _Mark | None) -> FileLayout | None:
        with self._lock:
            kept = self._kept.pop(path, None)
            if kept is None:
                return None
            if kept[0] != mark:
                self._num_bytes -= kept[1]
                return None
            self._kept[path] = kept
            return kept[2]

    def _put(self, path: str, mark: _Mark, layout: FileLayout) -> None:
        num_bytes = _bytes_of(layout)
        if num_bytes > self._max_bytes // 8:
            return
        with self._lock:
            self._num_bytes -= self._kept.pop(path, (mark, 0, layout))[1]
            self._kept[path] = mark, num_bytes, layout
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= self._kept.pop(next(iter(self._kept)))[1]


def _mark_of(path: str) -> _Mark | None:
    """Return what tells a file from another one, and from itself before it was changed; `None` if it cannot be seen."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None  # who reads it says what is wrong
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _bytes_of(layout: FileLayout) -> int:
    """Return about how much memory a layout takes."""
    numbers = _SEQ_BYTES * layout.num_seqs * (len(layout.lengths) + 1)
    tags = 0 if layout.tags is None else layout.tags.num_bytes
    return numbers + tags + sum(sys.getsizeof(label) for labels in layout.labels.values() for label in labels) + 1024


RECENT = RecentLayouts()
os.register_at_fork(after_in_child=RECENT.forget)
