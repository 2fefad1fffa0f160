"""`PassingReader`: the base of readers that delegate to other readers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from numpy.typing import NDArray

from headrace.batching import NumbersDict

from ..seq import DatasetSeq
from .reader import Features, Reader


class PassingReader(Reader):
    """Reads each sequence through another reader, which a sub-class chooses."""

    @abstractmethod
    def _at(self, number: int) -> tuple[Reader, int]:
        """Return what reads a sequence, started, and the number of the sequence there."""

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence."""
        reader, own = self._at(number)
        return reader.read(own)

    def tag(self, number: int) -> str | None:
        """Ask the reader of the sequence."""
        reader, own = self._at(number)
        return reader.tag(own)

    def features(self, number: int) -> Features:
        """Read all data keys."""
        reader, own = self._at(number)
        return reader.features(own)

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Read one data key."""
        reader, own = self._at(number)
        return reader.array(own, key)

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Read some frames."""
        reader, own = self._at(number)
        return reader.frames(own, key, start, stop)

    def whole(self, number: int, key: str) -> NDArray[Any]:
        """Read one data key."""
        reader, own = self._at(number)
        return reader.whole(own, key)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the reader of the sequence."""
        reader, own = self._at(number)
        return reader.sliced_frames(own)

    def num_frames(self, number: int) -> NumbersDict:
        """Ask the reader of the sequence."""
        reader, own = self._at(number)
        return reader.num_frames(own)
