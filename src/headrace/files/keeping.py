"""Folders in which something is kept so that it need not be made again: what all who do so have in common.

That is how a file is protected while it is used, and removed when it is not. Nothing that is kept is needed: a folder
that cannot be used costs time, and is logged once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

_DAY_SECONDS = 24 * 3600.0

_warned_of: set[tuple[str, str]] = set()  # logger and folder


@dataclass(frozen=True, slots=True)
class KeepLimit:
    """How much is kept in a folder; what was used longest ago goes first.

    Attributes:
        max_bytes: Of all files together.
        max_files: How many.
        days: What was not used for so many days goes in any case.
        idle_days: What was used since stays in any case.
    """

    max_bytes: float = math.inf
    max_files: float = math.inf
    days: float = 90.0
    idle_days: float = 0.0


def warn_once_of_folder(logger: logging.Logger, folder: str, message: str, error: Exception) -> None:
    """Log that a folder cannot be used, once for each logger and folder.

    Args:
        logger: Where to.
        folder: The folder; empty if it is not even known which.
        message: What follows from it.
        error: Why.
    """
    if (logger.name + message, folder) not in _warned_of:
        _warned_of.add((logger.name + message, folder))
        logger.warning("%s: %s", message, error)


def note_use(path: Path) -> None:
    """Note that a kept file was used, for `remove_unused`: its time of access, whatever the disk does by itself.

    Its time of modification stays: for some it is that of the file that they were made from.
    """
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def hold_in_use(descriptor: int) -> None:
    """Protect a kept file from `remove_unused` until its descriptor, and what was duplicated from it, is closed."""
    with contextlib.suppress(OSError):  # a disk without locks, or about to be removed: what is open can be read
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def remove_unused(folder: Path, pattern: str, *, limit: KeepLimit, now: float | None = None) -> None:
    """Remove what was not used for long, and what was used longest ago if there is too much.

    What a process holds by `hold_in_use` stays.

    Args:
        folder: Where.
        pattern: Which files.
        limit: How much is kept.
        now: In seconds since 1970; `None` asks the clock.
    """
    now = time.time() if now is None else now
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process removes them, too
            status = path.lstat()
            used = max(status.st_atime, status.st_mtime) if stat.S_ISREG(status.st_mode) else 0.0
            found.append((used, status.st_size, path))
    num_bytes, num_files = sum(size for _, size, _ in found), len(found)
    for used, size, path in sorted(found):
        is_old = now - used > limit.days * _DAY_SECONDS
        has_room = num_bytes <= limit.max_bytes and num_files <= limit.max_files
        if (is_old or not has_room) and now - used >= limit.idle_days * _DAY_SECONDS and _remove_unless_held(path):
            num_bytes, num_files = num_bytes - size, num_files - 1


def _remove_unless_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:  # a link, or what is no file and nobody can have opened as one
        if error.errno != errno.ELOOP:
            return False
        descriptor = -1
    try:
        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:  # somebody uses it, or the disk has no locks: then nobody knows
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True
