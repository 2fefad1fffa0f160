"""Locks on files that end with their holder, and waits with a limit.

A lock is an flock(2) on an open file: it belongs to the open file, so that two threads exclude each other as two
processes do, and the kernel frees it when the holder ends, by SIGKILL too. No lock expires, and no process can release
another's. Invariants: an attempt never blocks in the kernel (a waiting caller tries again, with a limit of its own); a
lock that was returned is on the file that has the name now; a forked child closes its copies of the locks at once, so
that it holds none of its parent's.

A disk without flock is refused with an error. A network disk may keep the locks of each node apart (NFS mounted with
`nolock` or `local_lock`, Lustre with `localflock`): then they exclude the processes of one node only.

No wait is without a limit, and its error names the holder. The limit counts from the last sign of life. The system
cannot wait for a lock with a limit, so `StallTimeout` tries again and again, at first often, then every 50 ms or so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.errors import CacheError

from .locations import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX

_FIRST_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05


class StallTimeout:
    """One wait of one thread, with a limit.

    Args:
        limit_seconds: The longest time without a sign of life.
        stop: Ends the wait early, if given.
        max_pause_seconds: The longest pause between two tries.
    """

    def __init__(
        self,
        limit_seconds: float,
        stop: threading.Event | None = None,
        *,
        max_pause_seconds: float = _MAX_PAUSE_SECONDS,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._max_pause_seconds = max_pause_seconds
        self._stop = stop or threading.Event()
        self._pause_seconds = _FIRST_SECONDS
        self._progress: object = None
        self._since = time.monotonic()

    def pause(self, progress: object, give_up: Callable[[str], CacheError]) -> None:
        """Wait a moment.

        Args:
            progress: Any value that changes with each sign of life.
            give_up: Makes the error, given the reason as text.

        Raises:
            CacheError: The limit is reached, or the wait was stopped.
        """
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since >= self._limit_seconds:
            raise give_up(f"{self._limit_seconds:g} s without a sign of life")
        if self._stop.wait(self._pause_seconds):
            raise give_up("the cache was closed")
        self._pause_seconds = min(2 * self._pause_seconds, self._max_pause_seconds)


_NOT_OFFERED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_MAX_REPLACED = 100  # how often in a row a file may be replaced while it is opened; more is not an accident

# Protects _OPEN and the moment between opening a file and noting it there: a fork must not happen in between. Held for
# a few system calls. Reentrant, because the garbage collector may close a lock while its thread notes another.
_GUARD = threading.RLock()
_OPEN: set[int] = set()


class FileLock:
    """A lock that this process holds, from `lock_shared_nowait` or `lock_exclusive_nowait` until `close`.

    Args:
        path: The file.
        descriptor: The open file, locked or about to be; it belongs to this object from now on.
    """

    __slots__ = ("__weakref__", "_descriptor", "_pid", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._pid = os.getpid()

    @property
    def descriptor(self) -> int:
        """The open file, for reading and writing; -1 after `close` and in a forked child."""
        return self._descriptor if os.getpid() == self._pid else -1

    @property
    def is_current(self) -> bool:
        """Whether the lock is held and its file still has its name, not removed or replaced."""
        if self.descriptor < 0:
            return False
        ours = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (ours.st_ino, ours.st_dev) == (named.st_ino, named.st_dev)

    def share_nowait(self) -> bool:
        """Turn an exclusive lock into a shared one; if another process was quicker, the lock is lost and closed."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        return True

    def read(self) -> bytes:
        """Return the content of the locked file."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def write(self, data: bytes) -> None:
        """Replace the content of the locked file.

        It is overwritten in place, so that the room on a full disk is kept. If the machine fails in between, the
        content may be mixed.
        """
        if os.pwrite(self._descriptor, data, 0) < len(data):
            os.ftruncate(self._descriptor, 0)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        os.ftruncate(self._descriptor, len(data))

    def touch(self) -> None:
        """Set the modification time of the locked file to now, if the disk allows it."""
        with contextlib.suppress(OSError):
            os.utime(self._descriptor)

    def close(self) -> None:
        """Release the lock. A second call does nothing."""
        with _GUARD:
            descriptor, self._descriptor = self.descriptor, -1
            if descriptor < 0:
                return
            _OPEN.discard(descriptor)
            with contextlib.suppress(OSError):  # explicitly: a child that was forked past Python's hooks has a copy
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the interpreter the modules may be gone
            self.close()


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


def describe_holders(path: str) -> list[str]:
    """Name the processes that have a lock on a file, if the system shows them: `["process 123 (python)"]`.

    Reads all locks of the system: for error messages only.
    """
    return LockTable().holders_of(path)


class LockTable:
    """All flocks of the system that this process can see, at one moment: those of other containers are missing."""

    def __init__(self) -> None:
        self._pids: dict[int, set[int]] = {}  # by inode. Not by device: some file systems show another one than stat
        try:
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return
        for line in lines:  # `1: FLOCK ADVISORY WRITE 123 08:01:456 0 EOF`, see proc_locks(5)
            fields = line.split()
            if len(fields) == 8 and fields[1] == "FLOCK":
                self._pids.setdefault(int(fields[5].rpartition(":")[2]), set()).add(int(fields[4]))

    def holders_of(self, path: str) -> list[str]:
        """Name the processes that have a lock on a file."""
        try:
            pids = self._pids.get(os.stat(path).st_ino, set())
        except OSError:
            return []
        return [describe_process(pid) for pid in sorted(pids)]


def describe_process(pid: int) -> str:
    """Return `process 123 (python)`."""
    if pid == os.getpid():
        return f"this process ({pid})"
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name})"


def _lock_nowait(path: str, operation: int, flags: int) -> FileLock | None:
    for _ in range(_MAX_REPLACED):
        try:
            with _GUARD:
                descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                lock = FileLock(path, descriptor)
                _OPEN.add(descriptor)
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            return None
        except OSError as error:
            raise _cannot_open(path, error) from error
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        except OSError as error:
            lock.close()
            raise _cannot_lock(path, error) from error
        if lock.is_current:
            return lock
        lock.close()  # its last holder removed it after we opened it
    return None


def _cannot_open(path: str, error: OSError) -> Exception:
    if error.errno in TOO_MANY_OPEN:
        what = f"cannot lock a file: {error.strerror}; each file in use takes one descriptor"
        return CacheError(what, where=path, fix=TOO_MANY_OPEN_FIX)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error  # the caller makes room
    return CacheError(f"cannot open the lock: {error.strerror}", where=path, fix="check the permissions of the folder")


def _cannot_lock(path: str, error: OSError) -> Exception:
    if error.errno in _NOT_OFFERED:
        return CacheError(
            f"the disk of this file offers no locks (flock: {error.strerror})",
            where=path,
            fix="choose a cache folder on a local disk: cache_directory=...",
        )
    return error


def _forget_in_child() -> None:
    """Close a forked child's copies, without unlocking: the locks are the parent's."""
    for descriptor in _OPEN:
        os.close(descriptor)
    _OPEN.clear()
    _GUARD.release()


os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_forget_in_child)
