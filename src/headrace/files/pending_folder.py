"""Folders that appear whole or not at all: the like of `PendingFile` for formats of many files.

The files are made in a folder with a temporary name beside the target, which is renamed at the end. An existing target
changes places with it in one step, where the file system can do that. Only a SIGKILL leaves the temporary folder; the
next process that makes one beside it removes it, see `leftovers.py`.
"""

from __future__ import annotations

import ctypes
import os
import shutil

from headrace.errors import ConfigError, SourceError

from .atomic import fsync_path
from .leftovers import remove_leftovers_once, temporary_name
from .rename import exchange, rename_new


class PendingFolder:
    """A folder under its temporary name, until `commit` gives it its own or `abort` removes it.

    Args:
        path: The target; the folder above it must exist.
        overwrite: Whether an existing target may be replaced. Only one that holds `marker` is: no other folder is
            removed by mistake.
        marker: Name of a file that each folder of the format has.
        fsync: Whether to wait until all bytes and names are on the disk.

    Attributes:
        path: The target, absolute.
        temporary: Where to write: an existing empty folder.

    Raises:
        ConfigError: The target exists, and may not be replaced.
        SourceError: The folder above is missing or not writable.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool, marker: str, fsync: bool = False) -> None:
        self.path = os.path.abspath(path)
        self._overwrite, self._marker, self._fsync = overwrite, marker, fsync
        self._is_open = False
        self._check_target()
        parent = os.path.dirname(os.path.realpath(self.path))
        self.temporary = os.path.join(parent, temporary_name())
        try:
            os.mkdir(self.temporary)
        except OSError as error:
            raise folder_error(self.path, error) from error
        self._is_open = True
        remove_leftovers_once(parent)

    def _check_target(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self._overwrite:
            raise _folder_exists(self.path)
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
            if self._fsync:
                sync_tree(self.temporary)
            try:
                rename_new(self.temporary, target)
            except FileExistsError:
                if not self._overwrite:
                    raise
                self._check_target()
                exchange(self.temporary, target)
            if self._fsync:
                fsync_path(os.path.dirname(target))
        except FileExistsError as error:
            raise _folder_exists(self.path) from error
        except OSError as error:
            raise folder_error(self.path, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove what has the temporary name: the new folder, or after `commit` the old one."""
        if self._is_open:
            self._is_open = False
            shutil.rmtree(self.temporary, ignore_errors=True)


def _folder_exists(path: str) -> ConfigError:
    return ConfigError("the folder exists", where=path, fix="give another path, or overwrite=True")


def sync_tree(folder: str) -> None:
    """Wait until all files below a folder, and their names, are on the disk.

    One call for the whole file system where the system has it (Linux): one for each of a million files takes hours.

    Raises:
        OSError: The disk could not take them.
    """
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is not None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), folder)
        finally:
            os.close(descriptor)
        return
    for parent, _, names in os.walk(folder):
        for name in names:
            fsync_path(os.path.join(parent, name))
        fsync_path(parent)


def folder_error(path: str, error: OSError) -> SourceError:
    """Return what to raise for a folder that cannot be written."""
    return SourceError(
        f"cannot write the folder: {error.strerror or error}", where=path, fix="make room, or write to another folder"
    )
