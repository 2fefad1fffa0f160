"""Folders of cached files: private to this user, and limited in size.

Cached files are used again later, by processes with more rights than an attacker who could replace them. So each folder
below a trusted one must be this user's own: not a link of another user, and not writable by others. The last one has
the mode 0700. A file is opened without waiting (a pipe would wait for its writer for ever), and replaces a link rather
than the file behind it, see `PendingFile`.

A file is protected while it is used, and removed when it was not used for long. No cached file is needed: a folder that
cannot be used costs time, and is logged once.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import CacheError

from .locations import user_cache_dir

_LOGGER = logging.getLogger("headrace.files")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_warned_of_owners: set[str] = set()


def make_private(path: str | os.PathLike[str], *, trusted: str | os.PathLike[str]) -> None:
    """Make a folder for this user alone, and those above it up to a trusted one; check those that exist.

    Args:
        path: The folder; if it exists and belongs to this user, its mode becomes 0700.
        trusted: A folder above it that is not checked: the one of temporary files or of the user's caches.

    Raises:
        CacheError: A folder cannot be made, belongs to another user, or can be replaced by others.
    """
    _make_missing(os.path.abspath(trusted))
    _check_private(path, trusted, make=True)


def _check_private(path: str | os.PathLike[str], trusted: str | os.PathLike[str], *, make: bool) -> None:
    """Do the work of `make_private`; without `make`, only check the folders that exist."""
    base = os.path.abspath(trusted)
    names = os.path.relpath(os.path.abspath(path), base).split(os.sep)
    if not make and not os.path.lexists(path):
        return
    if _mode_of(base) & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        raise _unsafe("all users may replace what is in this folder, as its sticky bit is not set", base)
    folder = base
    for name in names:
        folder = os.path.join(folder, name)
        is_last = folder == os.path.join(base, *names)
        if make:
            with contextlib.suppress(FileExistsError), _as_cache_errors(folder):
                os.mkdir(folder, 0o700)
        with _as_cache_errors(folder):
            link, status = os.lstat(folder), os.stat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise _unsafe("this is a file, not a folder", folder)
        owners = {os.geteuid()} if is_last else {os.geteuid(), 0}
        stranger = next((found.st_uid for found in (link, status) if found.st_uid not in owners), None)
        if stranger is not None and not _is_vouched_for(base):
            raise _unsafe(f"the folder belongs to user {stranger}, and this is user {os.geteuid()}", folder)
        if is_last and status.st_mode & 0o077 and status.st_uid == os.geteuid():
            with _as_cache_errors(folder):
                os.chmod(folder, 0o700)
        elif not is_last and status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise _unsafe("all users may replace what is in this folder, as its sticky bit is not set", folder)


def make_named(path: str | os.PathLike[str]) -> None:
    """Make a folder that the user named, and check its owner; its mode, and the folders above it, are up to the user.

    Raises:
        CacheError: It cannot be made, or belongs to another user (root may use it then, which is logged).
    """
    path = os.fspath(path)
    _make_missing(path)
    with _as_cache_errors(path):
        owner = os.stat(path).st_uid
    if owner == os.geteuid():
        return
    what = f"the cache folder belongs to user {owner}, and this is user {os.geteuid()}"
    if os.geteuid() != 0:
        raise CacheError(what, where=path, fix="choose a folder of your own: cache_directory=...")
    if path not in _warned_of_owners:  # of root's own files, too, where a file server maps root to "nobody"
        _warned_of_owners.add(path)
        _LOGGER.warning("%s: it is used all the same, because it was named explicitly: %s", what, path)


def kept_folder(name: str) -> Path:
    """Return a folder in the user's cache folder, made if it is missing, that only this user may read.

    If `$HEADRACE_CACHE` belongs to another user or a group may write to it, it counts as shared by several users: each
    has a folder `user-<number>` in it.

    Raises:
        CacheError: It cannot be made, or is not safe, see `make_private`.
    """
    root = user_cache_dir()
    _make_missing(str(root))
    for folder, trusted in _kept_folders(root, name):
        make_private(folder, trusted=trusted)
    return folder


def kept_path(name: str) -> Path:
    """Return the folder that `kept_folder` makes, which may be missing; makes nothing.

    Raises:
        CacheError: It exists and is not safe, see `make_private`, or it cannot be checked.
    """
    root = user_cache_dir()
    with _as_cache_errors(str(root)):
        try:
            is_folder = stat.S_ISDIR(os.stat(root).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_folder = False
        if not is_folder:
            return root / name
    for folder, trusted in _kept_folders(root, name):
        _check_private(folder, trusted, make=False)
    return folder


def _kept_folders(root: Path, name: str) -> list[tuple[Path, Path]]:
    """Return the folders to make, each with the trusted one above it; the last one is the requested one."""
    if not os.environ.get("HEADRACE_CACHE"):
        return [(root, root.parent), (root / name, root)]
    with _as_cache_errors(str(root)):
        status = os.stat(root)
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
        return [(root / f"user-{os.geteuid()}", root), (root / f"user-{os.geteuid()}" / name, root)]
    return [(root / name, root)]


def _is_vouched_for(base: str) -> bool:
    """Whether root named the folder: a file server that maps root to "nobody" owns even what root makes."""
    return os.geteuid() == 0 and bool(os.environ.get("HEADRACE_CACHE")) and base == str(user_cache_dir())


def _make_missing(path: str) -> None:
    """Make a folder and those above it that are missing, all for this user alone."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError), _as_cache_errors(folder):
            os.mkdir(folder, 0o700)


def _mode_of(path: str) -> int:
    with _as_cache_errors(path):
        return os.stat(path).st_mode


@contextlib.contextmanager
def _as_cache_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        what = f"the cache folder cannot be made: {error.strerror}"
        fix = "choose a folder that you may write to: cache_directory=..., or HEADRACE_CACHE"
        raise CacheError(what, where=path, fix=fix) from error


def _unsafe(what: str, where: str) -> CacheError:
    fix = "check its owner, remove it or correct its mode, or choose another: cache_directory=..., or HEADRACE_CACHE"
    return CacheError(what, where=where, fix=fix)


_DAY_SECONDS = 24 * 3600.0
_MAX_DAYS = 90.0  # what was not used for this long is removed in any case

_warned_of: set[tuple[str, str]] = set()  # logger and folder


@dataclass(frozen=True, slots=True)
class KeepLimit:
    """How much is kept in a folder; files used longest ago are removed first.

    Attributes:
        max_bytes: Limit on the bytes of all files together.
        max_files: How many.
        idle_days: Files used within this many days are kept in any case.
    """

    max_bytes: float = math.inf
    max_files: float = math.inf
    idle_days: float = 0.0


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


def remove_unused(folder: Path, pattern: str, *, limit: KeepLimit, now: float | None = None) -> None:
    """Remove files that were not used for long, and those used longest ago if there are too many.

    Files that a process protects by `hold_in_use` are kept.

    Args:
        folder: The folder.
        pattern: Glob pattern of the files.
        limit: How much is kept.
        now: In seconds since 1970; `None` asks the clock.
    """
    now = time.time() if now is None else now
    found = []
    for path in folder.glob(pattern):
        if path.name.startswith("."):  # unfinished
            continue
        with contextlib.suppress(OSError):  # another process removes them, too
            status = path.lstat()
            used = max(status.st_atime, status.st_mtime) if stat.S_ISREG(status.st_mode) else 0.0
            found.append((used, status.st_size, path))
    num_bytes, num_files = sum(size for _, size, _ in found), len(found)
    for used, size, path in sorted(found):
        is_old = now - used > _MAX_DAYS * _DAY_SECONDS
        has_room = num_bytes <= limit.max_bytes and num_files <= limit.max_files
        if (is_old or not has_room) and now - used >= limit.idle_days * _DAY_SECONDS and _remove_unless_held(path):
            num_bytes, num_files = num_bytes - size, num_files - 1


def _remove_unless_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:  # a link, or not a regular file: not in use
        if error.errno != errno.ELOOP:
            return False
        descriptor = -1
    try:
        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:  # it is in use, or unknown because the disk has no locks
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True
