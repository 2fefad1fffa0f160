"""`WholeSeqReader`: the base of readers that make whole sequences, by a function that must not be called twice."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict

from ..seq import DatasetSeq
from .loaded import LoadedSeqs, OrderCursor
from .reader import Reader, ReadRequest


class WholeSeqReader(Reader):
    """Makes whole sequences, each when it is first wanted; keeps those that are loaded, and the last one asked for."""

    needs_load = False

    def __init__(self) -> None:
        self._made: LoadedSeqs[DatasetSeq] = LoadedSeqs()  # by number
        self._wanted = ReadRequest.of(None, np.zeros(0, np.int64))
        self._cursor = OrderCursor()

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next, and drop what was kept."""
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order)
        self._made.clear()

    @abstractmethod
    def _make(self, number: int) -> DatasetSeq:
        """Return a sequence."""

    def read(self, number: int) -> DatasetSeq:
        """Return a sequence; not kept, unless it was before."""
        made = self._made.get(number)
        return self._make(number) if made is None else made

    def _kept(self, number: int) -> DatasetSeq:
        made = self._made.get(number)
        if made is None:
            made = self._make(number)
            self._made.put_alone({number: made})
        return made

    def load(self, start: int, stop: int) -> None:
        """Make the sequences."""
        self._made.drop_before(start)
        for number in range(max(start, 0), min(stop, len(self._cursor))):
            if number not in self._made:
                self._made.put_window({number: self._make(number)})

    def holds(self, number: int) -> bool:
        """Whether a sequence was made, and is still there."""
        return number in self._made

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return one data key of a sequence."""
        return self._kept(number).get_data(key)

    def num_frames(self, number: int) -> NumbersDict:
        """Return data key -> number of frames; makes the sequence."""
        return self._kept(number).num_frames
