"""A source of recordings that a manifest lists, and what all sources of recordings have in common.

A sub-class of `RecordingSource` opens its index and says what the fields of a sequence are (a line of a manifest, or
what a folder says of a file) and where its recording is. A manifest is read once, when its index is built; from then on
only the position of each line is known, and a line is read again with its recording. Nothing is decoded before it is
asked for.

Read `gather.py` for what is indexed, `manifest.py` for what is taken down of the manifest, `shared/fields.py` for
labels, `decode.py` for recordings, `headrace.features` for features.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.features.log_mel import LogMel
from headrace.files import resolve_inside
from headrace.index import CorpusIndex, open_or_build
from headrace.specs import DataSpec

from ..base import Source, check_corpus_idx, check_data_key
from ..shared.plain_files import PlainFiles
from .decode import read_samples, resample
from .gather import AudioOptions, gather_index, index_kind
from .manifest import DEFAULT_LENGTH_FIELD, Layout, decode_line, field_of


class RecordingSource(Source):
    """Recordings: key "data", and a key for each target."""

    _changed_place = "the corpus"  # what errors say has changed

    def _attach(self, options: AudioOptions, index: CorpusIndex) -> None:
        """Work out everything that follows from the options and the index."""
        self._options, self._index, self._fields = options, index, options.fields
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in index.meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = dict(index.meta["labels"])
        for key, field in self._fields.items():
            field.settle(self.labels.get(key))
        self._sample_rate: int | None = index.meta["sample_rate"]
        self._log_mel = options.front_end(self._sample_rate)

    @abstractmethod
    def _record(self, corpus_idx: int) -> Mapping[str, Any]:
        """Return the fields of a sequence, or raise `IndexError`."""

    @abstractmethod
    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:
        """Return the path of a recording."""

    @property
    @abstractmethod
    def _place(self) -> str:
        """What errors name."""

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where each sequence is."""
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

    def _read_key(self, corpus_idx: int, data_key: str, record: Mapping[str, Any]) -> NDArray[Any]:
        where = f"{self._place}, tag {self._index.tags[corpus_idx]!r}"
        if data_key == "data":
            array = self._read_audio(corpus_idx, record, where)
        else:
            field = self._fields[data_key]
            array = field.encode(field_of(record, field.name, object, where), where)
        expected = int(self._index.lengths(data_key)[corpus_idx])
        if len(array) != expected:
            raise self._changed(f"the length of {data_key!r} was {expected} and is {len(array)}", where)
        return array

    def _read_audio(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> NDArray[np.float32]:
        path = self._recording(corpus_idx, record, where)
        samples, rate = read_samples(path, self._options.channel)
        index = self._index
        for what, name, actual in (("samples", "num_samples", len(samples)), ("Hz", "sample_rate", rate)):
            expected = int(index.locator(name)[corpus_idx])
            if actual != expected:
                raise SourceError(
                    f"the recording has {actual} {what}, but {expected} are expected",
                    where=f"{where}, {path}",
                    fix=self._wrong_length_fix,
                )
        samples = resample(samples, rate, self._sample_rate or rate)
        return samples[:, None] if self._log_mel is None else self._log_mel(samples)

    _wrong_length_fix = "open the corpus again to have headers read again; replace a truncated recording"

    def _changed(self, what: str, where: str) -> SourceError:
        return SourceError(
            f"{self._changed_place} changed since it was read: {what}", where=where, fix="build the source again"
        )


class AudioSource(RecordingSource):
    """Recordings of a JSONL manifest: key "data", and a key for each target. Reading needs `headrace[audio]`.

    A line of the manifest is an object such as `{"tag": "en/7", "audio": "en/7.flac", "word": "7", "sample_rate": 8000,
    "num_samples": 5120}`. Where a line has no number of samples or no sample rate, the header of its recording is
    read when the index is built. Durations in seconds are not used: most manifests round them. What the index says is
    compared with each recording when it is read: that is also when a recording is missed which was there when the
    index was built.

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
        length_field: Field with the number of samples, of one channel, at the recording's own rate. With the default,
            a line without it may have the same number as "length". Whole numbers only: seconds are refused.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time, unless
            the manifest changed; `None` always reads the whole manifest and looks for all recordings; a path opens the
            index that `AudioSource(...).index.save(path)` wrote with the same options.

    Raises:
        ConfigError: An option is wrong.
        SourceError: The manifest or a line of it is wrong, a recording is missing or outside of the root, or not what
            it is claimed to be; or the given index is not one of this manifest as it is now, with these options.
    """

    _changed_place = "the manifest"
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
        tag_field: str | None = "tag",
        length_field: str = DEFAULT_LENGTH_FIELD,
        index: str | os.PathLike[str] | Literal["auto"] | None = "auto",
    ) -> None:
        manifest = os.path.abspath(manifest)
        root = os.path.abspath(root) if root is not None else os.path.dirname(manifest)
        layout = Layout(manifest, root, audio_field, tag_field, length_field)
        options = AudioOptions.parse(layout, features, targets, sample_rate, channel)
        corpus = open_or_build([manifest], lambda: gather_index(options), index=index, kind=index_kind(options))
        self._attach(options, corpus)

    def _attach(self, options: AudioOptions, index: CorpusIndex) -> None:
        super()._attach(options, index)
        self._layout = options.layout
        self._manifest = PlainFiles(index.files)

    @property
    def _place(self) -> str:
        return self._layout.manifest

    def _record(self, corpus_idx: int) -> dict[str, Any]:
        """Read the line of a recording again."""
        index = self._index
        check_corpus_idx(corpus_idx, index.num_seqs)
        start, num_bytes = (int(index.locator(name)[corpus_idx]) for name in ("line_start", "line_bytes"))
        if not 0 <= start <= start + num_bytes <= index.files[0].size:
            what = f"bytes {start}..{start + num_bytes} of a manifest of {index.files[0].size}"
            raise index.damaged(f"it says that sequence {corpus_idx} is in {what}")
        where = f"{self._layout.manifest}, byte {start}"
        record = decode_line(self._manifest.read(0, start, num_bytes), where)
        tag = self._layout.tag(record, where)
        if tag != index.tags[corpus_idx]:
            raise self._changed(f"the tag was {index.tags[corpus_idx]!r} and is {tag!r}", where)
        return record

    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:  # noqa: ARG002
        return str(resolve_inside(self._layout.root, self._layout.audio_path(record, where)))

    def close(self) -> None:
        """Release the manifest; a later read opens it again."""
        self._manifest.close()

    def __getstate__(self) -> tuple[AudioOptions, CorpusIndex]:
        return self._options, self._index

    def __setstate__(self, state: tuple[AudioOptions, CorpusIndex]) -> None:
        self._attach(*state)
