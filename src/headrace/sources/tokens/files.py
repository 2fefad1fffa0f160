"""Files that are one long run of tokens: reads their kind and layout from a few bytes.

Three kinds: raw (`.bin`, nothing but tokens), NumPy (`.npy`, one axis), and Megatron (a raw `.bin` and an `.idx` that
says dtype and documents). No file is read as a whole here.

The `.idx` of Megatron, all little-endian: the nine bytes of the magic, `uint64` version 1, `uint8` code of the dtype,
`uint64` number of sequences S, `uint64` number D of document bounds; then `int32[S]` tokens of each sequence,
`int64[S]` its first byte in the `.bin`, `int64[D]` bounds of documents, counted in sequences, from 0 to S.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.files.atomic.together import settle

from ..shared.npy import HEAD_BYTES, parse_npy

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
VERSION = 1
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_FLOAT_CODES = (6, 7)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One run of tokens.

    Attributes:
        path: Absolute path of the file with the tokens.
        dtype: Dtype of a token, in the byte order of the file.
        num_tokens: How many.
        position: Offset of the first one, in bytes.
        idx_path: The `.idx` that belongs to it, or `None`.
    """

    path: str
    dtype: np.dtype[Any]
    num_tokens: int
    position: int = 0
    idx_path: str | None = None


@dataclass(frozen=True, slots=True)
class IdxHead:
    """The head of an `.idx`."""

    dtype: np.dtype[Any]
    num_seqs: int
    num_bounds: int

    @property
    def num_bytes(self) -> int:
        """Size of a whole file with this head."""
        return HEAD.size + self.num_seqs * 12 + self.num_bounds * 8


def open_token_file(path: str, dtype: np.dtype[Any] | None) -> TokenFile:
    """Find the kind and layout of a file of tokens.

    Args:
        path: `x.npy`, `x.bin`, `x.idx`, or `x` where there are `x.bin` and `x.idx`.
        dtype: Dtype of the tokens; `None` if the file says it.

    Raises:
        ConfigError: The dtype must be given, or is not that of the file.
        SourceError: A file is missing, not of its format, or its size is no multiple of the dtype's.
    """
    if path.endswith(".npy"):
        return _with_dtype(open_npy(path), dtype)
    stem, suffix = os.path.splitext(path)
    if suffix == ".idx" or (suffix != ".bin" and os.path.exists(path + ".idx")):
        stem = stem if suffix == ".idx" else path
        path, suffix = stem + ".bin", ".bin"
    settle(stem + ".bin")
    idx_path = stem + ".idx"
    if suffix == ".bin" and os.path.exists(idx_path):
        return _with_dtype(_open_megatron(path, idx_path), dtype)
    num_bytes = _size_of(path)
    if dtype is None:
        raise ConfigError(
            "a raw file of tokens does not say their dtype", where=path, fix='give dtype=, for example "uint16"'
        )
    if num_bytes % dtype.itemsize:
        raise SourceError(
            f"the file has {num_bytes} bytes, which is not a multiple of the {dtype.itemsize} of {dtype}",
            where=path,
            fix="the file is truncated, or its dtype is another one",
        )
    return TokenFile(path, dtype, num_bytes // dtype.itemsize)


def read_idx_head(idx_path: str) -> IdxHead:
    """Read and check the head of an `.idx`.

    Raises:
        SourceError: It is of another format, version or dtype, or truncated.
    """
    num_bytes = _size_of(idx_path)
    with opened(idx_path) as file:
        head = file.read(HEAD.size)
    if not head.startswith(MAGIC) or len(head) < HEAD.size:
        raise SourceError(
            "this is not an index of Megatron: it starts with another magic",
            where=idx_path,
            fix="if the .bin is raw, move the .idx away",
        )
    _, version, code, num_seqs, num_bounds = HEAD.unpack(head)
    if version != VERSION:
        raise SourceError(f"the index has version {version}; {VERSION} can be read", where=idx_path)
    if code not in CODES:
        what = "floating-point numbers" if code in _FLOAT_CODES else f"an unknown dtype, code {code}"
        raise SourceError(f"the index says that tokens are {what}", where=idx_path, fix="store integers")
    found = IdxHead(np.dtype(CODES[code]), num_seqs, num_bounds)
    # Megatron may store a byte for each sequence after these, its modality.
    if num_bytes not in (found.num_bytes, found.num_bytes + num_seqs):
        raise SourceError(
            f"the index has {num_bytes} bytes, but {num_seqs} sequences and {num_bounds} bounds take {found.num_bytes}",
            where=idx_path,
            fix="the file is truncated: write it again",
        )
    return found


def read_idx_bounds(file: TokenFile) -> NDArray[np.int64]:
    """Return the bounds of the documents of a Megatron file in tokens, `int64[D]`, from 0 to the number of tokens.

    Raises:
        SourceError: The index contradicts itself, or does not fit its `.bin`.
    """
    path = str(file.idx_path)
    head = read_idx_head(path)
    with opened(path) as stream:
        stream.seek(HEAD.size)
        lengths = np.fromfile(stream, "<i4", head.num_seqs)
        pointers = np.fromfile(stream, "<i8", head.num_seqs)
        bounds = np.fromfile(stream, "<i8", head.num_bounds)
    if (lengths < 0).any():
        raise _contradiction(path, f"sequence {int(np.argmax(lengths < 0))} has {int(lengths.min())} tokens")
    ends = np.zeros(head.num_seqs + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] != file.num_tokens:
        raise SourceError(
            f"the index says {ends[-1]} tokens, but the .bin has {file.num_tokens}",
            where=f"{path}, {file.path}",
            fix="they belong to different files, or one is truncated: write them again",
        )
    wrong = pointers != ends[:-1] * file.dtype.itemsize
    if wrong.any():
        seq = int(np.argmax(wrong))
        raise _contradiction(path, f"sequence {seq} is at byte {pointers[seq]}, but those before it end elsewhere")
    if not len(bounds) and not head.num_seqs:
        return np.zeros(1, np.int64)
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != head.num_seqs or (np.diff(bounds) < 0).any():
        raise _contradiction(path, f"the bounds of its documents do not ascend from 0 to {head.num_seqs}")
    in_tokens: NDArray[np.int64] = ends[bounds]
    return in_tokens


def open_npy(path: str) -> TokenFile:
    """Look at a `.npy` file of integers with one axis.

    Raises:
        SourceError: It is missing or something else, or its size is not what its header says.
    """
    num_bytes = _size_of(path)
    with opened(path) as file:
        header = parse_npy(file.read(HEAD_BYTES), path)
    shape, dtype, position = header.shape, header.dtype, header.num_bytes
    if len(shape) != 1 or dtype.kind not in "iu":
        raise SourceError(
            f"the array is {dtype} of the shape {shape}, not integers with one axis", where=path, fix="flatten it"
        )
    if header.end != num_bytes:
        raise SourceError(
            f"{shape[0]} integers of {dtype} take {header.end} bytes, the file has {num_bytes}",
            where=path,
            fix="the file is truncated: write it again",
        )
    return TokenFile(path, dtype, shape[0], position)


def _open_megatron(path: str, idx_path: str) -> TokenFile:
    head = read_idx_head(idx_path)
    num_bytes = _size_of(path)
    if num_bytes % head.dtype.itemsize:
        raise SourceError(
            f"the .bin has {num_bytes} bytes, which is not a multiple of the {head.dtype.itemsize} of {head.dtype}",
            where=path,
            fix="it is truncated, or belongs to another .idx",
        )
    return TokenFile(path, head.dtype, num_bytes // head.dtype.itemsize, idx_path=idx_path)


def _with_dtype(file: TokenFile, dtype: np.dtype[Any] | None) -> TokenFile:
    if dtype is not None and dtype != file.dtype.newbyteorder("="):
        raise ConfigError(f"dtype is {dtype}, but the file says {file.dtype}", where=file.path, fix="leave dtype out")
    return file


def _contradiction(path: str, what: str) -> SourceError:
    return SourceError(f"the numbers in the index contradict each other: {what}", where=path, fix="write it again")


def _size_of(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", where=path, fix="check the path") from error
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
        raise SourceError("this is not a regular file", where=path, fix="give the path of a file")
    return status.st_size


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file; what goes wrong with it in the block is a `SourceError` as well."""
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror or error}", where=path) from error
