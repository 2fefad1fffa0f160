"""A source of JSON lines: each line is an object, and each of its fields a data key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.together import settle
from headrace.index import CorpusIndex, open_or_build
from headrace.specs import DataSpec

from .arguments import check_corpus_idx, check_data_key, num_frames_of, slice_frames
from .base import Source
from .decompressed import plain_copy
from .jsonl_gather import (
    DEFAULT_TAG_FIELD,
    JsonlOptions,
    RowDecoder,
    first_object,
    gather_jsonl,
    parse_fields,
    row_fields,
    tag_of,
)
from .jsonl_specs import jsonl_specs_path, read_jsonl_specs
from .plain_files import PlainFiles
from .text import PathLike, check_paths


class JsonlSource(Source):
    """The objects of files of JSON lines, one file after the other.

    A number becomes a key without time, a list a key with time, a list of equally long lists frames that are vectors,
    and a text its UTF-8 bytes; a text may also become classes of a vocabulary. The files are read once, to find the
    lines and the lengths; then an object is read by its place. Blank lines are skipped.

    Args:
        files: One path, or several; `.gz`, `.bz2` and `.xz` are decompressed once, see `plain_copy`.
        fields: Data key -> name of the field, in its natural form (see `JsonField`); or a dict: `{"field": name,
            "dtype": "int64", "dim": 100}` for numbers, `{"field": name, "vocab": ...}` for texts, see `parse_field`.
            `None` takes all fields that the first object has, but the tag, and those that have no array form.
        tag_field: Field with the tag, a text or a whole number; tags may repeat. `"auto"` is "tag" if the first object
            has it. `None` numbers the objects: `line-0`, `line-1`, ...
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads the files; a path
            opens the index that `JsonlSource(...).index.save(path)` wrote with the same options.

    A file `x.jsonl.specs.json` beside `x.jsonl`, as `JsonlWriter` writes it, says dtypes, shapes and labels.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing, a line is no JSON object, lacks a field, or has one of another form than before
            (it names the line); or a word has no class.
    """

    def __init__(
        self,
        files: PathLike | Sequence[PathLike],
        *,
        fields: Mapping[str, Any] | None = None,
        tag_field: str | None = "auto",
        index: PathLike | Literal["auto"] | None = "auto",
    ) -> None:
        names = check_paths(files, "JsonlSource")
        for name in names:
            settle(name)
        paths = tuple(map(plain_copy, names))
        first: dict[str, Any] = {}
        for path, name in zip(paths, names, strict=True):
            first = first or first_object(path, name)
        if tag_field == "auto":
            tag_field = DEFAULT_TAG_FIELD if isinstance(first.get(DEFAULT_TAG_FIELD), str) else None
        if tag_field is not None and not isinstance(tag_field, str):
            raise ConfigError(f"tag_field is {tag_field!r}, not a name", where="JsonlSource")
        given, labels = read_jsonl_specs(names, paths)
        options = JsonlOptions(paths, names, parse_fields(fields, first, tag_field, given), tag_field)
        beside = [path for path in map(jsonl_specs_path, names) if os.path.exists(path)]
        corpus = open_or_build([*paths, *beside], lambda: gather_jsonl(options), index=index, kind=options.kind)
        self._given_labels = {key: given_labels for key, given_labels in labels.items() if key in options.fields}
        self._attach(options, corpus)

    def _attach(self, options: JsonlOptions, index: CorpusIndex) -> None:
        """Work out everything that follows from the options and the index."""
        self._options, self._index, self._fields = options, index, options.fields
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in index.meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = {**self._given_labels, **index.meta["labels"]}
        for key, field in options.fields.items():
            field.adopt(self.specs[key])
            field.settle(self.labels.get(key))
        names = row_fields(options)
        self._decoder = RowDecoder(names)
        self._column_of = {key: names.index(field.name) for key, field in options.fields.items()}
        self._starts, self._num_bytes = index.locator("line_start"), index.locator("line_bytes")
        self._file_of = index.locator("file") if len(options.files) > 1 else None
        self._files = PlainFiles(index.files)

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where each line is."""
        return self._index

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one object, `dtype[T, ...]`, or a scalar array."""
        check_data_key(data_key, self.specs)
        return self._encoded(corpus_idx, data_key, *self._row(corpus_idx))

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key; the line is read whole."""
        return slice_frames(self.read(corpus_idx, data_key), self.specs[data_key], start, end).copy()

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one object, from one read."""
        row, where = self._row(corpus_idx)
        return {data_key: self._encoded(corpus_idx, data_key, row, where) for data_key in self.specs}

    def _row(self, corpus_idx: int) -> tuple[tuple[Any, ...], str]:
        """Read a line again; return the values of its fields, and what errors name."""
        index = self._index
        check_corpus_idx(corpus_idx, index.num_seqs)
        file_idx = 0 if self._file_of is None else int(self._file_of[corpus_idx])
        start, num_bytes = int(self._starts[corpus_idx]), int(self._num_bytes[corpus_idx])
        if not 0 <= file_idx < len(self._options.files):
            raise index.damaged(f"it says that sequence {corpus_idx} is in file {file_idx}")
        if not 0 <= start <= start + num_bytes <= index.files[file_idx].size:
            what = f"bytes {start}..{start + num_bytes} of a file of {index.files[file_idx].size}"
            raise index.damaged(f"it says that sequence {corpus_idx} is in {what}")
        where = f"{self._options.names[file_idx]}, byte {start}"
        row = self._decoder.decode(self._files.read(file_idx, start, num_bytes), where)
        if self._options.tag_field is not None and tag_of(row[0], where) != index.tags[corpus_idx]:
            raise _changed(f"the tag was {index.tags[corpus_idx]!r} and is {row[0]!r}", where)
        return row, f"{self._options.names[file_idx]}, tag {index.tags[corpus_idx]!r}"

    def _encoded(self, corpus_idx: int, data_key: str, row: tuple[Any, ...], where: str) -> NDArray[Any]:
        array = self._fields[data_key].encode(row[self._column_of[data_key]], where)
        expected = int(self._index.lengths(data_key)[corpus_idx])
        if num_frames_of(array, self.specs[data_key]) != expected:
            actual = num_frames_of(array, self.specs[data_key])
            raise _changed(f"the length of {data_key!r} was {expected} and is {actual}", where)
        return array

    def close(self) -> None:
        """Release files; a later read opens them again. Harmless when called twice."""
        self._files.close()

    def __getstate__(self) -> tuple[Any, ...]:
        return self._options, self._index, self._given_labels

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        options, index, self._given_labels = state
        self._attach(options, index)


def _changed(what: str, where: str) -> SourceError:
    return SourceError(f"the file is not what was indexed: {what}", where=where, fix="open the corpus again")
