"""A list of what was left out, for a person to look at.

Invariant: one line of JSON for each skip, in the order of the stream, so that it is the same for any number of workers;
lines are appended whole, and never rewritten.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

from headrace.errors import ConfigError, SourceError

from .failure import Failure


def check_quarantine_path(path: str | os.PathLike[str]) -> None:
    """See whether a list of skips could be written.

    Raises:
        ConfigError: The folder is missing, or something has the name that lines cannot be appended to.
    """
    if not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"the folder of the quarantine file does not exist: {os.fspath(path)}")
    try:
        mode = os.stat(path).st_mode
    except OSError:  # not there yet
        return
    if not _takes_lines(mode):
        raise ConfigError(
            "the quarantine file is a folder, a pipe or a socket", where=os.fspath(path), fix="give the path of a file"
        )


def _takes_lines(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISCHR(mode)  # a character device: /dev/null, a terminal


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
            SourceError: The file cannot be written.
        """
        line = {
            "tag": failure.place.tag if failure.place else None,
            "epoch": failure.place.epoch if failure.place else None,
            "ticket": ticket,
            "error": f"{failure.type_name}: {failure.text}",
            "traceback": failure.traceback,
        }
        data = json.dumps(line).encode() + b"\n"
        try:
            self._write(data)
        except OSError as error:
            raise SourceError(
                f"what is skipped cannot be written down: {error.strerror}",
                where=str(self._path),
                fix="make room, give another file, or none",
            ) from error

    def _write(self, data: bytes) -> None:
        # One write to a descriptor in append mode, not a buffered file: lines of several trainers do not mix. A pipe
        # without a reader is an error, and not waited for.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self._path, flags, 0o644)
        try:
            if not _takes_lines(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "this is no file")
            while data:  # a short write happens on a full disk: go on, so that the error is raised
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
