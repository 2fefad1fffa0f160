"""`KeepingReader`: keeps whole sequences until all of their arrays are handed out, or others are wanted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict

from .loaded import LoadedSeqs, OrderCursor
from .reader import Features, Reader, ReadRequest


class KeepingReader(Reader):
    """Reads whole sequences. Each array is handed out once: asked for again, it is read again.

    Args:
        data_keys: Data keys of a sequence.
    """

    needs_load = False

    def __init__(self, data_keys: Sequence[str]) -> None:
        self._num_keys = len(data_keys)
        self._loaded: LoadedSeqs[Features] = LoadedSeqs()  # by position
        self._wanted = ReadRequest.of(None, np.zeros(0, np.int64))
        self._cursor = OrderCursor()

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next, and drop what was kept."""
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order, wanted.first or 0)
        self._loaded.clear()

    @abstractmethod
    def _read(self, number: int) -> dict[int, Features]:
        """Read one sequence, or several that are read together, by position."""

    def _corpus_idx(self, number: int) -> int:
        return self._cursor[self._cursor.first + number]

    def features(self, number: int) -> Features:
        """Hand out all arrays of a sequence."""
        position = self._cursor.first + number
        if position not in self._loaded:
            seqs = self._read(number)
            features = seqs.pop(position)
            if seqs:  # read together with it
                self._loaded.put_alone(seqs)
            return features
        features = self._whole(number)
        taken = dict(features)
        features.clear()  # handed out
        return taken

    def _whole(self, number: int) -> Features:
        """Return all arrays of a sequence, none of them handed out yet; reads it if need be."""
        position = self._cursor.first + number
        features = self._loaded.get(position)
        if features is None or len(features) < self._num_keys:
            seqs = self._read(number)
            self._loaded.put_alone(seqs)
            features = seqs[position]
        return features

    def load(self, start: int, stop: int) -> None:
        """Read the sequences."""
        first = self._cursor.first
        self._loaded.drop_before(first + start)
        for number in range(max(start, 0), min(stop, len(self._cursor) - first)):
            if first + number not in self._loaded:
                self._loaded.put_window(self._read(number))

    def holds(self, number: int) -> bool:
        """Whether a sequence was loaded, and is still there."""
        return self._cursor.first + number in self._loaded

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Hand out one array; from now on it is the caller's."""
        features = self._loaded.get(self._cursor.first + number)
        if features is None or key not in features:
            features = self._whole(number)
        return features.pop(key)

    def num_frames(self, number: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence."""
        whole = self._whole(number)
        return NumbersDict({key: len(array) if array.ndim else 1 for key, array in whole.items()})
