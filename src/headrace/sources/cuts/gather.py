"""From manifests or Shar folders to one index of the corpus: ids, lengths, and the position of each part of each cut.

Every line is read once, through lhotse, some 50 us a cut; of Shar's tar files the headers and the small manifests.
Nothing is decoded but one array of each custom key, whose dtype no manifest says.
"""

from __future__ import annotations

import itertools
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.index import CorpusIndex

from ..shared.codec import found_by
from ..shared.parts import are_large, count_workers, scan_parts
from ..shared.source import make_index
from .files import CutFiles, Member, scan_lines, scan_tar
from .keys import CutKey, custom_kinds, default_fields, parse_key
from .library import lhotse_errors, recordings_of
from .schema import NO_ROOTS, Roots
from .table import LINE_BYTES, LINE_START, SHARD, FieldColumns, attach_data, attach_value, decode_cut

INDEX_KIND = "lhotse-cuts/2"  # with the version of what the columns and `meta` say
_MIN_SHARED_BYTES = 64 << 20  # of manifests: some seconds, where processes that import lhotse start in two
_MAX_NAMED = 5  # missing files that an error names; the rest is counted


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How cuts become arrays.

    Attributes:
        fields: Data key -> field, as the user said it; None: what the first cut has.
        tolerance: Seconds that a recording may end before its cut does.
    """

    fields: dict[str, Any] | None
    tolerance: float

    def __post_init__(self) -> None:
        """Refuse options that are not fields."""
        self.identity()

    def identity(self) -> list[Any] | None:
        """Return JSON data of all options that change an index."""
        if self.fields is None:
            return None
        return [[key, parse_key(key, option, 0.0, {}).identity] for key, option in self.fields.items()]

    def keys(self, fields: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, CutKey]:
        """Return the data keys, given the kinds of custom attributes."""
        return {key: parse_key(key, option, self.tolerance, kinds) for key, option in fields.items()}


def index_kind(files: CutFiles, options: CutOptions) -> str:
    """Identify the source and every option that changes its index: the same text in every process."""
    return f"{INDEX_KIND} {json.dumps([list(files.fields), options.identity()], default=repr)}"


@dataclass
class _Columns:
    """What is known of the cuts of a shard, or of all: columns of the index, one entry for each cut.

    Attributes:
        tags: Their ids.
        lengths: Data key -> lengths.
        locators: Name -> column.
        suffixes: Suffixes of members of Shar -> the number that stands for it.
        audio: Files of recordings -> whether they are there.
        text_bytes: Number of a file -> how many bytes of text it has.
    """

    tags: list[str] = field(default_factory=list)
    lengths: dict[str, array[int]] = field(default_factory=dict)
    locators: dict[str, array[int]] = field(default_factory=dict)
    suffixes: dict[str, int] = field(default_factory=dict)
    audio: dict[str, bool] = field(default_factory=dict)
    text_bytes: dict[int, int] = field(default_factory=dict)

    def note(self, name: str, number: int) -> None:
        """Add a number to a locator."""
        self.locators.setdefault(name, array("q")).append(number)

    def note_member(self, name: str, member: Member) -> None:
        """Add where the data of a field of Shar are."""
        suffix = self.suffixes.setdefault(member.suffix, len(self.suffixes))
        numbers = (member.start, member.num_bytes, member.meta_start, member.meta_bytes, suffix)
        for column, number in zip(FieldColumns.of(name), numbers, strict=True):
            self.note(column, number)

    def add(self, other: _Columns, fields: Iterable[str]) -> None:
        """Add the cuts of the next shard, which has these fields of Shar."""
        suffix_of = [self.suffixes.setdefault(suffix, len(self.suffixes)) for suffix in other.suffixes]
        for column in (FieldColumns.of(name).suffix for name in fields):
            if column in other.locators:
                other.locators[column] = array("q", [suffix_of[number] for number in other.locators[column]])
        self.tags += other.tags
        for own, more in ((self.lengths, other.lengths), (self.locators, other.locators)):
            for name, numbers in more.items():
                own.setdefault(name, array("q")).extend(numbers)
        self.audio.update((path, is_there) for path, is_there in other.audio.items() if path not in self.audio)
        self.text_bytes.update(other.text_bytes)


class Gathering:
    """Looks at cuts.

    Args:
        options: How cuts become arrays.
        roots: Where files that a manifest names may be.

    Attributes:
        keys: Data key -> how its arrays come from cuts; `None`: there was no cut yet, and the first one says it.
    """

    def __init__(self, options: CutOptions, roots: Roots = NO_ROOTS) -> None:
        self._options, self._roots = options, roots
        self.keys: dict[str, CutKey] | None = None
        self._fields: Mapping[str, Any] = options.fields or {}
        self._kinds: dict[str, str] = {}

    def take(self, columns: _Columns, cut: Any, where: str) -> None:
        """Add the id and the lengths of a cut.

        Raises:
            SourceError: It does not have what it should.
        """
        if self.keys is None:
            self._kinds = custom_kinds(cut)
            if self._options.fields is None:
                self._fields = default_fields(cut)
            self.keys = self._options.keys(self._fields, self._kinds)
        columns.tags.append(cut.id)
        for key, found in self.keys.items():
            columns.lengths.setdefault(key, array("q")).append(found.scan(cut, where))
        for source in itertools.chain.from_iterable(recording.sources for recording in recordings_of(cut)):
            if source.type == "file" and source.source not in columns.audio:
                columns.audio[source.source] = os.path.isfile(source.source)

    def take_shard(self, files: CutFiles, shard: int) -> _Columns:
        """Return what is known of the cuts of a shard.

        Raises:
            SourceError: It cannot be read, or its files do not fit together.
        """
        columns, path = _Columns(), files.cuts[shard]
        others = {name: _Members(files, name, shard, self._roots) for name in files.fields}
        columns.text_bytes[shard] = 0
        for number, start, line in scan_lines(path):
            columns.text_bytes[shard] = start + len(line)
            where = f"{path}, line {number}"
            cut = decode_cut(line, self._roots, where)
            for name, found in ((SHARD, shard), (LINE_START, start), (LINE_BYTES, len(line))):
                columns.note(name, found)
            for name, members in others.items():
                columns.note_member(name, members.take(cut, where))
            with lhotse_errors("take down the cut", where):
                self.take(columns, cut, where)
        for members in others.values():
            members.end(path)
            columns.text_bytes[members.file_idx] = members.text_bytes
        return columns

    def index(self, columns: _Columns, text_bytes: list[int]) -> CorpusIndex:
        """Return the index of all cuts.

        Raises:
            SourceError: Recordings are missing, or an id comes twice.
        """
        missing = [path for path, is_there in columns.audio.items() if not is_there]
        if missing:
            more = ", ..." if len(missing) > _MAX_NAMED else ""
            raise SourceError(
                f"{len(missing)} of {len(columns.audio)} audio files are missing: "
                f"{', '.join(missing[:_MAX_NAMED])}{more}",
                where=f"{len(columns.tags)} cuts; relative paths are relative to {os.getcwd()}",
                fix="restore them, or correct the paths: cuts.with_recording_path_prefix(folder).to_file(...)",
            )
        keys = self._options.keys(self._fields, {}) if self.keys is None else self.keys
        for key in keys.values():
            key.end_scan()
        index = make_index(
            **found_by(keys),
            tags=columns.tags,
            lengths=columns.lengths or {key: [] for key in keys},
            locators=columns.locators,
            sample_rates={key: found.sample_rate for key, found in keys.items()},
            fields=[[key, found.field] for key, found in keys.items()],
            kinds=self._kinds,
            suffixes=list(columns.suffixes),
            text_bytes=text_bytes,
        )
        if index.num_duplicates:
            raise _repeated(columns.tags)
        return index


class _Members:
    """The parts that one shard of a field of Shar has of the cuts, in their order."""

    def __init__(self, files: CutFiles, name: str, shard: int, roots: Roots) -> None:
        self._roots = roots
        self.file_idx = files.file_idx(name, shard)
        self.text_bytes = 0
        self._name, self._path = name, files.fields[name][shard]
        self._is_tar = self._path.endswith(".tar")
        self._reads_data = shard == 0  # of the first cut, which says what no manifest does
        self._parts: Iterator[Any] = scan_tar(self._path) if self._is_tar else scan_lines(self._path)

    def take(self, cut: Any, where: str) -> Member:
        """Return the next part, which must be of this cut; its manifest is attached to that."""
        part = next(self._parts, None)
        if part is None:
            raise self._unfit(f"it ends before the cut {cut.id!r}", where)
        where = f"{self._path}, cut {cut.id!r}"
        if self._is_tar:
            member: Member = part
            cut_id = member.cut_id
            if member.start >= 0 and cut_id == cut.id:
                data = (self._read(member), member.suffix) if self._reads_data else None
                attach_data(cut, self._name, member.meta, data, self._roots, where)
                self._reads_data = False
        else:
            _, start, line = part
            self.text_bytes = start + len(line)
            cut_id = attach_value(cut, self._name, line, where)
            member = Member(cut_id, "", start, len(line), -1, 0, b"")
        if cut_id != cut.id:
            raise self._unfit(f"it has the data of {cut_id!r} where the cut is {cut.id!r}", where)
        return member

    def _read(self, member: Member) -> bytes:
        try:
            with open_regular(self._path) as file:
                file.seek(member.start)
                return file.read(member.num_bytes)
        except OSError as error:
            raise SourceError(f"the shard cannot be read: {error.strerror}", where=self._path) from error

    def end(self, path: str) -> None:
        """Check that there is nothing left."""
        if next(self._parts, None) is not None:
            raise self._unfit("it has more entries than there are cuts", path)

    def _unfit(self, what: str, where: str) -> SourceError:
        return SourceError(
            f"the field {self._name!r} does not fit the cuts: {what}",
            where=f"{self._path}, {where}",
            fix="write the shards of all fields from the same cuts in the same order",
        )


def gather_stored(files: CutFiles, options: CutOptions, roots: Roots) -> CorpusIndex:
    """Build the index of files."""
    gathering, columns = Gathering(options, roots), _Columns()
    shards = iter(range(len(files.cuts)))
    for shard in shards:
        columns.add(gathering.take_shard(files, shard), files.fields)
        if gathering.keys is not None:  # the first cut says how all become arrays
            break
    rest = [*shards]
    num_workers = count_workers(len(rest), pays=are_large([files.cuts[shard] for shard in rest], _MIN_SHARED_BYTES))
    keys = [*(gathering.keys or {}).values()]
    for found in scan_parts(partial(gathering.take_shard, files), rest, keys, num_workers=num_workers):
        columns.add(found, files.fields)
    return gathering.index(columns, [columns.text_bytes.get(number, 0) for number in range(len(files.all))])


def gather_held(cuts: list[Any], options: CutOptions) -> CorpusIndex:
    """Build the index of cuts in memory."""
    gathering, columns = Gathering(options), _Columns()
    for number, cut in enumerate(cuts):
        if not isinstance(getattr(cut, "id", None), str) or not hasattr(cut, "supervisions"):
            raise ConfigError(f"a CutSet has cuts, and entry {number} is a {type(cut).__name__}")
        gathering.take(columns, cut, f"cut {cut.id!r} in memory")
    return gathering.index(columns, [])


def _repeated(tags: list[str]) -> SourceError:
    first: dict[str, int] = {}
    for number, tag in enumerate(tags):
        if tag in first:
            return SourceError(
                f"two cuts have the id {tag!r}",
                where=f"cuts {first[tag]} and {number} of the corpus, counted from 0",
                fix="give each cut an id of its own: cuts.map(lambda cut: cut.with_id(...))",
            )
        first[tag] = number
    raise AssertionError("no tag is repeated")
