"""Files that are one long run of tokens: their kind and layout, and where their documents end.

Three kinds: raw (`.bin`, nothing but tokens), NumPy (`.npy`, one axis), and Megatron (a raw `.bin` and an `.idx` that
says dtype and documents). No file is read as a whole to open it.

The `.idx` of Megatron, all little-endian: the nine bytes of the magic, `uint64` version 1, `uint8` code of the dtype,
`uint64` number of sequences S, `uint64` number D of document bounds; then `int32[S]` tokens of each sequence,
`int64[S]` its first byte in the `.bin`, `int64[D]` bounds of documents, counted in sequences, from 0 to S.

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

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular

from ..shared.npy import HEAD_BYTES, parse_npy

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
VERSION = 1
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_BLOCK_TOKENS = 2 << 20  # looked at together


class TokenNotes(msgspec.Struct, omit_defaults=True):
    """What is noted beside a file of tokens: how many there are, and of which classes."""

    num_tokens: int
    dim: Annotated[int, msgspec.Meta(gt=0)] | None
    labels: list[str] | None = None


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

    def load(self, start: int, count: int) -> NDArray[Any]:
        """Return some of the tokens."""
        return _load(self.path, self.position + start * self.dtype.itemsize, self.dtype, count)

    def notes(self) -> TokenNotes | None:
        """Return what `TokenWriter` noted, if it did; `SourceError` if that belongs to another file."""
        path = specs_path(self.path)
        if self.idx_path is None or not os.path.exists(path):
            return None
        try:
            notes = msgspec.json.decode(_read(path)[1], type=TokenNotes)
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, error) from error
        if notes.num_tokens != self.num_tokens:
            what = f"this was written for {notes.num_tokens} tokens, but there are {self.num_tokens}"
            raise SourceError(what, where=f"{path}, {self.path}", fix="it belongs to another file: remove it")
        return notes

    def tags(self, num_seqs: int) -> list[str]:
        """Return the tags of the documents."""
        path = tags_path(self.path)
        try:
            tags = _read(path)[1].decode().split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise _unreadable(path, error) from error
        if len(tags) != num_seqs:
            what = f"there are {len(tags)} tags for {num_seqs} documents"
            raise SourceError(what, where=path, fix="write it again, or remove it")
        return tags


def tags_path(path: str) -> str:
    """Return the name of the file with the tags of documents that belongs to a `.bin`."""
    return os.path.splitext(path)[0] + ".tags.txt"


def specs_path(path: str) -> str:
    """Return the name of the file that says what Megatron's format cannot: data key, classes."""
    return os.path.splitext(path)[0] + ".specs.json"


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
        num_bytes, _ = _read(path, 0)
        if num_bytes % stored.itemsize:
            what = f"the file has {num_bytes} bytes, which is not a multiple of the {stored.itemsize} of {stored}"
            raise SourceError(what, where=path, fix="the file is truncated, or its dtype is another one")
        found = TokenFile(path, stored, num_bytes // stored.itemsize, idx_path=idx_path)
    if dtype is not None and dtype != found.dtype.newbyteorder("="):
        raise ConfigError(f"dtype is {dtype}, but the file says {found.dtype}", where=path, fix="leave dtype out")
    return found


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
        bounds = stored.load(0, stored.num_tokens).astype(np.int64)
    elif eos is not None:
        pieces = [np.zeros(1, np.int64)]
        for start in range(0, file.num_tokens, _BLOCK_TOKENS):
            tokens = file.load(start, min(_BLOCK_TOKENS, file.num_tokens - start))
            pieces.append(np.flatnonzero(tokens == eos) + (start + 1))
        bounds = np.concatenate(pieces)
        if file.num_tokens and len(bounds) == 1:
            what = f"the token {eos} that ends documents is nowhere in {file.num_tokens} tokens"
            raise SourceError(what, where=file.path, fix="check eos= and dtype=")
    elif file.idx_path is not None:
        return _read_idx_bounds(file, file.idx_path)
    else:
        raise ConfigError(
            "nothing says where documents end: there is no .idx beside the file",
            where=file.path,
            fix='give documents= (a .npy of first tokens) or eos=, or cut by="block"',
        )
    if not len(bounds) or bounds[-1] != file.num_tokens:
        bounds = np.append(bounds, np.int64(file.num_tokens))
    if bounds[0] != 0 or (np.diff(bounds) < 0).any():
        what = f"the starts of documents do not ascend from 0 to the {file.num_tokens} tokens of {file.path}"
        raise SourceError(what, where=documents or file.path, fix="check documents= and dtype=")
    return bounds


def _open_npy(path: str) -> TokenFile:
    num_bytes, head = _read(path, HEAD_BYTES)
    header = parse_npy(head, path)
    if len(header.shape) != 1 or header.dtype.kind not in "iu" or header.end != num_bytes:
        what = f"the file of {num_bytes} bytes has {header.dtype} of the shape {header.shape}, not integers on one axis"
        raise SourceError(what, where=path, fix="flatten the array; if the file is truncated, write it again")
    return TokenFile(path, header.dtype, header.shape[0], header.num_bytes)


def _read_idx_head(path: str) -> tuple[np.dtype[Any], int, int]:
    """Return what the head of an `.idx` says: dtype, number of sequences and of bounds."""
    num_bytes, data = _read(path, HEAD.size)
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


def _read_idx_bounds(file: TokenFile, path: str) -> NDArray[np.int64]:
    """Return the bounds of documents of a Megatron file in tokens; its index must not contradict itself."""
    _, num_seqs, num_bounds = _read_idx_head(path)
    lengths = _load(path, HEAD.size, "<i4", num_seqs)
    pointers = _load(path, HEAD.size + 4 * num_seqs, "<i8", num_seqs)
    bounds = _load(path, HEAD.size + 12 * num_seqs, "<i8", num_bounds) if num_seqs or num_bounds else np.zeros(1, int)
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


def _read(path: str, num_bytes: int = -1) -> tuple[int, bytes]:
    """Return the size of a file, and its first bytes, or all."""
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


def common_notes(files: Sequence[TokenFile]) -> tuple[int | None, list[str] | None]:
    """Return number of classes and labels, as far as they are noted beside every file and are the same."""
    first, *others = [
        (None, None) if notes is None else (notes.dim, notes.labels) for notes in map(TokenFile.notes, files)
    ]
    return first if all(own == first for own in others) else (None, None)
