"""Decompressing files and reading archives, without writing anything to disk.

Names in an archive are not checked: an absolute one, or one with `..`, is appended to the archive's path as it is.
Check such names before you write files under them.
"""

from __future__ import annotations

import bz2
import enum
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.errors import ConfigError, SourceError

from ...core.base import IterPipe, read
from ...core.registry import functional_pipe, register_function
from ...core.skeletons import OneForOne, Positioned, ToldLength
from ...core.streams import StreamWrapper, unwrap
from .parts import FilePartsPipe, check_pair


class CompressionType(enum.Enum):
    """How a file is compressed or packed.

    Examples:
        >>> from headrace.pipes.iter import CompressionType
        >>> CompressionType("gzip")
        <CompressionType.GZIP: 'gzip'>
    """

    GZIP = "gzip"
    LZMA = "lzma"
    TAR = "tar"
    ZIP = "zip"
    BZIP2 = "bz2"


_SUFFIXES = {
    ".gz": CompressionType.GZIP,
    ".xz": CompressionType.LZMA,
    ".tar": CompressionType.TAR,
    ".zip": CompressionType.ZIP,
    ".bz2": CompressionType.BZIP2,
}

_TAR_SUFFIXES = (".tar.gz", ".tar.xz", ".tgz", ".txz")

_OPENERS: dict[CompressionType, Callable[[Any], Any]] = {
    CompressionType.GZIP: lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"),
    CompressionType.LZMA: lzma.LZMAFile,
    CompressionType.TAR: lambda stream: tarfile.open(fileobj=stream, mode="r:*"),  # noqa: SIM115 - handed on
    CompressionType.ZIP: zipfile.ZipFile,
    CompressionType.BZIP2: bz2.BZ2File,
}


@functional_pipe("decompress")
class Decompressor(OneForOne[Any]):
    """Yield (path, file object that decompresses as it is read); for tar and zip, the archive object.

    Args:
        source_datapipe: The source, whose items are (path, open binary file).
        file_type: A `CompressionType` or its name; `None`: by the suffix of the path.

    Raises:
        ConfigError: The type is unknown.
        RuntimeError: The suffix is unknown (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import gzip
        >>> import io
        >>> files = IterableWrapper([("a.txt.gz", io.BytesIO(gzip.compress(b"hello")))])
        >>> [(path, file.read()) for path, file in files.decompress()]
        [('a.txt.gz', b'hello')]
    """

    def __init__(self, source_datapipe: IterPipe[Any], file_type: str | CompressionType | None = None) -> None:
        names = [kind.value for kind in CompressionType]
        if isinstance(file_type, str) and file_type.lower() not in names:
            raise ConfigError(f"{file_type!r} is not a valid CompressionType", fix=f"use one of {', '.join(names)}")
        self.source_datapipe = source_datapipe
        self.file_type = CompressionType(file_type.lower()) if isinstance(file_type, str) else file_type

    def __iter__(self) -> Iterator[Any]:
        for item in read(self.source_datapipe):
            path, stream = check_pair(item)
            kind = self.file_type or _kind_of(path)
            if kind is None:
                raise RuntimeError(
                    f"File at {path} has file extension {os.path.splitext(path)[1]}, which does not match what are "
                    f"supported by {type(self).__name__}: {', '.join(_SUFFIXES)}. Give file_type."
                )
            yield path, StreamWrapper(_OPENERS[kind](stream), stream, path)


def _kind_of(path: str) -> CompressionType | None:
    if path.lower().endswith(_TAR_SUFFIXES):
        return CompressionType.TAR
    return _SUFFIXES.get(os.path.splitext(path)[1].lower())


def extract(source_datapipe: IterPipe[Any], file_type: str | CompressionType | None = None) -> Decompressor:
    """Decompress files: the older name of `decompress`.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import gzip
        >>> import io
        >>> files = IterableWrapper([("a.txt.gz", io.BytesIO(gzip.compress(b"hello")))])
        >>> [file.read() for path, file in files.extract()]
        [b'hello']
    """
    return Decompressor(source_datapipe, file_type)


register_function(IterPipe, "extract", extract)


class _OneSuffix(Positioned[Any], ToldLength[Any]):
    """Decompresses files of one type, and removes the suffix from their paths."""

    _kind: CompressionType

    def __init__(self, datapipe: Iterable[Any], length: int = -1) -> None:
        self.datapipe = datapipe
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        for item in read(self.datapipe):
            path, stream = check_pair(item)
            yield os.path.splitext(path)[0], StreamWrapper(_OPENERS[self._kind](stream), stream, path)


@functional_pipe("load_from_xz")
class XzFileLoader(_OneSuffix):
    """Decompress xz files: yield (path without its suffix, file object that decompresses as it is read).

    Args:
        datapipe: The source, whose items are (path, open binary file).
        length: What `len` returns; -1: unknown.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import io
        >>> import lzma
        >>> files = IterableWrapper([("a.txt.xz", io.BytesIO(lzma.compress(b"hello")))])
        >>> [(path, file.read()) for path, file in files.load_from_xz()]
        [('a.txt', b'hello')]
    """

    _kind = CompressionType.LZMA


@functional_pipe("load_from_bz2")
class Bz2FileLoader(_OneSuffix):
    """Decompress bz2 files: yield (path without its suffix, file object that decompresses as it is read).

    Args:
        datapipe: The source, whose items are (path, open binary file).
        length: What `len` returns; -1: unknown.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import bz2
        >>> import io
        >>> files = IterableWrapper([("a.txt.bz2", io.BytesIO(bz2.compress(b"hello")))])
        >>> [(path, file.read()) for path, file in files.load_from_bz2()]
        [('a.txt', b'hello')]
    """

    _kind = CompressionType.BZIP2


@functional_pipe("load_from_tar")
class TarArchiveLoader(FilePartsPipe, ToldLength[Any]):
    """Yield (archive/name, open file) for each file in tar archives, in the order of the archive.

    Links and folders are skipped. If an archive is a stream without `seek`, read each file before you take the next.

    Args:
        datapipe: The source, whose items are (path, open binary file), or (path, archive) from `decompress`.
        mode: As for `tarfile.open`.
        length: What `len` returns; -1: unknown.

    Raises:
        SourceError: A file is not a tar archive, or is damaged (while iterating).
    """

    def __init__(self, datapipe: Iterable[Any], mode: str = "r:*", length: int = -1) -> None:
        super().__init__(datapipe)  # type: ignore[arg-type]
        self.mode = mode
        self.length = length

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        archive, opened, mode = unwrap(stream), stream, self.mode  # `opened` stays open as long as any member
        if mode.startswith("r:") and not _can_seek(stream):
            mode = "r|" + mode[2:]
        try:
            if not isinstance(archive, tarfile.TarFile):
                archive = opened = tarfile.open(fileobj=stream, mode=mode)  # type: ignore[call-overload]  # noqa: SIM115
            lock = threading.Lock()
            while (member := _next_member(archive, lock)) is not None:
                if member.isreg():
                    file = io.BufferedReader(_Member(archive.extractfile(member), lock))
                    yield _name(path, member.name), StreamWrapper(file, opened, member.name)
                    del file
        except (tarfile.TarError, EOFError, OSError) as error:
            raise SourceError(
                f"Unable to extract files from corrupted tarfile stream: {error}",
                where=path,
                fix="check that it is a tar archive opened with mode='b', and get it again",
            ) from error


@functional_pipe("load_from_zip")
class ZipArchiveLoader(FilePartsPipe, ToldLength[Any]):
    """Yield (archive/name, open file) for each file in zip archives, in the order of the archive.

    Args:
        datapipe: The source, whose items are (path, open binary file that can seek), or (path, archive) from
            `decompress`.
        length: What `len` returns; -1: unknown.

    Raises:
        SourceError: A file is not a zip archive, or is damaged (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import io
        >>> import zipfile
        >>> data = io.BytesIO()
        >>> with zipfile.ZipFile(data, "w") as archive:
        ...     archive.writestr("a.txt", "hello")
        >>> [(path, file.read()) for path, file in IterableWrapper([("all.zip", data)]).load_from_zip()]
        [('all.zip/a.txt', b'hello')]
    """

    def __init__(self, datapipe: Iterable[Any], length: int = -1) -> None:
        super().__init__(datapipe)  # type: ignore[arg-type]
        self.length = length

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        try:
            archive, opened = unwrap(stream), stream
            if not isinstance(archive, zipfile.ZipFile):
                archive = opened = zipfile.ZipFile(stream)
            for member in archive.infolist():
                if not member.is_dir():
                    yield _name(path, member.filename), StreamWrapper(archive.open(member), opened, member.filename)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise SourceError(
                f"Unable to extract files from corrupted zipfile stream: {error}",
                where=path,
                fix="check that it is a zip archive opened with mode='b', and get it again",
            ) from error


class _Member(io.RawIOBase):
    """A file in a tar archive. All share the position of the archive's file, hence a lock: threads may read them."""

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
        archive.members = []  # type: ignore[attr-defined]  # else it keeps all of them in memory
        return archive.next()


def _name(path: str, inner: str) -> str:
    joined = f"{path}/{inner}"
    return joined if inner.startswith("/") or ".." in inner.split("/") else os.path.normpath(joined)


def _can_seek(stream: Any) -> bool:
    seekable = getattr(unwrap(stream), "seekable", None)
    return bool(seekable()) if seekable is not None else hasattr(stream, "seek")
