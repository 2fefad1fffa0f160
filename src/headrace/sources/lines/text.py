"""A source of lines, each of which is a sequence, as bytes, characters, or classes of a vocabulary.

The files are read once, and one index of their lines is made; from then on a line is read by its position.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex, GeneratedTags, open_or_build
from headrace.specs import DataSpec

from ..base import Source, check_corpus_idx, check_data_key
from ..shared.decompressed import plain_copy
from ..shared.fields import ByteField, Field, parse_field
from ..shared.plain_files import PlainFiles
from .blocks import LineBlock, scan_lines

INDEX_KIND = "text-lines/1"  # with the version of what the columns and `meta` say
TEXT_FIELD = "text"


@dataclass(frozen=True)
class TextOptions:
    """How lines become sequences.

    Attributes:
        files: The files as they are read: decompressed.
        names: What the user called them, for tags and errors.
        fields: Data key -> what its arrays are made of.
        tags: "number" or "place".
        tag_prefix: What stands before the number.
        skip_empty: For each file, whether an empty line is no sequence.
        return_counts: Whether a line of a carriage return alone is not empty, as RETURNN has it.
        strip: For each file, whether lines are what is left of them without ASCII whitespace at both ends.
        skip_invalid: Whether a line that a field refuses is left out, and its number with it.
        own_tags: Tags of all lines that are not skipped, in place of others.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    fields: dict[str, Field]
    tags: Literal["number", "place"] = "number"
    tag_prefix: str = "line-"
    skip_empty: tuple[bool, ...] = ()
    return_counts: bool = False
    strip: tuple[bool, ...] = ()
    skip_invalid: bool = False
    own_tags: tuple[str, ...] | None = None

    @property
    def kind(self) -> str:
        """Name the source and every option that changes what is in its index: the same text in every process."""
        own_tags = None if self.own_tags is None else xxhash.xxh3_128_hexdigest("\n".join(self.own_tags).encode())
        said = {
            "fields": [[key, field.identity] for key, field in self.fields.items()],
            "tags": [own_tags, self.tags, self.tag_prefix, [os.path.basename(name) for name in self.names]],
            "lines": [self.skip_empty, self.return_counts, self.strip, self.skip_invalid],
        }
        return f"{INDEX_KIND} {json.dumps(said)}"


@dataclass
class _Lines:
    """Columns of the lines found so far, in pieces."""

    starts: list[NDArray[np.int64]] = field(default_factory=list)
    num_bytes: list[NDArray[np.int64]] = field(default_factory=list)
    file_of: list[NDArray[np.int32]] = field(default_factory=list)
    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    lengths: dict[str, list[NDArray[np.int64]]] = field(default_factory=dict)
    num_seen: int = 0


def gather_lines(options: TextOptions) -> CorpusIndex:
    """Read the files once. The fields learn their labels.

    Raises:
        SourceError: A file cannot be read or is not UTF-8, or a line has a part that its vocabulary lacks.
    """
    found = _Lines(lengths={key: [] for key in options.fields})
    tags: list[str] = []
    for file_idx, path in enumerate(options.files):
        for block in scan_lines(path):
            numbers = _take_block(block, file_idx, options, found)
            if options.tags == "place":
                name = os.path.basename(options.names[file_idx])
                tags += [f"{name}:{number}" for number in numbers.tolist()]
    for target in options.fields.values():
        target.end_scan()
    starts = _joined(found.starts)
    names: Any = tags
    if options.tags == "number":
        names = GeneratedTags(found.num_seen, options.tag_prefix) if options.own_tags is None else options.own_tags
        if len(names) != found.num_seen:
            raise SourceError(
                f"there are {len(names)} tags for {found.num_seen} lines",
                where=options.names[0],
                fix="correct the list",
            )
        if found.num_seen != len(starts):
            names = [names[number] for number in _joined(found.numbers).tolist()]
    locators = {"line_start": starts, "line_bytes": _joined(found.num_bytes)}
    if len(options.files) > 1:
        locators["file"] = _joined(found.file_of)
    return CorpusIndex.from_columns(
        tags=names,
        lengths={key: _joined(lengths) for key, lengths in found.lengths.items()},
        locators=locators,
        meta={
            "specs": {key: field.spec.to_json() for key, field in options.fields.items()},
            "labels": {key: field.labels for key, field in options.fields.items() if field.labels is not None},
        },
    )


def _take_block(block: LineBlock, file_idx: int, options: TextOptions, found: _Lines) -> NDArray[np.int64]:
    """Take down the lines of one block; return their line numbers."""
    name = options.names[file_idx]
    text = decode_utf8(block.data, name, first_byte=block.position, first_line=block.first_line)
    starts, stops = block.starts, block.stops
    if options.strip[file_idx]:
        starts, stops = _stripped(block)
    data = np.frombuffer(block.data, np.uint8)
    has_return = (stops > starts) & (data[stops - 1] == ord("\r"))
    is_kept = stops - starts > (0 if options.return_counts else has_return)
    kept = np.flatnonzero(is_kept) if options.skip_empty[file_idx] else np.arange(len(starts))
    sequence = found.num_seen + np.arange(len(kept))
    found.num_seen += len(kept)
    lengths: dict[str, NDArray[np.int64]] = {}
    if all(type(target) is ByteField for target in options.fields.values()):
        lengths = dict.fromkeys(options.fields, (stops - starts - has_return)[kept])
    else:
        # One decoding and one split for the block: a quarter of the time that it takes line by line.
        texts: list[str] = (
            text.split("\n") if not options.strip[file_idx] else [line.strip().decode() for line in block.lines()]
        )
        columns, is_good = _scan_fields(texts, kept, block.first_line, name, options)
        lengths = {key: column[is_good] for key, column in columns.items()}
        kept, sequence = kept[is_good], sequence[is_good]
    found.starts.append(starts[kept] + block.position)
    found.num_bytes.append(stops[kept] - starts[kept])
    found.file_of.append(np.full(len(kept), file_idx, np.int32))
    for key, column in lengths.items():
        found.lengths[key].append(column)
    if options.skip_invalid:
        found.numbers.append(sequence)
    return kept + block.first_line


def _scan_fields(
    texts: list[str], kept: NDArray[np.int64], first_line: int, name: str, options: TextOptions
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.bool_]]:
    """Let the fields see the lines; return the length of each, and which lines none of them refused."""
    columns = {key: np.zeros(len(kept), np.int64) for key in options.fields}
    is_good = np.ones(len(kept), np.bool_)
    scans = [(columns[key], target.scan) for key, target in options.fields.items()]
    for position, line_idx in enumerate(kept.tolist()):
        text, where = texts[line_idx].removesuffix("\r"), f"{name}, line {first_line + line_idx}"
        try:
            for column, scan in scans:
                column[position] = scan(text, where)
        except SourceError:
            if not options.skip_invalid:
                raise
            is_good[position] = False
    return columns, is_good


def _stripped(block: LineBlock) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where lines start and stop without ASCII whitespace at both ends."""
    starts = np.empty(len(block.starts), np.int64)
    stops = np.empty(len(block.starts), np.int64)
    for i, (start, line) in enumerate(zip(block.starts.tolist(), block.lines(), strict=True)):
        rest = line.lstrip()
        starts[i] = start + len(line) - len(rest)
        stops[i] = starts[i] + len(rest.rstrip())
    return starts, stops


def _joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def text_fields(fields: Mapping[str, Any] | None, vocab: Any) -> dict[str, Field]:
    """Return the fields that the user described, one way or the other."""
    if fields is None:
        fields = {"data": {"field": TEXT_FIELD, "vocab": "bytes" if vocab is None else vocab}}
    return {key: target if isinstance(target, Field) else parse_field(key, target) for key, target in fields.items()}


PathLike = str | os.PathLike[str]


class TextSource(Source):
    """The lines of UTF-8 text files, one file after the other.

    The files are read once, to find the lines and their lengths: as bytes at the speed of the disk, with a vocabulary
    at that of the vocabulary. Then a line is read by its place. Compressed files are decompressed once, into the cache
    folder, see `plain_copy`.

    Args:
        files: One path, or several; `.gz`, `.bz2` and `.xz` are decompressed.
        vocab: What a line becomes, as key "data": `None` or "bytes" (UTF-8, 256 classes), "chars", a `Vocabulary`, a
            dict of one such as `{"class": "SentencePieces", "model_file": ...}`, or what `parse_field` knows more.
        fields: In place of `vocab`, for several keys: data key -> `{"field": "text", "vocab": ...}`.
        tags: "number" for `line-0`, `line-1`, ..., counted over all files, which takes no memory; "place" for
            `<file name>:<line number from 1>`.
        skip_empty: Whether lines without a character are no sequences.
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always scans the files; a path
            opens the index that `TextSource(...).index.save(path)` wrote with the same options.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing or not UTF-8 (it names line and byte), or a word has no class (it names word and
            line).
    """

    def __init__(
        self,
        files: PathLike | Sequence[PathLike],
        *,
        vocab: Any = None,
        fields: Mapping[str, Any] | None = None,
        tags: Literal["number", "place"] = "number",
        skip_empty: bool = False,
        index: PathLike | Literal["auto"] | None = "auto",
    ) -> None:
        if fields is not None and vocab is not None:
            raise ConfigError("give either vocab= or fields=", where="TextSource")
        if tags not in ("number", "place"):
            raise ConfigError(f"tags is {tags!r}", where="TextSource", fix='use "number" or "place"')
        parsed = text_fields(fields, vocab)
        for key, asked in parsed.items():
            if asked.name != TEXT_FIELD:
                raise ConfigError(
                    f"the key {key!r} names the field {asked.name!r}, but a line has only {TEXT_FIELD!r}",
                    where="TextSource",
                    fix=f'write {{"field": {TEXT_FIELD!r}, "vocab": ...}}',
                )
        names = check_paths(files, "TextSource")
        options = TextOptions(
            tuple(map(plain_copy, names)),
            names,
            parsed,
            tags,
            skip_empty=(bool(skip_empty),) * len(names),
            strip=(False,) * len(names),
        )
        self._open(options, index)

    @classmethod
    def from_options(cls, options: TextOptions, index: PathLike | Literal["auto"] | None = "auto") -> TextSource:
        """Make a source of checked options, for datasets that have fields of their own."""
        source = cls.__new__(cls)
        source._open(options, index)
        return source

    def _open(self, options: TextOptions, index: Any) -> None:
        files = options.files
        self._attach(options, open_or_build(files, lambda: gather_lines(options), index=index, kind=options.kind))

    def _attach(self, options: TextOptions, index: CorpusIndex) -> None:
        """Work out everything that follows from the options and the index."""
        self._options, self._index = options, index
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in index.meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = dict(index.meta["labels"])
        for key, asked in options.fields.items():
            asked.settle(self.labels.get(key))
        self._fields = options.fields
        self._is_bytes = {key: type(asked) is ByteField for key, asked in options.fields.items()}
        self._starts, self._num_bytes = index.locator("line_start"), index.locator("line_bytes")
        self._file_of = index.locator("file") if len(options.files) > 1 else None
        self._files = PlainFiles(index.files)

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where each line is."""
        return self._index

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files as they were given, absolute."""
        return self._options.names

    def read_text(self, corpus_idx: int) -> str:
        """Return the text of a line."""
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        return self._text(corpus_idx)

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one line, `dtype[T]`."""
        check_data_key(data_key, self.specs)
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        if self._is_bytes[data_key]:
            return self._read_bytes(corpus_idx, 0, int(self._index.lengths(data_key)[corpus_idx]))
        return self._encoded(corpus_idx, data_key, self._text(corpus_idx))

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one line."""
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        text = self._text(corpus_idx)
        return {data_key: self._encoded(corpus_idx, data_key, text) for data_key in self.specs}

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key, `dtype[end - start]`; of bytes, no others are read."""
        check_data_key(data_key, self.specs)
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        length = int(self._index.lengths(data_key)[corpus_idx])
        if not 0 <= start <= end <= length:
            raise IndexError(f"frames {start}..{end} of a sequence of {length} frames")
        if self._is_bytes[data_key]:
            return self._read_bytes(corpus_idx, start, end)
        return self.read(corpus_idx, data_key)[start:end].copy()

    @property
    def has_fast_rows(self) -> bool:
        """Yes, if all keys are bytes: they are read to where they are wanted."""
        return all(self._is_bytes.values())

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several lines into one array."""
        check_data_key(data_key, self.specs)
        ends = np.cumsum(self._index.lengths(data_key)[corpus_indices], dtype=np.int64)
        if len(out) != (int(ends[-1]) if len(ends) else 0):
            raise IndexError(f"the sequences do not have {len(out)} frames")
        self.read_into(corpus_indices, data_key, np.split(out, ends[:-1]) if len(ends) else [])

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several lines, each into an array of its own."""
        check_data_key(data_key, self.specs)
        lengths = self._index.lengths(data_key)
        for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True):
            check_corpus_idx(corpus_idx, self._index.num_seqs)
            if len(out) != lengths[corpus_idx]:
                raise IndexError(f"{lengths[corpus_idx]} frames of {data_key!r} do not fit into {len(out)} rows")
        if self._is_bytes[data_key] and all(out.dtype == np.uint8 for out in outs):
            self._files.read_many(
                (*self._bytes_of(corpus_idx, 0, len(out)), out)
                for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True)
            )
            return
        for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True):
            out[...] = self.read(corpus_idx, data_key)

    def _place(self, corpus_idx: int) -> tuple[int, int, int]:
        """Return file, first byte and number of bytes of a line; a damaged index must not read anything else."""
        file_idx = 0 if self._file_of is None else int(self._file_of[corpus_idx])
        start, num_bytes = int(self._starts[corpus_idx]), int(self._num_bytes[corpus_idx])
        if not 0 <= file_idx < len(self._index.files):
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in file {file_idx}")
        if not 0 <= start <= start + num_bytes <= self._index.files[file_idx].size:
            what = f"bytes {start}..{start + num_bytes} of a file of {self._index.files[file_idx].size}"
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in {what}")
        return file_idx, start, num_bytes

    def _read_bytes(self, corpus_idx: int, start: int, end: int) -> NDArray[Any]:
        return self._files.read_array(*self._bytes_of(corpus_idx, start, end), (end - start,), np.dtype(np.uint8))

    def _bytes_of(self, corpus_idx: int, start: int, end: int) -> tuple[int, int]:
        """Return the file of a line, and the position there of its bytes start..end."""
        file_idx, position, num_bytes = self._place(corpus_idx)
        if not 0 <= start <= end <= num_bytes:
            raise self._index.damaged(f"it says that sequence {corpus_idx} has {end} bytes or more in {num_bytes}")
        return file_idx, position + start

    def _text(self, corpus_idx: int) -> str:
        file_idx, start, num_bytes = self._place(corpus_idx)
        data = self._files.read(file_idx, start, num_bytes)
        return decode_utf8(data, self._options.names[file_idx], first_byte=start).removesuffix("\r")

    def _encoded(self, corpus_idx: int, data_key: str, text: str) -> NDArray[Any]:
        where = f"{self._options.names[self._place(corpus_idx)[0]]}, tag {self._index.tags[corpus_idx]!r}"
        array = self._fields[data_key].encode(text, where)
        expected = int(self._index.lengths(data_key)[corpus_idx])
        if len(array) != expected:
            raise SourceError(
                f"the length of {data_key!r} was {expected} and is {len(array)}",
                where=where,
                fix="the file or the library of the vocabulary changed: open the corpus again with index=None",
            )
        return array

    def close(self) -> None:
        """Release files; a later read opens them again. Harmless when called twice."""
        self._files.close()

    def __getstate__(self) -> tuple[TextOptions, CorpusIndex]:
        return self._options, self._index

    def __setstate__(self, state: tuple[TextOptions, CorpusIndex]) -> None:
        self._attach(*state)


def check_paths(files: Any, where: str) -> tuple[str, ...]:
    """Return absolute paths of one path or several.

    Raises:
        ConfigError: It is something else, or an empty list.
    """
    is_one = isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable)
    paths = [files] if is_one else list(files)
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"{path!r} is not a path", where=f"{where}(files=...)", fix="give a str or a Path")
    if not paths:
        raise ConfigError("files is an empty list", where=where, fix="name at least one file")
    return tuple(os.path.abspath(path) for path in paths)
