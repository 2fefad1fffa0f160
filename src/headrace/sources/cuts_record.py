"""From a record of a manifest to lhotse's object, after a check that it is data and nothing else.

lhotse's own `from_dict` guesses the kind of a record and passes on what it does not know. Here each record is held
against `cuts_schema.py`, its files against the roots, and what reads them is one of the classes of `cuts_decoding.py`.
A value of the user's own ("custom") that is no recording and no array stays what it is in JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from lhotse import MonoCut, MultiCut, Recording, SupervisionSegment
from lhotse.audio import VideoInfo
from lhotse.augmentation import AudioTransform, Speed
from lhotse.cut import MixedCut, PaddingCut
from lhotse.cut.mixed import MixTrack
from lhotse.supervision import AlignmentItem

from headrace.errors import SourceError

from . import cuts_schema as schema
from .cuts_decoding import ARCHIVES, FILES, PLACEHOLDER, FileAudio, StoredArray, StoredFeatures, StoredTemporalArray
from .cuts_lhotse import lhotse_errors
from .cuts_roots import Roots

# Values of the filter that resamples: it has (rate before) x (rate after), without their common divisor.
_MAX_FILTER = 2**28
_FIX = (
    "store the data as plain files first: cuts.save_audios(folder), cuts.copy_feats(writer), cuts.to_shar(...); "
    "lhotse reads the manifest itself: CutSource(CutSet.from_file(...).to_eager()), if you trust it"
)
_DATA_CUTS = {"MonoCut": MonoCut, "MultiCut": MultiCut, "Cut": MonoCut}  # "Cut": before lhotse 0.8


def cut_of(record: dict[str, Any], roots: Roots, where: str) -> Any:
    """Return the cut of a record, which is taken apart.

    Raises:
        SourceError: It is none, or says more than data may; or names a file outside of the roots.
    """
    with _checked(where, "make a cut of a line"):
        return _cut(record, _Place(roots, where))


def part_of_shar(record: dict[str, Any], roots: Roots, where: str) -> Any:
    """Return the recording, features, or array that a shard of Shar describes.

    Raises:
        SourceError: As for `cut_of`.
    """
    with _checked(where, "read the manifest"):
        place = _Place(roots, where)
        if "sources" in record:
            return _recording(record, place)
        if "num_features" in record:
            return _features(record, place)
        return _array(record, place)


class _Place:
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


def _fit(record: Any, kind: type[msgspec.Struct], name: str, place: _Place) -> None:
    try:
        schema.fits(record, kind)
    except msgspec.ValidationError as error:
        raise SourceError(f"a {name} cannot be read: {error}", where=place.where, fix="write it by lhotse") from error


def _cut(record: dict[str, Any], place: _Place) -> Any:
    kind = record.get("type")
    if kind in _DATA_CUTS:
        return _data_cut(record, place)
    if kind == "PaddingCut":
        return _padding(record, place)
    if kind == "MixedCut":
        return _mixed(record, place)
    raise SourceError(f"a cut of the type {str(kind)[:100]!r} is not known", where=place.where)


def _data_cut(record: dict[str, Any], place: _Place) -> Any:
    _fit(record, schema.Data, "cut", place)
    kind = _DATA_CUTS[record.pop("type")]
    if isinstance(record["channel"], list) is not (kind is MultiCut):
        raise SourceError(f"a {kind.__name__} has the channel {record['channel']!r}", where=place.where)
    _replace(record, "features", _features, place)
    _replace(record, "recording", _recording, place)
    record["supervisions"] = [_supervision(one, place) for one in record.get("supervisions") or ()]
    _replace(record, "custom", _custom, place)
    return kind(**record)


def _padding(record: dict[str, Any], place: _Place) -> Any:
    _fit(record, schema.Padding, "padding", place)
    del record["type"]
    _replace(record, "custom", _custom, place)
    sizes = [record.get("num_samples") or 0, record["duration"] * record["sampling_rate"]]
    sizes.append((record.get("num_frames") or 0) * max(record.get("num_features") or 1, 1))
    if max(sizes) > schema.MAX_VALUES:
        raise SourceError(f"a padding of {max(sizes):.0f} values is too long", where=place.where)
    return PaddingCut(**record)


def _mixed(record: dict[str, Any], place: _Place) -> Any:
    _fit(record, schema.Mixed, "mixed cut", place)
    tracks = [_track(one, place) for one in record["tracks"]]
    if record.get("snr_reference") is not None:
        reference = _track(record["snr_reference"], place)
        reference.is_snr_reference = reference.mute = True
        tracks.append(reference)
    cut = MixedCut(id=record["id"], tracks=tracks, transforms=_transforms(record.get("transforms"), place))
    if cut.duration * max(track.cut.sampling_rate or 1 for track in tracks) > schema.MAX_VALUES:
        raise SourceError(f"a mix of {cut.duration} seconds is too long", where=place.where)
    return cut


def _track(record: dict[str, Any], place: _Place) -> MixTrack:
    _fit(record, schema.Track, "track", place)
    inner = record.pop("cut")
    inner["type"] = record.pop("type")
    if inner["type"] == "MixedCut":
        raise SourceError("a mixed cut is a track of another one, which lhotse does not mix", where=place.where)
    return MixTrack(_cut(inner, place), **record)


def _supervision(record: dict[str, Any], place: _Place) -> SupervisionSegment:
    _fit(record, schema.Supervision, "supervision", place)
    _replace(record, "custom", _custom, place)
    if record.get("alignment") is not None:
        record["alignment"] = {
            name: [AlignmentItem.deserialize(item) for item in items] for name, items in record["alignment"].items()
        }
    return SupervisionSegment(**record)


def _custom(record: dict[str, Any], place: _Place) -> dict[str, Any]:
    for name, value in record.items():
        if not isinstance(value, dict):
            continue
        if {"id", "sources", "sampling_rate"} <= value.keys():
            record[name] = _recording(value, place)
        elif ("storage_type" in value or _is_stored(value.get("array"))) and "width" not in value:
            record[name] = _array(value, place)  # one with a width is an image, which stays a dict: none is read
    return record


def _is_stored(value: Any) -> bool:
    return isinstance(value, dict) and "storage_type" in value


def _recording(record: dict[str, Any], place: _Place) -> Recording:
    _fit(record, schema.AudioRecording, "recording", place)
    record["sources"] = [_audio(one, place) for one in record["sources"]]
    transforms = _transforms(record.pop("transforms", None), place)
    rate = record["sampling_rate"]
    for transform in transforms or ():
        if isinstance(transform, Speed):
            _check_rates(max(round(rate * transform.factor), 1), rate, place)
    return Recording(**record, transforms=transforms)


def _audio(record: dict[str, Any], place: _Place) -> FileAudio:
    _fit(record, schema.Audio, "source of a recording", place)
    if record["type"] == "file":
        record["source"] = place.file(record["source"])
    elif record["type"] != PLACEHOLDER:
        raise place.refused(f"a recording has the source {record['source'][:200]!r} of the type {record['type']!r}")
    if record.get("video") is not None:
        record["video"] = VideoInfo(**record["video"])
    return FileAudio(**record)


def _features(record: dict[str, Any], place: _Place) -> StoredFeatures:
    _fit(record, schema.FeatureMatrix, "feature matrix", place)
    return StoredFeatures(**_stored(record, place))


def _array(record: dict[str, Any], place: _Place) -> StoredArray | StoredTemporalArray:
    if "array" not in record:
        _fit(record, schema.Stored, "array", place)
        return StoredArray(**_stored(record, place))
    _fit(record, schema.Temporal, "array", place)
    record["array"] = StoredArray(**_stored(record["array"], place))
    if record["temporal_dim"] >= max(len(record["array"].shape), 1):
        raise SourceError(
            f"an array of the shape {record['array'].shape} has no axis {record['temporal_dim']}", where=place.where
        )
    return StoredTemporalArray(**record)


def _stored(record: dict[str, Any], place: _Place) -> dict[str, Any]:
    """Return a record with the real path of its file."""
    kind, folder = record["storage_type"], record.get("storage_path") or ""
    record["storage_path"] = folder
    if kind in FILES:
        # As lhotse joins them; a key never replaces the folder.
        real = place.file(f"{folder}/{record['storage_key'].lstrip('/')}" if folder else record["storage_key"])
        record["storage_path"], _, record["storage_key"] = real.rpartition("/")
    elif kind in ARCHIVES:
        record["storage_path"] = place.file(folder)
    elif kind != PLACEHOLDER:
        raise place.refused(f"an array is stored as {kind!r}")
    return record


def _transforms(records: list[dict[str, Any]] | None, place: _Place) -> list[AudioTransform] | None:
    if records is None:
        return None
    return [_transform(record, place) for record in records]


def _transform(record: dict[str, Any], place: _Place) -> AudioTransform:
    _fit(record, schema.Transform, "transform", place)
    name, options = record["name"], record["kwargs"]
    if name not in schema.TRANSFORMS:
        raise place.refused(f"a transform has the name {name!r}, which is none of {sorted(schema.TRANSFORMS)}")
    _fit(options, schema.TRANSFORMS[name], f"transform {name!r}", place)
    if name == "Resample":
        _check_rates(options["source_sampling_rate"], options["target_sampling_rate"], place)
    if name == "Narrowband":
        _check_rates(options["source_sampling_rate"], 8000, place)
    if options.get("rir") is not None:
        rir = options["rir"]
        options["rir"] = _cut(rir, place) if "type" in rir else _recording(rir, place)
    return AudioTransform.KNOWN_TRANSFORMS[name](**options)


def _check_rates(before: int, after: int, place: _Place) -> None:
    divisor = math.gcd(before, after)
    if (before // divisor) * (after // divisor) > _MAX_FILTER:
        raise SourceError(f"resampling from {before} to {after} Hz takes too large a filter", where=place.where)


def _replace(record: dict[str, Any], name: str, build: Callable[[Any, _Place], Any], place: _Place) -> None:
    if record.get(name) is not None:
        record[name] = build(record[name], place)
