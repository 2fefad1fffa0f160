"""From a record of a manifest to lhotse's object, after a check that it is data and nothing else.

lhotse's own `from_dict` guesses the kind of a record and passes on what it does not know. Here each record is held
against `schema.py`, and its files against the roots there. A user's custom value ("custom") that is not a recording
and no array stays what it is in JSON.

lhotse looks for a program that reads a file: by its ending, and after others have failed. The classes here read regular
files by libsndfile, NumPy and h5py alone, and never start a program. They are lhotse's in all else, and equal to
lhotse's with the same content.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import msgspec
import numpy as np
from lhotse import MonoCut, MultiCut, Recording, SupervisionSegment
from lhotse.array import Array, TemporalArray
from lhotse.audio import AudioSource, DurationMismatchError, VideoInfo
from lhotse.audio.utils import get_audio_duration_mismatch_tolerance
from lhotse.augmentation import AudioTransform, Speed
from lhotse.cut import MixedCut, PaddingCut
from lhotse.cut.mixed import MixTrack
from lhotse.features import Features
from lhotse.features.io import lookup_cache_or_open
from lhotse.supervision import AlignmentItem
from lhotse.utils import compute_num_samples

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular

from ..shared.hdf5_links import refuse_dataset_elsewhere
from . import schema as schema
from .library import lhotse_errors
from .schema import Roots

FILES = ("numpy_files", "lilcom_files")  # one file an array, in the folder `storage_path`
_HDF = ("numpy_hdf5", "lilcom_hdf5", "chunked_lilcom_hdf5")
ARCHIVES = (*_HDF, "lilcom_chunky")  # one file, `storage_path`
PLACEHOLDER = "shar"  # filled with bytes of a shard
_IN_MEMORY = ("memory_npy", "memory_lilcom")
_CHUNK_SIZE = "__LHOTSE_INTERNAL_CHUNK_SIZE__"
# gzip makes at most 1032 bytes of one, and only of such.
_MAX_RATIO = 1100
_FREE_BYTES = 1 << 20


class _Equal:
    """Equal to what lhotse makes of the same fields."""

    def __eq__(self, other: object) -> bool:
        kind = type(self).__mro__[2]
        if not isinstance(other, kind):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(kind)]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment] # as lhotse's


class FileAudio(_Equal, AudioSource):  # type: ignore[misc] # lhotse has no type hints
    """Audio in a file, or in memory once Shar's placeholder was filled."""

    def load_audio(
        self,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,
    ) -> Any:
        """Return `float32[channels, T]`: the samples from `offset` on, for `duration` seconds."""
        del force_opus_sampling_rate  # libsndfile decodes at the rate of the file
        if self.type == "memory" and isinstance(self.source, bytes):
            samples, rate = _decode(io.BytesIO(self.source), offset, duration)
        elif self.type == "file":
            with open_regular(self.source) as file:
                samples, rate = _decode(file.fileno(), offset, duration)
        else:
            raise SourceError(f"the recording has no data: its source is a placeholder of type {self.type!r}")
        found = samples.shape[1] / rate
        if duration is not None and found < duration - get_audio_duration_mismatch_tolerance():
            raise DurationMismatchError(f"Requested more audio ({duration}s) than available ({found}s)")
        return samples

    def load_video(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: video is decoded by FFmpeg, which opens what its input names.

        Raises:
            SourceError: Always.
        """
        del args, kwargs
        raise SourceError("video is not supported", fix="read it by lhotse: CutSet.from_file(...)")


class StoredFeatures(_Equal, Features):  # type: ignore[misc]
    """Features in a file, or in memory."""

    def load(self, *args: Any, **kwargs: Any) -> Any:
        """Load the features, as lhotse's class does."""
        _check_storage(self)
        return super().load(*args, **kwargs)


class StoredArray(_Equal, Array):  # type: ignore[misc]
    """An array in a file, or in memory."""

    def load(self) -> Any:
        """Return it."""
        _check_storage(self)
        return super().load()


class StoredTemporalArray(_Equal, TemporalArray):  # type: ignore[misc]
    """An array with time."""

    def load(self, *args: Any, **kwargs: Any) -> Any:
        """Load a part of the array, as lhotse's class does."""
        _check_storage(self.array)
        return super().load(*args, **kwargs)


def _decode(file: Any, offset: float, duration: float | None) -> tuple[Any, int]:
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise ConfigError(f"audio is read by soundfile: {error}", fix="pip install 'headrace[audio]'") from error
    try:
        with soundfile.SoundFile(file, closefd=False) as decoder:
            rate = int(decoder.samplerate)
            if offset > 0:
                decoder.seek(compute_num_samples(offset, rate))
            num_frames = -1 if duration is None else compute_num_samples(duration, rate)
            return decoder.read(frames=num_frames, dtype=np.float32, always_2d=True).T, rate
    except soundfile.LibsndfileError as error:  # lhotse raises it anew, which it does not survive
        raise ValueError(f"libsndfile cannot decode it: {error.error_string}") from error


def _check_storage(stored: Any) -> None:
    """Refuse a storage type that a manifest may not name, before lhotse opens it.

    Raises:
        OSError: There is no regular file.
        SourceError: The kind is not read, or a part is in another file.
    """
    kind = stored.storage_type
    if kind in _IN_MEMORY and isinstance(stored.storage_key, bytes):
        return
    if kind not in FILES and kind not in ARCHIVES:
        raise SourceError(f"data that are stored as {kind!r} are not read")
    path = os.path.join(stored.storage_path, stored.storage_key) if kind in FILES else stored.storage_path
    open_regular(path).close()
    if kind in _HDF:
        _check_hdf(lookup_cache_or_open(path), stored.storage_key, path)
        if kind == "chunked_lilcom_hdf5":
            _check_hdf(lookup_cache_or_open(path), _CHUNK_SIZE, path)


def _check_hdf(file: h5py.File, name: str, path: str) -> None:
    refuse_dataset_elsewhere(file, name, path)
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise SourceError(f"{name!r} is no dataset", where=path)
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > _FREE_BYTES + _MAX_RATIO * stored:
        raise SourceError(
            f"{name!r} claims {dataset.nbytes} bytes, and {stored} are stored", where=path, fix="write the file again"
        )


# Values of the filter that resamples: it has (rate before) x (rate after), without their common divisor.
_MAX_FILTER = 2**28
_FIX = (
    "store the data as plain files first: cuts.save_audios(folder), cuts.copy_feats(writer), cuts.to_shar(...); "
    "lhotse reads the manifest itself: CutSource(CutSet.from_file(...).to_eager()), if you trust it"
)
_DATA_CUTS = {"MonoCut": MonoCut, "MultiCut": MultiCut, "Cut": MonoCut}  # "Cut": before lhotse 0.8


def cut_of(record: dict[str, Any], roots: Roots, where: str) -> Any:
    """Build the cut of a record, which is modified.

    Raises:
        SourceError: It is none, or says more than data may; or names a file outside of the roots.
    """
    with _checked(where, "make a cut of a line"):
        return _cut(record, _Origin(roots, where))


def part_of_shar(record: dict[str, Any], roots: Roots, where: str) -> Any:
    """Return the recording, features, or array that a shard of Shar describes.

    Raises:
        SourceError: As for `cut_of`.
    """
    with _checked(where, "read the manifest"):
        origin = _Origin(roots, where)
        if "sources" in record:
            return _recording(record, origin)
        if "num_features" in record:
            return _features(record, origin)
        return _array(record, origin)


class _Origin:
    """Where a record is, and what it may name."""

    __slots__ = ("roots", "where")

    def __init__(self, roots: Roots, where: str) -> None:
        self.roots, self.where = roots, where

    def file(self, path: str) -> str:
        return self.roots.resolve(path, self.where)

    def refused(self, what: str) -> SourceError:
        return SourceError(f"{what}, and only data are read from a manifest", where=self.where, fix=_FIX)


@contextmanager
def _checked(where: str, doing: str) -> Iterator[None]:
    try:
        with lhotse_errors(doing, where):
            yield
    except RecursionError as error:
        raise SourceError("the record is nested too deeply", where=where, fix="write it by lhotse") from error


def _fit(record: Any, kind: type[msgspec.Struct], name: str, origin: _Origin) -> None:
    try:
        schema.fits(record, kind)
    except msgspec.ValidationError as error:
        raise SourceError(
            f"this {name} cannot be read: {error}", where=origin.where, fix="write it by lhotse"
        ) from error


def _cut(record: dict[str, Any], origin: _Origin) -> Any:
    kind = record.get("type")
    if kind in _DATA_CUTS:
        return _data_cut(record, origin)
    if kind == "PaddingCut":
        return _padding(record, origin)
    if kind == "MixedCut":
        return _mixed(record, origin)
    raise SourceError(f"a cut of the type {str(kind)[:100]!r} is not known", where=origin.where)


def _data_cut(record: dict[str, Any], origin: _Origin) -> Any:
    _fit(record, schema.Data, "cut", origin)
    kind = _DATA_CUTS[record.pop("type")]
    if isinstance(record["channel"], list) is not (kind is MultiCut):
        raise SourceError(f"a {kind.__name__} has the channel {record['channel']!r}", where=origin.where)
    _replace(record, "features", _features, origin)
    _replace(record, "recording", _recording, origin)
    record["supervisions"] = [_supervision(one, origin) for one in record.get("supervisions") or ()]
    _replace(record, "custom", _custom, origin)
    return kind(**record)


def _padding(record: dict[str, Any], origin: _Origin) -> Any:
    _fit(record, schema.Padding, "padding", origin)
    del record["type"]
    _replace(record, "custom", _custom, origin)
    sizes = [record.get("num_samples") or 0, record["duration"] * record["sampling_rate"]]
    sizes.append((record.get("num_frames") or 0) * max(record.get("num_features") or 1, 1))
    if max(sizes) > schema.MAX_VALUES:
        raise SourceError(f"a padding of {max(sizes):.0f} values is too long", where=origin.where)
    return PaddingCut(**record)


def _mixed(record: dict[str, Any], origin: _Origin) -> Any:
    _fit(record, schema.Mixed, "mixed cut", origin)
    tracks = [_track(one, origin) for one in record["tracks"]]
    if record.get("snr_reference") is not None:
        reference = _track(record["snr_reference"], origin)
        reference.is_snr_reference = reference.mute = True
        tracks.append(reference)
    cut = MixedCut(id=record["id"], tracks=tracks, transforms=_transforms(record.get("transforms"), origin))
    if cut.duration * max(track.cut.sampling_rate or 1 for track in tracks) > schema.MAX_VALUES:
        raise SourceError(f"a mix of {cut.duration} seconds is too long", where=origin.where)
    return cut


def _track(record: dict[str, Any], origin: _Origin) -> MixTrack:
    _fit(record, schema.Track, "track", origin)
    inner = record.pop("cut")
    inner["type"] = record.pop("type")
    if inner["type"] == "MixedCut":
        raise SourceError("a mixed cut is a track of another one, which lhotse does not mix", where=origin.where)
    return MixTrack(_cut(inner, origin), **record)


def _supervision(record: dict[str, Any], origin: _Origin) -> SupervisionSegment:
    _fit(record, schema.Supervision, "supervision", origin)
    _replace(record, "custom", _custom, origin)
    if record.get("alignment") is not None:
        record["alignment"] = {
            name: [AlignmentItem.deserialize(item) for item in items] for name, items in record["alignment"].items()
        }
    return SupervisionSegment(**record)


def _custom(record: dict[str, Any], origin: _Origin) -> dict[str, Any]:
    for name, value in record.items():
        if not isinstance(value, dict):
            continue
        if {"id", "sources", "sampling_rate"} <= value.keys():
            record[name] = _recording(value, origin)
        elif ("storage_type" in value or _is_stored(value.get("array"))) and "width" not in value:
            record[name] = _array(value, origin)  # one with a width is an image, which stays a dict: none is read
    return record


def _is_stored(value: Any) -> bool:
    return isinstance(value, dict) and "storage_type" in value


def _recording(record: dict[str, Any], origin: _Origin) -> Recording:
    _fit(record, schema.AudioRecording, "recording", origin)
    record["sources"] = [_audio(one, origin) for one in record["sources"]]
    transforms = _transforms(record.pop("transforms", None), origin)
    rate = record["sampling_rate"]
    for transform in transforms or ():
        if isinstance(transform, Speed):
            _check_rates(max(round(rate * transform.factor), 1), rate, origin)
    return Recording(**record, transforms=transforms)


def _audio(record: dict[str, Any], origin: _Origin) -> FileAudio:
    _fit(record, schema.Audio, "source of a recording", origin)
    if record["type"] == "file":
        record["source"] = origin.file(record["source"])
    elif record["type"] != PLACEHOLDER:
        raise origin.refused(f"a recording has the source {record['source'][:200]!r} of the type {record['type']!r}")
    if record.get("video") is not None:
        record["video"] = VideoInfo(**record["video"])
    return FileAudio(**record)


def _features(record: dict[str, Any], origin: _Origin) -> StoredFeatures:
    _fit(record, schema.FeatureMatrix, "feature matrix", origin)
    return StoredFeatures(**_stored(record, origin))


def _array(record: dict[str, Any], origin: _Origin) -> StoredArray | StoredTemporalArray:
    if "array" not in record:
        _fit(record, schema.Stored, "array", origin)
        return StoredArray(**_stored(record, origin))
    _fit(record, schema.Temporal, "array", origin)
    record["array"] = StoredArray(**_stored(record["array"], origin))
    if record["temporal_dim"] >= max(len(record["array"].shape), 1):
        raise SourceError(
            f"an array of the shape {record['array'].shape} has no axis {record['temporal_dim']}", where=origin.where
        )
    return StoredTemporalArray(**record)


def _stored(record: dict[str, Any], origin: _Origin) -> dict[str, Any]:
    """Return a record with the real path of its file."""
    kind, folder = record["storage_type"], record.get("storage_path") or ""
    record["storage_path"] = folder
    if kind in FILES:
        # As lhotse joins them; a key never replaces the folder.
        real = origin.file(f"{folder}/{record['storage_key'].lstrip('/')}" if folder else record["storage_key"])
        record["storage_path"], _, record["storage_key"] = real.rpartition("/")
    elif kind in ARCHIVES:
        record["storage_path"] = origin.file(folder)
    elif kind != PLACEHOLDER:
        raise origin.refused(f"an array is stored as {kind!r}")
    return record


def _transforms(records: list[dict[str, Any]] | None, origin: _Origin) -> list[AudioTransform] | None:
    if records is None:
        return None
    return [_transform(record, origin) for record in records]


def _transform(record: dict[str, Any], origin: _Origin) -> AudioTransform:
    _fit(record, schema.Transform, "transform", origin)
    name, options = record["name"], record["kwargs"]
    if name not in schema.TRANSFORMS:
        raise origin.refused(f"a transform has the name {name!r}, which is none of {sorted(schema.TRANSFORMS)}")
    _fit(options, schema.TRANSFORMS[name], f"transform {name!r}", origin)
    if name == "Resample":
        _check_rates(options["source_sampling_rate"], options["target_sampling_rate"], origin)
    if name == "Narrowband":
        _check_rates(options["source_sampling_rate"], 8000, origin)
    if options.get("rir") is not None:
        rir = options["rir"]
        options["rir"] = _cut(rir, origin) if "type" in rir else _recording(rir, origin)
    return AudioTransform.KNOWN_TRANSFORMS[name](**options)


def _check_rates(before: int, after: int, origin: _Origin) -> None:
    divisor = math.gcd(before, after)
    if (before // divisor) * (after // divisor) > _MAX_FILTER:
        raise SourceError(f"resampling from {before} to {after} Hz takes too large a filter", where=origin.where)


def _replace(record: dict[str, Any], name: str, build: Callable[[Any, _Origin], Any], origin: _Origin) -> None:
    if record.get(name) is not None:
        record[name] = build(record[name], origin)
