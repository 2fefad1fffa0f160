"""Folders of cached files: private to this user, and limited in size.

Cached files are used again later, by processes with more rights than an attacker who could replace them. So each folder
below a trusted one must be this user's own, with the mode 0700 or closed to other writers. A file is opened without
waiting (a pipe would wait for its writer for ever), and replaces a link rather than the file behind it, see
`PendingFile`. A file is protected while it is used, and removed when it was not used for long. No cached file is
needed: a folder that cannot be used costs time, and is logged once.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import CacheError, SourceError

from .locations import open_regular, user_cache_dir

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MAX_IDLE_SECONDS = 90 * 24 * 3600.0  # what was not used for this long is removed in any case


def make_private(path: str | os.PathLike[str], *, trusted: str | os.PathLike[str]) -> None:
    """Make a folder for this user alone, and those above it up to a trusted one; check those that exist.

    Args:
        path: The folder; if it exists and belongs to this user, its mode becomes 0700.
        trusted: A folder above it that is not checked: the one of temporary files or of the user's caches.

    Raises:
        CacheError: A folder cannot be made, or belongs to another user.
    """
    folder = os.path.abspath(trusted)
    with _as_cache_errors(folder):
        os.makedirs(folder, 0o700, exist_ok=True)
        for name in os.path.relpath(path, folder).split(os.sep):
            folder = os.path.join(folder, name)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            check_own(folder)
        os.chmod(folder, 0o700)


def make_named(path: str) -> None:
    """Make a folder that the user named, and check its owner; its mode, and the folders above it, are up to the user.

    Raises:
        CacheError: It cannot be made, or belongs to another user and this one is not root.
    """
    with _as_cache_errors(path):
        os.makedirs(path, 0o700, exist_ok=True)
        owner = os.stat(path).st_uid
    if os.geteuid() not in (0, owner):  # root does as it is told, and may find what it makes to be owned by "nobody"
        raise _unsafe(f"the folder belongs to user {owner}, and this is user {os.geteuid()}", path)


def check_own(folder: str) -> None:
    """Check that a name is that of a folder of this user or of root, or of a link of one of them to such a folder.

    Raises:
        CacheError: It is not.
    """
    with _as_cache_errors(folder):
        status = os.stat(folder)
        owners = {os.lstat(folder).st_uid, status.st_uid} - {os.geteuid(), 0}
    if owners:
        raise _unsafe(f"the folder belongs to user {owners.pop()}, and this is user {os.geteuid()}", folder)
    if not stat.S_ISDIR(status.st_mode):
        raise _unsafe("this is a file, not a folder", folder)


def kept_folder(name: str) -> Path:
    """Return a folder in the user's cache folder, made if it is missing, that only this user may read.

    If `$HEADRACE_CACHE` belongs to another user or a group may write to it, it counts as shared by several users: each
    has a folder `user-<number>` in it.

    Raises:
        CacheError: It cannot be made, or is not safe, see `make_private`.
    """
    folder, root = kept_path(name), user_cache_dir()
    make_private(folder, trusted=root if os.environ.get("HEADRACE_CACHE") else root.parent)
    return folder


def kept_path(name: str) -> Path:
    """Return the folder that `kept_folder` makes, which may be missing; makes nothing.

    Raises:
        CacheError: It exists and belongs to another user, or it cannot be checked.
    """
    root = user_cache_dir()
    with _as_cache_errors(str(root)), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(root)
        if os.environ.get("HEADRACE_CACHE") and (status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE):
            root /= f"user-{os.geteuid()}"
        if os.path.lexists(root / name):
            check_own(str(root / name))
    return root / name


def warn_once_of_folder(logger: logging.Logger, folder: str, message: str, error: Exception) -> None:
    """Log that a folder cannot be used, once for each logger and folder.

    Args:
        logger: The logger.
        folder: The folder; empty if unknown.
        message: The consequence.
        error: The reason.
    """
    if (logger.name + message, folder) not in _warned_of:
        _warned_of.add((logger.name + message, folder))
        logger.warning("%s: %s", message, error)


_warned_of: set[tuple[str, str]] = set()  # logger and folder


def note_use(path: Path) -> None:
    """Set the access time of a cached file, for `remove_unused`, whatever the mount options.

    Its modification time is kept: for some it is that of the file that they were made from.
    """
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def hold_in_use(descriptor: int) -> None:
    """Protect a cached file from `remove_unused` until its descriptor and all duplicates of it are closed."""
    with contextlib.suppress(OSError):  # a disk without locks, or about to be removed: an open file can be read
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def remove_unused(
    folder: Path,
    pattern: str,
    *,
    max_bytes: float = math.inf,
    max_files: float = math.inf,
    idle_days: float = 0.0,
    now: float | None = None,
) -> None:
    """Remove files that were not used for 90 days, and those used longest ago if there are too many.

    Files that a process protects by `hold_in_use` are kept.

    Args:
        folder: The folder.
        pattern: Glob pattern of the files.
        max_bytes: Limit on the bytes of all files together.
        max_files: Limit on their number.
        idle_days: Files used within this many days are kept in any case.
        now: In seconds since 1970; `None` asks the clock.
    """
    now = time.time() if now is None else now
    found = []
    for path in folder.glob(pattern):
        if not path.name.startswith("."):  # else it is unfinished
            with contextlib.suppress(OSError):  # another process removes them, too
                status = path.lstat()
                used = max(status.st_atime, status.st_mtime) if stat.S_ISREG(status.st_mode) else 0.0
                found.append((used, status.st_size, path))
    num_bytes, num_files = sum(size for _, size, _ in found), len(found)
    for used, size, path in sorted(found):
        is_old = now - used > _MAX_IDLE_SECONDS or num_bytes > max_bytes or num_files > max_files
        if is_old and now - used >= idle_days * 24 * 3600.0 and _remove_unless_held(path):
            num_bytes, num_files = num_bytes - size, num_files - 1


def _remove_unless_held(path: Path) -> bool:
    with contextlib.suppress(OSError, SourceError):  # it is in use, or unknown because the disk has no locks
        if not path.is_symlink():
            with open_regular(path) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
                return True
        path.unlink()
        return True
    return False


@contextlib.contextmanager
def _as_cache_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"the cache folder cannot be made: {error.strerror}"
        fix = "choose a folder that you may write to: cache_directory=..., or HEADRACE_CACHE"
        raise CacheError(what, where=error.filename or path, fix=fix) from error


def _unsafe(what: str, where: str) -> CacheError:
    fix = "check its owner, remove it or correct its mode, or choose another: cache_directory=..., or HEADRACE_CACHE"
    return CacheError(what, where=where, fix=fix)
