"""The side file of a part: which version it belongs to, and which ranges of it have come.

One line of JSON says what the part is to become, each further line names a range that is in it. A line is appended by a
single write after the bytes are in the part, so that a process killed at any moment loses at most the ranges that were
on their way. A torn last line is dropped; a file that is odd in any other way is no ledger, and the part starts over.

The part is not synced to the disk, so a ledger is believed only during the boot in which it was written.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fetch_options import SourceStat
from .fetch_plan import ByteRange

LEDGER_SUFFIX = ".ranges"
_FORMAT = 1
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class CameRange:
    """A range that is in the part, and the XXH3-128 of it as it came, if digests are kept."""

    where: ByteRange
    digest: str | None


class Ledger:
    """The side file while its part is being written.

    It is a help, not a promise: where it cannot be written any more (a full disk), it ends where it is, and what it
    says stays true.

    Args:
        path: Where it is.
        descriptor: Open for appending.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def start(cls, path: str, header: dict[str, Any]) -> Ledger | None:
        """Begin a new side file; None if it cannot be written. There must be none of this name."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _OPEN, 0o666)
        except OSError:
            return None
        ledger = cls(path, descriptor)
        ledger._append(header)
        return ledger

    @classmethod
    def resume(cls, path: str, header: dict[str, Any]) -> tuple[Ledger, list[CameRange]] | None:
        """Go on with a side file and return what it says; None if there is none, or one with another header."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | _OPEN)
        except OSError:
            return None
        try:
            with open(descriptor, "rb", closefd=False) as file:
                whole, _, _torn = file.read().rpartition(b"\n")
            came = _parse(whole, header)
            os.ftruncate(descriptor, len(whole) + 1)
        except (OSError, ValueError, RecursionError):
            os.close(descriptor)
            return None
        return cls(path, descriptor), came

    def note(self, came: CameRange) -> None:
        """Add a range whose bytes are in the part."""
        self._append([came.where.start, came.where.stop, came.digest])

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
    """Return what must agree for a part to be resumed: the version, the part file itself and the boot."""
    return {
        "format": _FORMAT,
        "size": stat.size,
        "version": stat.version,
        "inode": status.st_ino,
        "digests": with_digests,
        "boot": _boot(),
    }


def _parse(text: bytes, header: dict[str, Any]) -> list[CameRange]:
    first, *lines = text.split(b"\n")
    if json.loads(first) != header:
        raise ValueError("it belongs to another version")
    return [_parse_line(line, header["size"]) for line in lines]


def _parse_line(line: bytes, size: int) -> CameRange:
    value = json.loads(line)
    if not isinstance(value, list) or [type(part) for part in value[:2]] != [int, int] or len(value) != 3:
        raise ValueError("not a range")
    start, stop, digest = value
    if not 0 <= start < stop <= size or not isinstance(digest, str | None):
        raise ValueError("a range outside the file")
    return CameRange(ByteRange(start, stop), digest)


@functools.cache
def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
