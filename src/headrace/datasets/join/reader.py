"""`JointReader`: reads the sequences of several datasets, each by a reader of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import takes_note
from headrace.order import full_epoch_of
from headrace.sources import Source

from ..parts import PartReader
from ..reading.reader import Features, Reader, ReadRequest
from ..seq import DatasetSeq
from .base import IndexedCorpus
from .corpus import JointCorpus, JointSource, PartPositions
from .layout import JointLayout


@dataclass(frozen=True, eq=False)
class JointPart:
    """One of the datasets.

    Attributes:
        reader: What reads it.
        draws: Whether it draws by how often a sequence came before.
        epoch_offset: What is added to the number of a full epoch to get the epoch that it is read in.
    """

    reader: PartReader
    draws: bool
    epoch_offset: int


class CompositeReader(Reader):
    """Reads sequences that are made of those of other readers.

    Args:
        corpus: Corpus of the sequences.
        readers: What reads the parts.
    """

    def __init__(self, corpus: IndexedCorpus, readers: Iterable[PartReader]) -> None:
        inner = [part.reader for part in readers]
        self._tags_of = corpus.tags_of
        self.is_sequential = any(reader.is_sequential for reader in inner)
        self.gives_own = all(reader.gives_own for reader in inner)
        self._reads_by_key = all(reader.reads_by_key() for reader in inner)
        self.start(ReadRequest.of(None, np.zeros(0, np.int64)))

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self._wanted = wanted
        self._tags: list[str] | None = None  # if somebody asked for all of them

    def reads_by_key(self) -> bool:
        """Whether all parts do."""
        return self._reads_by_key

    def tags(self) -> list[str]:
        """Look up the tags."""
        if self._tags is None:
            self._tags = self._tags_of(self._wanted.indices)
        return self._tags

    def _tag(self, number: int) -> str:
        if self._tags is not None:
            return self._tags[number]
        return self._tags_of(self._wanted.order.block(number, number + 1))[0]

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence."""
        corpus_idx = self._wanted.order[number]
        return DatasetSeq.made_of(number, self.features(number), self._tag(number), None, corpus_idx)


class JointReader(CompositeReader):
    """Reads the sequences of a joint corpus.

    Each part is asked for its share of all that is wanted, when the first sequence of it is read.

    Args:
        name: Name of the joint dataset, for messages.
        corpus: The corpora of the parts.
        layout: Where each data key comes from.
        parts: In the order of the corpora.
        num_sub_epochs: Number of sub-epochs of a full epoch: parts are read by full epochs.
    """

    def __init__(
        self, name: str, corpus: JointCorpus, layout: JointLayout, parts: Sequence[JointPart], num_sub_epochs: int
    ) -> None:
        self._name, self._corpus, self._layout, self._parts = name, corpus, layout, parts
        self._num_sub_epochs = num_sub_epochs
        super().__init__(corpus, [part.reader for part in parts])

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        super().start(wanted)
        self._positions: PartPositions | None = None
        self._started: set[int] = set()

    def _at(self, number: int) -> tuple[PartReader, int]:
        """Return what reads a sequence, started with its share, and the number of the sequence there."""
        if self._positions is None:
            self._positions = PartPositions(self._corpus, self._wanted.order)
        owner, own = self._positions.at(number)
        if owner not in self._started:
            self._start_part(owner, self._positions.of_part(owner))
        return self._parts[owner].reader, own

    def _start_part(self, owner: int, positions: NDArray[np.intp]) -> None:
        wanted, part = self._wanted, self._parts[owner]
        indices = wanted.indices[positions] - self._corpus.starts[owner]
        counted = wanted.occurrences[positions] if wanted.occurrences is not None and part.draws else None
        epoch = wanted.epoch
        if epoch is not None:
            epoch = full_epoch_of(epoch, self._num_sub_epochs) + 1 + part.epoch_offset
        first = None if wanted.first is None else 0
        part.reader.reader.start(ReadRequest.of(epoch, indices, counted, first))
        self._started.add(owner)

    def features(self, number: int) -> Features:
        """Return all arrays of a sequence."""
        part, own = self._at(number)
        try:
            return self._layout.filled(part.features(own))
        except Exception as error:
            takes_note(error, f"sub-dataset {part.name!r} of {self._name!r}, sequence {self._tag(number)!r}")
            raise

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return one data key; no frames if the part of the sequence has no such key."""
        part, own = self._at(number)
        return part.array(own, key) if key in part.keys else self._layout.empty(key)

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return some frames of one data key."""
        part, own = self._at(number)
        return part.frames(own, key, start, stop) if key in part.keys else self._layout.empty(key)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the part of the sequence; what it lacks is read whole, without frames."""
        part, own = self._at(number)
        found = part.sliced_frames(own)
        return None if found is None else {key: found.get(key) for key in self._layout.data_keys}

    def known_frames(self, number: int) -> NumbersDict | None:
        """Return data key -> number of frames."""
        part, own = self._at(number)
        frames, empty_length = part.known_frames(own), self._layout.empty_length
        if frames is None:
            return None
        return NumbersDict({key: frames.get(key, empty_length(key)) for key in self._layout.data_keys})

    def fast_source(self) -> Source | None:
        """Return a source that reads many sequences at once, past the parts, if that makes no difference."""
        known: dict[int, tuple[str, Source]] = {}
        for owner, part in enumerate(self._parts):
            if not self._corpus.corpora[owner].size():
                continue
            source, keys = part.reader.reader.fast_source(), part.reader.keys.values()
            if source is None or not all(map(source.index.has_lengths, keys)):
                return None
            known[owner] = part.reader.name, source
        is_known = known and all(spec is not None for spec in self._layout.specs.values())
        return JointSource(self._corpus, self._layout, known) if is_known else None
