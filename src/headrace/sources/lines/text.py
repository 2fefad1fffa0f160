"""A source of lines, each of which is a sequence, as bytes, characters, or classes of a vocabulary.

The files are read once, and one index of their lines is made; from then on a line is read by its position.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex, GeneratedTags

from ..base import check_corpus_idx
from ..shared.decompressed import plain_copy
from ..shared.fields import ByteField, Field, parse_field
from ..shared.lines import FILE, LINE_BYTES, LINE_START, LineBlock, LineSource, LineStretch, cut_stretches, scan_lines
from ..shared.parts import map_parts
from ..shared.paths import Files, IndexOption, list_paths
from ..shared.records import Gathered
from ..shared.source import PlainKey

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
    skip_invalid: bool = False
    own_tags: tuple[str, ...] | None = None

    @property
    def kind(self) -> str:
        """Identify the source and every option that changes its index: the same text in every process."""
        own_tags = None if self.own_tags is None else xxhash.xxh3_128_hexdigest("\n".join(self.own_tags).encode())
        fields = [[key, field.identity] for key, field in self.fields.items()]
        tags = [own_tags, self.tags, self.tag_prefix, [os.path.basename(name) for name in self.names]]
        return f"text-lines/2 {json.dumps([fields, tags, self.skip_empty, self.return_counts, self.skip_invalid])}"


@dataclass
class _FoundLines(Gathered):
    """What is known of lines that are sequences.

    Attributes:
        numbers: The number of each among those that are not skipped.
        num_seen: Lines that are not skipped, those that a field refused included.
    """

    numbers: array[int] = field(default_factory=partial(array, "q"))
    num_seen: int = 0

    def add(self, others: Gathered) -> None:
        """Add the lines that follow."""
        assert isinstance(others, _FoundLines)
        super().add(others)
        self.numbers.extend(number + self.num_seen for number in others.numbers)
        self.num_seen += others.num_seen


def gather_lines(options: TextOptions) -> CorpusIndex:
    """Read the files once. The fields learn their labels.

    Raises:
        SourceError: A file cannot be read or is not UTF-8, or a line has a part that its vocabulary lacks.
    """
    is_slow = any(target.is_slow for target in options.fields.values())
    stretches, num_workers = cut_stretches(options.files, pays=is_slow)
    found = _FoundLines.of(options.fields, (LINE_START, LINE_BYTES, FILE))
    for part in map_parts(partial(_take_stretch, options), stretches, num_workers=num_workers):
        found.add(part)
    if len(options.files) == 1:
        del found.locators[FILE]
    if options.tags == "number":
        generated = GeneratedTags(found.num_seen, options.tag_prefix)
        tags: Any = generated if options.own_tags is None else options.own_tags
        if len(tags) != found.num_seen:
            what = f"there are {len(tags)} tags for {found.num_seen} lines"
            raise SourceError(what, where=options.names[0], fix="correct the list")
        found.tags = [tags[number] for number in found.numbers] if options.skip_invalid else tags
    return found.index(options.fields)


def _take_stretch(options: TextOptions, stretch: LineStretch) -> _FoundLines:
    """Scan a stretch of a file."""
    found = _FoundLines.of(options.fields, (LINE_START, LINE_BYTES, FILE))
    for block in scan_lines(options.files[stretch.file_idx], stretch=stretch):
        _take_block(block, stretch.file_idx, options, found)
    return found


def _take_block(block: LineBlock, file_idx: int, options: TextOptions, found: _FoundLines) -> None:
    """Add the lines of one block."""
    name, starts, stops = options.names[file_idx], block.starts, block.stops
    text = decode_utf8(block.data, name, first_byte=block.position, first_line=block.first_line)
    has_return = (stops > starts) & (np.frombuffer(block.data, np.uint8)[stops - 1] == ord("\r"))
    is_kept = stops - starts > (0 if options.return_counts else has_return)
    kept = np.flatnonzero(is_kept) if options.skip_empty[file_idx] else np.arange(len(starts))
    numbers = found.num_seen + np.arange(len(kept))
    found.num_seen += len(kept)
    if all(type(target) is ByteField for target in options.fields.values()):
        lengths = dict.fromkeys(options.fields, (stops - starts - has_return)[kept])
    else:
        texts = text.split("\n")  # one split for the block: a quarter of the time that it takes line by line
        lengths = {key: np.zeros(len(kept), np.int64) for key in options.fields}
        is_good = np.ones(len(kept), np.bool_)
        noted = [(lengths[key], target.note, found.facts[key]) for key, target in options.fields.items()]
        for position, line_idx in enumerate(kept.tolist()):
            line, where = texts[line_idx].removesuffix("\r"), f"{name}, line {block.first_line + line_idx}"
            try:
                for column, note, facts in noted:
                    column[position] = note(line, where, facts)
            except SourceError:
                if not options.skip_invalid:
                    raise
                is_good[position] = False
        lengths = {key: column[is_good] for key, column in lengths.items()}
        kept, numbers = kept[is_good], numbers[is_good]
    columns = [(found.lengths[key], column) for key, column in lengths.items()]
    columns.append((found.locators[LINE_START], starts[kept] + block.position))
    columns.append((found.locators[LINE_BYTES], stops[kept] - starts[kept]))
    columns.append((found.locators[FILE], np.full(len(kept), file_idx)))
    if options.skip_invalid:
        columns.append((found.numbers, numbers))
    for column, values in columns:
        column.frombytes(values.astype(np.int64, copy=False).tobytes())
    if options.tags == "place":
        found.tags += [f"{os.path.basename(name)}:{line}" for line in (kept + block.first_line).tolist()]


class TextSource(LineSource):
    """The lines of UTF-8 text files, one file after the other.

    The files are read once, to find the lines and their lengths: as bytes at the speed of the disk, with a vocabulary
    at that of the vocabulary. Then a line is read at its position. Compressed files are decompressed once, into the
    cache folder, see `plain_copy`.

    Args:
        files: One path, or several; `.gz`, `.bz2`, `.xz` and `.zst` are decompressed.
        vocab: What a line becomes, as key "data": `None` or "bytes" (UTF-8, 256 classes), "chars", what
            `init_vocabulary` takes (the path of a `tokenizer.json`, a tokenizer, a dict, ...), or what `parse_field`
            knows more.
        fields: Instead of `vocab`, for several keys: data key -> `{"field": "text", "vocab": ...}`.
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

    _options: TextOptions
    _changed_fix = "the file or the library of the vocabulary changed: open the corpus again with index=None"

    def __init__(
        self,
        files: Files,
        *,
        vocab: Any = None,
        fields: Mapping[str, Any] | None = None,
        tags: Literal["number", "place"] = "number",
        skip_empty: bool = False,
        index: IndexOption = "auto",
    ) -> None:
        if fields is not None and vocab is not None:
            raise ConfigError("give either vocab= or fields=", where="TextSource")
        if tags not in ("number", "place"):
            raise ConfigError(f"tags is {tags!r}", where="TextSource", fix='use "number" or "place"')
        if fields is None:
            fields = {"data": {"field": TEXT_FIELD, "vocab": "bytes" if vocab is None else vocab}}
        parsed = {
            key: target if isinstance(target, Field) else parse_field(key, target) for key, target in fields.items()
        }
        for key, asked in parsed.items():
            if asked.name != TEXT_FIELD:
                raise ConfigError(
                    f"the key {key!r} names the field {asked.name!r}, but a line has only {TEXT_FIELD!r}",
                    where="TextSource",
                    fix=f'write {{"field": {TEXT_FIELD!r}, "vocab": ...}}',
                )
        names = list_paths(files, "TextSource")
        skipped = (bool(skip_empty),) * len(names)
        self._open_lines(TextOptions(tuple(map(plain_copy, names)), names, parsed, tags, skip_empty=skipped), index)

    @classmethod
    def from_options(cls, options: TextOptions, index: IndexOption = "auto") -> TextSource:
        """Make a source of checked options, for datasets that have fields of their own."""
        source = cls.__new__(cls)
        source._open_lines(options, index)
        return source

    def _open_lines(self, options: TextOptions, index: IndexOption) -> None:
        self._open(options, options.files, lambda: gather_lines(options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        super()._prepare()
        for key, asked in self._options.fields.items():
            if type(asked) is ByteField:
                self._plain[key] = PlainKey.of(self.specs[key], self._index.lengths(key))

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files as they were given, absolute."""
        return self._options.names

    def read_text(self, corpus_idx: int) -> str:
        """Return the text of a line."""
        return self._record(check_corpus_idx(corpus_idx, self._num_seqs), ())

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> str:  # noqa: ARG002 - there is only the text
        file_idx, start, num_bytes = self._locate(corpus_idx)
        data = self._files.read(file_idx, start, num_bytes)
        return decode_utf8(data, self._options.names[file_idx], first_byte=start).removesuffix("\r")

    def _encode(self, record: str, corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:  # noqa: ARG002
        return self._options.fields[data_key].encode(record, where)
