"""Open files that somebody else named or put there: only what is a file, and never a wait for the writer of a pipe."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

from headrace.errors import SourceError

# What the system says when no more files can be opened: by this process, or by all.
TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
TOO_MANY_OPEN_FIX = "raise the limit with `ulimit -n`, or close what this process has open"


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading; a pipe or a device is refused, and not waited for.

    Raises:
        OSError: It is missing or cannot be opened.
        SourceError: It is no regular file, its name has a NUL in it, or no more files can be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise SourceError("no file has a NUL in its name", where=repr(path), fix="check the path") from error
    except OSError as error:
        if error.errno in TOO_MANY_OPEN:
            what = f"cannot open the file: {error.strerror}"
            raise SourceError(what, where=os.fspath(path), fix=TOO_MANY_OPEN_FIX) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError("this is not a regular file", where=os.fspath(path), fix="give the path of a file")
    return os.fdopen(descriptor, "rb")
