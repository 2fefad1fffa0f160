"""Files that are one long run of tokens: their kind and layout, and how they are cut into documents or blocks.

Three kinds: raw (`.bin`, nothing but tokens), NumPy (`.npy`, one axis), and Megatron (a raw `.bin` and an `.idx` that
says dtype and documents). No file is read as a whole to open it.

The `.idx` of Megatron, all little-endian: the nine bytes of the magic, `uint64` version 1, `uint8` code of the dtype,
`uint64` number of sequences S, `uint64` number D of document bounds; then `int32[S]` tokens of each sequence,
`int64[S]` its first byte in the `.bin`, `int64[D]` bounds of documents, counted in sequences, from 0 to S.

A cut is a first token and a number of tokens. With targets, a sequence needs one token more than it has frames: its
last frame must know what comes next, so a cut of n tokens has n - 1 frames.

What a file of tokens does not say stands in small files beside it: the tags, the name of the data key, the classes.
They are optional: other programs read the tokens without them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count
from headrace.files import open_regular

from ..shared.npy import HEAD_BYTES, parse_npy

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
VERSION = 1
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


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
        found = _open_npy(path)
    else:
        stem, suffix = os.path.splitext(path)
        if suffix not in (".idx", ".bin") and os.path.exists(path + ".idx"):
            stem, suffix = path, ".idx"
        path = stem + ".bin" if suffix == ".idx" else path
        idx_path = stem + ".idx" if path == stem + ".bin" and os.path.exists(stem + ".idx") else None
        stored = dtype if idx_path is None else _read_idx_head(idx_path)[0]
        if stored is None:
            raise ConfigError(
                "a raw file of tokens does not say their dtype", where=path, fix='give dtype=, for example "uint16"'
            )
        num_bytes, _ = _read_head(path, 0)
        if num_bytes % stored.itemsize:
            what = f"the file has {num_bytes} bytes, which is not a multiple of the {stored.itemsize} of {stored}"
            raise SourceError(what, where=path, fix="the file is truncated, or its dtype is another one")
        found = TokenFile(path, stored, num_bytes // stored.itemsize, idx_path=idx_path)
    if dtype is not None and dtype != found.dtype.newbyteorder("="):
        raise ConfigError(f"dtype is {dtype}, but the file says {found.dtype}", where=path, fix="leave dtype out")
    return found


def _open_npy(path: str) -> TokenFile:
    """Look at a `.npy` file of integers with one axis; `SourceError` if it is something else, or truncated."""
    num_bytes, head = _read_head(path, HEAD_BYTES)
    header = parse_npy(head, path)
    shape, dtype = header.shape, header.dtype
    if len(shape) != 1 or dtype.kind not in "iu":
        what = f"the array is {dtype} of the shape {shape}, not integers with one axis"
        raise SourceError(what, where=path, fix="flatten it")
    if header.end != num_bytes:
        what = f"{shape[0]} integers of {dtype} take {header.end} bytes, the file has {num_bytes}"
        raise SourceError(what, where=path, fix="the file is truncated: write it again")
    return TokenFile(path, dtype, shape[0], header.num_bytes)


def _read_idx_head(path: str) -> tuple[np.dtype[Any], int, int]:
    """Return what the head of an `.idx` says: dtype, number of sequences and of bounds."""
    num_bytes, data = _read_head(path, HEAD.size)
    if not data.startswith(MAGIC) or len(data) < HEAD.size:
        what = "this is not an index of Megatron: it starts with another magic"
        raise SourceError(what, where=path, fix="if the .bin is raw, move the .idx away")
    _, version, code, num_seqs, num_bounds = HEAD.unpack(data)
    if version != VERSION or code not in CODES:
        what = f"the index has version {version} and tokens of code {code}"
        raise SourceError(what, where=path, fix=f"store version {VERSION}, and integers: one of the codes {[*CODES]}")
    wanted = HEAD.size + num_seqs * 12 + num_bounds * 8
    if num_bytes not in (wanted, wanted + num_seqs):  # it may store a byte for each sequence after these, its modality
        what = f"the index has {num_bytes} bytes, but {num_seqs} sequences and {num_bounds} bounds take {wanted}"
        raise SourceError(what, where=path, fix="the file is truncated: write it again")
    return np.dtype(CODES[code]), num_seqs, num_bounds


def _read_idx_bounds(file: TokenFile) -> NDArray[np.int64]:
    """Return the bounds of documents of a Megatron file in tokens; its index must not contradict itself."""
    path = str(file.idx_path)
    _, num_seqs, num_bounds = _read_idx_head(path)
    position = HEAD.size
    lengths = _load(path, position, "<i4", num_seqs)
    pointers = _load(path, position + 4 * num_seqs, "<i8", num_seqs)
    bounds = _load(path, position + 12 * num_seqs, "<i8", num_bounds) if num_seqs or num_bounds else np.zeros(1, int)
    ends = np.zeros(num_seqs + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    wrong = (lengths < 0) | (pointers != ends[:-1] * file.dtype.itemsize)
    if wrong.any():
        seq = int(np.argmax(wrong))
        what = f"sequence {seq} has {lengths[seq]} tokens from byte {pointers[seq]} on, after {ends[seq]} tokens"
    elif ends[-1] != file.num_tokens:
        what = f"it says {ends[-1]} tokens, and {file.path} has {file.num_tokens}"
    elif not len(bounds) or bounds[0] != 0 or bounds[-1] != num_seqs or (np.diff(bounds) < 0).any():
        what = f"the bounds of its documents do not ascend from 0 to {num_seqs}"
    else:
        in_tokens: NDArray[np.int64] = ends[bounds]
        return in_tokens
    raise SourceError(f"the index contradicts itself or its .bin: {what}", where=path, fix="write both again")


def _read_head(path: str, num_bytes: int) -> tuple[int, bytes]:
    """Return the size of a file, and its first bytes."""
    try:
        with open_regular(path) as file:
            return os.fstat(file.fileno()).st_size, file.read(num_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error


def _load(path: str, position: int, dtype: Any, count: int) -> NDArray[Any]:
    """Return numbers of a file whose size was compared with what it says."""
    try:
        with open_regular(path) as file:
            numbers = np.fromfile(file, dtype, count, offset=position)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(numbers) != count:
        raise SourceError("the file changed while it was read", where=path, fix="wait until it is complete")
    return numbers


def _unreadable(path: str, error: Exception) -> SourceError:
    return SourceError(f"the file cannot be read: {error}", where=path, fix="check the path, or write it again")


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

    def apply(self, bounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return first token and number of frames of each sequence, from the bounds of documents, `int64[D + 1]`."""
        usable = np.maximum(np.diff(bounds) - self.num_ahead, 0)
        if self.by == "document":
            return bounds[:-1], usable
        counts = np.where(usable >= self.length, (usable - self.length) // self.stride + 1, 0)
        if self.with_rest:  # then every token is in a block
            counts += np.where(counts > 0, (counts - 1) * self.stride + self.length, 0) < usable
        first = np.repeat(np.cumsum(counts) - counts, counts)
        offsets = (np.arange(int(counts.sum())) - first) * self.stride
        return np.repeat(bounds[:-1], counts) + offsets, np.minimum(np.repeat(usable, counts) - offsets, self.length)


def checked_cut(by: Any, block_length: Any, overlap: Any, within: bool, keep_rest: bool, targets: Any, eos: Any) -> Cut:
    """Return the checked options of a cut, or refuse them."""
    wrong, length, stride = None, 0, 0
    if by not in ("block", "document"):
        wrong = f'by is {by!r}, and not "block" or "document"'
    elif targets is not None and (not isinstance(targets, str) or not targets):
        wrong = f"targets is {targets!r}, and not the name of a key"
    elif by == "block" and block_length is None:
        wrong = 'by="block" needs block_length'
    elif by == "document" and (block_length is not None or overlap or within):
        wrong = 'by="document" takes no block_length, overlap or within_documents'
    if wrong is not None:
        fix = 'pieces of documents: by="block", block_length=1024, within_documents=True'
        raise ConfigError(wrong, where="TokenSource", fix=fix)
    if by == "block":
        length = check_count("block_length", block_length, minimum=1, maximum=2**31 - 1)
        stride = length - check_count("overlap", overlap, minimum=0, maximum=length - 1)
    eos = None if eos is None else check_count("eos", eos)
    return Cut(by, length, stride, int(targets is not None), bool(within), bool(keep_rest), eos)


def integer_dtype(name: str, value: Any) -> np.dtype[Any]:
    """Return a dtype of integers in native byte order, or refuse it."""
    try:
        dtype: np.dtype[Any] | None = np.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "iu" or not dtype.isnative:
        what = f"{name} is {value!r}, not an integer in native byte order"
        raise ConfigError(what, where="TokenSource", fix='for example "uint16"')
    return dtype


_BLOCK_BYTES = 8 << 20


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
        stored = _open_npy(documents)
        bounds = _load(documents, stored.position, stored.dtype, stored.num_tokens).astype(np.int64)
        what = f"the starts of documents do not ascend from 0 to the {file.num_tokens} tokens of {file.path}"
    elif eos is not None:
        bounds = _scan_eos(file, eos)
        what = f"the token {eos} that ends documents is nowhere in {file.num_tokens} tokens"
    elif file.idx_path is not None:
        return _read_idx_bounds(file)
    else:
        raise ConfigError(
            "nothing says where documents end: there is no .idx beside the file",
            where=file.path,
            fix='give documents= (a .npy of first tokens) or eos=, or cut by="block"',
        )
    is_missing = eos is not None and len(bounds) == 1 and file.num_tokens
    if not len(bounds) or bounds[-1] != file.num_tokens:
        bounds = np.append(bounds, np.int64(file.num_tokens))
    if is_missing or bounds[0] != 0 or (np.diff(bounds) < 0).any():
        raise SourceError(what, where=documents or file.path, fix="check documents=, eos= and dtype=")
    return bounds


def _scan_eos(file: TokenFile, eos: int) -> NDArray[np.int64]:
    """Return 0, and where each token that ends a document is followed by the next."""
    pieces = [np.zeros(1, np.int64)]
    size, native = file.dtype.itemsize, file.dtype.newbyteorder("=")
    for start in range(0, file.num_tokens, _BLOCK_BYTES // size):
        count = min(_BLOCK_BYTES // size, file.num_tokens - start)
        tokens = _load(file.path, file.position + start * size, file.dtype, count)
        pieces.append(np.flatnonzero(tokens.astype(native, copy=False) == eos) + (start + 1))
    return np.concatenate(pieces)


def tags_path(path: str) -> str:
    """Return the name of the file with the tags of documents that belongs to a `.bin`."""
    return os.path.splitext(path)[0] + ".tags.txt"


def specs_path(path: str) -> str:
    """Return the name of the file that says what Megatron's format cannot: data key, classes."""
    return os.path.splitext(path)[0] + ".specs.json"


class TokenNotes(msgspec.Struct, omit_defaults=True):
    """What is noted beside a file of tokens: how many there are, and of which classes."""

    num_tokens: int
    dim: Annotated[int, msgspec.Meta(gt=0)] | None
    labels: list[str] | None = None


def read_notes(files: Sequence[TokenFile]) -> tuple[int | None, list[str] | None]:
    """Return number of classes and labels, as far as they are noted beside every file and are the same.

    Raises:
        SourceError: What is noted belongs to another file.
    """
    found = [_read_notes_of(file) for file in files]
    first = found[0]
    return first if all(own == first for own in found) else (None, None)


def _read_notes_of(file: TokenFile) -> tuple[int | None, list[str] | None]:
    path = specs_path(file.path)
    if file.idx_path is None or not os.path.exists(path):
        return None, None
    try:
        with open_regular(path) as stream:
            notes = msgspec.json.decode(stream.read(), type=TokenNotes)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if notes.num_tokens != file.num_tokens:
        what = f"this was written for {notes.num_tokens} tokens, but there are {file.num_tokens}"
        raise SourceError(what, where=f"{path}, {file.path}", fix="it belongs to another file: remove it")
    return notes.dim, notes.labels


def read_tags(file: TokenFile, num_seqs: int) -> list[str]:
    """Return the tags of the documents of a file."""
    path = tags_path(file.path)
    try:
        with open_regular(path) as stream:
            tags = stream.read().decode().split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    if len(tags) != num_seqs:
        what = f"there are {len(tags)} tags for {num_seqs} documents"
        raise SourceError(what, where=path, fix="write it again, or remove it")
    return tags
