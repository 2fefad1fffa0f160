"""The files in archives, without writing any to the disk.

Names in an archive are names only: an absolute one, or one with `..`, is put behind the archive's path as it is. Who
writes files under such names must look at them first.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.errors import SourceError

from .file_parts import FilePartsPipe
from .registry import functional_pipe
from .streams import StreamWrapper, unwrap


class _ArchivePipe(FilePartsPipe):
    """What pipes of archives have in common."""

    length = -1

    def __len__(self) -> int:
        if self.length == -1:
            raise TypeError(f"{type(self).__name__} instance doesn't have valid length")
        return self.length


@functional_pipe("load_from_tar")
class TarArchiveLoader(_ArchivePipe):
    """Give (archive/name, open file) of each file in tar archives, in the order of the archive.

    Links and folders are left out. From an archive that cannot seek, each file must be read before the next is asked
    for.

    Args:
        datapipe: The source; its items are (path, open file), in bytes.
        mode: As of `tarfile.open`.
        length: What `len` is; -1: unknown.

    Raises:
        SourceError: A file is no archive, or damaged (while iterating).
    """

    def __init__(self, datapipe: Iterable[Any], mode: str = "r:*", length: int = -1) -> None:
        super().__init__(datapipe)  # type: ignore[arg-type]
        self.mode = mode
        self.length = length

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        mode = self.mode
        if mode.startswith("r:") and not _can_seek(stream):
            mode = "r|" + mode[2:]
        try:
            archive = tarfile.open(fileobj=stream, mode=mode)  # type: ignore[call-overload]  # noqa: SIM115
            lock = threading.Lock()
            while (member := _next_member(archive, lock)) is not None:
                if member.isreg():
                    file = io.BufferedReader(_Member(archive.extractfile(member), lock))
                    yield _name(path, member.name), StreamWrapper(file, archive, member.name)
                    del file
        except (tarfile.TarError, EOFError, OSError) as error:
            raise SourceError(
                f"Unable to extract files from corrupted tarfile stream: {error}",
                where=path,
                fix="check that it is a tar archive opened with mode='b', and get it again",
            ) from error


@functional_pipe("load_from_zip")
class ZipArchiveLoader(_ArchivePipe):
    """Give (archive/name, open file) of each file in zip archives, in the order of the archive.

    Args:
        datapipe: The source; its items are (path, open file), in bytes, that can seek.
        length: What `len` is; -1: unknown.

    Raises:
        SourceError: A file is no archive, or damaged (while iterating).
    """

    def __init__(self, datapipe: Iterable[Any], length: int = -1) -> None:
        super().__init__(datapipe)  # type: ignore[arg-type]
        self.length = length

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        try:
            archive = zipfile.ZipFile(stream)
            for member in archive.infolist():
                if not member.is_dir():
                    yield _name(path, member.filename), StreamWrapper(archive.open(member), archive, member.filename)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise SourceError(
                f"Unable to extract files from corrupted zipfile stream: {error}",
                where=path,
                fix="check that it is a zip archive opened with mode='b', and get it again",
            ) from error


class _Member(io.RawIOBase):
    """A file in a tar archive. All of them move the position of one file, and may be read in different threads."""

    def __init__(self, file: Any, lock: threading.Lock) -> None:
        super().__init__()
        self._file = file
        self._lock = lock

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Any) -> int:
        with self._lock:
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = 0) -> int:
        with self._lock:
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


def _next_member(archive: tarfile.TarFile, lock: threading.Lock) -> tarfile.TarInfo | None:
    with lock:
        archive.members = []  # type: ignore[attr-defined]  # else it remembers each, for ever
        return archive.next()


def _name(path: str, inner: str) -> str:
    joined = f"{path}/{inner}"
    return joined if inner.startswith("/") or ".." in inner.split("/") else os.path.normpath(joined)


def _can_seek(stream: Any) -> bool:
    seekable = getattr(unwrap(stream), "seekable", None)
    return bool(seekable()) if seekable is not None else hasattr(stream, "seek")
