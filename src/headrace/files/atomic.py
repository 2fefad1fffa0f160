"""Files that appear whole or not at all.

Data go to a temporary name beside the target and are renamed over it at the end, so that a reader sees the old file or
the new one, never a part. Invariant: after `commit` or `abort` the temporary name is gone. Only a process that is
killed between the two leaves one behind; a later writer in the same folder removes it when nobody has written to it
for a day.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from headrace.errors import ConfigError, SourceError

TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".headrace-", ".tmp"  # of names that count as leftovers when they are old
_LEFTOVER_SECONDS = 24 * 3600.0  # no live writer pauses for so long, and the clocks of machines differ by less

# Errors of a file system that takes no more bytes. Another OSError from inside a `with` block is the caller's own.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE})


class PendingFile:
    """A file under its temporary name, until `commit` gives it its final name or `abort` removes it.

    For writers that live longer than a `with` block, and for libraries that open files themselves; otherwise use
    `atomic_write`. As a context manager it commits if the block succeeds and aborts if it fails.

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
        self._fsync, self._overwrite, self._is_open = fsync, overwrite, False
        if not overwrite and os.path.lexists(self._given):
            raise _target_exists(self._given)
        folder, name = os.path.split(self._given)
        self.path = Path(os.path.realpath(path) if follow_links else os.path.join(os.path.realpath(folder), name))
        if not self.path.is_symlink() and self.path.exists() and not self.path.is_file():
            what = "cannot write: a folder or device has this name"
            raise SourceError(what, where=str(self.path), fix="pass another path")
        self.temporary = self.path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        try:
            # Not `mkstemp`: it makes files that only their owner can read, whatever the umask says.
            os.close(os.open(self.temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        except OSError as error:
            raise _write_error(self.path, error) from error
        self._is_open = True
        _remove_leftovers_once(str(self.path.parent))

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
            (os.replace if self._overwrite else _rename_new)(self.temporary, self.path)
            self._is_open = False
            if self._fsync:
                fsync_path(self.path.parent)
        except FileExistsError as error:
            raise _target_exists(self._given) from error
        except OSError as error:
            raise _write_error(self.path, error) from error
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
            raise _write_error(self.path, error) from error


class PendingFiles:
    """A file and those beside it, under temporary names until `commit` gives them their final ones.

    Each of them appears whole or not at all; the main one comes last, so that where it is, all are. If the process is
    killed while it replaces older files, the main one may be missing, but never stands beside files of another version.

    Args:
        path: The main one; its folder must exist.
        beside: The others that may belong to it, in the same folder. `commit` removes older files of these names where
            no new ones are made.
        overwrite: Whether files that have these names are replaced.

    Attributes:
        path: The main one, absolute.

    Raises:
        ConfigError: A file exists and may not be replaced, or is a symbolic link.
    """

    def __init__(self, path: str | os.PathLike[str], beside: Sequence[str], *, overwrite: bool) -> None:
        self.path = os.path.abspath(path)
        self._targets = [*map(self._beside, beside), self.path]
        self._overwrite = overwrite
        self._pending: dict[str, PendingFile] = {}
        self._check_targets()

    def temporary(self, path: str) -> str:
        """Return where to make one of the files."""
        target = self._beside(path)
        if target not in self._pending:
            self._pending[target] = PendingFile(target, fsync=True, overwrite=self._overwrite, follow_links=False)
        return str(self._pending[target].temporary)

    def commit(self) -> None:
        """Wait until the files are on the disk, and give them their names. A second call does nothing.

        Raises:
            ConfigError: Another file has taken one of the names meanwhile, and may not be replaced. It stays.
            SourceError: The file system refused.
        """
        if not self._pending:
            return
        try:
            for pending in self._pending.values():  # before any name is taken: it may take long
                fsync_path(pending.temporary)
            with _folder_locked(os.path.dirname(self.path)):
                self._check_targets()
                for target in (self.path, *self._targets) if self._overwrite else ():
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(target)
                for target in self._targets:
                    if target in self._pending:
                        self._pending[target].commit()
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove the temporary files. Does nothing after `commit` or a first call."""
        while self._pending:
            self._pending.popitem()[1].abort()

    def _beside(self, path: str) -> str:
        return os.path.join(os.path.dirname(self.path), os.path.basename(path))

    def _check_targets(self) -> None:
        for path in self._targets:
            if not self._overwrite and os.path.lexists(path):
                raise _target_exists(path)
            if os.path.islink(path):
                what = "this is a symbolic link, and several files cannot be replaced together behind links"
                raise ConfigError(what, where=path, fix=f"pass the path that it leads to: {os.path.realpath(path)}")


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


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _folder_locked(folder: str) -> Iterator[None]:
    """Wait for other writers that give several files their names in a folder: theirs and ours do not mix."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network disks have no locks of folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _rename_new(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename a file to a free name: of several processes that do so at once, one succeeds."""
    try:
        os.link(source, target, follow_symlinks=False)
        os.unlink(source)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # this file system has no hard links, and so no way to do it in one step
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "File exists", str(source), None, str(target)) from None
        os.rename(source, target)


@functools.lru_cache(maxsize=1024)
def _remove_leftovers_once(folder: str) -> None:
    """Remove old temporary files and folders of this user, once for each folder and process; what refuses stays."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY_PREFIX) and entry.name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(OSError):  # another process was quicker, or the folder is not ours
                    _remove_if_left_over(entry.path)


def _remove_if_left_over(path: str) -> None:
    inside = list(os.scandir(path)) if os.path.isdir(path) and not os.path.islink(path) else []
    written = [os.lstat(path).st_mtime, *(entry.stat(follow_symlinks=False).st_mtime for entry in inside)]
    if os.lstat(path).st_uid == os.geteuid() and time.time() - max(written) > _LEFTOVER_SECONDS:
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _target_exists(path: str) -> ConfigError:
    return ConfigError("the file exists", where=path, fix="pass another path, or overwrite=True")


def _write_error(path: str | os.PathLike[str], error: OSError) -> SourceError:
    fix = "make the folder, free some space, or choose a folder and a disk that you may write to"
    return SourceError(f"cannot write the file: {error.strerror or error}", where=os.fspath(path), fix=fix)
