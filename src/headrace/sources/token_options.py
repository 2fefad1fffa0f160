"""What the user said of files of tokens, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import ConfigError, check_count

from .text import check_paths


@dataclass(frozen=True, slots=True)
class Cut:
    """How tokens become sequences: what was asked for, checked.

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
    """Return what was asked for, or refuse it."""
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
    paths = check_paths(documents, "TokenSource")
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
