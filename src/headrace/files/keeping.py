"""Folders in which something is kept so that it need not be made again: what all who do so have in common.

Nothing that is kept is needed: a folder that cannot be used costs time, and is logged once.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

_warned_of: set[tuple[str, str]] = set()  # logger and folder


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


def remove_oldest(folder: Path, pattern: str, num_kept: int) -> None:
    """Remove files but for those that were changed or accessed last. What is mapped elsewhere stays readable there."""
    ages = []
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # another process removes them, too
            status = path.stat()
            ages.append((max(status.st_mtime_ns, status.st_atime_ns), path))
    for _, path in sorted(ages)[:-num_kept]:
        path.unlink(missing_ok=True)
