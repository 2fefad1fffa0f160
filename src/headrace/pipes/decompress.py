"""Compressed files, read as if they were not."""

from __future__ import annotations

import bz2
import enum
import gzip
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.errors import ConfigError

from .base import IterPipe, State, read
from .file_parts import check_pair
from .registry import functional_pipe, register_function
from .streams import StreamWrapper


class CompressionType(enum.Enum):
    """How a file is compressed or packed."""

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
class Decompressor(IterPipe[Any]):
    """Give (path, file to read the uncompressed bytes from); of tar and zip archives, the archive's object.

    Args:
        source_datapipe: The source; its items are (path, open file), in bytes.
        file_type: A `CompressionType` or its name; `None`: the suffix of the path tells.

    Raises:
        ConfigError: There is no such type.
        RuntimeError: The suffix tells nothing (while iterating).
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

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return len(self.source_datapipe)


def _kind_of(path: str) -> CompressionType | None:
    if path.lower().endswith(_TAR_SUFFIXES):
        return CompressionType.TAR
    return _SUFFIXES.get(os.path.splitext(path)[1].lower())


def extract(source_datapipe: IterPipe[Any], file_type: str | CompressionType | None = None) -> Decompressor:
    """Do what `decompress` does; the older name."""
    return Decompressor(source_datapipe, file_type)


register_function(IterPipe, "extract", extract)


class _OneSuffix(IterPipe[Any]):
    """What pipes of one type have in common: the path is given without the suffix."""

    _kind: CompressionType

    def __init__(self, datapipe: Iterable[Any], length: int = -1) -> None:
        self.datapipe = datapipe
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        for item in read(self.datapipe):
            path, stream = check_pair(item)
            yield os.path.splitext(path)[0], StreamWrapper(_OPENERS[self._kind](stream), stream, path)

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        if self.length == -1:
            raise TypeError(f"{type(self).__name__} instance doesn't have valid length")
        return self.length


@functional_pipe("load_from_xz")
class XzFileLoader(_OneSuffix):
    """Give (path without its suffix, file to read the uncompressed bytes from) of xz files.

    Args:
        datapipe: The source; its items are (path, open file), in bytes.
        length: What `len` is; -1: unknown.
    """

    _kind = CompressionType.LZMA


@functional_pipe("load_from_bz2")
class Bz2FileLoader(_OneSuffix):
    """Give (path without its suffix, file to read the uncompressed bytes from) of bz2 files.

    Args:
        datapipe: The source; its items are (path, open file), in bytes.
        length: What `len` is; -1: unknown.
    """

    _kind = CompressionType.BZIP2
