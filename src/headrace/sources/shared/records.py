"""`Records`: sequences that are stretches of files; `RecordSource`: sequences that are records of any kind.

An index of records is gathered as `Gathered`: one column for each thing that is known of a sequence, and facts of all
values, see `codec.py`. What is gathered of several parts, by whichever process, is joined by `add`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.index import CorpusIndex, GeneratedTags
from headrace.specs import DataSpec

from ..base import check_corpus_idx, num_frames_of
from .codec import Codec, Facts, found_by, join_facts
from .data_types import checked_seq, learn_specs, parse_data_types, with_labels
from .parts import MIN_SHARED_BYTES, are_large, count_workers, map_parts
from .paths import Files, IndexOption, list_paths
from .source import IndexedSource, column_view, make_index


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

    def add_files(
        self, gather: Callable[[str], Gathered], paths: Sequence[str], *, min_bytes: int = MIN_SHARED_BYTES
    ) -> None:
        """Add what is gathered of each file, and its number as "file"; several processes share files of `min_bytes`."""
        num_workers = count_workers(len(paths), pays=are_large(paths, min_bytes))
        for file_idx, part in enumerate(map_parts(gather, paths, num_workers=num_workers)):
            part.locators["file"] = array("q", [file_idx]) * len(part.tags)
            self.add(part)

    def columns(self) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
        """Return lengths and locators as arrays, `int64[N]`."""
        lengths, locators = (
            {name: np.array(column, np.int64) for name, column in columns.items()}
            for columns in (self.lengths, self.locators)
        )
        return lengths, locators

    def index(
        self,
        codecs: Mapping[str, Codec],
        *,
        adopt: Callable[[dict[str, NDArray[np.int64]]], None] | None = None,
        tags: GeneratedTags | None = None,
        **meta: Any,
    ) -> CorpusIndex:
        """Conclude from all values, and return the index; `adopt` corrects lengths by what a writer noted."""
        for key, codec in codecs.items():
            codec.conclude(self.facts[key])
        lengths, locators = self.columns()
        if adopt is not None:
            adopt(lengths)
        return make_index(**found_by(codecs), tags=tags or self.tags, lengths=lengths, locators=locators, **meta)


class RecordSource(IndexedSource):
    """A source whose sequences are records, from which the arrays of several keys are made."""

    @abstractmethod
    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> Any:
        """Return what is stored of a sequence that is there, as far as some keys need it."""

    @abstractmethod
    def _encode(self, record: Any, corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:
        """Return the array of a key, as a new one; `where` is what `_where` says of the sequence."""

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        return self._encode(self._record(corpus_idx, (data_key,)), corpus_idx, data_key, self._where(corpus_idx))

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one sequence, from one read."""
        check_corpus_idx(corpus_idx, self._num_seqs)
        record, where = self._record(corpus_idx, tuple(self.specs)), self._where(corpus_idx)
        return {key: self._checked(corpus_idx, key, self._encode(record, corpus_idx, key, where)) for key in self.specs}


_MIN_READ_BYTES = 256 << 20  # of files that are read whole; a second of work


class RecordFormat(ABC):
    """Where the records of a file are, and what arrays they hold. A dataclass of its options: `repr` has to name them.

    Both methods are pure: they keep nothing from one call to the next, and other processes call them on copies.
    """

    @abstractmethod
    def scan(self, path: str) -> Iterable[tuple[str, int, int]]:
        """Yield tag, first byte and number of bytes of each record of a file.

        Raises:
            SourceError: The file is damaged.
        """

    @abstractmethod
    def decode(self, data: bytes, where: str) -> Mapping[str, Any]:
        """Return the arrays of one record: data key -> what `as_array` takes.

        Raises:
            SourceError: It is damaged; `where` is what to call it.
        """


class Records(RecordSource):
    """The records of files, each of which is a sequence. All are read once, for their lengths, and then at random.

    The layout is what `specs` say, or else that of the first record; one that differs is an error.

    Args:
        files: One path, or several; patterns, folders and URLs too.
        record_format: How the files are read.
        specs: Layouts, see `parse_data_types`; other keys of a record are left out.
        labels: Data key -> class labels.
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads the files; a path
            opens the index that `source.index.save(path)` wrote with the same options.

    Raises:
        ConfigError: There is no record, and no specs; or labels do not fit.
        SourceError: A file or a record is damaged, or has another layout: the error names file, record, data key, and
            both layouts.
    """

    _changed_fix = "the data changed since they were indexed: open the corpus again"

    def __init__(
        self,
        files: Files,
        record_format: RecordFormat,
        *,
        specs: Mapping[str, DataSpec | Mapping[str, Any]] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        index: IndexOption = "auto",
    ) -> None:
        given = None if specs is None else parse_data_types(specs)
        paths = list_paths(files, type(self).__name__)
        own_labels = {key: list(names) for key, names in (labels or {}).items()}
        said = None if given is None else {key: spec.to_json() for key, spec in given.items()}
        kind = type(record_format)
        self._open(
            record_format,
            paths,
            partial(_gather_records, record_format, paths, given, own_labels),
            index=index,
            kind=f"records/1 {kind.__module__}:{kind.__qualname__} {record_format!r} {said!r} {own_labels!r}",
        )

    @property
    def runs_user_code(self) -> bool:
        """Whether the format is of a user."""
        return super().runs_user_code or not type(self._options).__module__.startswith("headrace.")

    def _prepare(self) -> None:
        names = ("file", "start", "bytes")
        self._places = [column_view(self._index.locator(name)) for name in names]
        self._is_exact = bool(self._index.meta["is_exact"])

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002
        file_idx, start, num_bytes = (column[corpus_idx] for column in self._places)
        if not 0 <= file_idx < len(self._index.files) or start < 0 or num_bytes < 0:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is at byte {start} of file {file_idx}")
        where = self._where(corpus_idx)
        arrays = self._options.decode(self._files.read(file_idx, start, num_bytes), where)
        return checked_seq(arrays, self.specs, exact=self._is_exact, where=where)

    def _encode(self, record: Mapping[str, Any], corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:  # noqa: ARG002
        return np.array(record[data_key])

    def _where(self, corpus_idx: int) -> str:
        return f"{self.files[self._places[0][corpus_idx]]}, tag {self._index.tags[corpus_idx]!r}"


def _gather_records(
    record_format: RecordFormat,
    paths: Sequence[str],
    given: Mapping[str, DataSpec] | None,
    labels: Mapping[str, Sequence[str]],
) -> CorpusIndex:
    specs = given
    if specs is None:
        first = next((record for path in paths for record in _records_of(record_format, path)), None)
        if first is None:
            what = "there are no records, and so no layout"
            raise ConfigError(what, where=", ".join(paths[:3]), fix="check the path, or give specs=")
        specs = learn_specs(record_format.decode(first[2], first[3]), first[3])
    specs = with_labels(specs, labels)
    gather = partial(_gather_records_of, record_format, specs, is_exact=given is None)
    found = Gathered.of(specs, ("file", "start", "bytes"))
    found.add_files(gather, paths, min_bytes=_MIN_READ_BYTES)
    lengths, locators = found.columns()
    return make_index(
        specs=specs, labels=labels, tags=found.tags, lengths=lengths, locators=locators, is_exact=given is None
    )


def _records_of(record_format: RecordFormat, path: str) -> Iterator[tuple[str, int, bytes, str]]:
    """Yield tag, first byte, bytes, and what to call it, of each record of a file."""
    with open_regular(path) as file:
        for tag, start, num_bytes in record_format.scan(path):
            where = f"{path}, tag {tag!r}"
            file.seek(start)
            data = file.read(num_bytes)
            if len(data) < num_bytes:
                what = f"the file ends in a record of {num_bytes} bytes at byte {start}"
                raise SourceError(what, where=where, fix="it is truncated: get or write it again")
            yield tag, start, data, where


def _gather_records_of(
    record_format: RecordFormat, specs: Mapping[str, DataSpec], path: str, *, is_exact: bool
) -> Gathered:
    """Return what is known of the records of one file."""
    found = Gathered.of(specs, ("start", "bytes"))
    for tag, start, data, where in _records_of(record_format, path):
        arrays = checked_seq(record_format.decode(data, where), specs, exact=is_exact, where=where)
        for key, spec in specs.items():
            found.lengths[key].append(num_frames_of(arrays[key], spec))
        found.tags.append(tag)
        found.locate(start=start, bytes=len(data))
    return found
