"""Recordings that something lists: what all such sources have in common, manifests, and tables in memory.

Whatever lists recordings gives an `Entry` for each: a tag, a path, what is known of its header, and values of fields.
`gather_recordings` makes an index of them; headers are read only where nothing says what they hold. From then on a
`RecordingSource` reads an entry again with its recording, and nothing is decoded before it is asked for. A table in
memory (`AudioTableSource`) is a manifest that is not read; see `folder.py` for folders.
"""

from __future__ import annotations

import csv
import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.features.log_mel import LogMel
from headrace.files import open_regular, resolve_inside
from headrace.files.locations import is_remote, local_path, shown_url
from headrace.files.packed import is_packed
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex

from ..shared.codec import Codec
from ..shared.fields import Field, IndexField
from ..shared.folder import for_each, parse_targets
from ..shared.lines import LineTable, decode_object, scan_lines
from ..shared.paths import PACK_FIX, IndexOption, local_file, path_text
from ..shared.records import Gathered, RecordSource
from .codec import RecordingCodec, read_header, read_part, read_samples

# Of one recording that cannot be sought, as decoded: an hour at 16 kHz has 230 MB. Longer ones are decoded each time.
_MAX_HELD_BYTES = 256 << 20
_LARGEST_COUNT = 2**40  # a year of 24 kHz audio is less; more is an error that must not overflow later
_MAX_NAMED = 5  # missing files that an error names; the rest is counted
_FIRST_BYTES = 1 << 16  # read at a time for the first line, each time that a corpus is opened
_NOT_GIVEN = -1
_COLUMNS = ("num_samples", "sample_rate")
TEXT_FIELD = "text"
INDEX_KIND = "audio-manifest/3"  # with the version of what the columns and `meta` say, and of how lengths are counted


class Entry(NamedTuple):
    """One recording that is listed.

    Attributes:
        tag: Its tag.
        path: Its path.
        num_samples: -1 if its header has to say it, as for the rate.
        sample_rate: In Hz.
        values: Field -> value.
        where: What lists it, for errors.
        locators: Name -> number: where its entry is found again.
    """

    tag: str
    path: str
    num_samples: int
    sample_rate: int
    values: Mapping[str, Any]
    where: str
    locators: Mapping[str, int]


def gather_recordings(
    entries: Iterable[Entry],
    audio: RecordingCodec,
    fields: Mapping[str, Field],
    *,
    root: str,
    listed_in: str,
    locators: Sequence[str] = (),
) -> Gathered:
    """Return what is known of recordings, all of which are looked at, several at a time.

    Args:
        entries: What is listed.
        audio: How recordings become arrays.
        fields: Data key -> field of an entry.
        root: What their paths are relative to, and must not lead out of.
        listed_in: What lists them, for errors.
        locators: Names of those of the entries.

    Raises:
        SourceError: A recording or an entry is wrong, or recordings are missing.
    """
    found = Gathered.of(["data", *fields], [*_COLUMNS, *locators])
    looked_at: list[Entry] = []
    for entry in entries:
        found.tags.append(entry.tag)
        values = {key: field_of(entry.values, field.name, object, entry.where) for key, field in fields.items()}
        found.note(fields, values, entry.where)
        found.locate(**entry.locators)
        looked_at.append(entry._replace(values={}, locators={}))
    headers = for_each(partial(_look_at, root), looked_at)
    missing = [entry.path for entry, header in zip(looked_at, headers, strict=True) if header is None]
    if missing:
        more = ", ..." if len(missing) > _MAX_NAMED else ""
        place = "there" if root == "/" else f"below {root}"
        raise SourceError(
            f"{len(missing)} of {len(looked_at)} audio files are missing: {', '.join(missing[:_MAX_NAMED])}{more}",
            where=listed_in,
            fix=f"put them {place}, or give root=, the folder that the paths are relative to",
        )
    for entry, header in zip(looked_at, headers, strict=True):
        assert header is not None
        num_samples, rate = header
        found.locate(num_samples=num_samples, sample_rate=rate)
        found.lengths["data"].append(audio.note_header(num_samples, rate, entry.where, found.facts["data"]))
    return found


def _look_at(root: str, entry: Entry) -> tuple[int, int] | None:
    """Return number of samples and rate of a recording; read its header if one is not given. `None`: it is missing."""
    given = entry.num_samples, entry.sample_rate
    try:
        path = str(resolve_inside(root, entry.path))
        if not os.path.isfile(path):
            return None
    except SourceError as error:
        raise SourceError(error.what, where=entry.where, fix=error.fix) from error
    except (OSError, ValueError):  # ValueError: a null character
        return None
    if _NOT_GIVEN not in given:
        return given
    header = read_header(path)
    for said, actual, what in zip(given, header, ("samples", "Hz"), strict=True):
        if said not in (_NOT_GIVEN, actual):
            raise SourceError(f"the manifest says {said} {what}, {entry.path} has {actual}", where=entry.where)
    return header


def field_of(record: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return a field of a record that must be there and be of some type.

    Raises:
        SourceError: It is not there, or of another type.
    """
    if name not in record:
        raise SourceError(
            f"there is no field {name!r}, only {sorted(record)}",
            where=where,
            fix="say the name that it has: AudioSource(audio_field=, tag_field=, length_field=), of an AudioDataset in "
            "source_options={...}; targets={data key: field}. With tag_field=None, the path of a recording is its tag",
        )
    if not isinstance(record[name], kind):
        raise SourceError(f"the field {name!r} has {record[name]!r}, which has the wrong type", where=where)
    return record[name]


def require_targets(targets: Mapping[str, Any] | None, *, has_text: bool, where: str) -> None:
    """Refuse to leave out the texts of recordings silently, if no targets were given.

    Args:
        targets: As given; a dict says what is read, an empty one that nothing is.
        has_text: Whether the first recording has a text.
        where: What lists them.

    Raises:
        ConfigError: There are texts, and no targets were given.
    """
    if targets is None and has_text:
        raise ConfigError(
            "the recordings have texts, and nothing says how they become numbers",
            where=where,
            fix='give targets={"text": {"field": "text", "vocab": "chars"}}, or "bytes", or a vocabulary; '
            "targets={} leaves the texts out",
        )


class RecordingSource(RecordSource):
    """Recordings: key "data", and a key for each target. Its `_options` have `audio` and `fields`."""

    _wrong_length_fix = "open the corpus again to have headers read again; replace a truncated recording"

    def _prepare(self) -> None:
        self._audio: RecordingCodec = self._options.audio
        self._settle({"data": self._audio, **self._options.fields})

    def _prepare_files(self) -> None:
        super()._prepare_files()
        self._held: tuple[int, NDArray[Any]] | None = None  # what was read last to take a part of it

    @abstractmethod
    def _recording(self, corpus_idx: int, record: Any, where: str) -> str:
        """Return the path of a recording."""

    @abstractmethod
    def _value(self, record: Any, name: str, where: str) -> Any:
        """Return a field of a record."""

    @property
    def sample_rate(self) -> int | None:
        """The rate of the samples that "data" is made of, in Hz; `None` if there are no recordings to have one."""
        return self._audio.rate

    def _encode(self, record: Any, corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:
        """Return "data" as float32[T, D], targets as integers [T]."""
        if data_key != "data":
            field = self._options.fields[data_key]
            array: NDArray[Any] = field.encode(self._value(record, field.name, where), where)
            return array
        path = self._recording(corpus_idx, record, where)
        samples, rate = read_samples(path, self._audio.channel)
        for what, expected, actual in zip(
            ("samples", "Hz"), self._header(corpus_idx), (len(samples), rate), strict=True
        ):
            if actual != expected:
                raise SourceError(
                    f"the recording has {actual} {what}, but {expected} are expected",
                    where=f"{where}, {path}",
                    fix=self._wrong_length_fix,
                )
        return self._audio.of_samples(samples, rate)

    def _header(self, corpus_idx: int) -> tuple[int, int]:
        """Return the number of samples and the rate of a recording that the index has."""
        num_samples, rate = (int(self._index.locator(name)[corpus_idx]) for name in _COLUMNS)
        return num_samples, rate

    def reads_slices(self, data_key: str) -> bool:
        """Yes, of recordings: samples are sought, or a recording is decoded once for parts that follow each other."""
        return data_key == "data"

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        if data_key != "data":
            return super()._load_part(corpus_idx, data_key, start, end)
        if self._held is not None and self._held[0] == corpus_idx:
            return self._held[1][start:end].copy()
        num_samples, rate = self._header(corpus_idx)
        if self._audio.keeps_samples(rate):
            path = self._recording(corpus_idx, self._record(corpus_idx, (data_key,)), self._where(corpus_idx))
            part = read_part(path, self._audio.channel, start, end, num_samples=num_samples, sample_rate=rate)
            if part is not None:
                return part[:, None]
        whole = self._checked(corpus_idx, data_key, self._load(corpus_idx, data_key))
        self._held = (corpus_idx, whole) if whole.nbytes <= _MAX_HELD_BYTES else None
        return whole[start:end].copy()

    def close(self) -> None:
        """Release files, and what is held of a recording; a later read opens them again."""
        self._held = None
        super().close()


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A manifest, or a table in memory, and which of its fields says what.

    Attributes:
        path: Absolute path of the manifest, or what a table is called.
        root: Absolute path of the folder that paths of recordings are relative to.
        audio_field: Path of the recording.
        tag_field: Tag; the path of the recording if `None`.
        length_field: Number of samples, at the recording's own rate. Where the default one is absent, "length" counts.
        audio: How recordings become arrays.
        fields: Data key -> field of an entry.
    """

    path: str
    root: str
    audio_field: str
    tag_field: str | None
    length_field: str
    audio: RecordingCodec
    fields: dict[str, Field]

    def __post_init__(self) -> None:
        """Refuse names that are not text."""
        for name in (self.audio_field, self.tag_field or "", self.length_field):
            if not isinstance(name, str):
                raise ConfigError(f"the name of a field is a str, not {name!r}")

    @property
    def kind(self) -> str:
        """Identify the source and every option that changes its index: the same text in every process.

        A root inside the folder of the manifest is named relative to it, so that a corpus and its index can be moved.
        """
        root, folder = Path(os.path.realpath(self.root)), Path(os.path.realpath(self.path)).parent
        codecs: dict[str, Codec] = {"data": self.audio, **self.fields}
        said = {
            "root": str(root.relative_to(folder) if root.is_relative_to(folder) else root),
            "fields": [self.audio_field, self.tag_field, self.length_field],
            "keys": [[key, codec.identity] for key, codec in codecs.items()],
        }
        return f"{INDEX_KIND} {json.dumps(said, default=repr)}"

    def audio_path(self, record: Mapping[str, Any], where: str) -> str:
        """Return the path of a recording as the manifest has it, without `file://`.

        Raises:
            SourceError: It is the URL of a store: the recordings of a list are not fetched one by one.
        """
        name = field_of(record, self.audio_field, str, where)
        path = local_path(name) if "://" in name else name
        if path is None:
            what = f"the recording {shown_url(name)!r} is named by a URL, and recordings are read from this machine"
            raise SourceError(what, where=where, fix=f"copy them here, and name them by paths; or {PACK_FIX}")
        return path

    def tag(self, record: Mapping[str, Any], where: str) -> str:
        """Return the tag of a recording."""
        tag: str = field_of(record, self.tag_field or self.audio_field, str, where)
        return tag

    def _count(self, record: Mapping[str, Any], name: str, smallest: int, where: str, fix: str | None = None) -> int:
        """Return a field that holds a whole number, -1 if it is absent or null."""
        value = record.get(name)
        if value is None:
            return _NOT_GIVEN
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or value % 1 != 0 or not smallest <= value <= _LARGEST_COUNT:
            raise SourceError(
                f"the field {name!r} has {value!r}, not a whole number of at least {smallest}",
                where=where,
                fix=fix or "correct it, or leave it out: the recording says the same",
            )
        return int(value)

    def entries(self, records: Iterable[tuple[str, Mapping[str, Any], dict[str, int]]]) -> Iterator[Entry]:
        """Yield what is listed.

        Raises:
            SourceError: An entry is wrong.
        """
        for where, record, locators in records:
            num_samples = self._count(record, self.length_field, 0, where)
            if num_samples == _NOT_GIVEN and self.length_field == "num_samples":
                fix = "'length' counts samples; if it is something else here, name a field by length_field="
                num_samples = self._count(record, "length", 0, where, fix)
            rate, path = self._count(record, "sample_rate", 1, where), self.audio_path(record, where)
            yield Entry(self.tag(record, where), path, num_samples, rate, record, where, locators)

    def gather(self) -> CorpusIndex:
        """Read the manifest and look for its recordings: about 1 s per 100 k lines."""
        lines = _ManifestLines.of(self)
        records = (
            (f"{self.path}, line {number}", lines.record(line, f"{self.path}, line {number}"), _span(start, line))
            for number, start, line in lines.scan()
        )
        return self.index_of(records, ("line_start", "line_bytes"), **lines.meta)

    def index_of(self, records: Iterable[Any], locators: Sequence[str], **meta: Any) -> CorpusIndex:
        """Return the index of what is listed."""
        found = gather_recordings(
            self.entries(records), self.audio, self.fields, root=self.root, listed_in=self.path, locators=locators
        )
        return found.index({"data": self.audio, **self.fields}, **meta)


def _span(start: int, line: bytes) -> dict[str, int]:
    return {"line_start": start, "line_bytes": len(line)}


@dataclass(frozen=True)
class _ManifestLines:
    """The lines of a manifest: objects of JSON; or, of CSV and TSV, rows, one a line, whose columns the first names.

    Attributes:
        path: The manifest.
        columns: Of CSV and TSV.
        numbers: The columns that hold numbers.
    """

    path: str
    columns: list[str] | None
    numbers: frozenset[str]

    @classmethod
    def of(cls, manifest: _Manifest, columns: list[str] | None = None) -> _ManifestLines:
        """Return those of a manifest, whose first line is read for the columns, unless they are known."""
        numbers = {manifest.length_field, "length", "sample_rate"}
        numbers |= {field.name for field in manifest.fields.values() if isinstance(field, IndexField)}
        path = manifest.path
        if columns is None and path.lower().endswith((".csv", ".tsv")):
            columns = next((_split(path, line, f"{path}, line 1") for _, _, line in _scan(path, _FIRST_BYTES)), [])
            for number, column in enumerate(columns, start=1):
                if not column.strip() or columns.count(column) > 1:
                    what = f"column {number} of the header is named {column!r}"
                    raise SourceError(what, where=f"{path}, line 1", fix="the first line names each column, once")
        return cls(path, columns, frozenset(numbers))

    @property
    def meta(self) -> dict[str, Any]:
        """What the index has of it."""
        return {} if self.columns is None else {"columns": self.columns}

    def scan(self, block_bytes: int | None = None) -> Iterator[tuple[int, int, bytes]]:
        """Yield number, first byte and text of each line that is an entry."""
        return islice(_scan(self.path, block_bytes), 0 if self.columns is None else 1, None)

    def first(self) -> dict[str, Any] | None:
        """Return the first entry, if there is one."""
        start = islice(self.scan(_FIRST_BYTES), 1)
        return next((self.record(line, f"{self.path}, line {number}") for number, _, line in start), None)

    def record(self, line: bytes, where: str) -> dict[str, Any]:
        """Return the entry that a line is; an empty cell is no number.

        Raises:
            SourceError: It is none.
        """
        if self.columns is None:
            return decode_object(line, where)
        values = _split(self.path, line, where)
        if len(values) != len(self.columns):
            raise SourceError(
                f"the line has {len(values)} values, and there are {len(self.columns)} columns",
                where=where,
                fix="quote values with delimiters in them; each entry is one line",
            )
        row = zip(self.columns, values, strict=True)
        return {name: _number_of(text) if name in self.numbers else text for name, text in row}


def _scan(path: str, block_bytes: int | None = None) -> Iterator[tuple[int, int, bytes]]:
    return (line for block in scan_lines(path, block_bytes=block_bytes) for line in block.records())


def _split(path: str, line: bytes, where: str) -> list[str]:
    text = decode_utf8(line, where).rstrip("\r\n")
    is_tsv = path.lower().endswith(".tsv")
    form: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if is_tsv else {}
    try:
        return next(csv.reader([text], **form, strict=True), [""])
    except csv.Error as error:
        raise SourceError(f"the line cannot be read: {error}", where=where, fix="an entry is one line") from None


def _number_of(text: str) -> Any:
    """Return the number that a cell is; the text if it is none, `None` if it is empty."""
    for kind in (int, float):
        try:
            return kind(text) if "_" not in text else text
        except ValueError:
            continue
    return text or None


class AudioSource(RecordingSource):
    """Recordings of a manifest (JSONL, CSV, TSV): key "data", and a key for each target. Needs `headrace[audio]`.

    A line of the manifest is an object such as `{"tag": "en/7", "audio": "en/7.flac", "word": "7", "sample_rate": 8000,
    "num_samples": 5120}`; in CSV and TSV, the first line names these fields. Where a line has no number of samples or
    no sample rate, the header of its recording is read when the index is built. Durations in seconds are not used:
    most manifests round them. What the index says is compared with each recording when it is read: that is also when a
    recording is missed which was there when the index was built.

    Args:
        manifest: Path or URL of the manifest; a URL is read by a copy in the file cache, and needs `root`.
        root: Folder that the audio paths are relative to, and must not lead out of; the folder of the manifest if
            `None`; "/" for absolute paths anywhere.
        features: "raw" (samples, float32[T, 1]), "log_mel", a `LogMel`, or a dict of its options (float32[T,
            num_mels]); without `sample_rate` there, it is that of the recordings.
        targets: Data key -> field of the manifest: `{"classes": "word"}` for labels, `{"orth": "text"}` for UTF-8
            bytes, or `{"text": {"field": "text", "vocab": ...}}`, see `parse_field`. It is required where the first
            line has a field "text", so that no text is left out unseen; `{}` leaves it out.
        sample_rate: Recordings of another rate are resampled; if `None`, that of the features, or else of all
            recordings, which must then have the same.
        channel: Which channel, from 0; needed for recordings with several.
        audio_field: Field with the path of the recording.
        tag_field: Field with the tag; the path of the recording if `None`. `"auto"` is "tag" if the first line has such
            a field, and else `None`. Tags may repeat.
        length_field: Field with the number of samples, of one channel, at the recording's own rate. With the default,
            a line without it may have the same number as "length". Whole numbers only: seconds are refused.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time, unless
            the manifest changed; `None` always reads the whole manifest and looks for all recordings; a path opens the
            index that `AudioSource(...).index.save(path)` wrote with the same options.

    Raises:
        ConfigError: An option is wrong.
        SourceError: The manifest or a line of it is wrong, a recording is missing or outside of the root, or not what
            it is claimed to be; or the given index is not one of this manifest as it is now, with these options.

    Examples:
        >>> import headrace as hr
        >>> manifest = "data/spoken_numbers/manifest.jsonl"
        >>> source = hr.AudioSource(manifest, features="log_mel", targets={"classes": "word"})
        >>> source.read(0, "data").shape, source.labels["classes"][:3]
        ((86, 40), ['0', '1', '10'])
    """

    _changed_fix = "the manifest changed since it was read: build the source again"
    _wrong_length_fix = "correct the manifest, or touch it to have headers read again; replace a truncated recording"

    def __init__(
        self,
        manifest: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        features: str | LogMel | Mapping[str, Any] = "raw",
        targets: Mapping[str, str | Mapping[str, Any]] | None = None,
        sample_rate: int | None = None,
        channel: int | None = None,
        audio_field: str = "audio",
        tag_field: str | None = "auto",
        length_field: str = "num_samples",
        index: IndexOption = "auto",
    ) -> None:
        if root is None and is_remote(path_text(manifest, "AudioSource(manifest)")):
            raise ConfigError(
                "a manifest that is read by its URL does not say where its recordings are on this machine",
                where=shown_url(os.fsdecode(manifest)),
                fix="give root=, the folder that its audio paths are relative to",
            )
        manifest = local_file(manifest, "AudioSource(manifest)")
        _check_form(manifest)
        root = os.path.dirname(manifest) if root is None else _absolute_root(root, "AudioSource(root=)")
        audio = RecordingCodec(features, sample_rate, channel)
        options = _Manifest(manifest, root, audio_field, tag_field, length_field, audio, parse_targets(targets, None))
        first = (
            _ManifestLines.of(options).first() if os.path.isfile(manifest) else None
        )  # else opening says what is wrong
        if tag_field == "auto":
            tag_field = "tag" if first is None or "tag" in first else None
            options = replace(options, tag_field=tag_field)
        require_targets(targets, has_text=first is not None and TEXT_FIELD in first, where=manifest)
        self._open(options, [manifest], options.gather, index=index, kind=options.kind)

    def _prepare(self) -> None:
        super()._prepare()
        self._table = LineTable(self._index)
        self._lines = _ManifestLines.of(self._options, self._index.meta.get("columns", None))

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002 - one line has all
        """Read the line of a recording again."""
        options, tag = self._options, self._index.tags[corpus_idx]
        file_idx, start, num_bytes = self._table.locate(corpus_idx)
        where = f"{options.path}, byte {start}"
        record = self._lines.record(self._files.read(file_idx, start, num_bytes), where)
        found = options.tag(record, where)
        if found != tag:
            raise SourceError(f"the tag was {tag!r} and is {found!r}", where=where, fix=self._changed_fix)
        return record

    def _value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        return field_of(record, name, object, where)

    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:  # noqa: ARG002
        return str(resolve_inside(self._options.root, self._options.audio_path(record, where)))


def _absolute_root(root: Any, where: str) -> str:
    """Return the absolute path of the folder that paths of recordings are relative to.

    Raises:
        ConfigError: It is no path, or the URL of a store.
    """
    text = path_text(root, where)
    path = local_path(text)
    if path is None:
        what = "recordings are read from a folder on this machine, and this is a URL"
        raise ConfigError(what, where=f"{where} {shown_url(text)}", fix=f"copy them here; or {PACK_FIX}")
    return os.path.abspath(path)


def _check_form(manifest: str) -> None:
    """Refuse a manifest that is not lines of text.

    Raises:
        SourceError: It is a folder.
        ConfigError: It is a table of another form, or compressed.
    """
    if os.path.isdir(manifest):
        raise SourceError(
            "a manifest is a file, and this is a folder",
            where=manifest,
            fix="a folder of recordings needs none: AudioDataset(folder, ...), or AudioFolderSource(folder, ...)",
        )
    if not os.path.isfile(manifest):
        return
    with open_regular(manifest) as file:
        mark = file.read(6)
    if mark.startswith((b"PAR1", b"ARROW1")):
        raise ConfigError(
            "a manifest is a file of JSON lines, CSV or TSV, and this is a table of Parquet or Arrow",
            where=manifest,
            fix="read it, and give the table: AudioDataset(pandas.read_parquet(path), root=folder, targets=...)",
        )
    if is_packed(manifest):
        raise ConfigError(
            "a manifest is read at any line, and this one is compressed", where=manifest, fix="decompress it"
        )


_FORMS = "give pairs (path, text), dicts with the path as 'audio', or a DataFrame with such columns"
_TABLE = "table of recordings"


class AudioTableSource(RecordingSource):
    """The recordings that a table lists: key "data", and a key for each target. Needs `headrace[audio]`.

    Headers of recordings are read when it is made, unless the table has "sample_rate" and "num_samples". The table is
    carried to each worker: for a million rows, a manifest is the better way, see `AudioSource`.

    Args:
        table: Pairs (path, text); or paths; or dicts, such as `{"audio": path, "word": "seven"}`; or a `DataFrame` with
            such columns. The tag is what the column "tag" has, or else the path as it is given.
        root: Folder that relative paths are relative to; the working directory if `None`. Paths may be absolute.
        features: See `AudioSource`, for this and all that follow.
        targets: Data key -> field, as for `AudioSource`. The text of a pair is "text". It is required there, so that no
            text is left out unseen; `{}` leaves it out.
        sample_rate: To resample to.
        channel: Which channel, from 0.

    Raises:
        ConfigError: An option is wrong, or the table has another form.
        SourceError: A recording is missing or damaged.

    Examples:
        >>> import headrace as hr
        >>> pairs = [("en/0.flac", "zero"), ("en/1.flac", "one")]
        >>> source = hr.AudioTableSource(pairs, root="data/spoken_numbers", targets={"orth": "text"})
        >>> source.read(0, "data").shape, source.read(0, "orth").tobytes()
        ((6998, 1), b'zero')
    """

    _changed_fix = "the recordings changed since they were looked at: build the source again"

    def __init__(
        self,
        table: Any,
        *,
        root: str | os.PathLike[str] | None = None,
        features: str | LogMel | Mapping[str, Any] = "raw",
        targets: Mapping[str, str | Mapping[str, Any]] | None = None,
        sample_rate: int | None = None,
        channel: int | None = None,
    ) -> None:
        rows = _rows_of(table)
        require_targets(targets, has_text=bool(rows) and TEXT_FIELD in rows[0], where="AudioTableSource")
        folder = _absolute_root(os.curdir if root is None else root, "AudioTableSource(root=)")
        audio, fields = RecordingCodec(features, sample_rate, channel), parse_targets(targets, None)
        options = _RecordingTable(_TABLE, "/", "audio", "tag", "num_samples", audio, fields, rows, folder)
        self._open(options, [], options.gather, index=None, kind="")

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> Mapping[str, Any]:  # noqa: ARG002 - a row has all
        row: Mapping[str, Any] = self._options.rows[corpus_idx]
        return row

    def _value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        return field_of(record, name, object, where)

    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:  # noqa: ARG002
        path: str = self._options.audio_path(record, where)
        return path

    def _where(self, corpus_idx: int) -> str:
        return f"row {corpus_idx} of a {_TABLE}, tag {self._index.tags[corpus_idx]!r}"


@dataclass(frozen=True, slots=True)
class _RecordingTable(_Manifest):
    """A table in memory.

    Attributes:
        rows: What is known of each recording.
        folder: What paths are relative to; they may lead anywhere.
    """

    rows: list[dict[str, Any]]
    folder: str

    def audio_path(self, record: Mapping[str, Any], where: str) -> str:
        return os.path.join(self.folder, _Manifest.audio_path(self, record, where))

    def gather(self) -> CorpusIndex:
        return self.index_of(((f"{self.path}, row {number}", row, {}) for number, row in enumerate(self.rows)), ())


def is_table(value: Any) -> bool:
    """Tell whether a value is a table in memory, and no path of a manifest."""
    if isinstance(value, str | bytes | os.PathLike):
        return False
    return hasattr(value, "columns") or isinstance(value, Iterable)


def _rows_of(table: Any) -> list[dict[str, Any]]:
    """Return a dict for each row, which has "audio" and "tag" and, for a pair, "text"."""
    if hasattr(table, "to_dicts"):  # polars
        table = table.to_dicts()
    elif hasattr(table, "columns") and hasattr(table, "to_dict"):  # pandas
        table = table.to_dict("records")
    rows = []
    for number, entry in enumerate(table):
        where = f"row {number} of a table of recordings"
        if isinstance(entry, Mapping):
            row = {str(name): value for name, value in entry.items()}
        elif isinstance(entry, str | os.PathLike):
            row = {"audio": entry}
        elif isinstance(entry, Sequence) and len(entry) == 2:
            row = {"audio": entry[0], TEXT_FIELD: entry[1]}
        else:
            raise ConfigError(f"{entry!r} is not a recording", where=where, fix=_FORMS)
        if "audio" not in row:
            raise ConfigError(f"there is no 'audio', only {', '.join(map(repr, row))}", where=where, fix=_FORMS)
        row["audio"] = path_text(row["audio"], where)
        row.setdefault("tag", row["audio"])
        rows.append(row)
    return rows
