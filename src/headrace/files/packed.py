"""Compressed files: which endings are read, and what opens each; `PACKED_SUFFIXES` is the list for every entrance."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import os
import sys
import zlib
from collections.abc import Callable
from typing import Any

from headrace.errors import SourceError

_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
_DAMAGED_BY_NAME = ("ZstdError", "ArrowInvalid")  # of modules that are imported where they are needed


def _open_zstd(path: str, mode: str) -> Any:
    """Open a `.zst` by Python's own module, from 3.14 on, or else by pyarrow; both read all frames of a file."""
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd").open(path, mode)
    try:
        return importlib.import_module("pyarrow").input_stream(path, compression="zstd")
    except ImportError as error:
        raise SourceError(
            ".zst is decompressed by pyarrow, which is not installed",
            where=path,
            fix="pip install 'headrace[arrow]', or decompress it by `unzstd`",
        ) from error


_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}
PACKED_SUFFIXES = tuple(_OPEN)


def is_packed(path: str) -> bool:
    """Tell by the name whether a file is compressed in a way that is read."""
    return os.path.splitext(path)[1] in _OPEN


def open_packed(path: str) -> Any:
    """Open a file for reading what is in it, decompressed if its name says that it is compressed.

    Raises:
        SourceError: What decompresses it is not installed.
    """
    return _OPEN.get(os.path.splitext(path)[1], open)(path, "rb")


def is_damage(error: Exception) -> bool:
    """Tell whether an error while reading is about what is in a compressed file; one of the system has a number."""
    by_type = isinstance(error, _DAMAGED) or type(error).__name__ in _DAMAGED_BY_NAME
    return by_type or (isinstance(error, OSError) and error.errno is None)


def damaged(path: str, error: Exception) -> SourceError:
    """Return the error of a compressed file that ends too early or holds something else."""
    return SourceError(f"the file is damaged: {error}", where=path, fix="get it again; it may be truncated")
