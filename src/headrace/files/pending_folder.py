"""Folders that appear whole or not at all: the like of `PendingFile` for formats of many files.

The files are made in a folder with a temporary name beside the target, which is renamed at the end. An existing target
changes places with it in one step, where the file system can do that. Only a SIGKILL leaves the temporary folder; the
next process that makes one beside it removes it, see `leftovers.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil

from headrace.errors import ConfigError, SourceError

from .leftovers import _NAME, _is_left_over, temporary_name

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # see renameat2(2)


class PendingFolder:
    """A folder under its temporary name, until `commit` gives it its own or `abort` removes it.

    Args:
        path: The target; the folder above it must exist.
        overwrite: Whether an existing target may be replaced. Only one that holds `marker` is: no other folder is
            removed by mistake.
        marker: Name of a file that each folder of the format has.

    Attributes:
        path: The target, absolute.
        temporary: Where to write: an existing empty folder.

    Raises:
        ConfigError: The target exists, and may not be replaced.
        SourceError: The folder above is missing or not writable.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool, marker: str) -> None:
        self.path = os.path.abspath(path)
        self._overwrite, self._marker = overwrite, marker
        self._is_open = False
        self._check_target()
        parent = os.path.dirname(os.path.realpath(self.path))
        self.temporary = os.path.join(parent, temporary_name())
        try:
            os.mkdir(self.temporary)
        except OSError as error:
            raise folder_error(self.path, error) from error
        self._is_open = True
        _remove_leftovers_once(parent)

    def _check_target(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self._overwrite:
            raise ConfigError("the folder exists", where=self.path, fix="give another path, or overwrite=True")
        if not os.path.isfile(os.path.join(self.path, self._marker)):
            raise ConfigError(
                f"what is there is not of this format: it has no {self._marker}",
                where=self.path,
                fix="give another path, or remove it yourself",
            )

    def commit(self) -> None:
        """Give the folder its own name. A second call does nothing.

        Raises:
            ConfigError: A target came into being meanwhile.
            SourceError: The file system refused; the temporary folder is removed.
        """
        if not self._is_open:
            return
        try:
            self._check_target()
            target = os.path.realpath(self.path)
            if os.path.lexists(target):
                exchange_folders(self.temporary, target)
            else:
                os.rename(self.temporary, target)
        except OSError as error:
            raise folder_error(self.path, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove what has the temporary name: the new folder, or after `commit` the old one."""
        if self._is_open:
            self._is_open = False
            shutil.rmtree(self.temporary, ignore_errors=True)


def folder_error(path: str, error: OSError) -> SourceError:
    """Return what to raise for a folder that cannot be written."""
    return SourceError(
        f"cannot write the folder: {error.strerror or error}", where=path, fix="make room, or write to another folder"
    )


def exchange_folders(left: str, right: str) -> None:
    """Let two folders change names, in one step if the system can."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        names = os.fsencode(left), os.fsencode(right)
        if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    # Not a temporary name: what is killed in between must not lose both.
    aside = f"{right}.headrace-old"
    os.rename(right, aside)
    try:
        os.rename(left, right)
    except OSError:
        os.rename(aside, right)
        raise
    os.rename(aside, left)


@functools.lru_cache(maxsize=1024)
def _remove_leftovers_once(parent: str) -> None:
    """Remove the temporary folders that dead processes left beside a target."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is not None and entry.is_dir(follow_symlinks=False) and _is_left_over(entry, match):
                shutil.rmtree(entry.path, ignore_errors=True)
