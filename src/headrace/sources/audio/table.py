"""A source of the recordings that a table in memory lists: pairs of path and text, dicts, or a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError
from headrace.features.log_mel import LogMel

from ..shared.paths import path_text
from .gather import TEXT_FIELD, AudioOptions, index_of, require_targets
from .manifest import Layout, recording_path, recordings_root, scan_recordings
from .source import RecordingSource

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
