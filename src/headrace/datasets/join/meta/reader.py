"""`MetaReader`: reads the sub-datasets of a `MetaDataset` side by side, each by a reader of its own.

A sub-dataset is started with its share of the request when it is first read; asking only for the order starts none.
Those that are read by tags are started at once: only they can tell whether they accept the tags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import takes_note
from headrace.order import RangeOrder

from ...parts import PartReader
from ...reading.reader import Features, ReadRequest
from ..reader import CompositeReader
from .corpus import MetaCorpus


@dataclass(frozen=True, eq=False)
class MetaSide:
    """One of the sub-datasets.

    Attributes:
        reader: What reads it.
        knows_corpus: Whether its corpus indices are known; else it is asked by tags.
        draws: Whether it draws by how often a sequence came before.
        gives_order: Whether it is the control dataset.
    """

    reader: PartReader
    knows_corpus: bool
    draws: bool
    gives_order: bool


class MetaReader(CompositeReader):
    """Reads the sub-datasets that have data keys of the whole.

    Args:
        name: Name of the whole, for messages.
        corpus: Leads from its corpus indices to theirs.
        sides: The sub-datasets.
        data_keys: Data keys of the whole, in its order.
    """

    def __init__(self, name: str, corpus: MetaCorpus, sides: Iterable[MetaSide], data_keys: Sequence[str]) -> None:
        self._name, self._corpus, self._data_keys = name, corpus, list(data_keys)
        self._sides = list(sides)
        self._side_of = {key: side for side in self._sides for key in side.reader.keys}
        super().__init__(corpus, [side.reader for side in self._sides])

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        super().start(wanted)
        self._started: set[str] = set()
        for side in self._sides if len(wanted.order) else ():
            if not side.knows_corpus:
                self._ready(side)

    def _ready(self, side: MetaSide) -> PartReader:
        """Return what reads a sub-dataset, started with its share."""
        if side.reader.name not in self._started:
            side.reader.reader.start(self._share(side))
            self._started.add(side.reader.name)
        return side.reader

    def _share(self, side: MetaSide) -> ReadRequest:
        wanted, name = self._wanted, side.reader.name
        if side.knows_corpus:
            counted = wanted.occurrences if side.draws else None
            share = ReadRequest.of(wanted.epoch, self._corpus.part_indices(name, wanted.indices), counted, wanted.first)
        else:
            tags = self._corpus.tags(name, wanted.indices)
            share = ReadRequest(wanted.epoch, RangeOrder(range(len(tags))), None, wanted.first, tags)
        return dataclasses.replace(share, is_whole=wanted.is_whole) if side.gives_order else share

    def features(self, number: int) -> Features:
        """Return all arrays of a sequence."""
        found: Features = {}
        for side in self._sides:
            try:
                found.update(self._ready(side).features(number))
            except Exception as error:
                takes_note(error, f"sub-dataset {side.reader.name!r} of {self._name!r}, sequence {self._tag(number)!r}")
                raise
        return {key: found[key] for key in self._data_keys}

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return one data key, of the sub-dataset that has it."""
        return self._ready(self._side_of[key]).array(number, key)

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return some frames of one data key."""
        return self._ready(self._side_of[key]).frames(number, key, start, stop)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the sub-datasets; where one has no random access, sequences are read whole."""
        if self.is_sequential:
            return None
        found: dict[str, int | None] = {}
        for side in self._sides:
            found.update(self._ready(side).sliced_frames(number) or dict.fromkeys(side.reader.keys))
        return {key: found[key] for key in self._data_keys}

    def known_frames(self, number: int) -> NumbersDict | None:
        """Return data key -> number of frames, where all sub-datasets know it."""
        found: dict[str, Any] = {}
        for side in self._sides:
            frames = self._ready(side).known_frames(number)
            if frames is None:
                return None
            found.update(frames)
        return NumbersDict({key: found[key] for key in self._data_keys})
