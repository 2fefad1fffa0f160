"""Recordings that a manifest lists (JSON lines, CSV, TSV), or a table in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.features.log_mel import LogMel
from headrace.files.locations import is_remote, local_path, shown_url
from headrace.files.packed import is_packed

from ..shared.delimited import Delimited, number_of
from ..shared.json_fields import IndexField
from ..shared.lines import decode_object, scan_lines
from ..shared.listed import Entry, Listed, ListedSource, parse_targets, value_of
from ..shared.paths import PACK_FIX, IndexOption, local_file, path_text
from .codec import RecordingCodec, read_part

TEXT_FIELD = "text"
_LARGEST_COUNT = 2**40  # a year of 24 kHz audio is less; more is an error that must not overflow later
# Of one recording that cannot be sought, as decoded: an hour at 16 kHz has 230 MB. Longer ones are decoded each time.
_MAX_HELD_BYTES = 256 << 20


class RecordingSource(ListedSource):
    """Listed recordings: key "data", and a key for each target."""

    @property
    def sample_rate(self) -> int | None:
        """The rate of the samples that "data" is made of, in Hz; `None` if there are no recordings to have one."""
        return self._audio.rate

    @property
    def _audio(self) -> RecordingCodec:
        assert isinstance(self._options.data, RecordingCodec)
        return self._options.data

    def _prepare_files(self) -> None:
        super()._prepare_files()
        self._held: tuple[int, NDArray[Any]] | None = None  # what was read last to take a part of it

    def reads_slices(self, data_key: str) -> bool:
        """Yes, of recordings: samples are sought, or a recording is decoded once for parts that follow each other."""
        return data_key == "data"

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        if data_key != "data":
            return super()._load_part(corpus_idx, data_key, start, end)
        audio = self._audio
        if self._held is None or self._held[0] != corpus_idx:
            if audio.features is None:
                path, num_samples = self._path(corpus_idx), self._lengths["data"][corpus_idx]
                part = read_part(path, audio.channel, start, end, num_samples=num_samples, sample_rate=audio.rate)
                if part is not None:
                    return part[:, None]
            whole = self._checked(corpus_idx, data_key, self._load(corpus_idx, data_key))
            self._held = (corpus_idx, whole) if whole.nbytes <= _MAX_HELD_BYTES else None
            return whole[start:end].copy()
        return self._held[1][start:end].copy()

    def close(self) -> None:
        """Drop what is held of a recording."""
        self._held = None
        super().close()


def require_targets(targets: Mapping[str, Any] | None, *, has_text: bool, where: str) -> None:
    """Refuse to leave out the texts of recordings silently, if no targets were given; an empty dict says so.

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
class _Columns:
    """Which fields of an entry say what.

    Attributes:
        audio: Path of the recording.
        tag: Tag; the path of the recording if `None`.
        length: Number of samples, at the recording's own rate. Where the default one is absent, "length" counts.
    """

    audio: str = "audio"
    tag: str | None = "tag"
    length: str = "num_samples"

    def entry(self, record: Mapping[str, Any], where: str, folder: str = "") -> Entry:
        """Return what an entry says; a path is put below a folder.

        Raises:
            SourceError: An entry is wrong, or its path is the URL of a store: recordings are not fetched one by one.
        """
        num_samples = _count(record, self.length, 0, where)
        if num_samples is None and self.length == "num_samples":
            num_samples = _count(record, "length", 0, where)
        rate = _count(record, "sample_rate", 1, where)
        name: str = value_of(record, self.audio, str, where)
        path = local_path(name) if "://" in name else name
        if path is None:
            what = f"the recording {shown_url(name)!r} is named by a URL, and recordings are read from this machine"
            raise SourceError(what, where=where, fix=f"copy them here, and name them by paths; or {PACK_FIX}")
        tag: str = value_of(record, self.tag or self.audio, str, where)
        known = None if num_samples is None or rate is None else (num_samples, rate)
        return Entry(tag, os.path.join(folder, path), record, where, known)


def _count(record: Mapping[str, Any], name: str, smallest: int, where: str) -> int | None:
    """Return a field that holds a whole number, `None` if it is absent or null."""
    value = record.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value % 1 != 0 or not smallest <= value <= _LARGEST_COUNT:
        what = f"the field {name!r} has {value!r}, not a whole number of at least {smallest}"
        fix = "correct it, or leave it out: the recording says the same; length_field= names another field of samples"
        raise SourceError(what, where=where, fix=fix)
    return int(value)


def _read_manifest(path: str, numbers: set[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each entry of a manifest is, and its fields.

    Args:
        path: The manifest.
        numbers: The columns of CSV and TSV that hold numbers; an empty cell is none.

    Raises:
        SourceError: A line is no entry.
    """
    if not path.lower().endswith((".csv", ".tsv")):
        for block in scan_lines(path):
            for number, _, line in block.records():
                where = f"{path}, line {number}"
                yield where, decode_object(line, where)
        return
    records = Delimited.of(path).scan(path, path)
    next(records)  # the header
    for where, _, _, record in records:
        cells = record.items()
        yield where, {name: (number_of(text) if text else None) if name in numbers else text for name, text in cells}


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
        if is_packed(manifest) or manifest.endswith((".parquet", ".arrow")):
            fix = "decompress it; give a table: AudioDataset(pandas.read_parquet(path), root=folder, targets=...)"
            raise ConfigError("a manifest is lines of JSON, CSV or TSV, not compressed", where=manifest, fix=fix)
        root = os.path.dirname(manifest) if root is None else _absolute_root(root, "AudioSource(root=)")
        audio, fields = RecordingCodec(features, sample_rate, channel), parse_targets(targets, None)
        numbers = {length_field, "length", "sample_rate"}
        numbers |= {field.name for field in fields.values() if isinstance(field, IndexField)}
        start = _read_manifest(manifest, numbers) if os.path.lexists(manifest) else iter(())
        first: Mapping[str, Any] | None = next((record for _, record in start), None)
        if tag_field == "auto":
            tag_field = "tag" if first is None or "tag" in first else None
        require_targets(targets, has_text=first is not None and TEXT_FIELD in first, where=manifest)
        columns = _Columns(audio_field, tag_field, length_field)

        def entries() -> Iterator[Entry]:
            return (columns.entry(record, where) for where, record in _read_manifest(manifest, numbers))

        # A root inside the folder of the manifest is named relative to it: a corpus and its index can be moved.
        real, folder = Path(os.path.realpath(root)), Path(os.path.realpath(manifest)).parent
        place = real.relative_to(folder) if real.is_relative_to(folder) else real
        kind = f"audio-manifest/5 {str(place)!r} {columns}"
        self._open_listed(Listed(manifest, root, audio, fields), [manifest], entries, index=index, kind=kind)


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
        audio = RecordingCodec(features, sample_rate, channel)
        listed = Listed("table of recordings", "/", audio, parse_targets(targets, None))

        def entries() -> Iterator[Entry]:
            return (_Columns().entry(row, f"row {number} of a table", folder) for number, row in enumerate(rows))

        self._open_listed(listed, [], entries, index=None, kind="")


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
            row = {}
        if "audio" not in row:
            fix = "give pairs (path, text), dicts with the path as 'audio', or a DataFrame with such columns"
            raise ConfigError(f"{entry!r} names no recording", where=where, fix=fix)
        row["audio"] = path_text(row["audio"], where)
        row.setdefault("tag", row["audio"])
        rows.append(row)
    return rows
