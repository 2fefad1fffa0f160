"""The columns of a batch: what one data key holds in all of its sequences, and how that gets into the arrays.

A column says how large its values are before they are written, so that the arrays can be laid out first, and then
writes each value where it belongs, once. Where the values come from is its own affair: memory (`ArrayColumn`), or, in
`loading`, a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Column(ABC):
    """The values of one key in all sequences of a batch: arrays of one dtype with the same inner axes.

    Attributes:
        key: The data key.
        num_seqs: Number of values.
        dtype: Of all values.
        inner: The shape of a value without its time axis.
        lengths: Frames of each, `int32[n]`; None if there is no time axis.
    """

    key: str
    num_seqs: int
    dtype: np.dtype[Any]
    inner: tuple[int, ...]
    lengths: NDArray[np.int32] | None

    @abstractmethod
    def write(self, outs: Sequence[NDArray[Any]]) -> None:
        """Write each value into an array of its dtype and shape, in C order; only if there is a time axis."""

    @abstractmethod
    def stack(self, out: NDArray[Any]) -> None:
        """Write all values into one array, `dtype[n, ...]`; only if there is no time axis."""


class ArrayColumn(Column):
    """Values that are in memory.

    Args:
        key: The data key.
        arrays: The values, at least one; that they go together is for the caller to know.
        has_time: Whether the first axis is time.
    """

    def __init__(self, key: str, arrays: Sequence[NDArray[Any]], *, has_time: bool) -> None:
        self.key, self.num_seqs = key, len(arrays)
        self.dtype, self.inner = arrays[0].dtype, arrays[0].shape[has_time:]
        self.lengths = np.fromiter(map(len, arrays), np.int32, len(arrays)) if has_time else None
        self._arrays = arrays

    def write(self, outs: Sequence[NDArray[Any]]) -> None:
        """Copy each value."""
        for out, array in zip(outs, self._arrays, strict=True):
            out[...] = array

    def stack(self, out: NDArray[Any]) -> None:
        """Copy all values."""
        for row, array in enumerate(self._arrays):
            out[row] = array


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Texts or objects: there is no dtype, and there are no inner axes.

    Attributes:
        key: The data key.
        values: Of each sequence, as they were given.
    """

    key: str
    values: Sequence[Any]

    def texts(self) -> list[Any]:
        """Return them as plain values."""
        return [value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value for value in self.values]
