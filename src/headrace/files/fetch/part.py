"""The partial file that a fetch writes, and its side file: its version, and the ranges that have arrived.

Invariants: the file has exactly the size of the source from the start, its blocks allocated where the file system can
do that, so that a full disk is noticed before the first byte is fetched; a part that starts over is a new file, never a
truncated old one, so that a thread that still has the old one open cannot write into the new one. The caller ensures
that one thread of one process at a time writes a part.

The first line of JSON in the side file describes the complete part, each further line a range that is in it. A line
is appended by a single write after the bytes are in the part, so that a process killed at any moment loses at most the
ranges in flight. A truncated last line is dropped; with any other defect the file is ignored, and the part starts over.
The part is not synced to the disk, so a side file is trusted only during the boot in which it was written.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat as stat_modes
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.errors import CacheError

from ..locations import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, boot_id
from .options import SourceStat
from .plan import ByteRange
from .retry import NO_SPACE

LEDGER_SUFFIX = ".ranges"
_FORMAT = 1
_OPEN_LEDGER = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """A range that is in the part, and its XXH3-128 as received, if digests are kept."""

    where: ByteRange
    digest: str | None


class Ledger:
    """The side file while its part is being written.

    It is optional: if it can no longer be written (a full disk), it ends there, and its lines stay true.

    Args:
        path: Where it is.
        descriptor: Open for appending.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def start(cls, path: str, header: dict[str, Any]) -> Ledger | None:
        """Start a new side file; None if it cannot be written. There must be none of this name."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _OPEN_LEDGER, 0o666)
        except OSError:
            return None
        ledger = cls(path, descriptor)
        ledger._append(header)
        return ledger

    @classmethod
    def resume(cls, path: str, header: dict[str, Any]) -> tuple[Ledger, list[FetchedRange]] | None:
        """Continue a side file and return its ranges; None if there is none, or one with another header."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | _OPEN_LEDGER)
        except OSError:
            return None
        try:
            with open(descriptor, "rb", closefd=False) as file:
                whole, _, _truncated = file.read().rpartition(b"\n")
            fetched = _parse(whole, header)
            os.ftruncate(descriptor, len(whole) + 1)
        except (OSError, ValueError, RecursionError):
            os.close(descriptor)
            return None
        return cls(path, descriptor), fetched

    def note(self, fetched: FetchedRange) -> None:
        """Add a range whose bytes are in the part."""
        self._append([fetched.where.start, fetched.where.stop, fetched.digest])

    def close(self) -> None:
        """End; the file stays. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, value: object) -> None:
        if self._descriptor is None:
            return
        line = json.dumps(value).encode() + b"\n"
        try:
            is_whole = os.write(self._descriptor, line) == len(line)
        except OSError:
            is_whole = False
        if not is_whole:
            self.close()


def header_of(stat: SourceStat, status: os.stat_result, *, with_digests: bool) -> dict[str, Any]:
    """Return the values that must agree for a part to be resumed: the version, the part file itself and the boot."""
    return {
        "format": _FORMAT,
        "size": stat.size,
        "version": stat.version,
        "inode": status.st_ino,
        "digests": with_digests,
        "boot": boot_id(),
    }


def _parse(text: bytes, header: dict[str, Any]) -> list[FetchedRange]:
    first, *lines = text.split(b"\n")
    if json.loads(first) != header:
        raise ValueError("it belongs to another version")
    return [_parse_line(line, header["size"]) for line in lines]


def _parse_line(line: bytes, size: int) -> FetchedRange:
    value = json.loads(line)
    if not isinstance(value, list) or [type(part) for part in value[:2]] != [int, int] or len(value) != 3:
        raise ValueError("not a range")
    start, stop, digest = value
    if not 0 <= start < stop <= size or not isinstance(digest, str | None):
        raise ValueError("a range outside the file")
    return FetchedRange(ByteRange(start, stop), digest)


_FIX_ALONE = "let nothing else write there"
_MAX_VIEWS = 512  # in one call; Linux takes 1024
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class PartFile:
    """A part while it is being written; `close`, `finish` or `discard` ends it.

    Args:
        path: Where it is. An existing part is continued if its side file says that it is of this version.
        stat: What the source is.
        with_digests: Whether the digest of each range is kept.

    Raises:
        CacheError: The file cannot be made.
        OSError: The disk is full (ENOSPC) or the quota used up (EDQUOT).
    """

    def __init__(self, path: str, stat: SourceStat, *, with_digests: bool) -> None:
        self.path = path
        self._stat = stat
        self._with_digests = with_digests
        self._ledger: Ledger | None = None
        self.fetched: list[FetchedRange] = []
        self._descriptor: int | None = None
        with part_errors(path):
            self._descriptor = _open_old(path)
            try:
                if self._descriptor is None or not self._resume():
                    self._start()
            except BaseException:
                self.discard()
                raise

    @property
    def num_bytes(self) -> int:
        """Number of bytes that have arrived."""
        return self._stat.size - sum(map(len, self.missing()))

    @property
    def descriptor(self) -> int:
        """The open file, for reading and writing at offsets."""
        assert self._descriptor is not None
        return self._descriptor

    def reopen(self) -> int:
        """Open the file once more, for another thread: it has an offset of its own, and may outlive this object.

        Raises:
            CacheError: The file is gone, or is no longer this one.
        """
        with part_errors(self.path):
            descriptor = os.open(self.path, _OPEN)
        if os.path.samestat(os.fstat(descriptor), os.fstat(self.descriptor)):
            return descriptor
        os.close(descriptor)
        raise CacheError("the part file was replaced while it was written", where=self.path, fix=_FIX_ALONE)

    def missing(self) -> list[ByteRange]:
        """Return the missing ranges, in order."""
        gaps, position = [], 0
        for fetched in sorted(self.fetched, key=lambda fetched: fetched.where):
            if fetched.where.start > position:
                gaps.append(ByteRange(position, fetched.where.start))
            position = max(position, fetched.where.stop)
        if position < self._stat.size:
            gaps.append(ByteRange(position, self._stat.size))
        return gaps

    def allocate(self) -> None:
        """Give the file its size and its blocks.

        Raises:
            OSError: ENOSPC or EDQUOT.
            CacheError: It cannot be that large.
        """
        size = self._stat.size
        with part_errors(self.path):
            try:
                if size and hasattr(os, "posix_fallocate"):  # macOS has none
                    os.posix_fallocate(self.descriptor, 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
            os.ftruncate(self.descriptor, size)

    def write(self, start: int, data: Sequence[bytes]) -> None:
        """Write all pieces of `data`, one after the other, from an offset on."""
        views = deque([memoryview(piece) for piece in data])
        while views:
            num_written = os.pwritev(self.descriptor, list(itertools.islice(views, _MAX_VIEWS)), start)
            start += num_written
            while views and num_written >= len(views[0]):
                num_written -= len(views.popleft())
            if num_written:
                views[0] = views[0][num_written:]

    def note(self, fetched: FetchedRange) -> None:
        """Note a range that has been written."""
        self.fetched.append(fetched)
        if self._ledger is None and len(self.fetched) == 1 and len(fetched.where) < self._stat.size:
            self._ledger = self._start_ledger()
        if self._ledger is not None:
            self._ledger.note(fetched)

    def start_over(self) -> None:
        """Discard the received bytes and continue with a new, empty file."""
        with part_errors(self.path):
            self._start()

    def finish(self) -> None:
        """End with a whole part, and remove its side file.

        Raises:
            CacheError: The file is gone, or is no longer the one that was written.
        """
        with part_errors(self.path):
            written = os.fstat(self.descriptor)
            found = os.stat(self.path, follow_symlinks=False)
            if not os.path.samestat(written, found) or found.st_size != self._stat.size:
                raise CacheError(
                    f"the part file was replaced or cut while it was written: {found.st_size} bytes instead of "
                    f"{self._stat.size}",
                    where=self.path,
                    fix=_FIX_ALONE,
                )
            self.close()
            _remove(self.path + LEDGER_SUFFIX)

    def close(self) -> None:
        """End and keep the received bytes, for the next call. A second call does nothing."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def discard(self) -> None:
        """End and remove the part and its side file, if they are still the ones of this object."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._remove_own()
        self.close()

    def _remove_own(self) -> None:
        if os.path.samestat(os.fstat(self.descriptor), os.stat(self.path, follow_symlinks=False)):
            discard_part(self.path)

    def _resume(self) -> bool:
        status = os.fstat(self.descriptor)
        if not self._stat.version or status.st_size != self._stat.size:
            return False
        header = header_of(self._stat, status, with_digests=self._with_digests)
        resumed = Ledger.resume(self.path + LEDGER_SUFFIX, header)
        if resumed is None:
            return False
        self._ledger, self.fetched = resumed
        return True

    def _start(self) -> None:
        discard_part(self.path)
        self.close()
        self.fetched = []
        self._descriptor = os.open(self.path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)

    def _start_ledger(self) -> Ledger | None:
        if not self._stat.version:
            return None
        header = header_of(self._stat, os.fstat(self.descriptor), with_digests=self._with_digests)
        return Ledger.start(self.path + LEDGER_SUFFIX, header)


def discard_part(part_path: str | os.PathLike[str]) -> None:
    """Remove a part and its side file, if they are there.

    Raises:
        OSError: They cannot be removed.
    """
    path = os.fspath(part_path)
    # The side file first: it must never be read with another part.
    _remove(path + LEDGER_SUFFIX)
    _remove(path)


@contextmanager
def part_errors(path: str) -> Iterator[None]:
    """Turn system errors of the part into a `CacheError`; "no space" is passed on unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else "choose a folder of the cache that can be written"
        raise CacheError(f"cannot write the part file: {error.strerror or error}", where=path, fix=fix) from error


def _open_old(path: str) -> int | None:
    """Open an existing part; None if there is none that could be continued."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # a link is not followed, it is replaced
            return None
        raise
    if not stat_modes.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CacheError("this is not a regular file", where=path, fix="remove it, or give another path")
    return descriptor


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
