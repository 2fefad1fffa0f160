"""The file that a writer fills, open under its temporary name."""

from __future__ import annotations

from typing import IO

from headrace.errors import SourceError
from headrace.files import PendingFile


def open_pending(path: str) -> tuple[PendingFile, IO[bytes]]:
    """Return a file under its temporary name, and the same, open: close it, then `commit` or `abort`.

    Raises:
        SourceError: It cannot be made.
    """
    pending = PendingFile(path)
    try:
        return pending, open(pending.temporary, "wb")
    except OSError as error:
        pending.abort()
        raise SourceError(f"cannot write: {error.strerror}", where=path, fix="raise the limits of `ulimit`") from error
