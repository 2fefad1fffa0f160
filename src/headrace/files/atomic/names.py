"""Names of unfinished files: a temporary one, which names its process, and the final one, taken in one step.

A process that is killed cannot remove its temporary files. So their names carry where it ran (this boot of this
machine, and which set of process numbers), its process number and when it started: the next writer in the same folder
sees whether it still runs. Where that cannot be known (another machine, or this one before it was booted again), a file
counts as left behind when nothing was written to it for a week. Files of other users are never removed: whether their
processes run may be hidden from us.

A rename to a name that must be free is one step. Linux has it (`renameat2`), on most file systems. Where it has not, a
name is taken by a hard link, which the system refuses if the name is taken, or by an empty file that is replaced at
once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from ..locations import boot_id

_AT_FDCWD, _RENAME_NOREPLACE = -100, 1  # see renameat2(2)
_NOT_OFFERED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def rename_new(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename a file or folder to a free name on the same file system.

    Of several processes that do so at once, one succeeds.

    Raises:
        FileExistsError: The name is taken.
        OSError: The file system refused.
    """
    if _renameat2(source, target):
        return
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            os.unlink(source)
            return
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    else:
        os.mkdir(target, 0o700)
    os.rename(source, target)  # over the empty one, which is ours


def _renameat2(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    """Rename to a free name; return False if this system or file system does not offer it."""
    call = _system_call()
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code), os.fspath(source), None, os.fspath(target))


@functools.cache
def _system_call() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


_NAME = re.compile(r"\.headrace-(?P<scope>[0-9a-f]{16})-(?P<pid>\d{1,10})-(?P<start>\d{1,20})-[0-9a-f]{16}\.tmp")
_ABANDONED_SECONDS = 7 * 24 * 3600.0  # no live writer pauses this long, and clocks differ by less
_NO_START = "0"  # where the system does not tell


def temporary_name() -> str:
    """Return a new name for a temporary file of this process."""
    pid = os.getpid()
    return f".headrace-{_pid_scope()}-{pid}-{_start_of(pid) or _NO_START}-{secrets.token_hex(8)}.tmp"


@functools.lru_cache(maxsize=1024)
def remove_leftovers_once(folder: str) -> None:
    """Remove the temporary files and folders in a folder that dead processes left; what cannot be removed stays.

    Lists the folder, so this is done once for each folder and process (of the last 1024 folders).
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is not None and _is_left_over(entry, match):
                with contextlib.suppress(OSError):  # another process was quicker, or the folder is not ours
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)


def _is_left_over(entry: os.DirEntry[str], match: re.Match[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # gone meanwhile
        return False
    if status.st_uid != os.geteuid():
        return False
    if match["scope"] != _pid_scope():
        return time.time() - status.st_mtime > _ABANDONED_SECONDS
    return not _is_running(int(match["pid"]), match["start"])


def _is_running(pid: int, start: str) -> bool:
    """Tell whether a process still runs here, and is not another one that was given the same number."""
    if start != _NO_START:
        return _start_of(pid) == start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _start_of(pid: int) -> str | None:
    """Return when a running process started, in clock ticks since the boot; None if it does not run (or no `/proc`)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # See proc_pid_stat(5): after the name, which may hold spaces and brackets, come the state and, 19 on, the start.
    state, *numbers = text[text.rindex(b")") + 2 :].split()
    return None if state in (b"Z", b"X") else numbers[18].decode()


def _pid_scope() -> str:
    """Return 16 hex digits that identify this boot of this machine and its set of process numbers.

    Not cached: a forked process may be in another set. If `/proc` shows another set than ours, the digits are random,
    and match nothing.
    """
    numbers = ""
    with contextlib.suppress(OSError):
        numbers = os.readlink("/proc/self/ns/pid")
        if os.readlink("/proc/self") != str(os.getpid()):
            return secrets.token_hex(8)
    return xxhash.xxh3_64_hexdigest(f"{boot_id() or socket.gethostname()}\0{numbers}".encode())
