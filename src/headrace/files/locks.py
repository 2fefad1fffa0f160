"""Locks on files that end with their holder, and waits with a limit.

A lock is an flock(2) on an open file: two threads exclude each other as two processes do, and the kernel frees it when
the holder ends, by SIGKILL too. Invariants: an attempt never blocks in the kernel; a lock that was returned is on the
file that has the name now; a forked child closes its copies of the locks at once. A network disk may keep the locks of
each node apart (NFS mounted with `nolock` or `local_lock`): then they exclude the processes of one node only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import weakref
from pathlib import Path

from headrace.errors import CacheError

from .locations import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.001, 0.05
_MAX_REPLACED = 100  # how often in a row a file may be replaced while it is opened; more is not an accident


class StallTimeout:
    """One wait of one thread. The limit counts from the last sign of life.

    Args:
        limit_seconds: The longest time without a sign of life.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._progress: object = None
        self._since = time.monotonic()

    def pause(self, progress: object) -> bool:
        """Wait a moment; return False if the limit is reached.

        Args:
            progress: Anything that changes as long as the awaited work continues.
        """
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self._since = progress, now
        if now - self._since >= self._limit_seconds:
            return False
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, _MAX_PAUSE_SECONDS)
        return True


class FileLock:
    """A lock that this process holds, from `lock_shared_nowait` or `lock_exclusive_nowait` until `close`.

    Args:
        path: The file.
        descriptor: The open file, locked or about to be; it belongs to this object from now on.

    Attributes:
        path: The file.
        descriptor: The open file, for reading and writing; -1 after `close` and in a forked child.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        _HELD.add(self)

    @property
    def is_current(self) -> bool:
        """Whether the lock is held and its file still has its name, not removed or replaced."""
        if self.descriptor < 0:
            return False
        try:
            named = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(self.descriptor), named)

    def share_nowait(self) -> bool:
        """Turn an exclusive lock into a shared one; if another process was quicker, the lock is lost and closed."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        return True

    def close(self, *, unlocks: bool = True) -> None:
        """Release the lock, or only close this copy of it. A second call does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            if unlocks:
                with contextlib.suppress(OSError):  # explicitly: a child that was forked past Python's hooks has a copy
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the interpreter the modules may be gone
            self.close()


_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_HELD):
        lock.close(unlocks=False)


os.register_at_fork(after_in_child=_forget_in_child)


def lock_shared_nowait(path: str) -> FileLock | None:
    """Take a shared lock on a file; None if it is missing or locked exclusively.

    Raises:
        CacheError: The disk offers no locks, or no more files can be opened.
    """
    return _lock_nowait(path, fcntl.LOCK_SH, os.O_RDWR)


def lock_exclusive_nowait(path: str, *, create: bool = True) -> FileLock | None:
    """Take an exclusive lock on a file; None if it is locked by another holder, or missing and not created.

    Raises:
        CacheError: The disk offers no locks, or no more files can be opened.
        FileNotFoundError: The folder is missing, if the file is to be created.
    """
    return _lock_nowait(path, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT if create else os.O_RDWR)


def lock_exclusive(path: str, *, limit_seconds: float, purpose: str) -> FileLock:
    """Wait for an exclusive lock.

    Args:
        path: The file; made if it is missing.
        limit_seconds: How long to wait for one holder.
        purpose: What the holder does with it, for the error.

    Raises:
        CacheError: The holder does not release it, or as `lock_exclusive_nowait`.
    """
    patience = StallTimeout(limit_seconds)
    while (lock := lock_exclusive_nowait(path)) is None:
        holders = ", ".join(describe_holders(path)) or "another process"
        if not patience.pause(holders):
            what = f"waited for {holders} to {purpose}, without a sign of life for {limit_seconds:g} s"
            raise CacheError(what, where=path, fix="check that process")
    return lock


def describe_holders(path: str) -> list[str]:
    """Name the processes that have a lock on a file, if the system shows them: `["process 123 (python)"]`.

    Reads all locks of the system: for messages only. Those of other containers are missing.
    """
    # `1: FLOCK ADVISORY WRITE 123 08:01:456 0 EOF`, see proc_locks(5). Not by device: some file systems show another
    # one than stat.
    try:
        inode, lines = os.stat(path).st_ino, Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines if " FLOCK " in line and f":{inode} " in line]
    found = []
    for pid in sorted({int(lock[4]) for lock in fields if len(lock) == 8}):
        name = ""
        with contextlib.suppress(OSError):
            name = f" ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
        found.append(f"this process ({pid})" if pid == os.getpid() else f"process {pid}{name}")
    return found


def _lock_nowait(path: str, operation: int, flags: int) -> FileLock | None:
    for _ in range(_MAX_REPLACED):
        try:
            lock = FileLock(path, os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            return None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # the caller makes room
                raise
            what = f"cannot open the lock: {error.strerror}"
            fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else "check the permissions of the folder"
            raise CacheError(what, where=path, fix=fix) from error
        try:
            fcntl.flock(lock.descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        except OSError as error:
            lock.close()
            what = f"the disk of this file offers no locks (flock: {error.strerror})"
            fix = "choose a cache folder on a local disk: cache_directory=..."
            raise CacheError(what, where=path, fix=fix) from error
        if lock.is_current:
            return lock
        lock.close()  # its last holder removed it after we opened it
    return None
