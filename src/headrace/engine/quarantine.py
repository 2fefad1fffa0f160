"""A list of what was left out, for a person to look at.

Invariant: one line of JSON for each skip, in the order of the stream, so that it is the same for any number of workers;
lines are appended whole, and never rewritten.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

from headrace.errors import CacheError, ConfigError

from .user.failure import Failure

_FIX = "name a file of your own, or one that does not exist yet, in a folder that can be written to"
_KINDS: dict[str, Callable[[int], bool]] = {
    "a folder": stat.S_ISDIR,
    "a symbolic link": stat.S_ISLNK,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}


class Quarantine:
    """A file of skips.

    Args:
        path: Created when the first line is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, ticket: int, failure: Failure) -> None:
        """Write one line: `tag`, `epoch`, `ticket`, `error` (type and text), `traceback`.

        Raises:
            CacheError: The file cannot be written, or it is a folder, a link, a pipe or a device.
        """
        line = {
            "tag": failure.item.tag if failure.item else None,
            "epoch": failure.item.epoch if failure.item else None,
            "ticket": ticket,
            "error": f"{failure.type_name}: {failure.text}",
            "traceback": failure.traceback,
        }
        data = json.dumps(line).encode() + b"\n"
        try:
            self._write(data)
        except OSError as error:
            raise CacheError(
                f"what was left out cannot be written to the quarantine file: {error.strerror}",
                where=f"{self._path}: {line['error']}",
                fix=_FIX,
            ) from error

    def _write(self, data: bytes) -> None:
        # One write to a descriptor in append mode, not a buffered file: lines of several trainers do not mix. What is
        # no file may block for ever when it is opened, and a link may point to anything.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
        fd = os.open(self._path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            while data:  # a short write happens on a full disk: go on, so that the error is raised
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)


def check_quarantine(path: str | os.PathLike[str]) -> None:
    """Refuse a path that cannot be a quarantine file.

    Raises:
        ConfigError: Its folder does not exist, or something is there that is no regular file; or it is no path.
    """
    try:
        _check(path)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # a NUL in it, half a surrogate, a name that is too long
        raise ConfigError(f"the quarantine file cannot be looked at: {error}", where=repr(path), fix=_FIX) from error


def _check(path: str | os.PathLike[str]) -> None:
    if not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"the folder of the quarantine file does not exist: {os.fspath(path)}")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = next(name for name, is_kind in _KINDS.items() if is_kind(mode))
        raise ConfigError(f"the quarantine file is {kind}: {os.fspath(path)}", fix=_FIX)
