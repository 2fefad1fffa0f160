"""`RecordSource`: sequences that are records, such as a line, an entry of a manifest, or a file of a folder.

An index of records is gathered as `Gathered`: one column for each thing that is known of a sequence, and facts of all
values, see `codec.py`. What is gathered of several parts, by whichever process, is joined by `add`.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.index import CorpusIndex

from ..base import check_corpus_idx
from .codec import Codec, Facts, found_by, join_facts
from .folder import Listing
from .source import IndexedSource, make_index


@dataclass
class Gathered:
    """What is known of some records that follow one another.

    Attributes:
        lengths: Data key -> length of each.
        locators: Name -> what is needed to find each again.
        facts: Data key -> what the values say of all.
        tags: One for each.
    """

    lengths: dict[str, array[int]]
    locators: dict[str, array[int]]
    facts: dict[str, Facts]
    tags: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, keys: Iterable[str], locators: Iterable[str]) -> Self:
        """Return it of no records."""
        keys = list(keys)
        columns = {key: array("q") for key in keys}, {name: array("q") for name in locators}
        return cls(*columns, {key: {} for key in keys})

    @classmethod
    def of_files(cls, listing: Listing, keys: Iterable[str], more: Iterable[str] = ()) -> tuple[Self, list[str]]:
        """Return it with tags and locators of the files of a folder, see `listed_path`; and the suffixes of files.

        Raises:
            SourceError: Two files have the same tag.
        """
        tags, endings = listing.split()
        suffixes = sorted(set(endings))
        number_of = {suffix: number for number, suffix in enumerate(suffixes)}
        found = cls.of(keys, more)
        found.tags = tags
        columns = {"suffix": map(number_of.__getitem__, endings), "size": listing.sizes, "time": listing.times}
        found.locators |= {name: array("q", column) for name, column in columns.items()}
        return found, suffixes

    def note(self, codecs: Mapping[str, Codec], values: Mapping[str, Any], where: str) -> None:
        """Add the lengths and facts of one record, from a value for each codec."""
        for key, codec in codecs.items():
            self.lengths[key].append(codec.note(values[key], where, self.facts[key]))

    def locate(self, **numbers: int) -> None:
        """Add what is needed to find one record again."""
        for name, number in numbers.items():
            self.locators[name].append(number)

    def add(self, others: Gathered) -> None:
        """Add the records that follow."""
        self.tags += others.tags
        for own, more in ((self.lengths, others.lengths), (self.locators, others.locators)):
            for name, column in more.items():
                own[name] += column
        for key, facts in others.facts.items():
            join_facts(self.facts[key], facts)

    def index(
        self,
        codecs: Mapping[str, Codec],
        *,
        adopt: Callable[[dict[str, NDArray[np.int64]]], None] | None = None,
        **meta: Any,
    ) -> CorpusIndex:
        """Conclude from all values, and return the index; `adopt` corrects lengths by what a writer noted."""
        for key, codec in codecs.items():
            codec.conclude(self.facts[key])
        lengths, locators = (
            {name: np.array(column, np.int64) for name, column in columns.items()}
            for columns in (self.lengths, self.locators)
        )
        if adopt is not None:
            adopt(lengths)
        return make_index(**found_by(codecs), tags=self.tags, lengths=lengths, locators=locators, **meta)


class RecordSource(IndexedSource):
    """A source whose sequences are records, from which the arrays of several keys are made.

    Examples:
        >>> from headrace.sources import JsonlSource, RecordSource
        >>> issubclass(JsonlSource, RecordSource)  # a line holds the arrays of all keys
        True
    """

    @abstractmethod
    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> Any:
        """Return what is stored of a sequence that is there, as far as some keys need it."""

    @abstractmethod
    def _encode(self, record: Any, corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:
        """Return the array of a key, as a new one; `where` is what `_where` says of the sequence."""

    def _settle(self, codecs: Mapping[str, Codec]) -> None:
        """Give codecs what was concluded when the index was made."""
        learnt = self._index.meta.get("learnt", {})
        for key, codec in codecs.items():
            codec.settle(self.specs[key], self.labels.get(key), learnt.get(key))

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        return self._encode(self._record(corpus_idx, (data_key,)), corpus_idx, data_key, self._where(corpus_idx))

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one sequence, from one read."""
        check_corpus_idx(corpus_idx, self._num_seqs)
        record, where = self._record(corpus_idx, tuple(self.specs)), self._where(corpus_idx)
        return {key: self._checked(corpus_idx, key, self._encode(record, corpus_idx, key, where)) for key in self.specs}
