"""A source of recordings that a manifest lists.

The manifest is read once, when its index is built; from then on only the place of each line is known, and a line is
read again with its recording. Nothing is decoded before it is asked for. Read `audio_gather.py` for what is indexed,
`audio_scan.py` for what is taken down of the manifest, `manifest_fields.py` for labels, `audio_file.py` for
recordings, `log_mel.py` for features, `recordings.py` for how they become arrays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from headrace.files import resolve_inside
from headrace.index import CorpusIndex, open_or_build

from .arguments import check_corpus_idx
from .audio_gather import AudioOptions, gather_index, index_kind
from .audio_scan import DEFAULT_LENGTH_FIELD, Layout
from .log_mel import LogMel
from .manifest import decode_line
from .plain_files import PlainFiles
from .recordings import RecordingSource


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
    _wrong_length_fix = "correct the manifest, or touch it to have headers read again; replace a torn recording"

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
