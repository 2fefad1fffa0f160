"""Renames in one step: to a name that must be free, and of two names that change places.

Linux has both (`renameat2`), on most file systems. Where it has not, a name is taken by a hard link, which the system
refuses if the name is taken, or by an empty file or folder that is replaced at once.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable

_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2  # see renameat2(2)
_NOT_OFFERED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def rename_new(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename a file or folder to a name on the same file system that nothing has.

    Of several processes that do so at once, one succeeds.

    Raises:
        FileExistsError: Something has the name.
        OSError: The file system refused.
    """
    if _renameat2(source, target, _RENAME_NOREPLACE):
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


def exchange(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> None:
    """Let two names on one file system change places, in one step if the system can.

    Raises:
        OSError: The file system refused.
    """
    if _renameat2(left, right, _RENAME_EXCHANGE):
        return
    # Not a temporary name: what is killed in between must not lose both.
    aside = f"{os.fspath(right)}.headrace-old"
    os.rename(right, aside)
    try:
        os.rename(left, right)
    except OSError:
        os.rename(aside, right)
        raise
    os.rename(aside, left)


def _renameat2(source: str | os.PathLike[str], target: str | os.PathLike[str], flags: int) -> bool:
    """Rename with flags; return False if this system or file system does not offer it."""
    call = _system_call()
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code), os.fspath(source), None, os.fspath(target))


@functools.cache
def _system_call() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
