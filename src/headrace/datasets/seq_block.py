"""Sequences in a row, by column: how they travel from workers, and how a reader sees them.

A column holds one data key of all sequences in one array, one sequence after the other, so that many small sequences
cost a worker one copy and its transport one array. The reader's views are made for a data key when it is first asked
for. All views of a block, and so all of its sequences, hold the memory of the whole block.

Invariant: an array comes out as it went in, with its order in memory; what does not fit into a column stays by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import empty
from headrace.sources import Source, fill_rows

from .seq import DatasetSeq

Values = NDArray[Any] | Sequence[NDArray[Any] | None]
"""A column: the rows of all sequences, or else an array for each sequence (`None` for one that lacks this data key)."""
Columns = tuple[dict[str, Values], dict[str, list[int]]]
"""Data key -> values; data key -> where the rows of each sequence begin, and those of the last one end. Rows without
such offsets are one for each sequence, which has no axis for them."""
Parts = tuple[list[str], Sequence[int | None] | None, list[float | None] | None, Columns]
"""The arguments of `SeqBlock`. A block travels as plain tuples: to send a class costs 5 us on either side."""

# Of the first array. Columns are as fast for larger ones; but those may have been made in the slot, where nothing has
# to be copied as long as they stay by themselves.
_MAX_ARRAY_BYTES = 64 << 10

_dtype, _shape, _is_fortran = map(attrgetter, ("dtype", "shape", "flags.fnc"))


class SeqBlock:
    """Some consecutive sequences.

    Args:
        tags: Their tags.
        corpus_indices: Place of each in the corpus; `None` where the dataset has no such thing.
        complete_fracs: What each says of the progress; `None` if none says anything.
        columns: Their data.

    Attributes:
        arrays: Data key -> the arrays of all sequences, made when first asked for. `KeyError` if none has the key.
    """

    __slots__ = ("_keys", "arrays", "complete_fracs", "corpus_indices", "tags")

    def __init__(
        self,
        tags: list[str],
        corpus_indices: Sequence[int | None] | None,
        complete_fracs: list[float | None] | None,
        columns: Columns,
    ) -> None:
        self.tags = tags
        self.corpus_indices = corpus_indices
        self.complete_fracs = complete_fracs
        self._keys = columns[0].keys()
        self.arrays = _Arrays(*columns)

    def __len__(self) -> int:
        return len(self.tags)

    def seq(self, offset: int, seq_idx: int, num_seqs: int | None) -> DatasetSeq:
        """Return one sequence.

        Args:
            offset: Its place in the block.
            seq_idx: Its position in the current order.
            num_seqs: How many there are in the epoch, if that is known: it then says how much is done.
        """
        arrays = self.arrays
        features = {key: array for key in self._keys if (array := arrays[key][offset]) is not None}
        if num_seqs:
            frac: float | None = (seq_idx + 1) / num_seqs
        else:
            frac = None if self.complete_fracs is None else self.complete_fracs[offset]
        corpus_idx = None if self.corpus_indices is None else self.corpus_indices[offset]
        return DatasetSeq.made_of(seq_idx, features, self.tags[offset], frac, corpus_idx)


class _Arrays(dict[str, Sequence[NDArray[Any] | None]]):
    """Columns that were cut into arrays."""

    __slots__ = ("_cut_at", "_offsets", "_slices", "_values")

    def __init__(self, values: dict[str, Values], offsets: dict[str, list[int]]) -> None:
        super().__init__()
        self._values = values
        self._offsets = offsets
        self._cut_at: list[int] = []  # offsets of the last column that was cut: mostly the next one has the same
        self._slices: list[slice] = []

    def __missing__(self, data_key: str) -> Sequence[NDArray[Any] | None]:
        values, offsets = self._values[data_key], self._offsets.get(data_key)
        arrays: Sequence[NDArray[Any] | None]
        if offsets is not None:
            if offsets != self._cut_at:
                self._cut_at, self._slices = offsets, list(map(slice, offsets, offsets[1:]))
            arrays = [values[part] for part in self._slices]  # type: ignore[misc]  # an array
        elif isinstance(values, np.ndarray):
            arrays = [values[i, ...] for i in range(len(values))]
        else:
            arrays = values
        self[data_key] = arrays
        return arrays


def make_columns(features: Sequence[dict[str, NDArray[Any]]]) -> Columns:
    """Return sequences, each data key -> array, by column. Small arrays are copied, into the slot if there is one."""
    values: dict[str, Values] = {}
    offsets: dict[str, list[int]] = {}
    if not features:
        return values, offsets
    first = features[0]
    if not all(seq.keys() == first.keys() for seq in features):
        keys = dict.fromkeys(key for seq in features for key in seq)
        return {key: [seq.get(key) for seq in features] for key in keys}, offsets
    for key in first:
        arrays = [seq[key] for seq in features]
        if not _are_alike(arrays):
            values[key] = arrays
            continue
        num_rows, shape = len(arrays), arrays[0].shape
        if shape:
            offsets[key] = list(accumulate(map(len, arrays), initial=0))
            num_rows = offsets[key][-1]
        rows = values[key] = empty((num_rows, *shape[1:]), arrays[0].dtype)
        fill_rows(rows, arrays)
    return values, offsets


def _are_alike(arrays: Sequence[NDArray[Any]]) -> bool:
    """Whether arrays can be the rows of one array, one after the other, without a loss."""
    first = arrays[0]
    if first.nbytes > _MAX_ARRAY_BYTES or first.dtype.hasobject or set(map(type, arrays)) != {np.ndarray}:
        return False
    shapes = list(map(_shape, arrays))
    return (
        set(map(_dtype, arrays)) == {first.dtype}
        and set(map(len, shapes)) == {first.ndim}
        and {shape[1:] for shape in shapes} == {first.shape[1:]}
        and not any(map(_is_fortran, arrays))
    )


def read_columns(source: Source, corpus_indices: NDArray[np.int64]) -> Columns:
    """Read sequences of a source that `has_fast_rows`, into the slot if there is one."""
    values: dict[str, Values] = {}
    offsets: dict[str, list[int]] = {}
    for key, spec in source.specs.items():
        num_rows = len(corpus_indices)
        if spec.has_time:
            lengths = source.index.lengths(key)[corpus_indices]
            offsets[key] = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]
            num_rows = offsets[key][-1]
        rows = values[key] = empty((num_rows, *spec.shape), spec.dtype)  # type: ignore[arg-type]  # no free axes
        source.read_rows(corpus_indices, key, rows)
    return values, offsets
