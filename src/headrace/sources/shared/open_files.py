"""Files that must be what they were when they were indexed: each is compared with its stamp when it is opened.

An open file is not looked at again: one that is replaced meanwhile goes on to be the old one, and one that is cut gives
an error when it is read beyond its end. A program that changes the bytes of an open file in place is not noticed.
"""

from __future__ import annotations

import os
import resource
from typing import Any

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

# Of one reader: an eighth of the descriptors that the process may have (some readers need two for a file).
MAX_OPEN_FILES = 1024
if 0 < (_limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < 8 * MAX_OPEN_FILES:  # -1: there is no limit
    MAX_OPEN_FILES = max(_limit // 8, 64)
REREAD = "open the corpus again; make the index again if it was given"


def older_half(handles: dict[int, Any]) -> list[int]:
    """Return the keys of the half that was opened first."""
    return list(handles)[: (len(handles) + 1) // 2]


def check_stamp(stamp: FileStamp, descriptor: int | None = None) -> None:
    """Refuse a file, perhaps an open one, whose size or time is not what it was: what it holds may lie elsewhere.

    Raises:
        SourceError: It changed, or is gone.
    """
    try:
        now = os.stat(stamp.path if descriptor is None else descriptor)
    except (OSError, ValueError) as error:
        raise cannot_open(stamp, error) from error
    if (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise SourceError(
            f"the file was changed since it was indexed: {stamp.size} bytes of time {stamp.mtime_ns} then, "
            f"{now.st_size} bytes of time {now.st_mtime_ns} now",
            where=stamp.path,
            fix=REREAD,
        )


def cannot_open(stamp: FileStamp, error: OSError | ValueError) -> SourceError:
    """Return the error for a file that is gone, or that may not be opened."""
    is_limit = isinstance(error, OSError) and error.errno in TOO_MANY_OPEN
    fix = TOO_MANY_OPEN_FIX if is_limit else "restore it, or its folder"
    what = getattr(error, "strerror", None) or error
    return SourceError(f"the file cannot be opened: {what}", where=stamp.path, fix=fix)
