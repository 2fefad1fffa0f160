"""A source of recordings that a manifest lists, and what all sources of recordings have in common.

A sub-class of `RecordingSource` opens its index and says what the fields of a sequence are (a line of a manifest, or
what a folder says of a file) and where its recording is. A manifest is read once, when its index is built; from then on
only the position of each line is known, and a line is read again with its recording. Nothing is decoded before it is
asked for.

Read `manifest.py` for what is taken down of the manifest and indexed, `shared/fields.py` for labels, `codec.py` for
recordings, `headrace.features` for features. A table in memory (`AudioTableSource`) is a manifest that is not read.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.features.log_mel import LogMel
from headrace.files import open_regular, resolve_inside
from headrace.files.locations import is_remote, shown_url
from headrace.files.packed import is_packed

from ..shared.delimited import Delimited, suffix_of
from ..shared.lines import LineTable, decode_object
from ..shared.paths import IndexOption, local_file, path_text
from ..shared.source import RecordSource
from .codec import read_part, read_samples
from .manifest import (
    DEFAULT_LENGTH_FIELD,
    DEFAULT_TAG_FIELD,
    TEXT_FIELD,
    AudioOptions,
    Layout,
    field_of,
    first_record,
    gather_index,
    index_kind,
    index_of,
    recording_path,
    recordings_root,
    require_targets,
    scan_recordings,
)

# Of one recording that cannot be sought, as decoded: an hour at 16 kHz has 230 MB. Longer ones are decoded each time.
_MAX_HELD_BYTES = 256 << 20


class RecordingSource(RecordSource):
    """Recordings: key "data", and a key for each target."""

    _options: AudioOptions

    def _prepare(self) -> None:
        for key, field in self._options.fields.items():
            field.settle(self.specs[key], self.labels.get(key))
        self._options.audio.settle(self.specs["data"], None, self._index.meta["sample_rate"])

    def _prepare_files(self) -> None:
        super()._prepare_files()
        self._held: tuple[int, NDArray[Any]] | None = None  # what was read last to take a part of it

    @abstractmethod
    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:
        """Return the path of a recording."""

    @property
    def sample_rate(self) -> int | None:
        """The rate of the samples that "data" is made of, in Hz; `None` if there are no recordings to have one."""
        return self._options.audio.rate

    def _encode(self, record: Mapping[str, Any], corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:
        """Return "data" as float32[T, D], targets as integers [T]."""
        if data_key == "data":
            return self._read_audio(corpus_idx, record, where)
        field = self._options.fields[data_key]
        return field.encode(field_of(record, field.name, object, where), where)

    def _read_audio(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> NDArray[np.float32]:
        path = self._recording(corpus_idx, record, where)
        audio = self._options.audio
        samples, rate = read_samples(path, audio.channel)
        index = self._index
        for what, name, actual in (("samples", "num_samples", len(samples)), ("Hz", "sample_rate", rate)):
            expected = int(index.locator(name)[corpus_idx])
            if actual != expected:
                raise SourceError(
                    f"the recording has {actual} {what}, but {expected} are expected",
                    where=f"{where}, {path}",
                    fix=self._wrong_length_fix,
                )
        return audio.of_samples(samples, rate)

    def reads_slices(self, data_key: str) -> bool:
        """Yes, of recordings: samples are sought, or a recording is decoded once for parts that follow each other."""
        return data_key == "data"

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        if data_key != "data":
            return super()._load_part(corpus_idx, data_key, start, end)
        if self._held is not None and self._held[0] == corpus_idx:
            return self._held[1][start:end].copy()
        audio, index = self._options.audio, self._index
        num_samples, rate = (int(index.locator(name)[corpus_idx]) for name in ("num_samples", "sample_rate"))
        if audio.keeps_samples(rate):
            path = self._recording(corpus_idx, self._record(corpus_idx, (data_key,)), self._where(corpus_idx))
            part = read_part(path, audio.channel, start, end, num_samples=num_samples, sample_rate=rate)
            if part is not None:
                return part[:, None]
        whole = self._checked(corpus_idx, data_key, self._load(corpus_idx, data_key))
        self._held = (corpus_idx, whole) if whole.nbytes <= _MAX_HELD_BYTES else None
        return whole[start:end].copy()

    def close(self) -> None:
        """Release files, and what is held of a recording; a later read opens them again."""
        self._held = None
        super().close()

    _wrong_length_fix = "open the corpus again to have headers read again; replace a truncated recording"


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
        length_field: str = DEFAULT_LENGTH_FIELD,
        index: IndexOption = "auto",
    ) -> None:
        if root is None and is_remote(path_text(manifest, "AudioSource(manifest)")):
            raise ConfigError(
                "a manifest that is read by its URL does not say where its recordings are on this machine",
                where=shown_url(os.fsdecode(manifest)),
                fix="give root=, the folder that its audio paths are relative to",
            )
        manifest = local_file(manifest, "AudioSource(manifest)")
        if os.path.isdir(manifest):
            raise SourceError(
                "a manifest is a file, and this is a folder",
                where=manifest,
                fix="a folder of recordings needs none: AudioDataset(folder, ...), or AudioFolderSource(folder, ...)",
            )
        if os.path.isfile(manifest):
            _check_form(manifest)
        root = os.path.dirname(manifest) if root is None else recordings_root(root, "AudioSource(root=)")
        first = first_record(manifest) if os.path.isfile(manifest) else None
        if tag_field == "auto":
            tag_field = DEFAULT_TAG_FIELD if first is None or DEFAULT_TAG_FIELD in first else None
        layout = Layout(manifest, root, audio_field, tag_field, length_field)
        options = AudioOptions.parse(layout, features, targets, sample_rate, channel)
        require_targets(targets, has_text=first is not None and TEXT_FIELD in first, where=manifest)
        self._open(options, [manifest], lambda: gather_index(options), index=index, kind=index_kind(options))

    def _prepare(self) -> None:
        super()._prepare()
        self._lines = LineTable(self._index)
        manifest = self._options.layout.manifest
        self._form = None if suffix_of(manifest) is None else Delimited.of(manifest)

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002 - one line has all
        """Read the line of a recording again."""
        layout, tag = self._options.layout, self._index.tags[corpus_idx]
        file_idx, start, num_bytes = self._lines.locate(corpus_idx)
        where = f"{layout.manifest}, byte {start}"
        data = self._files.read(file_idx, start, num_bytes)
        if self._form is None:
            record = decode_object(data, where)
        else:
            row = self._form.record(self._index.meta["columns"], data, where)
            record = layout.typed(row, self._options.fields)
        found = layout.tag(record, where)
        if found != tag:
            raise SourceError(f"the tag was {tag!r} and is {found!r}", where=where, fix=self._changed_fix)
        return record

    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:  # noqa: ARG002
        return str(resolve_inside(self._options.layout.root, self._options.layout.audio_path(record, where)))


def _check_form(manifest: str) -> None:
    """Refuse a manifest that is not lines of text.

    Raises:
        ConfigError: It is a table of another form, or compressed.
    """
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


_AUDIO, _TAG, _PATH = "audio", "tag", "absolute path"
_FORMS = "give pairs (path, text), dicts with the path as 'audio', or a DataFrame with such columns"


@dataclass(frozen=True, slots=True)
class _TableOptions(AudioOptions):
    """How the recordings of a table become arrays.

    Attributes:
        rows: What is known of each recording.
    """

    rows: tuple[Mapping[str, Any], ...] = ()


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
        folder = recordings_root(os.curdir if root is None else root, "AudioTableSource(root=)")
        placed = tuple({**row, _PATH: os.path.join(folder, row[_AUDIO])} for row in rows)
        layout = Layout("table of recordings", "/", _PATH, _TAG, "num_samples")
        parsed = AudioOptions.parse(layout, features, targets, sample_rate, channel)
        options = _TableOptions(layout, parsed.fields, parsed.audio, placed)
        self._open(options, [], lambda: _gather(options), index=None, kind="")

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> Mapping[str, Any]:  # noqa: ARG002 - a row has all
        assert isinstance(self._options, _TableOptions)
        return self._options.rows[corpus_idx]

    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:  # noqa: ARG002
        path: str = record[_PATH]
        return path

    def _where(self, corpus_idx: int) -> str:
        return f"row {corpus_idx} of a table of recordings, tag {self._index.tags[corpus_idx]!r}"


def _gather(options: _TableOptions) -> Any:
    scanned = scan_recordings(options.layout, options.fields, options.rows)
    return index_of(options, scanned, options.layout.manifest)


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
            row = {_AUDIO: entry}
        elif isinstance(entry, Sequence) and len(entry) == 2:
            row = {_AUDIO: entry[0], TEXT_FIELD: entry[1]}
        else:
            raise ConfigError(f"{entry!r} is not a recording", where=where, fix=_FORMS)
        if _AUDIO not in row:
            raise ConfigError(f"there is no {_AUDIO!r}, only {', '.join(map(repr, row))}", where=where, fix=_FORMS)
        row[_AUDIO] = recording_path(path_text(row[_AUDIO], where), where)
        row.setdefault(_TAG, row[_AUDIO])
        rows.append(row)
    return rows
