"""Manifests of recordings: text files with one JSON object a line, each for one sequence; or CSV and TSV files.

`scan_recordings` collects in one pass what a manifest says: tags, lengths, and where each line is. It checks every
line and looks for every recording; it opens one only if the manifest does not say its length. A line is
read again with its recording, so that nothing of the manifest but these positions needs to stay in memory. JSON is read
strictly: NaN, for example, is not JSON.

`AudioOptions` holds the user's options, checked; `index_kind` names all of it that changes the index; `gather_index`
reads the manifest once. Everything a reader needs goes into the index, so that a corpus with a fresh index is opened
without a look at the manifest's lines.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import resolve_inside
from headrace.files.locations import local_path, shown_url
from headrace.index import CorpusIndex

from ..shared.codec import found_by
from ..shared.delimited import Delimited, as_record, checked_columns, number_of, scan_records, suffix_of
from ..shared.fields import Field, IndexField, parse_field
from ..shared.folder import for_each
from ..shared.lines import decode_object, scan_lines
from ..shared.paths import PACK_FIX, path_text
from ..shared.source import make_index
from .codec import RecordingCodec, read_header

_FIRST_BYTES = 1 << 16  # read at a time for the first line, each time that a corpus is opened
_LARGEST_COUNT = 2**40  # a year of 24 kHz audio is less; more is an error that must not overflow later


def scan_manifest(
    path: str, block_bytes: int | None = None
) -> Generator[tuple[int, int, int, dict[str, Any]], None, None]:
    """Read a manifest line by line; blank lines and a byte order mark at the start are skipped.

    Args:
        path: The manifest.
        block_bytes: See `scan_lines`.

    Yields:
        Line number from 1, first byte of the line, its number of bytes, and the object.

    Raises:
        SourceError: The file cannot be read, or a line is not a JSON object, or no record of a CSV file.
    """
    if suffix_of(path) is not None:
        rows = scan_records(path, path, Delimited.of(path), block_bytes)
        next(rows, None)
        columns = manifest_columns(path)
        for line_number, start, num_bytes, values in rows:
            yield line_number, start, num_bytes, dict(as_record(columns, values, f"{path}, line {line_number}"))
        return
    for block in scan_lines(path, block_bytes=block_bytes):
        for line_number, start, line in block.records():
            yield line_number, start, len(line), decode_object(line, f"{path}, line {line_number}")


def first_record(path: str) -> dict[str, Any] | None:
    """Return the first object of a manifest; `None` if it has none.

    Raises:
        SourceError: As for `scan_manifest`.
    """
    with closing(scan_manifest(path, _FIRST_BYTES)) as records:
        return next((record for *_, record in records), None)


def manifest_columns(path: str) -> tuple[str, ...]:
    """Return the columns of a manifest that is a CSV or TSV file.

    Raises:
        SourceError: A column has no name, or that of another.
    """
    header = next(scan_records(path, path, Delimited.of(path), _FIRST_BYTES), None)
    return () if header is None else checked_columns(header[3], f"{path}, line {header[0]}")


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
    value = record[name]
    if not isinstance(value, kind):
        raise SourceError(f"the field {name!r} has {value!r}, which has the wrong type", where=where)
    return value


def count_of(record: Mapping[str, Any], name: str, smallest: int, where: str, *, fix: str | None = None) -> int | None:
    """Return a field that holds a whole number, or `None` if it is absent or null. `fix` is for the error.

    Raises:
        SourceError: It is no whole number, or less than `smallest`.
    """
    value = record.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value % 1 != 0 or not smallest <= value <= _LARGEST_COUNT:
        raise SourceError(
            f"the field {name!r} has {value!r}, not a whole number of at least {smallest}",
            where=where,
            fix=fix or "correct it, or leave it out: the recording says the same",
        )
    return int(value)


_MAX_NAMED = 5  # missing files that an error names; the rest is counted
_NOT_GIVEN = -1
DEFAULT_TAG_FIELD = "tag"
DEFAULT_LENGTH_FIELD = "num_samples"
_OTHER_LENGTH_FIELD = "length"  # for the number of samples, too, unless the user named a field


def recording_path(name: str, where: str) -> str:
    """Return the path of a recording from what it is called, without `file://`.

    Raises:
        SourceError: It is the URL of a store: the recordings of a list are not fetched one by one.
    """
    path = local_path(name) if "://" in name else name
    if path is None:
        what = f"the recording {shown_url(name)!r} is named by a URL, and recordings are read from this machine"
        raise SourceError(what, where=where, fix=f"copy them here, and name them by paths; or {PACK_FIX}")
    return path


def recordings_root(root: Any, where: str) -> str:
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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a manifest and its recordings are, and which of its fields says what.

    Attributes:
        manifest: Absolute path of the manifest.
        root: Absolute path of the folder that audio paths are relative to.
        audio_field: Path of the recording.
        tag_field: Tag; the path of the recording if `None`.
        length_field: Number of samples, at the recording's own rate. Where the default one is absent, "length" counts.
        rate_field: Sample rate of the recording.
    """

    manifest: str
    root: str
    audio_field: str
    tag_field: str | None
    length_field: str
    rate_field: str = "sample_rate"

    def __post_init__(self) -> None:
        """Refuse names that are empty or not text."""
        for name in (self.audio_field, self.tag_field or "", self.length_field):
            if not isinstance(name, str):
                raise ConfigError(f"the name of a field is a str, not {name!r}")

    def typed(self, row: Mapping[str, str], fields: Mapping[str, Field]) -> dict[str, Any]:
        """Return a row of a table as a record: with numbers where they are wanted; an empty cell is none."""
        counts = {self.length_field, _OTHER_LENGTH_FIELD, self.rate_field}
        counts |= {field.name for field in fields.values() if isinstance(field, IndexField)}
        return {name: (number_of(text) if text else None) if name in counts else text for name, text in row.items()}

    def audio_path(self, record: Mapping[str, Any], where: str) -> str:
        """Return the path of a recording as the manifest has it."""
        return recording_path(field_of(record, self.audio_field, str, where), where)

    def tag(self, record: Mapping[str, Any], where: str) -> str:
        """Return the tag of a recording."""
        tag: str = field_of(record, self.tag_field or self.audio_field, str, where)
        return tag

    def num_samples(self, record: Mapping[str, Any], where: str) -> int | None:
        """Return the number of samples of a recording, if the manifest has it."""
        num_samples = count_of(record, self.length_field, 0, where)
        if num_samples is None and self.length_field == DEFAULT_LENGTH_FIELD:
            fix = f"{_OTHER_LENGTH_FIELD!r} counts samples; if it is something else here, name a field by length_field="
            return count_of(record, _OTHER_LENGTH_FIELD, 0, where, fix=fix)
        return num_samples


@dataclass
class ScannedRecordings:
    """Columns with one entry for each recording; `line_start` and `line_bytes` of those in the lines of a manifest."""

    tags: list[str] = field(default_factory=list)
    line_start: list[int] = field(default_factory=list)
    line_bytes: list[int] = field(default_factory=list)
    num_samples: list[int] = field(default_factory=list)
    sample_rate: list[int] = field(default_factory=list)
    target_lengths: dict[str, list[int]] = field(default_factory=dict)

    def locators(self) -> dict[str, NDArray[np.int64]]:
        """Return what it takes to find and check a recording, `int64[N]` by name."""
        names = ("line_start", "line_bytes", "num_samples", "sample_rate")
        return {name: np.array(getattr(self, name), dtype=np.int64) for name in names}


def scan_recordings(
    layout: Layout, fields: Mapping[str, Field], rows: Sequence[Mapping[str, Any]] | None = None
) -> ScannedRecordings:
    """Read a manifest and look for its recordings.

    Args:
        layout: Where everything is.
        fields: Data key -> field of the manifest; they learn their labels.
        rows: The records of a table in memory, in place of the lines of a manifest.

    Raises:
        SourceError: A line is wrong, or recordings are missing, unreadable, or outside of the root.
    """
    scanned = ScannedRecordings(target_lengths={key: [] for key in fields})
    finder = FileFinder(layout.root)
    unmeasured: list[tuple[int, str, str]] = []
    is_table = rows is None and suffix_of(layout.manifest) is not None
    lines: Iterable[tuple[int, int, int, Mapping[str, Any]]]
    lines = scan_manifest(layout.manifest) if rows is None else ((i, 0, 0, row) for i, row in enumerate(rows))
    for line_number, start, num_bytes, record in lines:
        where = f"{layout.manifest}, {'line' if rows is None else 'row'} {line_number}"
        record = layout.typed(record, fields) if is_table else record
        path = layout.audio_path(record, where)
        finder.look_up(path, where)
        num_samples, rate = layout.num_samples(record, where), count_of(record, layout.rate_field, 1, where)
        if num_samples is None or rate is None:
            unmeasured.append((len(scanned.tags), path, where))
        scanned.tags.append(layout.tag(record, where))
        scanned.line_start.append(start)
        scanned.line_bytes.append(num_bytes)
        scanned.num_samples.append(_NOT_GIVEN if num_samples is None else num_samples)
        scanned.sample_rate.append(_NOT_GIVEN if rate is None else rate)
        for key, target in fields.items():
            scanned.target_lengths[key].append(target.scan(field_of(record, target.name, object, where), where))
    finder.raise_if_missing(len(scanned.tags), layout.manifest)
    for target in fields.values():
        target.end_scan()
    headers = for_each(partial(_read_inside, layout.root), [path for _, path, _ in unmeasured])
    for (corpus_idx, path, where), header in zip(unmeasured, headers, strict=True):
        for column, actual, what in zip(
            (scanned.num_samples, scanned.sample_rate), header, ("samples", "Hz"), strict=True
        ):
            if column[corpus_idx] not in (_NOT_GIVEN, actual):
                raise SourceError(f"the manifest says {column[corpus_idx]} {what}, {path} has {actual}", where=where)
            column[corpus_idx] = actual
    return scanned


def _read_inside(root: str, path: str) -> tuple[int, int]:
    return read_header(str(resolve_inside(root, path)))


class FileFinder:
    """Looks for regular files by paths inside a root: what leads outside is refused, what is missing is counted."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._real_folders: dict[str, str] = {}
        self._missing: list[str] = []
        self._num_missing = 0

    def look_up(self, path: str, where: str) -> None:
        """Record whether a file exists.

        Raises:
            SourceError: The path leads outside of the root.
        """
        folder, name = os.path.split(path)
        try:
            if name in ("", ".", ".."):
                folder, name = path, "."
            if folder not in self._real_folders:  # following links costs much more than a look at one file
                self._real_folders[folder] = self._resolved_folder(folder, path)
            status = os.lstat(os.path.join(self._real_folders[folder], name))
            if stat.S_ISLNK(status.st_mode):
                status = os.stat(resolve_inside(self._root, path))
        except SourceError as error:
            raise SourceError(error.what, where=where, fix=error.fix) from error
        except (OSError, ValueError):  # ValueError: a null character
            self._count_missing(path)
        else:
            if not stat.S_ISREG(status.st_mode):
                self._count_missing(path)

    def _resolved_folder(self, folder: str, path: str) -> str:
        try:
            return str(resolve_inside(self._root, folder))
        except SourceError:
            resolve_inside(self._root, path)  # to name the path as the manifest has it, not a part of it
            raise

    def _count_missing(self, path: str) -> None:
        self._num_missing += 1
        if len(self._missing) < _MAX_NAMED:
            self._missing.append(path)

    def raise_if_missing(self, num_files: int, where: str) -> None:
        """Raise one error for all missing files.

        Raises:
            SourceError: There were some; it names the first.
        """
        if self._num_missing:
            more = ", ..." if self._num_missing > len(self._missing) else ""
            place = "there" if self._root == "/" else f"below {self._root}"
            raise SourceError(
                f"{self._num_missing} of {num_files} audio files are missing: {', '.join(self._missing)}{more}",
                where=where,
                fix=f"put them {place}, or give root=, the folder that the paths are relative to",
            )


TEXT_FIELD = "text"
INDEX_KIND = "audio-manifest/2"  # with the version of what the columns and `meta` say, and of how lengths are counted


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


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """How recordings and their targets become arrays.

    Attributes:
        layout: Where everything is.
        fields: Data key -> field of the manifest.
        audio: How recordings become arrays.
    """

    layout: Layout
    fields: dict[str, Field]
    audio: RecordingCodec

    @classmethod
    def parse(
        cls, layout: Layout, features: Any, targets: Mapping[str, Any] | None, sample_rate: Any, channel: Any
    ) -> AudioOptions:
        """Check the user's options.

        Raises:
            ConfigError: An option is wrong.
        """
        target_fields = {key: parse_field(key, target) for key, target in (targets or {}).items()}
        if "data" in target_fields:
            raise ConfigError('a target cannot be named "data": that is the audio')
        return cls(layout, target_fields, RecordingCodec(features, sample_rate, channel))

    @property
    def identity(self) -> dict[str, Any]:
        """What changes an index, whatever the recordings and their targets are listed by."""
        features, sample_rate = self.audio.identity
        targets = [[key, field.identity] for key, field in self.fields.items()]
        return {"features": features, "sample_rate": sample_rate, "targets": targets}


def index_kind(options: AudioOptions) -> str:
    """Identify the source and every option that changes its index: the same text in every process.

    A root inside the folder of the manifest is named relative to it, so that a corpus and its index can be moved.
    """
    layout = options.layout
    root, folder = Path(os.path.realpath(layout.root)), Path(os.path.realpath(layout.manifest)).parent
    said = {
        "root": str(root.relative_to(folder) if root.is_relative_to(folder) else root),
        "fields": [layout.audio_field, layout.tag_field, layout.length_field, layout.rate_field],
        **options.identity,
    }
    return f"{INDEX_KIND} {json.dumps(said, default=repr)}"


def gather_index(options: AudioOptions) -> CorpusIndex:
    """Read the manifest and look for its recordings: about 1 s per 100 k lines. The fields learn their labels.

    Raises:
        SourceError: A line is wrong, or recordings are missing, unreadable, or outside of the root.
        ConfigError: The recordings have different sample rates, or do not fit the options.
    """
    index = index_of(options, scan_recordings(options.layout, options.fields), options.layout.manifest)
    if suffix_of(options.layout.manifest) is not None:
        index.meta["columns"] = manifest_columns(options.layout.manifest)
    return index


def index_of(options: AudioOptions, scanned: ScannedRecordings, where: str) -> CorpusIndex:
    """Build the index from the scanned columns; the fields have learnt their labels.

    Args:
        options: How recordings become arrays.
        scanned: What was taken down.
        where: The manifest or folder, for errors.

    Raises:
        ConfigError: The recordings have different sample rates, or do not fit the options.
    """
    audio = options.audio
    if audio.rate is None:
        audio.settle(audio.spec, None, _common_rate(scanned.sample_rate, where))
    if audio.rate is None and audio.features is not None:
        raise ConfigError(
            "an empty corpus does not say for which sample rate features are made", fix="give sample_rate="
        )
    headers = zip(scanned.num_samples, scanned.sample_rate, strict=True)
    return make_index(
        **found_by({"data": audio, **options.fields}),
        tags=scanned.tags,
        lengths={
            "data": [audio.num_frames(num_samples, rate, where) for num_samples, rate in headers],
            **scanned.target_lengths,
        },
        locators=scanned.locators(),
        sample_rate=audio.rate,
    )


def _common_rate(rates: Sequence[int], where: str) -> int | None:
    """Return the sample rate that all recordings have, or `None` if there are none."""
    different = sorted(set(rates))
    if len(different) > 1:
        raise ConfigError(
            f"the recordings have different sample rates: {', '.join(map(str, different))} Hz",
            where=where,
            fix="give sample_rate=, to which they are resampled",
        )
    return different[0] if different else None
