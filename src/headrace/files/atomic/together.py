"""Several files that get their names together, or not at all: a file and those beside it.

The files are made under their own names in a folder with a temporary one. That folder is then renamed to
`.headrace-<digest>.ready`: from this moment on the new files are valid, and they are moved to their final names one by
one, the main one last. If the process is killed in between, nothing is lost: the next one that writes this target, or
reads it by `settle`, moves the rest. A lock, which ends with its process, keeps two from doing so at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence

import xxhash

from headrace.errors import CacheError, ConfigError, SourceError

from ..locks import FileLock, lock_exclusive_nowait
from .names import remove_leftovers_once, temporary_name
from .pending import fsync_path, target_exists, write_error

_ABOUT = ".together.json"
_LOCK_SECONDS = 120.0  # some renames and an fsync, on a disk that is very busy
_POLL_SECONDS = 0.01


class PendingFiles:
    """Files in a folder with a temporary name, until `commit` gives them their final names or `abort` removes them.

    Args:
        path: The main one; its folder must exist.
        beside: The others that may belong to it, in the same folder. Older files of these names are removed by `commit`
            where no new ones are made.
        overwrite: Whether files that have these names are replaced.

    Attributes:
        path: The main one, absolute.

    Raises:
        ConfigError: A file exists and may not be replaced, or is a symbolic link.
        SourceError: The folder is missing or not writable.
    """

    def __init__(self, path: str | os.PathLike[str], beside: Sequence[str], *, overwrite: bool) -> None:
        self.path = os.path.abspath(path)
        self._names = [os.path.basename(self.path), *map(os.path.basename, beside)]
        self._parent = os.path.dirname(self.path)
        self._overwrite = overwrite
        self._is_open = False
        settle(self.path)
        self._check_target()
        self._folder = os.path.join(self._parent, temporary_name())
        try:
            os.mkdir(self._folder)
        except OSError as error:
            raise write_error(self.path, error, "files") from error
        self._is_open = True
        remove_leftovers_once(self._parent)

    def temporary(self, path: str) -> str:
        """Return where to make one of the files."""
        return os.path.join(self._folder, os.path.basename(path))

    def _check_target(self) -> None:
        for name in self._names:
            path = os.path.join(self._parent, name)
            if not self._overwrite and os.path.lexists(path):
                raise target_exists(path)
            if os.path.islink(path):
                what = "this is a symbolic link, and several files cannot be replaced together behind links"
                raise ConfigError(what, where=path, fix=f"give the path that it leads to: {os.path.realpath(path)}")

    def commit(self) -> None:
        """Wait until the files are on the disk, and give them their names. A second call does nothing.

        Raises:
            ConfigError: Another file has taken one of the names meanwhile, and may not be replaced. It stays.
            SourceError: The file system refused. Nothing is left; once the new files are valid, `settle` moves the
                rest.
        """
        if not self._is_open:
            return
        made = os.listdir(self._folder)
        try:
            for name in made:
                fsync_path(os.path.join(self._folder, name))
            with _locked(self.path):
                _finish(self.path)
                self._check_target()
                self._note_files_to_remove(made)
                fsync_path(self._folder)
                os.rename(self._folder, _ready_folder(self.path))
                self._is_open = False
                fsync_path(self._parent)
                _finish(self.path)
        except OSError as error:
            raise write_error(self.path, error, "files") from error
        finally:
            self.abort()

    def _note_files_to_remove(self, made: Sequence[str]) -> None:
        """Note the older files beside the main one that no new ones replace."""
        gone = [name for name in self._names[1:] if name not in made and os.path.lexists(f"{self._parent}/{name}")]
        if gone:
            with open(os.path.join(self._folder, _ABOUT), "x", encoding="utf-8") as file:
                json.dump(gone, file)
            fsync_path(os.path.join(self._folder, _ABOUT))

    def abort(self) -> None:
        """Remove the temporary folder. Does nothing after `commit` or a first call."""
        if self._is_open:
            self._is_open = False
            shutil.rmtree(self._folder, ignore_errors=True)


def settle(path: str | os.PathLike[str]) -> None:
    """Finish the renames of a writer of several files that was killed. Nearly always there is nothing to do.

    Args:
        path: The main file.

    Raises:
        SourceError: There are unfinished renames, and this process may not finish them.
    """
    path = os.path.abspath(path)
    ready = _ready_folder(path)
    if not os.path.lexists(ready):
        return
    if os.lstat(ready).st_uid != os.geteuid():
        raise SourceError(
            "another user's process was killed while it renamed these files",
            where=path,
            fix="let that user open them, which moves the new files to their final names",
        )
    try:
        with _locked(path):
            _finish(path)
    except OSError as error:
        raise SourceError(
            f"a process was killed while it renamed these files, and they cannot be moved: {error.strerror}",
            where=path,
            fix="open them once from where this folder may be written to",
        ) from error


def _finish(path: str) -> None:
    """Move valid new files to their final names, if there are any. The lock must be held."""
    ready, parent = _ready_folder(path), os.path.dirname(path)
    try:
        names = os.listdir(ready)
    except FileNotFoundError:
        return
    main = os.path.basename(path)
    if main in names:
        # The old one is removed first, so that other readers never see it together with the files beside the new one.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    if _ABOUT in names:
        with open(os.path.join(ready, _ABOUT), encoding="utf-8") as file:
            gone: list[str] = json.load(file)
        for name in gone:
            if os.path.basename(name) == name:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(parent, name))
        os.unlink(os.path.join(ready, _ABOUT))
    # None of this waits for the disk: after a power cut the rest is done again, whichever rename was kept.
    for name in sorted(names, key=lambda name: name == main):
        if name != _ABOUT:
            os.rename(os.path.join(ready, name), os.path.join(parent, name))
    os.rmdir(ready)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a target; on a disk without locks, two writers at once are the user's responsibility."""
    name = os.path.join(os.path.dirname(path), f".headrace-{_digest(path)}.lock")
    lock: FileLock | None = None
    deadline = time.monotonic() + _LOCK_SECONDS
    with contextlib.suppress(CacheError):
        while (lock := lock_exclusive_nowait(name)) is None:
            if time.monotonic() > deadline:
                raise SourceError("another process is renaming these files, and does not end", where=path)
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # while it is locked: a process that opened it meanwhile sees that it is gone
            lock.close()


def _ready_folder(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".headrace-{_digest(path)}.ready")


def _digest(path: str) -> str:
    return xxhash.xxh3_64_hexdigest(os.fsencode(os.path.basename(path)))
