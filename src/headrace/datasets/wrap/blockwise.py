"""Sequences that come in blocks, how they travel from workers, and the base class of datasets that get them so.

A column holds one data key of all sequences of a block in one array, one sequence after the other, so that many small
sequences cost a worker one copy and its transport one array. The reader's views are made for a data key when it is
first asked for. All views of a block, and so all of its sequences, hold the memory of the whole block.

`BlockwiseDataset` does what the epoch API asks for each sequence (a window of loaded ones, errors for all others), but
once a block: while a reader moves on inside one block, `load_seqs` is two comparisons and `get_data` two look-ups, and
no object is made for a sequence unless it is asked for.

Invariants: an array comes out as it went in, with its order in memory; what does not fit into a column stays by itself.
The blocks that are held follow one another, the current one last; each loaded sequence is in one of them. `_quick_start
<= i < _quick_stop` says that all from i on is in the current block, so that nothing older is held.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import empty
from headrace.errors import OptionalNotImplementedError
from headrace.sources import Source, fill_rows

from ..cached2 import CachedDataset2
from ..seq import DatasetSeq

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
        corpus_indices: Corpus index of each; `None` where the dataset has none.
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
            offset: Its index in the block.
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


_NOWHERE = sys.maxsize
_NO_SEQS = SeqBlock([], None, None, ({}, {}))


class BlockwiseDataset(CachedDataset2):
    """Sequences collected in order, block by block. A sub-class defines `_next_block`, `_lose_count` and `_restart`."""

    gives_own = True

    def _reset(self) -> None:
        super()._reset()
        self._block = _NO_SEQS
        self._block_start = self._block_stop = 0
        self._older: list[
            tuple[int, SeqBlock]
        ] = []  # earlier blocks of which something is loaded, with their positions
        self._upcoming = 0  # position of the next block
        self._quick_start, self._quick_stop = _NOWHERE, 0
        self._complete_frac = 0.0
        self._error_behind: BaseException | None = None  # the sequence after the current block has failed

    def _next_block(self, seq_idx: int) -> SeqBlock | None:  # noqa: ARG002 (a contract)
        """Return the next block, or `None` after the end.

        It begins at the position `_upcoming`, where the one before has ended, unless that is set to another position up
        to `seq_idx`, the sequence that is wanted: what lies before it need not be delivered. It may set `_error_behind`
        with the block: then the next one is requested only at a set position.
        """
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _next_block")

    def _lose_count(self) -> None:
        """Note that a block may be lost: the next one must be requested by its position."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _lose_count")

    def _restart(self) -> None:
        """Be at the start of the epoch again."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _restart")

    # --- loading ---

    def load_seqs(self, start: int, end: int) -> None:
        """Get sequences up to `end` (exclusive; may exceed the epoch); drop those before `start`.

        Raises:
            ConfigError: `start` lies before an earlier start.
        """
        if self._quick_start <= start < end <= self._quick_stop:
            self._quick_start = self._load_start = start
            if end > self._next_seq_idx:
                self._next_seq_idx = end
        else:
            super().load_seqs(start, end)

    def _load_seqs(self, start: int, end: int) -> None:
        self._older = [(first, block) for first, block in self._older if first + len(block) > start]
        super()._load_seqs(start, end)
        self._note_quick_part()

    def _collect_next(self, end: int) -> bool:
        seq_idx = self._next_seq_idx
        while seq_idx >= self._block_stop:
            if not self._advance(seq_idx):
                return False
        self._note_quick_part()
        self._next_seq_idx = min(end, self._loadable_stop)
        return True

    def _advance(self, seq_idx: int) -> bool:
        """Make the next block the current one; tell whether there is one."""
        held = self._block, self._block_start, self._block_stop, self._older
        try:
            self._pass_error(seq_idx)
            block = self._next_block(seq_idx)
            if block is None:
                return False
            if self.window > 1:
                joined = [self._with_window(block.seq(offset, 0, None)) for offset in range(len(block))]
                block.arrays["data"] = [seq.features.get("data") for seq in joined]
            if max(self._load_start, self._block_start) < self._block_stop:
                self._older = [*self._older, (self._block_start, self._block)]
            self._block, self._block_start = block, self._upcoming
            self._block_stop = self._upcoming = self._block_start + len(block)
        except BaseException:  # Ctrl-C may come between any two steps
            self._block, self._block_start, self._block_stop, self._older = held
            self._lose_count()
            raise
        return True

    def _pass_error(self, seq_idx: int) -> None:
        """Raise the error that follows the current block, unless a later sequence is wanted."""
        error, self._error_behind = self._error_behind, None
        if error is None:
            return
        if seq_idx == self._upcoming:
            raise error
        self._lose_count()

    def _block_of(self, parts: Parts) -> SeqBlock:
        """Return a block, in which what sequences say of the progress does not fall where workers take turns."""
        tags, indices, fracs, columns = parts
        if fracs is not None:
            fracs = [frac if frac is None else self._risen(frac) for frac in fracs]
        return SeqBlock(tags, indices, fracs, columns)

    def _risen(self, frac: float) -> float:
        self._complete_frac = max(frac, self._complete_frac)
        return self._complete_frac

    @property
    def _loadable_stop(self) -> int:
        """Where the current block, or the epoch, ends."""
        return self._block_stop if self._num_seqs is None else min(self._block_stop, self._num_seqs)

    def _note_quick_part(self) -> None:
        if self._older:
            self._quick_start, self._quick_stop = _NOWHERE, 0
        else:
            self._quick_start, self._quick_stop = max(self._load_start, self._block_start), self._loadable_stop

    # --- reading ---

    def _locate(self, seq_idx: int) -> tuple[SeqBlock, int]:
        """Return the block of a loaded sequence, and its index in it."""
        block, start = self._block, self._block_start
        if seq_idx < start:
            start, block = next((start, block) for start, block in reversed(self._older) if start <= seq_idx)
        return block, seq_idx - start

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position; loads it to find out if the number is unknown."""
        return self._quick_start <= seq_idx < self._quick_stop or self._has_seq(seq_idx)

    def _has_seq(self, seq_idx: int) -> bool:
        return super().is_less_than_num_seqs(seq_idx)

    def _seq_at(self, seq_idx: int) -> DatasetSeq:
        block, offset = self._locate(seq_idx)
        return block.seq(offset, seq_idx, self._num_seqs)

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`."""
        if self._quick_start <= seq_idx < self._next_seq_idx:
            try:
                array = self._block.arrays[key][seq_idx - self._block_start]
            except KeyError:
                array = None
            if array is not None:
                return array
        return super().get_data(seq_idx, key)

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        self._require(seq_idx)
        block, offset = self._locate(seq_idx)
        return block.tags[offset]

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        if self._next_seq_idx:
            self._restart()
        seq_idx = 0
        while True:
            self._check_version(version, seq_idx)
            if not self.is_less_than_num_seqs(seq_idx):
                return
            self.load_seqs(seq_idx, seq_idx + 1)
            yield self._seq_at(seq_idx)
            seq_idx += 1
            # The same for the rest of the block, as long as no other code moves on in it.
            block, start, num_seqs = self._block, self._block_start, self._num_seqs
            while seq_idx < self._quick_stop and self._quick_start < seq_idx == self._next_seq_idx:
                if self.order_version != version:
                    break
                self._quick_start = self._load_start = seq_idx
                self._next_seq_idx = seq_idx + 1
                yield block.seq(seq_idx - start, seq_idx, num_seqs)
                seq_idx += 1
