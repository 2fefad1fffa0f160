"""How runs of tokens are cut into sequences, documents or blocks of a fixed length.

`checked_cut` takes the user's options. A cut is a first token and a number of tokens. With targets, a sequence needs
one token more than it has frames: its last frame must know what comes next, so a cut of n tokens has n - 1 frames.

What a file of tokens does not say stands in small files beside it: the tags, the name of the data key, the classes.
They are optional: other programs read the tokens without them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count
from headrace.files import open_regular

from ..shared.paths import list_paths
from .files import TokenFile, open_npy, opened, read_idx_bounds


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


def make_specs(num_tokens: int, dim: int | None, labels: Sequence[str] | None) -> str:
    """Return the text of the file."""
    said: dict[str, Any] = {"num_tokens": num_tokens, "dim": dim}
    if labels is not None:
        said["labels"] = list(labels)
    return json.dumps(said, ensure_ascii=False) + "\n"


def read_specs(
    files: Sequence[TokenFile], data_key: str, targets: str | None
) -> tuple[int | None, dict[str, Sequence[str]]]:
    """Return number of classes and labels, as far as they are noted beside every file and are the same.

    Raises:
        SourceError: What is noted belongs to another file.
    """
    found = [_read(file) for file in files]
    first = found[0]
    if first is None or any(other is None or other[1:] != first[1:] for other in found):
        return None, {}
    _, dim, labels = first
    keys = [data_key] if targets is None else [data_key, targets]
    return dim, {} if labels is None else dict.fromkeys(keys, labels)


def _read(file: TokenFile) -> tuple[int, int | None, list[str] | None] | None:
    path = specs_path(file.path)
    if file.idx_path is None or not os.path.exists(path):
        return None
    try:
        with open_regular(path) as stream:
            said = json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            f"this cannot be read: {error}", where=path, fix="remove it, or write the tokens again"
        ) from error
    dim, labels = (said.get("dim"), said.get("labels")) if isinstance(said, Mapping) else (0, None)
    if not isinstance(said, Mapping) or not (dim is None or (type(dim) is int and dim > 0)):
        raise SourceError("this says nothing of tokens", where=path, fix="remove it, or write the tokens again")
    if said.get("num_tokens") != file.num_tokens:
        raise SourceError(
            f"this was written for {said.get('num_tokens')} tokens, but there are {file.num_tokens}",
            where=f"{path}, {file.path}",
            fix="it belongs to another file: remove it",
        )
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise SourceError(
            "the labels are not a list of strings", where=path, fix="remove it, or write the tokens again"
        )
    return file.num_tokens, dim, labels
