"""Files that appear whole or not at all.

Data go to a temporary name beside the target and are renamed over it at the end, so that a reader sees the old file or
the new one, never a part. Where nothing may be replaced the name is taken in one step, so that of two writers one
fails. Invariant: after `commit` or `abort` the temporary name is gone. Only a SIGKILL between the two can leave one
behind; the next process that writes to the same folder removes it, see `names.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from headrace.errors import ConfigError, SourceError

from .names import remove_leftovers_once, rename_new, temporary_name

# Errors of a file system that takes no more bytes. Another OSError from inside a `with` block is the caller's own.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE})

_FIXES = {
    errno.ENOSPC: "free some space on that disk, or write to another one",
    errno.EDQUOT: "your quota is used up: free some space, or write to another disk",
    errno.EFBIG: "the file is larger than the file system or `ulimit -f` allows",
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "a part of the path is a file: give another path",
    errno.EACCES: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
}


class PendingFile:
    """A file under its temporary name, until `commit` gives it its final name or `abort` removes it.

    For writers that live longer than a `with` block; otherwise use `atomic_write` or `atomic_path`. As a context
    manager it commits if the block succeeds and aborts if it fails.

    Args:
        path: The target. Its folder must exist.
        fsync: Whether to wait until the bytes and the name are on the disk.
        overwrite: Whether an existing file of this name is replaced.
        follow_links: If the target is a symbolic link, replace the file behind it; else the link itself, which is
            right where others may make links.

    Attributes:
        path: The target, links resolved.
        temporary: Where to write: an existing empty file in the same folder, with the permissions of a new file.

    Raises:
        ConfigError: The target exists and may not be replaced.
        SourceError: The folder is missing or not writable, or the target exists and is not a regular file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        overwrite: bool = True,
        follow_links: bool = True,
    ) -> None:
        self._given = os.path.abspath(path)
        if not overwrite and os.path.lexists(self._given):
            raise target_exists(self._given)
        folder, name = os.path.split(self._given)
        self.path = Path(os.path.realpath(path) if follow_links else os.path.join(os.path.realpath(folder), name))
        self.temporary = self.path.with_name(temporary_name())
        self._fsync, self._overwrite = fsync, overwrite
        self._is_open = False
        is_link = self.path.is_symlink()  # to itself, or one that is replaced as it is
        if not is_link and self.path.exists() and not self.path.is_file():
            raise SourceError(
                "cannot write: a folder or device has this name", where=str(self.path), fix="give another path"
            )
        try:
            # Not `mkstemp`: it makes files that only their owner can read, whatever the umask says.
            os.close(os.open(self.temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        except OSError as error:
            raise write_error(self.path, error) from error
        self._is_open = True
        remove_leftovers_once(str(self.path.parent))

    def commit(self) -> None:
        """Give the file its final name; its writer must have closed it. A second call does nothing.

        Raises:
            ConfigError: Another file has taken the name meanwhile, and may not be replaced. It stays.
            SourceError: The file system refused; the temporary file is removed and the target is as it was.
        """
        if not self._is_open:
            return
        try:
            if self._fsync:
                fsync_path(self.temporary)
            if self._overwrite:
                os.replace(self.temporary, self.path)
            else:
                rename_new(self.temporary, self.path)
            self._is_open = False
            if self._fsync:
                fsync_path(self.path.parent)
        except FileExistsError as error:
            raise target_exists(self._given) from error
        except OSError as error:
            raise write_error(self.path, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove the temporary file and leave the target as it was. Does nothing after `commit` or a first call."""
        if self._is_open:
            self._is_open = False
            self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.commit()
            return
        self.abort()
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
            raise write_error(self.path, error) from error


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, follow_links: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, for libraries that open files themselves.

    The library must have closed the file when the block ends. On any failure, `KeyboardInterrupt` included, nothing is
    left and the target is as it was. See `PendingFile` for the arguments and errors.

    Raises:
        SourceError: The file cannot be written, for example because the disk is full (also if the block ran into it).
    """
    with PendingFile(path, follow_links=follow_links) as pending:
        yield pending.temporary


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], mode: str = "wb", *, fsync: bool = False, follow_links: bool = True
) -> Iterator[IO[Any]]:
    """Yield an open file that replaces `path` when the block ends, or vanishes if the block fails.

    Args:
        path: The target. Its folder must exist.
        mode: `"wb"`, or `"w"` for UTF-8 text with plain newlines.
        fsync: Whether to wait until the bytes and the name are on the disk.
        follow_links: See `PendingFile`.

    Raises:
        SourceError: The file cannot be written, for example because the disk is full (also if the block ran into it).
    """
    if mode not in ("wb", "w"):
        raise ConfigError(f"mode {mode!r} is not valid for a new file", fix="use 'wb' or 'w'")
    encoding, newline = (None, None) if mode == "wb" else ("utf-8", "\n")
    with (
        PendingFile(path, fsync=fsync, follow_links=follow_links) as pending,
        open(pending.temporary, mode, encoding=encoding, newline=newline) as file,
    ):
        yield file


def target_exists(path: str) -> ConfigError:
    """Return the error for a target that may not be replaced."""
    return ConfigError("the file exists", where=path, fix="give another path, or overwrite=True")


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(path: str | os.PathLike[str], error: OSError, what: str = "file") -> SourceError:
    """Return the error for a file, or a folder, that cannot be written."""
    reason, fix = error.strerror or error, _FIXES.get(error.errno or 0)
    return SourceError(f"cannot write the {what}: {reason}", where=os.fspath(path), fix=fix)


class FolderAside:
    """An empty folder beside a target, for what is moved over it later, until `remove`.

    Args:
        path: The target.

    Attributes:
        temporary: The folder.

    Raises:
        SourceError: The folder of the target is missing or not writable.
    """

    def __init__(self, path: str) -> None:
        parent = os.path.dirname(os.path.realpath(path))
        self.temporary = os.path.join(parent, temporary_name())
        try:
            os.mkdir(self.temporary)
        except OSError as error:
            raise write_error(path, error, "folder") from error
        remove_leftovers_once(parent)

    def remove(self) -> None:
        """Remove the folder with what is left in it."""
        shutil.rmtree(self.temporary, ignore_errors=True)
