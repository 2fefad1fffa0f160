"""A source of recordings that a manifest lists.

The manifest is read once, when the source is built; from then on only the place of each line is kept, and a line is
read again with its recording. Nothing is decoded before it is asked for. Read `audio_scan.py` for what is taken down
of the manifest, `manifest_fields.py` for labels, `audio_file.py` for recordings, `log_mel.py` for features.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import FileStamp, resolve_inside
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from .arguments import check_corpus_idx, check_data_key
from .audio_file import read_samples, resample, resampled_length
from .audio_scan import Layout, ScannedManifest, scan_recordings
from .base import Source
from .log_mel import LogMel
from .manifest import ManifestReader, field_of
from .manifest_fields import parse_field


class AudioSource(Source):
    """Recordings of a JSONL manifest: key "data", and a key for each target. Reading needs `headrace[audio]`.

    A line of the manifest is an object such as `{"tag": "en/7", "audio": "en/7.flac", "word": "7", "sample_rate": 8000,
    "num_samples": 5120}`. Where a line has no number of samples or no sample rate, the header of its recording is
    read when the source is built. Durations in seconds are not used: most manifests round them. What the manifest
    says is compared with each recording when it is read.

    Args:
        manifest: Path of the manifest.
        root: Folder that the audio paths are relative to, and must not lead out of; the folder of the manifest if
            `None`.
        features: "raw" (samples, float32[T, 1]), "log_mel", a `LogMel`, or a dict of its options (float32[T,
            num_mels]); without `sample_rate` there, it is that of the recordings.
        targets: Data key -> field of the manifest: `{"classes": "word"}` for labels, `{"orth": "text"}` for UTF-8
            bytes, or `{"text": {"field": "text", "vocab": ...}}`, see `parse_field`.
        sample_rate: Recordings of another rate are resampled; if `None`, that of the features, or else of all
            recordings, which must then have the same.
        channel: Which channel, from 0; needed for recordings with several.
        audio_field: Field with the path of the recording.
        tag_field: Field with the tag; the path of the recording if `None`. Tags may repeat.
        length_field: Field with the number of samples, of one channel, at the recording's own rate.

    Raises:
        ConfigError: An option is wrong.
        SourceError: The manifest or a line of it is wrong, a recording is missing or outside of the root, or not what
            it is claimed to be.
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
        tag_field: str | None = "tag",
        length_field: str = "num_samples",
    ) -> None:
        manifest = os.path.abspath(manifest)
        root = os.path.abspath(root) if root is not None else os.path.dirname(manifest)
        self._layout = Layout(manifest, root, audio_field, tag_field, length_field)
        self._fields = {key: parse_field(key, target) for key, target in (targets or {}).items()}
        if "data" in self._fields:
            raise ConfigError('a target cannot be named "data": that is the audio')
        options = _feature_options(features)
        self._channel = _checked_count("channel", channel, 0)
        self._sample_rate = _checked_count("sample_rate", sample_rate, 1)
        stamp = FileStamp.of(manifest)
        scanned = scan_recordings(self._layout, self._fields)
        if self._sample_rate is None:
            own = None if options is None else options.get("sample_rate")
            self._sample_rate = own or _common_rate(scanned.sample_rate, manifest)
        self._log_mel = None if options is None else _front_end(options, self._sample_rate)
        num_mels = 1 if self._log_mel is None else self._log_mel.num_mels
        self.specs = {
            "data": DataSpec("float32", (num_mels,), dim=num_mels),
            **{key: field.spec for key, field in self._fields.items()},
        }
        self.labels = {key: field.labels for key, field in self._fields.items() if field.labels is not None}
        lengths = {"data": self._lengths_of(scanned), **scanned.target_lengths}
        meta = {"specs": {key: spec.to_json() for key, spec in self.specs.items()}, "labels": dict(self.labels)}
        self._index = CorpusIndex.from_columns(
            tags=scanned.tags, lengths=lengths, locators=scanned.locators(), meta=meta, files=[stamp]
        )
        self._reader = ManifestReader(manifest)

    def _lengths_of(self, scanned: ScannedManifest) -> list[int]:
        """Return the number of frames of "data" for each recording."""
        return [self._num_frames(*pair) for pair in zip(scanned.num_samples, scanned.sample_rate, strict=True)]

    def _num_frames(self, num_samples: int, rate: int) -> int:
        """Return how many frames of "data" a recording has."""
        if self._sample_rate is not None:
            num_samples = resampled_length(num_samples, rate, self._sample_rate)
        return num_samples if self._log_mel is None else self._log_mel.num_frames(num_samples)

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where each line of the manifest is."""
        return self._index

    @property
    def sample_rate(self) -> int | None:
        """The rate of the samples that "data" is made of, in Hz; `None` if there are no recordings to have one."""
        return self._sample_rate

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one recording: "data" as float32[T, D], targets as integers [T]."""
        check_data_key(data_key, self.specs)
        return self._read_key(corpus_idx, data_key, self._record(corpus_idx))

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one recording."""
        record = self._record(corpus_idx)
        return {data_key: self._read_key(corpus_idx, data_key, record) for data_key in self.specs}

    def _record(self, corpus_idx: int) -> dict[str, Any]:
        """Read the line of a recording again."""
        index = self._index
        check_corpus_idx(corpus_idx, index.num_seqs)
        start, num_bytes = (int(index.locator(name)[corpus_idx]) for name in ("line_start", "line_bytes"))
        record = self._reader.read(start, num_bytes)
        where = f"{self._layout.manifest}, byte {start}"
        if self._layout.tag(record, where) != index.tags[corpus_idx]:
            raise _changed(f"the tag was {index.tags[corpus_idx]!r} and is {self._layout.tag(record, where)!r}", where)
        return record

    def _read_key(self, corpus_idx: int, data_key: str, record: dict[str, Any]) -> NDArray[Any]:
        where = f"{self._layout.manifest}, tag {self._index.tags[corpus_idx]!r}"
        if data_key == "data":
            array = self._read_audio(corpus_idx, record, where)
        else:
            field = self._fields[data_key]
            array = field.encode(field_of(record, field.name, object, where), where)
        expected = int(self._index.lengths(data_key)[corpus_idx])
        if len(array) != expected:
            raise _changed(f"the length of {data_key!r} was {expected} and is {len(array)}", where)
        return array

    def _read_audio(self, corpus_idx: int, record: dict[str, Any], where: str) -> NDArray[np.float32]:
        path = str(resolve_inside(self._layout.root, self._layout.audio_path(record, where)))
        samples, rate = read_samples(path, self._channel)
        index = self._index
        for what, name, actual in (("samples", "num_samples", len(samples)), ("Hz", "sample_rate", rate)):
            expected = int(index.locator(name)[corpus_idx])
            if actual != expected:
                raise SourceError(
                    f"the recording has {actual} {what}, but {expected} are expected",
                    where=f"{where}, {path}",
                    fix="correct the manifest; if the recording is torn, replace it",
                )
        samples = resample(samples, rate, self._sample_rate or rate)
        return samples[:, None] if self._log_mel is None else self._log_mel(samples)

    def close(self) -> None:
        """Release the manifest; a later read opens it again."""
        self._reader.close()


def _changed(what: str, where: str) -> SourceError:
    return SourceError(f"the manifest changed since it was read: {what}", where=where, fix="build the source again")


def _checked_count(name: str, value: int | None, smallest: int) -> int | None:
    """Return an optional whole number, or refuse it."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < smallest):
        raise ConfigError(f"{name} is a whole number of at least {smallest}, not {value!r}", where="AudioSource")
    return value


def _feature_options(features: Any) -> dict[str, Any] | None:
    """Return the options of `LogMel` that were given, or `None` for raw samples."""
    if isinstance(features, LogMel):
        return {option.name: getattr(features, option.name) for option in fields(LogMel)}
    if isinstance(features, str) and features in ("raw", "log_mel"):
        return None if features == "raw" else {}
    if not isinstance(features, Mapping):
        raise ConfigError(
            f"features cannot be read: {features!r}",
            where="AudioSource",
            fix='give "raw", "log_mel", a LogMel or a dict',
        )
    names = [option.name for option in fields(LogMel)]
    for name in features:
        if name not in names:
            raise ConfigError(f"LogMel has no option {name!r}", where="features=", fix=did_you_mean(str(name), names))
    return dict(features)


def _front_end(options: Mapping[str, Any], sample_rate: int | None) -> LogMel:
    """Return the front end for recordings of a rate."""
    if sample_rate is None:
        raise ConfigError(
            "an empty manifest does not say for which sample rate features are made", fix="give sample_rate="
        )
    if options.get("sample_rate") not in (None, sample_rate):
        raise ConfigError(
            f"sample_rate is {sample_rate}, but that of the features {options['sample_rate']}", where="AudioSource"
        )
    return LogMel(**{**options, "sample_rate": sample_rate})


def _common_rate(rates: Sequence[int], manifest: str) -> int | None:
    """Return the sample rate that all recordings have, or `None` if there are none."""
    different = sorted(set(rates))
    if len(different) > 1:
        raise ConfigError(
            f"the recordings have different sample rates: {', '.join(map(str, different))} Hz",
            where=manifest,
            fix="give sample_rate=, to which they are resampled",
        )
    return different[0] if different else None
