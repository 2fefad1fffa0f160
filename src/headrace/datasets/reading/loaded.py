"""The state of a reader of a source: its position in the order, and what is kept in memory.

`OrderCursor` looks up one position after another in an order that is read by blocks. `LastArrays` are whole arrays of
which frames are asked for. `SeqCache` keeps whole sequences, and drops the least recently used ones: the bytes held
never exceed the limit, and a hit returns copies. So what a reader does to an array never shows in a later read, whether
the sequence came from the cache or from its source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.order import Order, RangeOrder
from headrace.sources import Source

from .reader import Features

_BLOCK = 4096  # positions decoded at a time: a look-up in a lazy order alone costs as much as hundreds in a block


class OrderCursor:
    """An order with cheap access to neighbouring positions.

    Args:
        order: Not changed.
        first: Its first position in the epoch: more than 0 if only a part of an epoch is here.

    Attributes:
        stop: The position after the last one.
    """

    def __init__(self, order: Order | None = None, first: int = 0) -> None:
        self.order: Order = RangeOrder(range(0)) if order is None else order
        self.first, self.stop = first, first + len(self.order)
        self._start = first
        self._block: list[int] = []

    def __getitem__(self, seq_idx: int) -> int:
        """Return the corpus index at a position.

        Raises:
            IndexError: The position is outside the order.
        """
        offset = seq_idx - self._start
        if not 0 <= offset < len(self._block):
            position, size = seq_idx - self.first, len(self.order)
            if not 0 <= position < size:
                raise IndexError(f"sequence {seq_idx} is outside an epoch of {size}")
            self._start, offset = seq_idx, 0
            self._block = self.order.block(position, min(position + _BLOCK, size)).tolist()
        return self._block[offset]


_OVERHEAD_BYTES = 200  # of one array object and its entry in the tables, roughly


class SeqCache:
    """Corpus index -> arrays by data key.

    Args:
        max_bytes: The limit: 0 keeps nothing, -1 is unlimited.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._seqs: OrderedDict[int, tuple[dict[str, NDArray[Any]], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seqs)

    def __contains__(self, corpus_idx: object) -> bool:
        return corpus_idx in self._seqs

    def read(self, source: Source, corpus_idx: int) -> Features:
        """Return a sequence of the source whose sequences this keeps; the arrays are the caller's own."""
        if self.max_bytes == 0:
            return source.read_seq(corpus_idx)
        features = self.get(corpus_idx)
        if features is None:
            features = source.read_seq(corpus_idx)
            self.put(corpus_idx, features)
        return features

    def get(self, corpus_idx: int) -> dict[str, NDArray[Any]] | None:
        """Return copies of the arrays of one sequence, or `None` if it is not held."""
        held = self._seqs.get(corpus_idx)
        if held is None:
            return None
        self._seqs.move_to_end(corpus_idx)
        return {data_key: array.copy() for data_key, array in held[0].items()}

    def put(self, corpus_idx: int, features: dict[str, NDArray[Any]]) -> None:
        """Keep copies of a sequence, dropping the least recently used ones; one larger than the limit is not kept."""
        num_bytes = sum(array.nbytes + _OVERHEAD_BYTES for array in features.values())
        if corpus_idx in self._seqs or (self.max_bytes >= 0 and num_bytes > self.max_bytes):
            return
        while self.max_bytes >= 0 and self.num_bytes + num_bytes > self.max_bytes:
            _, (_, freed) = self._seqs.popitem(last=False)
            self.num_bytes -= freed
        self._seqs[corpus_idx] = ({key: np.array(array) for key, array in features.items()}, num_bytes)
        self.num_bytes += num_bytes

    def clear(self) -> None:
        """Drop everything."""
        self._seqs.clear()
        self.num_bytes = 0


class LastArrays:
    """Arrays of a source that were read last: the newest one, and others as long as all are small enough together.

    Args:
        source: Where they are read.
        max_bytes: The limit.
    """

    def __init__(self, source: Source, max_bytes: int) -> None:
        self._source, self._max_bytes, self._num_bytes = source, max_bytes, 0
        self._arrays: OrderedDict[tuple[int, str], NDArray[Any]] = OrderedDict()

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of a sequence, `dtype[T, ...]`, which is not to be written to.

        Raises:
            SourceError: It cannot be read, or is not as long as the index says.
        """
        wanted = corpus_idx, data_key
        array = self._arrays.get(wanted)
        if array is not None:
            self._arrays.move_to_end(wanted)
            return array
        array = self._source.read(corpus_idx, data_key)
        self._check_length(array, corpus_idx, data_key)
        if array.base is not None:
            array = array.copy()  # it may be a view of much more
        self._num_bytes += array.nbytes + _OVERHEAD_BYTES
        while self._arrays and self._num_bytes > self._max_bytes:
            self._num_bytes -= self._arrays.popitem(last=False)[1].nbytes + _OVERHEAD_BYTES
        self._arrays[wanted] = array
        return array

    def _check_length(self, array: NDArray[Any], corpus_idx: int, data_key: str) -> None:
        index = self._source.index
        if not (self._source.specs[data_key].has_time and index.has_lengths(data_key)):
            return
        planned = int(index.lengths(data_key)[corpus_idx])
        if len(array) != planned:
            raise SourceError(f"{data_key!r} has {len(array)} frames, but {planned} in the index")


def shuffle_group_frames(
    group: Sequence[dict[str, NDArray[Any]]], first_seq_idx: int, *, where: str
) -> list[dict[str, NDArray[Any]]]:
    """Permute the frames of several sequences among each other; lengths stay.

    The permutation is that of `RandomState(first_seq_idx)` (RETURNN's seed) over all frames of the group, the same
    for each data key, so that a frame keeps its label.

    Args:
        group: Sequences as data key -> `dtype[T, ...]`.
        first_seq_idx: Position of the first one in the current order.
        where: Location, for error messages.

    Raises:
        SourceError: The data keys of a sequence differ in length, so that frames do not correspond.
    """
    lengths = []
    for features in group:
        by_key = {key: len(array) if array.ndim else None for key, array in features.items()}
        if len(set(by_key.values())) > 1:
            raise SourceError(
                f"frames cannot be shuffled: data keys of one sequence differ in length (None: no time axis): {by_key}",
                where=where,
                fix="leave shuffle_frames_of_nseqs at 0 for data without one label a frame",
            )
        lengths.append(next(iter(by_key.values()), 0) or 0)
    permutation = np.random.RandomState(first_seq_idx).permutation(sum(lengths))
    borders = np.cumsum(lengths)[:-1]
    shuffled: list[dict[str, NDArray[Any]]] = [{} for _ in group]
    for key in group[0]:
        frames = np.concatenate([features[key] for features in group])[permutation]
        for features, part in zip(shuffled, np.split(frames, borders), strict=True):
            features[key] = part.copy()  # not a view: one kept sequence must not hold the whole group
    return shuffled
