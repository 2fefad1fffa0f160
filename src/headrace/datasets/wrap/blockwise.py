"""Sequences that come in blocks, how they travel from workers, and the base class of datasets that get them so.

A column holds one data key of all sequences of a block in one array, one sequence after the other, so that many small
sequences cost a worker one copy and its transport one array. The reader's views are made for a data key when it is
first asked for. All views of a block, and so all of its sequences, hold the memory of the whole block.

`BlockwiseDataset` does what the epoch API asks for each sequence (a window of loaded ones, errors for all others), but
once a block: while a reader moves on inside one block, `load_seqs` is two comparisons and `get_data` two look-ups, and
no object is made for a sequence unless it is asked for. Its sub-class has a generator of blocks: after an error, and
after an interrupt at any point, another one is made that begins where the reader is.

Invariants: an array comes out as it went in, with its order in memory; what does not fit into a column stays by itself.
One block is held; those before it that are still loaded are kept as single sequences. What belongs together is set by
one assignment, as Ctrl-C may come between any two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Delivered, Failure, Run, empty
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

NO_SEQS: Parts = ([], None, None, ({}, {}))

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
        keys: The data keys.
        arrays: Data key -> the arrays of all sequences, made when first asked for. `KeyError` if none has the key.
    """

    __slots__ = ("arrays", "complete_fracs", "corpus_indices", "keys", "tags")

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
        self.keys = columns[0].keys()
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
        features = {key: array for key in self.keys if (array := arrays[key][offset]) is not None}
        if num_seqs:
            frac: float | None = (seq_idx + 1) / num_seqs
        else:
            frac = None if self.complete_fracs is None else self.complete_fracs[offset]
        corpus_idx = None if self.corpus_indices is None else self.corpus_indices[offset]
        return DatasetSeq.made_of(seq_idx, features, self.tags[offset], frac, corpus_idx)


class _Arrays(dict[str, Sequence[NDArray[Any] | None]]):
    """Columns that were cut into arrays."""

    __slots__ = ("_offsets", "_values")

    def __init__(self, values: dict[str, Values], offsets: dict[str, list[int]]) -> None:
        super().__init__()
        self._values, self._offsets = values, offsets

    def __missing__(self, data_key: str) -> Sequence[NDArray[Any] | None]:
        values, offsets = self._values[data_key], self._offsets.get(data_key)
        arrays: Sequence[NDArray[Any] | None]
        if offsets is not None:
            arrays = [values[part] for part in map(slice, offsets, offsets[1:])]  # type: ignore[misc]  # an array
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


FailedSeqs = list[tuple[int, Failure | bytes]]
"""What failed among sequences that were read together, in order: how many good ones come before it, and why. Where
failed ones are not skipped, it is one at most, with which they end early."""


def encoded(failed: FailedSeqs) -> FailedSeqs:
    """Return failures in a form that travels to another process."""
    return [(before, told if isinstance(told, bytes) else told.to_bytes()) for before, told in failed]


def pass_failed(
    run: Run, delivered: Delivered, parts: Parts, failed: FailedSeqs
) -> tuple[Parts, BaseException | None, int]:
    """Apply the engine's policy on errors to each failed sequence of a result by itself.

    So the good ones before the first one that is not skipped, since the budget is used up or an option is wrong, are
    delivered like all others.

    Args:
        run: Which has delivered the result just now.
        delivered: The ticket.
        parts: The good sequences.
        failed: Those that failed.

    Returns:
        The good sequences that come before the first one that is not skipped, or all of them; its error; and how many
        sequences there were before it in all.
    """
    for number, (num_before, told) in enumerate(failed):
        error = run.skip_item(delivered, Failure.from_bytes(told) if isinstance(told, bytes) else told)
        if error is not None:
            tags, indices, fracs, columns = parts
            return (tags[:num_before], indices, fracs, columns), error, num_before + number  # the tags say how many
    return parts, None, len(parts[0]) + len(failed)


class ReadBlock(NamedTuple):
    """Consecutive sequences, as they came.

    Attributes:
        parts: Those that are not left out.
        error: The error of the sequence after them: then no further block follows.
        number: Number of the first one among those that were requested.
        left_out: Those that failed and were skipped: their places among all of them.
    """

    parts: Parts
    error: BaseException | None = None
    number: int = 0
    left_out: Sequence[int] = ()


class BlocksAhead(NamedTuple):
    """The blocks that come, the position of the next one, and the error of the sequence there."""

    position: int
    blocks: Iterator[ReadBlock]
    error: BaseException | None = None


class BlockwiseDataset(CachedDataset2):
    """Sequences collected in order, block by block. A sub-class defines `_open_blocks`."""

    gives_own = True
    _of_epoch = CachedDataset2._of_epoch | {"_opened", "_current", "_quick_stop", "_complete_frac"}

    def _reset(self) -> None:
        super()._reset()
        self._opened: BlocksAhead | None = None
        self._current = 0, 0, SeqBlock(*NO_SEQS)  # start, stop
        self._quick_stop = 0  # all that is loaded is in the current block, and all before this position can be
        self._complete_frac = 0.0

    def _open_blocks(self, position: int) -> tuple[int, Iterator[ReadBlock]]:  # noqa: ARG002 (a contract)
        """Cancel what is under way; return blocks that follow one another, and the position where the first one begins.

        Args:
            position: The sequence that is wanted. What lies before it need not be delivered.
        """
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _open_blocks")

    def _goes_on(self, opened: BlocksAhead, seq_idx: int) -> bool:  # noqa: ARG002 (a contract)
        """Whether the blocks go on, up to a sequence; else it is better to begin anew there."""
        return True

    def _open_at(self, position: int) -> BlocksAhead:
        self._complete_frac = 0.0
        return BlocksAhead(*self._open_blocks(position))

    # --- loading ---

    def load_seqs(self, start: int, end: int) -> None:
        """Get sequences up to `end` (exclusive; may exceed the epoch); drop those before `start`.

        Raises:
            ConfigError: `start` lies before an earlier start.
        """
        if self._load_start <= start < end <= self._quick_stop:
            self._load_start = start
            if end > self._next_seq_idx:
                self._next_seq_idx = end
        else:
            super().load_seqs(start, end)
            self._quick_stop = self._loadable_stop if start >= self._current[0] else 0

    def _collect_next(self, end: int) -> bool:
        seq_idx = self._next_seq_idx
        if seq_idx >= self._current[1] and not self._advance(seq_idx):
            return False
        self._next_seq_idx = min(end, self._loadable_stop)
        return True

    def _advance(self, seq_idx: int) -> bool:
        """Make the block of a sequence the current one; tell whether there is one. Nothing before it is wanted."""
        opened, self._opened = self._opened, None  # until the block is here
        is_new = False
        while True:
            if opened is not None and opened.error is not None:
                if is_new or opened.position == seq_idx:
                    raise opened.error
                opened = None
            if opened is None or not self._goes_on(opened, seq_idx):
                opened, is_new = self._open_at(seq_idx), True
            read = next(opened.blocks, None)
            if read is None:
                self._opened = opened
                return False
            start, stop = opened.position, opened.position + len(read.parts[0])
            opened = BlocksAhead(stop, opened.blocks, read.error)
            block = self._block_of(read.parts)
            if seq_idx < stop:
                break
        self._quick_stop = 0
        for loaded in range(max(self._load_start, self._current[0]), self._current[1]):
            self._added[loaded] = self._seq_at(loaded)
        self._current = start, stop, block
        self._opened = opened
        return True

    def _block_of(self, parts: Parts) -> SeqBlock:
        """Return a block, in which what sequences say of the progress does not fall where workers take turns."""
        tags, indices, fracs, columns = parts
        if fracs is not None:
            fracs = [frac if frac is None else self._risen(frac) for frac in fracs]
        block = SeqBlock(tags, indices, fracs, columns)
        if self.window > 1:
            joined = [self._with_window(block.seq(offset, 0, None)) for offset in range(len(block))]
            block.arrays["data"] = [seq.features.get("data") for seq in joined]
        return block

    def _risen(self, frac: float) -> float:
        self._complete_frac = max(frac, self._complete_frac)
        return self._complete_frac

    @property
    def _loadable_stop(self) -> int:
        """Where the current block, or the epoch, ends."""
        return self._current[1] if self._num_seqs is None else min(self._current[1], self._num_seqs)

    # --- reading ---

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position; loads it to find out if the number is unknown."""
        return seq_idx < self._quick_stop or self._has_seq(seq_idx)

    def _has_seq(self, seq_idx: int) -> bool:
        return super().is_less_than_num_seqs(seq_idx)

    def _seq_at(self, seq_idx: int) -> DatasetSeq:
        start, _, block = self._current
        return block.seq(seq_idx - start, seq_idx, self._num_seqs) if seq_idx >= start else super()._seq_at(seq_idx)

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`."""
        start, _, block = self._current
        if start <= seq_idx < self._next_seq_idx and self._load_start <= seq_idx:
            try:
                array = block.arrays[key][seq_idx - start]
            except KeyError:
                array = None
            if array is not None:
                return array
        return super().get_data(seq_idx, key)

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        self._require(seq_idx)
        start, _, block = self._current
        return block.tags[seq_idx - start] if seq_idx >= start else super().get_tag(seq_idx)

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        if self._next_seq_idx:
            self._reset()
        seq_idx = 0
        while True:
            self._check_version(version, seq_idx)
            if not self.is_less_than_num_seqs(seq_idx):
                return
            self.load_seqs(seq_idx, seq_idx + 1)
            yield self._seq_at(seq_idx)
            seq_idx += 1
            # The same for the rest of the block, as long as no other code moves on in it: in two thirds of the time.
            (start, _, block), num_seqs = self._current, self._num_seqs
            while self._load_start < seq_idx == self._next_seq_idx < self._quick_stop and self.order_version == version:
                self._load_start = seq_idx
                self._next_seq_idx = seq_idx + 1
                yield block.seq(seq_idx - start, seq_idx, num_seqs)
                seq_idx += 1
