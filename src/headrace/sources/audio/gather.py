"""From a manifest and the options of a source to one index of the corpus.

`AudioOptions` is what the user said, checked; `index_kind` names all of it that changes the index; `gather_index` reads
the manifest once. Everything a reader needs goes into the index, so that a corpus with a fresh index is opened without
a look at the manifest's lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.features.log_mel import LogMel
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from ..shared.fields import Field, parse_field
from ..shared.source import make_index
from .decode import resampled_length
from .manifest import Layout, scan_recordings

INDEX_KIND = "audio-manifest/2"  # with the version of what the columns and `meta` say, and of how lengths are counted


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """How recordings and their targets become arrays.

    Attributes:
        layout: Where everything is.
        fields: Data key -> field of the manifest.
        features: All options of `LogMel`, with "sample_rate" `None` if it is that of the recordings; `None` for raw
            samples.
        sample_rate: Rate to resample to, in Hz; `None` for that of the features, or else of the recordings.
        channel: Which channel to read; `None` for recordings with only one.
    """

    layout: Layout
    fields: dict[str, Field]
    features: dict[str, Any] | None
    sample_rate: int | None
    channel: int | None

    @classmethod
    def parse(
        cls, layout: Layout, features: Any, targets: Mapping[str, Any] | None, sample_rate: Any, channel: Any
    ) -> AudioOptions:
        """Check what the user said.

        Raises:
            ConfigError: An option is wrong.
        """
        target_fields = {key: parse_field(key, target) for key, target in (targets or {}).items()}
        if "data" in target_fields:
            raise ConfigError('a target cannot be named "data": that is the audio')
        return cls(
            layout,
            target_fields,
            _feature_options(features),
            _checked_count("sample_rate", sample_rate, 1),
            _checked_count("channel", channel, 0),
        )

    def front_end(self, sample_rate: int | None) -> LogMel | None:
        """Return the front end for samples of a rate, `None` for raw samples.

        Raises:
            ConfigError: The features have another rate or do not fit it, or there are no recordings to have one.
        """
        if self.features is None:
            return None
        if sample_rate is None:
            raise ConfigError(
                "an empty corpus does not say for which sample rate features are made", fix="give sample_rate="
            )
        own = self.features["sample_rate"]
        if own not in (None, sample_rate):
            raise ConfigError(f"sample_rate is {sample_rate}, but that of the features {own}", where="AudioSource")
        return LogMel(**{**self.features, "sample_rate": sample_rate})


def index_kind(options: AudioOptions) -> str:
    """Name the source and every option that changes what is in its index: the same text in every process.

    A root inside the folder of the manifest is named relative to it, so that a corpus and its index can be moved.
    """
    layout = options.layout
    root, folder = Path(os.path.realpath(layout.root)), Path(os.path.realpath(layout.manifest)).parent
    said = {
        "root": str(root.relative_to(folder) if root.is_relative_to(folder) else root),
        "fields": [layout.audio_field, layout.tag_field, layout.length_field, layout.rate_field],
        "features": options.features,
        "sample_rate": options.sample_rate,
        "targets": [[key, field.identity] for key, field in options.fields.items()],
    }
    return f"{INDEX_KIND} {json.dumps(said, default=repr)}"


def gather_index(options: AudioOptions) -> CorpusIndex:
    """Read the manifest and look for its recordings: about 1 s per 100 k lines. The fields learn their labels.

    Raises:
        SourceError: A line is wrong, or recordings are missing, unreadable, or outside of the root.
        ConfigError: The recordings have different sample rates, or do not fit the options.
    """
    return index_of(options, scan_recordings(options.layout, options.fields), options.layout.manifest)


class Scanned(Protocol):
    """Columns with one entry for each recording: see `ScannedManifest`, which is one."""

    tags: list[str]
    num_samples: list[int]
    sample_rate: list[int]
    target_lengths: dict[str, list[int]]

    def locators(self) -> dict[str, NDArray[np.int64]]:
        """Return what it takes to find and check a recording, `int64[N]` by name."""


def index_of(options: AudioOptions, scanned: Scanned, where: str) -> CorpusIndex:
    """Make an index of what was taken down; the fields have learnt their labels.

    Args:
        options: How recordings become arrays.
        scanned: What was taken down.
        where: The manifest or folder, for errors.

    Raises:
        ConfigError: The recordings have different sample rates, or do not fit the options.
    """
    sample_rate = options.sample_rate
    if sample_rate is None:
        own = None if options.features is None else options.features["sample_rate"]
        sample_rate = own or _common_rate(scanned.sample_rate, where)
    log_mel = options.front_end(sample_rate)

    def num_frames(num_samples: int, rate: int) -> int:
        if sample_rate is not None:
            num_samples = resampled_length(num_samples, rate, sample_rate)
        return num_samples if log_mel is None else log_mel.num_frames(num_samples)

    num_mels = 1 if log_mel is None else log_mel.num_mels
    specs = {
        "data": DataSpec("float32", (num_mels,), dim=num_mels),
        **{key: field.spec for key, field in options.fields.items()},
    }
    return make_index(
        specs=specs,
        labels={key: field.labels for key, field in options.fields.items() if field.labels is not None},
        tags=scanned.tags,
        lengths={
            "data": list(map(num_frames, scanned.num_samples, scanned.sample_rate)),
            **scanned.target_lengths,
        },
        locators=scanned.locators(),
        sample_rate=sample_rate,
    )


def _checked_count(name: str, value: Any, smallest: int) -> int | None:
    """Return an optional whole number, or refuse it."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < smallest):
        raise ConfigError(f"{name} is a whole number of at least {smallest}, not {value!r}", where="AudioSource")
    return value


def _feature_options(features: Any) -> dict[str, Any] | None:
    """Return all options of `LogMel`, those that were not given with their defaults, or `None` for raw samples."""
    options = {option.name: None if option.default is MISSING else option.default for option in fields(LogMel)}
    if isinstance(features, LogMel):
        return {name: getattr(features, name) for name in options}
    if isinstance(features, str) and features in ("raw", "log_mel"):
        return None if features == "raw" else options
    if not isinstance(features, Mapping):
        raise ConfigError(
            f"features cannot be read: {features!r}",
            where="AudioSource",
            fix='give "raw", "log_mel", a LogMel or a dict',
        )
    for name in features:
        if name not in options:
            fix = did_you_mean(str(name), list(options))
            raise ConfigError(f"LogMel has no option {name!r}", where="features=", fix=fix)
    return {**options, **features}


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
