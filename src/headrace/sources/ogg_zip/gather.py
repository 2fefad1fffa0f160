"""From the texts and directories of OggZip archives to one index of the corpus; and what becomes of samples.

`OggZipSamples` are the options of RETURNN's `ExtractAudioFeatures` that leave samples as samples. What draws random
numbers there, from one generator that all sequences share, is not offered: give the dataset a `transform` with `rng`.
Nor are features: a transform computes them, for example by `LogMel`.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, NotCarriedOverError, SourceError, did_you_mean
from headrace.files import open_regular, resolve_inside
from headrace.index import CorpusIndex
from headrace.vocabularies.base import Vocabulary

from ..audio.codec import read_header
from ..base import SORT_LENGTHS
from ..shared.folder import for_each_part, in_threads
from ..shared.parts import Tell
from ..shared.zip_members import Member, list_members, read_member
from .archives import Archive, Descriptors, TextEntry, opened_archive, read_text, scan_entries

_FEATURES_OF_RETURNN = (
    "mfcc",
    "log_mel_filterbank",
    "log_log_mel_filterbank",
    "db_mel_filterbank",
    "linear_spectrogram",
    "raw_ogg",
)
_REFUSED = {
    "random_permute": "augment by transform= of the dataset, with a generator for each sequence",
    "with_delta": "compute deltas by transform= of the dataset",
    "num_channels": "choose one channel when the archive is made",
    "pre_process": "use transform= of the dataset",
    "post_process": "use transform= of the dataset",
    "raw_ogg_opts": "use features='raw'",
    "feature_options": "raw samples have none; compute features by transform= of the dataset",
}
_NAMES = (
    "features",
    "join_frames",
    "norm_mean",
    "norm_std_dev",
    "num_feature_filters",
    "peak_normalization",
    "preemphasis",
    "sample_rate",
    "step_len",  # of windows, which raw samples do not have
    "window_len",
)
_SMALLEST_STD = 1e-2


@dataclass(frozen=True, eq=False)
class OggZipSamples:
    """From the samples of a recording to the array of "data"; made by `parse`.

    Attributes:
        sample_rate: That recordings must have, in Hz; `None` for any.
        peak_normalization: Whether the largest sample becomes 1.
        preemphasis: a in `y[i] = x[i] - a * x[i - 1]`; 0 is none.
        norm_mean: Subtracted: a number, `float32[1]`, "per_seq" or `None`.
        norm_std_dev: Divided by, likewise.
        dim: Samples in a row that become one frame, if not 1; the last one is repeated where some are missing.
    """

    sample_rate: int | None
    peak_normalization: bool
    preemphasis: float
    norm_mean: Any
    norm_std_dev: Any
    dim: int

    @classmethod
    def parse(cls, audio: Mapping[str, Any]) -> OggZipSamples:
        """Read the dict that RETURNN takes as `audio`.

        Raises:
            ConfigError: An option is unknown, wrong, or one that is not offered.
            NotCarriedOverError: It asks for features of RETURNN.
        """
        _check_names(audio)
        kind = audio.get("features", "mfcc")
        if kind in _FEATURES_OF_RETURNN:
            raise NotCarriedOverError(
                f"the features {kind!r} of RETURNN{'' if 'features' in audio else ', its default,'} are not offered",
                fix='write audio={"features": "raw"}, and compute features by transform= of the dataset, for example '
                "by headrace.LogMel",
            )
        if kind != "raw":
            raise ConfigError(f"features {kind!r} are not offered", where="OggZip", fix='write "features": "raw"')
        if audio.get("num_feature_filters") not in (None, 1):
            filters = audio["num_feature_filters"]
            raise ConfigError(f"raw samples have 1 feature, not {filters}", where="OggZip", fix="leave it out")
        return cls(
            int(_number(audio, "sample_rate", 1, 1)) if audio.get("sample_rate") is not None else None,
            bool(audio.get("peak_normalization", True)),
            _number(audio, "preemphasis", 0.0, 0.0),
            _norm("norm_mean", audio.get("norm_mean")),
            _norm("norm_std_dev", audio.get("norm_std_dev")),
            int(_number(audio, "join_frames", 1, 1)),
        )

    @property
    def identity(self) -> list[Any]:
        """JSON data that names all that changes the samples."""
        norms = [
            xxhash.xxh3_128_hexdigest(norm.tobytes()) if isinstance(norm, np.ndarray) else norm
            for norm in (self.norm_mean, self.norm_std_dev)
        ]
        return [self.sample_rate, self.dim, self.peak_normalization, self.preemphasis, *norms]

    def num_frames(self, num_samples: int) -> int:
        """Return how many frames a recording has; none for no samples."""
        return -(-num_samples // self.dim)

    def __call__(self, samples: NDArray[np.float32], sample_rate: int, where: str) -> NDArray[np.float32]:
        """Return the array of a recording.

        Args:
            samples: `float32[n]`.
            sample_rate: In Hz.
            where: The recording, for errors.

        Returns:
            `float32[T, dim]`.

        Raises:
            SourceError: The recording has another rate.
        """
        if self.sample_rate not in (None, sample_rate):
            raise SourceError(
                f"the recording has {sample_rate} Hz, not {self.sample_rate}",
                where=where,
                fix="convert it; or leave sample_rate out, if recordings may differ",
            )
        if not len(samples):
            return np.zeros((0, self.dim), np.float32)
        return self._joined(self._normalized(self._prepared(samples).astype(np.float32)[:, None]))

    def _prepared(self, samples: NDArray[np.float32]) -> NDArray[np.float64]:
        audio = samples.astype(np.float64)
        if self.preemphasis:
            audio[1:] -= self.preemphasis * audio[:-1].copy()
        peak = np.max(np.abs(audio)) if self.peak_normalization else 0.0
        if peak != 0.0:
            audio /= peak
        return audio

    def _normalized(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.norm_mean is not None:
            per_seq = isinstance(self.norm_mean, str)
            features -= np.mean(features, axis=0, keepdims=True) if per_seq else self.norm_mean
        if self.norm_std_dev is not None:
            per_seq = isinstance(self.norm_std_dev, str)
            std = np.maximum(np.std(features, axis=0, keepdims=True), _SMALLEST_STD) if per_seq else self.norm_std_dev
            features /= std
        return features

    def _joined(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.dim == 1:
            return features
        missing = -len(features) % self.dim
        return np.pad(features, ((0, missing), (0, 0)), mode="edge").reshape(-1, self.dim)


def _check_names(audio: Any) -> None:
    """Refuse options that are unknown or not offered."""
    if not isinstance(audio, Mapping):
        raise ConfigError(f"audio is a dict of options, not {audio!r}", where="OggZip", fix='write {"features": "raw"}')
    for name, value in audio.items():
        if name in _REFUSED:
            if value is not None and value is not False and value not in (0, {}):
                raise ConfigError(f"audio option {name}={value!r} is not offered", where="OggZip", fix=_REFUSED[name])
        elif name not in _NAMES:
            raise ConfigError(f"unknown audio option {name!r}", where="OggZip", fix=did_you_mean(str(name), _NAMES))


def _number(options: Mapping[str, Any], name: str, default: float, smallest: float) -> float:
    value = options.get(name, default)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not smallest <= value < 1e9:
        raise ConfigError(f"{name} must be a number of at least {smallest:g}, not {value!r}", where="audio")
    return value


def _norm(name: str, value: Any) -> Any:
    """Return a number, "per_seq", an array `float32[1]` (also from a text file), or `None`."""
    if value is None or (isinstance(value, str) and value == "per_seq"):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str | os.PathLike):
        try:
            value = np.loadtxt(value, ndmin=1)
        except (OSError, ValueError) as error:
            raise SourceError(f"{name} cannot be read: {error}", where=os.fspath(value)) from error
    array = np.asarray(value)
    if array.shape != (1,) or array.dtype.kind not in "iuf":
        raise ConfigError(f"{name} is {array.dtype}{list(array.shape)}, but a sample is 1 number", where="audio")
    return array.astype(np.float32)


INDEX_KIND = "ogg-zip/1"
DATA_LENGTHS = (None, "duration", "header")
_MAX_NAMED = 5
_MEMBER_COLUMNS = ("start", "packed", "size", "crc", "deflated", "head")


@dataclass(frozen=True, slots=True)
class OggZipOptions:
    """Checked options of a corpus. See `OggZipSource` for what each means."""

    archives: list[Archive]
    features: OggZipSamples | None
    vocabulary: Vocabulary | None
    post_process: Callable[[str], str] | None
    segment_file: str | None
    has_prefix: bool
    subset: float | int | None
    subset_seed: int
    data_lengths: str | None

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        subset = self.subset
        if subset is not None and (
            isinstance(subset, bool)
            or not isinstance(subset, int | float)
            or not (subset >= 1 if isinstance(subset, int) else 0 < subset < 1)
        ):
            raise ConfigError(f"fixed_random_subset is a share in 0..1 or a number of sequences, not {subset!r}")
        if self.data_lengths not in DATA_LENGTHS:
            raise ConfigError(f"data_lengths is one of {DATA_LENGTHS}, not {self.data_lengths!r}")
        if self.data_lengths == "duration" and (self.features is None or self.features.sample_rate is None):
            raise ConfigError(
                'data_lengths="duration" counts samples, and needs to know their rate',
                where="OggZipSource",
                fix='give audio={"sample_rate": ...}',
            )

    @property
    def files(self) -> list[str]:
        """All files that the index is built from."""
        return [path for archive in self.archives for path in archive.files]

    @property
    def kind(self) -> str:
        """Identify all options that change the index: the same text in every process."""
        said = [
            [[archive.name, archive.is_folder] for archive in self.archives],
            None if self.features is None else [self.data_lengths, self.features.identity if self.data_lengths else 0],
            None if self.vocabulary is None else self.vocabulary.identity,
            sorted(read_segments(self.segment_file)) if self.segment_file else None,
            [self.has_prefix, self.subset, self.subset_seed],
        ]
        return f"{INDEX_KIND} {xxhash.xxh3_128_hexdigest(json.dumps(said, default=repr).encode())}"

    def target_text(self, text: str) -> str:
        """Return the text that the vocabulary gets."""
        return text if self.post_process is None else self.post_process(text)

    def encode(self, text: str, where: str) -> NDArray[np.int32]:
        """Return the classes of a text.

        Raises:
            SourceError: It has none.
        """
        assert self.vocabulary is not None
        try:
            return self.vocabulary.encode(self.target_text(text))
        except SourceError as error:
            raise SourceError(error.what, where=where, fix=error.fix) from error


@dataclass(slots=True)
class _Row:
    """One sequence: its entry, where it is, and the member that is its recording."""

    archive: int
    start: int
    num_bytes: int
    entry: TextEntry
    member: Member | None


def gather_index(options: OggZipOptions) -> CorpusIndex:
    """Read texts and directories: about 20 us a sequence, and what encoding its text takes.

    Raises:
        SourceError: An archive is damaged or has a member that leads out of it, a text cannot be read, or recordings
            are missing.
    """
    rows: list[_Row] = []
    sizes = []
    for number, archive in enumerate(options.archives):
        members = {} if archive.is_folder else list_members(archive.path)
        text = read_text(archive, members)
        sizes.append(len(text))
        rows += _rows_of(options, number, text, members)
    if options.segment_file:
        wanted = read_segments(options.segment_file)
        rows = [row for row in rows if row.entry.tag in wanted]
    if options.subset is not None:
        rows = _random_subset(rows, options.subset, options.subset_seed)
    return CorpusIndex.from_columns(
        tags=[row.entry.tag for row in rows],
        lengths=_lengths(options, rows),
        locators=_locators(rows, has_members=options.features is not None and not options.archives[0].is_folder),
        meta={"text_bytes": sizes},
    )


def read_segments(path: str) -> set[str]:
    """Return the tags in a text file, one a line; `.gz` is decompressed.

    Raises:
        SourceError: It cannot be read.
    """
    try:
        with open_regular(path) as stored, gzip.open(stored) if path.endswith(".gz") else stored as file:
            return set(file.read().decode().splitlines())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SourceError(
            f"the segment file cannot be read: {error}", where=path, fix="one tag a line, UTF-8"
        ) from error


def _rows_of(options: OggZipOptions, number: int, text: bytes, members: dict[str, Member]) -> list[_Row]:
    archive = options.archives[number]
    rows: list[_Row] = []
    missing: list[str | None] = []
    num_missing = 0
    for start, num_bytes, entry in scan_entries(text, archive.text_name):
        member = None
        if options.features is not None:
            member, is_there = _find(archive, entry, options.has_prefix, members)
            if not is_there:
                num_missing += 1
                missing += [entry.file] if len(missing) < _MAX_NAMED else []
        rows.append(_Row(number, start, num_bytes, entry, member))
    if num_missing:
        example = next(iter(members), None)
        raise SourceError(
            f"{num_missing} of {len(rows)} recordings are missing: {', '.join(map(repr, missing))}",
            where=archive.path,
            fix=f"check content_name and zip_audio_files_have_name_as_prefix; the archive has {example!r}, for example",
        )
    return rows


def _find(
    archive: Archive, entry: TextEntry, has_prefix: bool, members: dict[str, Member]
) -> tuple[Member | None, bool]:
    if entry.file is None:
        raise SourceError(
            f"the sequence {entry.tag!r} names no 'file'",
            where=archive.text_name,
            fix="audio=None reads only the text",
        )
    name = archive.recording(entry.file, has_prefix)
    if archive.is_folder:
        return None, os.path.isfile(resolve_inside(os.path.dirname(archive.path), name))
    return members.get(name), name in members


def _random_subset(rows: list[_Row], subset: float | int, seed: int) -> list[_Row]:
    """Take RETURNN's subset: the first ones of a shuffle by NumPy's legacy generator."""
    num_seqs = subset if isinstance(subset, int) else int(len(rows) * subset)
    order = list(range(len(rows)))
    np.random.RandomState(seed).shuffle(order)
    return [rows[i] for i in order[:num_seqs]]


def _lengths(options: OggZipOptions, rows: Sequence[_Row]) -> dict[str, NDArray[np.int64]]:
    lengths = {
        SORT_LENGTHS: [int(row.entry.duration * 100) for row in rows],
        "orth": [len(row.entry.text.encode()) for row in rows],
    }
    if options.vocabulary is not None:
        wheres = [f"{options.archives[row.archive].text_name}, tag {row.entry.tag!r}" for row in rows]
        texts = [row.entry.text for row in rows]
        lengths["classes"] = [len(options.encode(text, where)) for text, where in zip(texts, wheres, strict=True)]
    if options.features is not None and options.data_lengths is not None:
        lengths["data"] = _data_lengths(options, rows)
    return {key: np.array(column, np.int64) for key, column in lengths.items()}


def _data_lengths(options: OggZipOptions, rows: Sequence[_Row]) -> list[int]:
    features = options.features
    assert features is not None
    if options.data_lengths == "duration":
        rate = features.sample_rate
        assert rate is not None
        return [features.num_frames(round(row.entry.duration * rate)) for row in rows]
    return for_each_part(partial(_measure, options, features), rows)


def _measure(options: OggZipOptions, features: OggZipSamples, rows: Sequence[_Row], tell: Tell | None) -> list[int]:
    """Return the frames of some rows, by the headers of their recordings."""
    with ExitStack() as stack:
        zips = [archive.path for archive in options.archives if not archive.is_folder]
        files = Descriptors([stack.enter_context(opened_archive(path)).fileno() for path in zips])

        def measure(row: _Row) -> int:
            archive = options.archives[row.archive]
            where = f"{archive.path}, tag {row.entry.tag!r}"
            if row.member is not None:
                return features.num_frames(
                    read_header(read_member(files.read, row.archive, row.member, where), where)[0]
                )
            name = archive.recording(row.entry.file or "", options.has_prefix)
            return features.num_frames(read_header(str(resolve_inside(os.path.dirname(archive.path), name)), where)[0])

        return in_threads(measure, rows, tell)


def _locators(rows: Sequence[_Row], *, has_members: bool) -> dict[str, Any]:
    columns = {
        "archive": np.array([row.archive for row in rows], np.int32),
        "text_start": np.array([row.start for row in rows], np.int64),
        "text_bytes": np.array([row.num_bytes for row in rows], np.int64),
    }
    if has_members:
        for name in _MEMBER_COLUMNS:
            columns[name] = np.array([getattr(row.member, name) for row in rows], np.int64)
    return columns


def member_at(index: CorpusIndex, corpus_idx: int) -> Member:
    """Return the recording of a sequence as a member without a name."""
    start, packed, size, crc, deflated, head = (int(index.locator(name)[corpus_idx]) for name in _MEMBER_COLUMNS)
    if min(start, packed, size, head) < 0:
        raise index.damaged(f"it says that the recording of sequence {corpus_idx} is at byte {start}")
    return Member("", start, packed, size, crc, bool(deflated), head)
