"""How runs of tokens are cut into sequences: documents, or blocks of a fixed length.

A cut is a first token and a number of tokens. With targets, a sequence needs one token more than it has frames: its
last frame must know what comes next, so a cut of n tokens has n - 1 frames.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError

from .token_files import TokenFile, open_npy, read_idx_bounds

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
    try:
        with open(file.path, "rb", buffering=0) as stream:
            stream.seek(file.position)
            stored = np.fromfile(stream, file.dtype, file.num_tokens)
    except OSError as error:
        raise SourceError(f"the starts of documents cannot be read: {error.strerror}", where=file.path) from error
    if len(stored) != file.num_tokens or (stored.dtype.kind == "u" and stored.size and int(stored.max()) >= 2**63):
        raise SourceError("the starts of documents changed, or are beyond 63 bits", where=file.path)
    return stored


def _scan_eos(file: TokenFile, eos: int) -> NDArray[np.int64]:
    pieces = [np.zeros(1, np.int64)]
    num_items = _BLOCK_BYTES // file.dtype.itemsize
    try:
        with open(file.path, "rb", buffering=0) as stream:
            stream.seek(file.position)
            for start in range(0, file.num_tokens, num_items):
                tokens = np.fromfile(stream, file.dtype, min(num_items, file.num_tokens - start))
                tokens = tokens.astype(file.dtype.newbyteorder("="), copy=False)
                pieces.append(np.flatnonzero(tokens == eos) + (start + 1))
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", where=file.path) from error
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
