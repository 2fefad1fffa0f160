"""From a manifest and the options of a source to one index of the corpus.

`AudioOptions` holds the user's options, checked; `index_kind` names all of it that changes the index; `gather_index`
reads the manifest once. Everything a reader needs goes into the index, so that a corpus with a fresh index is opened
without a look at the manifest's lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.index import CorpusIndex

from ..shared.codec import found_by
from ..shared.delimited import suffix_of
from ..shared.fields import Field, parse_field
from ..shared.source import make_index
from .codec import RecordingCodec
from .manifest import Layout, ScannedRecordings, manifest_columns, scan_recordings

TEXT_FIELD = "text"
INDEX_KIND = "audio-manifest/2"  # with the version of what the columns and `meta` say, and of how lengths are counted


def require_targets(targets: Mapping[str, Any] | None, *, has_text: bool, where: str) -> None:
    """Refuse to leave out the texts of recordings silently, if no targets were given.

    Args:
        targets: As given; a dict says what is read, an empty one that nothing is.
        has_text: Whether the first recording has a text.
        where: What lists them.

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
class AudioOptions:
    """How recordings and their targets become arrays.

    Attributes:
        layout: Where everything is.
        fields: Data key -> field of the manifest.
        audio: How recordings become arrays.
    """

    layout: Layout
    fields: dict[str, Field]
    audio: RecordingCodec

    @classmethod
    def parse(
        cls, layout: Layout, features: Any, targets: Mapping[str, Any] | None, sample_rate: Any, channel: Any
    ) -> AudioOptions:
        """Check the user's options.

        Raises:
            ConfigError: An option is wrong.
        """
        target_fields = {key: parse_field(key, target) for key, target in (targets or {}).items()}
        if "data" in target_fields:
            raise ConfigError('a target cannot be named "data": that is the audio')
        return cls(layout, target_fields, RecordingCodec(features, sample_rate, channel))

    @property
    def identity(self) -> dict[str, Any]:
        """What changes an index, whatever the recordings and their targets are listed by."""
        features, sample_rate = self.audio.identity
        targets = [[key, field.identity] for key, field in self.fields.items()]
        return {"features": features, "sample_rate": sample_rate, "targets": targets}


def index_kind(options: AudioOptions) -> str:
    """Identify the source and every option that changes its index: the same text in every process.

    A root inside the folder of the manifest is named relative to it, so that a corpus and its index can be moved.
    """
    layout = options.layout
    root, folder = Path(os.path.realpath(layout.root)), Path(os.path.realpath(layout.manifest)).parent
    said = {
        "root": str(root.relative_to(folder) if root.is_relative_to(folder) else root),
        "fields": [layout.audio_field, layout.tag_field, layout.length_field, layout.rate_field],
        **options.identity,
    }
    return f"{INDEX_KIND} {json.dumps(said, default=repr)}"


def gather_index(options: AudioOptions) -> CorpusIndex:
    """Read the manifest and look for its recordings: about 1 s per 100 k lines. The fields learn their labels.

    Raises:
        SourceError: A line is wrong, or recordings are missing, unreadable, or outside of the root.
        ConfigError: The recordings have different sample rates, or do not fit the options.
    """
    index = index_of(options, scan_recordings(options.layout, options.fields), options.layout.manifest)
    if suffix_of(options.layout.manifest) is not None:
        index.meta["columns"] = manifest_columns(options.layout.manifest)
    return index


def index_of(options: AudioOptions, scanned: ScannedRecordings, where: str) -> CorpusIndex:
    """Build the index from the scanned columns; the fields have learnt their labels.

    Args:
        options: How recordings become arrays.
        scanned: What was taken down.
        where: The manifest or folder, for errors.

    Raises:
        ConfigError: The recordings have different sample rates, or do not fit the options.
    """
    audio = options.audio
    if audio.rate is None:
        audio.settle(audio.spec, None, _common_rate(scanned.sample_rate, where))
    if audio.rate is None and audio.features is not None:
        raise ConfigError(
            "an empty corpus does not say for which sample rate features are made", fix="give sample_rate="
        )
    headers = zip(scanned.num_samples, scanned.sample_rate, strict=True)
    return make_index(
        **found_by({"data": audio, **options.fields}),
        tags=scanned.tags,
        lengths={
            "data": [audio.num_frames(num_samples, rate, where) for num_samples, rate in headers],
            **scanned.target_lengths,
        },
        locators=scanned.locators(),
        sample_rate=audio.rate,
    )


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
