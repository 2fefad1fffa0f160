"""Reading the sub-datasets of a `MetaDataset` side by side, at the positions of one order.

A sub-dataset is started with its share of the order when it is first read; who only asks for the order starts none.
Those that are asked by tags are started at once: only they can say whether they take them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import takes_note

from ...cached import CachedDataset
from ...parts import MetaPart
from ...reading.loaded import OrderCursor
from .corpus import MetaCorpus

Occurrences = Callable[[], NDArray[np.int64]]


class MetaReader:
    """The sub-datasets that have data keys of the whole.

    Args:
        parts: Sub-datasets, by name; those without data keys are never read.
        where: The name of the whole, for messages.
    """

    def __init__(self, parts: Mapping[str, MetaPart], where: str) -> None:
        self.parts = [part for part in parts.values() if part.keys]
        self.keys = sorted((key for part in self.parts for key in part.keys), key=lambda key: (key != "data", key))
        self._where = where
        self._epoch: int | None = None
        self._cursor = OrderCursor()
        self._corpus: MetaCorpus | None = None
        self._occurrences: Occurrences = lambda: np.zeros(0, dtype=np.int64)

    def set_order(self, epoch: int | None, cursor: OrderCursor, corpus: MetaCorpus, occurrences: Occurrences) -> None:
        """Take an order; sub-datasets that its owner has started with it already stay as they are.

        Args:
            epoch: The epoch number.
            cursor: The order, of corpus indices of the whole.
            corpus: Leads from these to those of the sub-datasets.
            occurrences: Returns how often each sequence of the order came before; called if one draws by it.
        """
        self._epoch, self._cursor, self._corpus, self._occurrences = epoch, cursor, corpus, occurrences
        for part in self.parts:
            if not part.corpus.is_indexed and len(cursor.order):
                self.ready(part)

    def ready(self, part: MetaPart) -> MetaPart:
        """Return a sub-dataset, started with the current order."""
        if part.is_started:
            return part
        assert self._corpus is not None
        order, first, corpus = self._cursor.order, self._cursor.first, part.corpus
        indices = order.block(0, len(order))
        if not corpus.is_indexed:
            part.start_by_tags(self._epoch, first, self._corpus.tags(part.name, indices))
            return part
        occurrences = self._occurrences() if corpus.draws_by_occurrence and order.may_repeat else None
        part.start_at(self._epoch, first, self._corpus.places(part.name, indices), occurrences)
        return part

    def load(self, start: int, end: int) -> None:
        """Get sequences start..end (exclusive; may exceed the order) ready in all of them."""
        start, end = max(start, self._cursor.first), min(end, len(self._cursor))
        for part in self.parts if start < end else ():
            try:
                self.ready(part).load(start, end)
            except Exception as error:
                self._add_note(error, part, f"sequences {start}..{end - 1}")
                raise

    def get_features(self, seq_idx: int, tag: str) -> dict[str, NDArray[Any]]:
        """Return data key -> array of one sequence; its tag is for messages."""
        found: dict[str, NDArray[Any]] = {}
        for part in self.parts:
            try:
                found.update(self.ready(part).get_features(seq_idx))
            except Exception as error:
                self._add_note(error, part, f"sequence {tag!r}")
                raise
        return self._sorted(found)

    def _add_note(self, error: Exception, part: MetaPart, what: str) -> None:
        takes_note(error, f"sub-dataset {part.name!r} of {self._where}, {what}")

    def get_corpus_features(self, corpus: MetaCorpus, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return data key -> array of any sequence of the corpus, as it is stored."""
        found = {}
        for part in self.parts:
            place = int(corpus.places(part.name, np.array([corpus_idx]))[0])
            seq = part.dataset.get_corpus_seq(place)
            found.update({key: seq.features[own] for key, own in part.keys.items()})
        return self._sorted(found)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames of one sequence."""
        lengths: dict[str, Any] = {}
        for part in self.parts:
            lengths.update(self.ready(part).get_seq_lengths(seq_idx))
        return NumbersDict(self._sorted(lengths))

    def get_num_timesteps(self) -> NumbersDict | None:
        """Return data key -> number of frames of the whole order, `None` if that takes reading."""
        if not all(isinstance(part.dataset, CachedDataset) for part in self.parts):
            return None
        totals: dict[str, Any] = {}
        for part in self.parts:
            frames = self.ready(part).dataset.get_num_timesteps()
            totals.update({key: frames[own] for key, own in part.keys.items()})
        return NumbersDict(self._sorted(totals))

    def _sorted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: values[key] for key in self.keys}
