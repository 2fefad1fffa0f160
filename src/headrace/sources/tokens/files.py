"""Files that are one long run of tokens: their kind and layout, and how they are cut into documents or blocks.

Three kinds: raw (`.bin`, nothing but tokens), NumPy (`.npy`, one axis), and Megatron (a raw `.bin` and an `.idx` that
says dtype and documents). No file is read as a whole to open it.

The `.idx` of Megatron, all little-endian: the nine bytes of the magic, `uint64` version 1, `uint8` code of the dtype,
`uint64` number of sequences S, `uint64` number D of document bounds; then `int32[S]` tokens of each sequence,
`int64[S]` its first byte in the `.bin`, `int64[D]` bounds of documents, counted in sequences, from 0 to S.

`checked_cut` takes the user's options. A cut is a first token and a number of tokens. With targets, a sequence needs
one token more than it has frames: its last frame must know what comes next, so a cut of n tokens has n - 1 frames.

What a file of tokens does not say stands in small files beside it: the tags, the name of the data key, the classes.
They are optional: other programs read the tokens without them.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count
from headrace.files import open_regular

from ..shared.npy import HEAD_BYTES, parse_npy
from ..shared.paths import list_paths

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


@dataclass(frozen=True, slots=True)
class Cut:
    """How tokens become sequences: the user's options, checked.

    Attributes:
        by: "block" or "document".
        length: Tokens of a block; 0 for whole documents.
        stride: From the start of a block to that of the next.
        num_ahead: Tokens that a sequence needs after its last frame: 1 with targets.
        within: Whether blocks end where documents end.
        with_rest: Whether a last block may be shorter.
        eos: The token that ends a document, or `None`.
    """

    by: str
    length: int
    stride: int
    num_ahead: int
    within: bool
    with_rest: bool
    eos: int | None

    @property
    def needs_bounds(self) -> bool:
        """Whether it must be known where documents end."""
        return self.by == "document" or self.within


def checked_cut(by: Any, block_length: Any, overlap: Any, within: bool, keep_rest: bool, targets: Any, eos: Any) -> Cut:
    """Return the checked options of a cut, or refuse them."""
    if by not in ("block", "document"):
        raise ConfigError(f"by is {by!r}", where="TokenSource", fix='use "block" or "document"')
    if targets is not None and (not isinstance(targets, str) or not targets):
        raise ConfigError(f"targets is {targets!r}", where="TokenSource", fix='name the key, such as "classes"')
    if by == "document":
        if block_length is not None or overlap or within:
            raise ConfigError(
                'by="document" takes no block_length, overlap or within_documents',
                where="TokenSource",
                fix='for pieces of documents: by="block", within_documents=True',
            )
        length = stride = 0
    else:
        if block_length is None:
            raise ConfigError('by="block" needs block_length', where="TokenSource", fix="for example 1024")
        length = check_count("block_length", block_length, minimum=1, maximum=2**31 - 1)
        stride = length - check_count("overlap", overlap, minimum=0, maximum=length - 1)
    if eos is not None:
        eos = check_count("eos", eos)
    return Cut(by, length, stride, int(targets is not None), bool(within), bool(keep_rest), eos)


def bounds_files(documents: Any, eos: Any, num_files: int) -> list[str | None]:
    """Return the file with the starts of documents for each file of tokens, or `None` for each."""
    if documents is None:
        return [None] * num_files
    if eos is not None:
        raise ConfigError("give either documents= or eos=", where="TokenSource")
    paths = list_paths(documents, "TokenSource")
    if len(paths) != num_files:
        raise ConfigError(f"documents names {len(paths)} files for {num_files} files of tokens", where="TokenSource")
    return list(paths)


def integer_dtype(name: str, value: Any) -> np.dtype[Any]:
    """Return a dtype of integers in native byte order, or refuse it."""
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError as error:
        raise ConfigError(f"{name} is {value!r}", where="TokenSource", fix='for example "uint16"') from error
    if dtype.kind not in "iu" or not dtype.isnative:
        raise ConfigError(f"{name} is {dtype.str}, not an integer in native byte order", where="TokenSource")
    return dtype


_BLOCK_BYTES = 8 << 20


def count_blocks(num_tokens: NDArray[np.int64], length: int, stride: int, *, with_rest: bool) -> NDArray[np.int64]:
    """Return into how many blocks runs are cut, `int64[n]`.

    Args:
        num_tokens: `int64[n]`: tokens that may be frames, of each run.
        length: Tokens of a block.
        stride: From the start of a block to that of the next.
        with_rest: Whether the last block may be shorter; then every token is in one.
    """
    beyond = num_tokens - length
    whole = np.where(beyond >= 0, beyond // stride + 1, 0)
    if not with_rest:
        return whole
    covered = np.where(whole > 0, (whole - 1) * stride + length, 0)
    return whole + (covered < num_tokens)


def cut_documents(
    bounds: NDArray[np.int64], length: int, stride: int, *, num_ahead: int, with_rest: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut each document into blocks.

    Args:
        bounds: `int64[D + 1]`, in tokens.
        length: Tokens of a block.
        stride: From the start of a block to that of the next.
        num_ahead: Tokens that must follow each block.
        with_rest: Whether the last block of a document may be shorter.

    Returns:
        First token, and number of frames, of each block: `int64[n]`.
    """
    usable = np.maximum(np.diff(bounds) - num_ahead, 0)
    counts = count_blocks(usable, length, stride, with_rest=with_rest)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    offsets = (np.arange(int(counts.sum())) - first) * stride
    return np.repeat(bounds[:-1], counts) + offsets, np.minimum(np.repeat(usable, counts) - offsets, length)


def find_bounds(file: TokenFile, documents: str | None, eos: int | None) -> NDArray[np.int64]:
    """Return the bounds of documents in tokens, `int64[D + 1]`: from 0 to the number of tokens, ascending.

    Args:
        file: The tokens.
        documents: A `.npy` file with the first token of each document; or `None`.
        eos: The token that ends a document, and belongs to it; or `None`. The file is read once.

    Raises:
        ConfigError: Nothing says where documents end.
        SourceError: What says it does not fit the file.
    """
    if documents is not None:
        return _read_bounds(documents, file)
    if eos is not None:
        return _scan_eos(file, eos)
    if file.idx_path is not None:
        return read_idx_bounds(file)
    raise ConfigError(
        "nothing says where documents end: there is no .idx beside the file",
        where=file.path,
        fix='give documents= (a .npy of first tokens) or eos=, or cut by="block"',
    )


def _read_bounds(path: str, file: TokenFile) -> NDArray[np.int64]:
    bounds = open_npy(path)
    starts = _load(bounds).astype(np.int64)
    if not len(starts) or starts[-1] != file.num_tokens:
        starts = np.append(starts, file.num_tokens)
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise SourceError(
            f"the starts of documents do not ascend from 0 to the {file.num_tokens} tokens of {file.path}",
            where=path,
            fix="give the first token of each document, in order, counted in tokens",
        )
    return starts


def _load(file: TokenFile) -> NDArray[Any]:
    """Return the numbers of a file whose size was compared with what it says."""
    with opened(file.path) as stream:
        stream.seek(file.position)
        stored = np.fromfile(stream, file.dtype, file.num_tokens)
    if len(stored) != file.num_tokens or (stored.dtype.kind == "u" and stored.size and int(stored.max()) >= 2**63):
        raise SourceError("the starts of documents changed, or are beyond 63 bits", where=file.path)
    return stored


def _scan_eos(file: TokenFile, eos: int) -> NDArray[np.int64]:
    pieces = [np.zeros(1, np.int64)]
    num_items = _BLOCK_BYTES // file.dtype.itemsize
    with opened(file.path) as stream:
        stream.seek(file.position)
        for start in range(0, file.num_tokens, num_items):
            tokens = np.fromfile(stream, file.dtype, min(num_items, file.num_tokens - start))
            pieces.append(np.flatnonzero(tokens.astype(file.dtype.newbyteorder("="), copy=False) == eos) + (start + 1))
    bounds: NDArray[np.int64] = np.concatenate(pieces)
    if len(bounds) == 1 and file.num_tokens:
        raise SourceError(
            f"the token {eos} that ends documents is nowhere in {file.num_tokens} tokens",
            where=file.path,
            fix='check eos= and dtype=, or cut by="block"',
        )
    if bounds[-1] != file.num_tokens:
        bounds = np.append(bounds, np.int64(file.num_tokens))
    return bounds


def tags_path(path: str) -> str:
    """Return the name of the file with the tags of documents that belongs to a `.bin`."""
    return os.path.splitext(path)[0] + ".tags.txt"


def specs_path(path: str) -> str:
    """Return the name of the file that says what Megatron's format cannot: data key, classes."""
    return os.path.splitext(path)[0] + ".specs.json"


class _Beside(msgspec.Struct, omit_defaults=True):
    num_tokens: int
    dim: Annotated[int, msgspec.Meta(gt=0)] | None
    labels: list[str] | None = None


def make_specs(num_tokens: int, dim: int | None, labels: Sequence[str] | None) -> bytes:
    """Return the content of the file."""
    return msgspec.json.encode(_Beside(num_tokens, dim, None if labels is None else list(labels))) + b"\n"


def read_specs(
    files: Sequence[TokenFile], data_key: str, targets: str | None
) -> tuple[int | None, dict[str, Sequence[str]]]:
    """Return number of classes and labels, as far as they are noted beside every file and are the same.

    Raises:
        SourceError: What is noted belongs to another file.
    """
    found = [_read_beside(file) for file in files]
    first = found[0]
    if first is None or any(other is None or (other.dim, other.labels) != (first.dim, first.labels) for other in found):
        return None, {}
    keys = [data_key] if targets is None else [data_key, targets]
    return first.dim, {} if first.labels is None else dict.fromkeys(keys, first.labels)


def _read_beside(file: TokenFile) -> _Beside | None:
    path = specs_path(file.path)
    if file.idx_path is None or not os.path.exists(path):
        return None
    try:
        with open_regular(path) as stream:
            said = msgspec.json.decode(stream.read(), type=_Beside)
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            f"this cannot be read: {error}", where=path, fix="remove it, or write the tokens again"
        ) from error
    if said.num_tokens != file.num_tokens:
        raise SourceError(
            f"this was written for {said.num_tokens} tokens, but there are {file.num_tokens}",
            where=f"{path}, {file.path}",
            fix="it belongs to another file: remove it",
        )
    return said
