"""Columns of numbers, checked and made read-only when they enter an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import SourceError

from .tags import Tags

_LOCATOR_KINDS = "iuf"


def check_lengths(lengths: Mapping[str, ArrayLike], tags: Tags) -> dict[str, NDArray[Any]]:
    """Return own read-only copies of columns of lengths, `int32[N]` where the values fit, else `int64[N]`.

    Raises:
        SourceError: A column has not one number per sequence, or a length is negative, not finite or not whole.
    """
    return {data_key: _length_column(data_key, values, tags) for data_key, values in lengths.items()}


def check_locators(locators: Mapping[str, ArrayLike], num_seqs: int) -> dict[str, NDArray[Any]]:
    """Return own read-only copies of columns of locators, numbers of any dtype.

    Raises:
        SourceError: A column has not one number per sequence.
    """
    columns = {}
    for name, values in locators.items():
        column = _one_per_seq(f"locator {name!r}", values, num_seqs)
        if column.dtype.kind not in _LOCATOR_KINDS or column.dtype.itemsize > 8:
            raise SourceError(f"locator {name!r} has dtype {column.dtype}", fix="use numbers of up to 64 bits")
        columns[name] = _frozen(column.astype(column.dtype.newbyteorder("<"), copy=True))
    return columns


def _one_per_seq(name: str, values: ArrayLike, num_seqs: int) -> NDArray[Any]:
    column = np.asarray(values)
    if not column.size and column.ndim == 1 and column.dtype == np.float64:
        column = column.astype(np.int64)  # what NumPy makes of an empty list
    if column.ndim != 1 or len(column) != num_seqs:
        raise SourceError(
            f"the column {name} has shape {column.shape}, but the corpus has {num_seqs} tags",
            fix="give one number per sequence",
        )
    return column


def _length_column(data_key: str, values: ArrayLike, tags: Tags) -> NDArray[Any]:
    column = _one_per_seq(f"lengths of {data_key!r}", values, len(tags))
    if column.dtype.kind not in "iuf":
        raise SourceError(f"the lengths of {data_key!r} have dtype {column.dtype}", fix="use integers")
    if column.dtype.kind == "f":
        column = column.astype(np.float64)
        # Not `column % 1`: that warns about infinity.
        good = np.isfinite(column) & (column >= 0) & (column < 2**63)
        good[good] = np.floor(column[good]) == column[good]
    else:
        good = (column >= 0) & (column <= np.iinfo(np.int64).max)
    if not good.all():
        corpus_idx = int(np.argmin(good))
        raise SourceError(
            f"the length of {data_key!r} is {column[corpus_idx]}",
            where=f"sequence {corpus_idx}, tag {tags[corpus_idx]!r}",
            fix="a length is a whole number of frames, 0 or more",
        )
    fits = not column.size or column.max() <= np.iinfo(np.int32).max
    return _frozen(column.astype("<i4" if fits else "<i8", copy=True))


def _frozen(column: NDArray[Any]) -> NDArray[Any]:
    column.flags.writeable = False
    return column
