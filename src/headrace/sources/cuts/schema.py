"""What a manifest of cuts may say, and which files it may name.

An allow-list of every field of every kind of record, with its type and its range. A record that fits is data: it names
files, numbers that cannot ask for endless memory, and transforms that compute with arrays. A field, a kind or a
transform that is not listed here is refused, so what a later lhotse can do with a manifest is not done before somebody
has looked at it.

The files are those below some folders, `Roots`, wherever links lead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.errors import ConfigError, SourceError

_SHOWN_ROOTS = 4


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders that recordings and stored arrays may lie in.

    Attributes:
        folders: Real paths.
    """

    folders: tuple[str, ...]

    @classmethod
    def of(cls, root: object, manifests: Iterable[str]) -> Roots:
        """Return the roots that the user named, or else the folders of the manifests and the current one.

        Raises:
            ConfigError: What was named is not there.
        """
        if root is None:
            given = sorted({os.path.dirname(path) for path in manifests})
            with contextlib.suppress(OSError):  # it was removed
                given.append(os.getcwd())
        else:
            named = [root] if isinstance(root, str | os.PathLike) or not isinstance(root, Iterable) else root
            given = []
            for folder in named:
                if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):
                    raise ConfigError(
                        f"root is the folder that recordings lie in, or several, and this is none: {folder!r}",
                        where="CutSource(root=...)",
                        fix='give an existing folder; root="/" allows any file of the machine',
                    )
                given.append(os.path.abspath(os.fspath(folder)))
        return cls(tuple(dict.fromkeys(os.path.realpath(folder) for folder in given)))

    def resolve(self, path: str, where: str) -> str:
        """Return the real path of a file that a manifest names; relative ones start at the current folder.

        Raises:
            SourceError: It is in none of the folders, or is no path.
        """
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"the manifest names {path!r}, which is not a usable path: {error}", where=where
            ) from error
        for folder in self.folders:
            if real.startswith(folder) and (len(real) == len(folder) or folder == "/" or real[len(folder)] == "/"):
                return real
        more = ", ..." if len(self.folders) > _SHOWN_ROOTS else ""
        raise SourceError(
            f"the manifest names the file {path!r}"
            + (f", which is {real!r}" if real != path else "")
            + f", and only files below {', '.join(self.folders[:_SHOWN_ROOTS])}{more} are read",
            where=where,
            fix=f'if you trust the manifest, say where its files are: CutSource(..., root="{os.path.dirname(real)}"), '
            "or a folder above it",
        )


NO_ROOTS = Roots(())


# Longer than any recording; a product with a rate stays a whole number in a float.
_Seconds = Annotated[float, Meta(ge=0, le=1e8)]
_SignedSeconds = Annotated[float, Meta(ge=-1e8, le=1e8)]
_Count = Annotated[int, Meta(ge=0, le=2**48)]
_Rate = Annotated[int, Meta(ge=1, le=2**20)]
_Channel = Annotated[int, Meta(ge=0, le=2**16)]
_Channels = Annotated[list[_Channel], Meta(max_length=2**12)]
_Factor = Annotated[float, Meta(ge=0.01, le=100)]
_Level = Annotated[float, Meta(ge=-1e6, le=1e6)]  # decibels, and the like
_Small = Annotated[int, Meta(ge=1, le=2**14)]
_Shape = Annotated[list[_Count], Meta(max_length=32)]
_Plain = str | int | float | bool | None
_Record = dict[str, Any]  # has a schema of its own, or is the user's

# Samples, or values of features, that a cut is filled up to by padding and mixing: 4 GiB.
MAX_VALUES = 2**30


class _Of(Struct, forbid_unknown_fields=True):
    """A record without other fields than those listed."""


class Data(_Of):
    """`MonoCut` and `MultiCut`."""

    id: str
    start: _Seconds
    duration: _Seconds
    channel: _Channel | _Channels
    type: str
    supervisions: list[_Record] | None = None
    features: _Record | None = None
    recording: _Record | None = None
    custom: _Record | None = None


class Padding(_Of):
    """`PaddingCut`."""

    id: str
    duration: _Seconds
    sampling_rate: _Rate
    feat_value: _Level
    type: str
    num_frames: _Count | None = None
    num_features: _Count | None = None
    frame_shift: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    num_samples: _Count | None = None
    video: None = None
    custom: _Record | None = None


class Mixed(_Of):
    """`MixedCut`."""

    id: str
    tracks: Annotated[list[_Record], Meta(min_length=1)]
    type: str
    transforms: list[_Record] | None = None
    snr_reference: _Record | None = None


class Track(_Of):
    """`MixTrack`."""

    cut: _Record
    type: str
    offset: _Seconds = 0.0
    snr: _Level | None = None
    tag: str | None = None
    is_snr_reference: bool = False
    mute: bool = False


class Supervision(_Of):
    """`SupervisionSegment`."""

    id: str
    recording_id: str
    start: _SignedSeconds
    duration: _SignedSeconds
    channel: _Channel | _Channels = 0
    text: str | None = None
    language: _Plain = None
    speaker: _Plain = None
    gender: _Plain = None
    custom: _Record | None = None
    alignment: dict[str, list[list[Any] | _Record]] | None = None


class AudioRecording(_Of):
    """`Recording`."""

    id: str
    sources: Annotated[list[_Record], Meta(min_length=1)]
    sampling_rate: _Rate
    num_samples: _Count
    duration: _Seconds
    channel_ids: _Channels | None = None
    transforms: list[_Record] | None = None


class Audio(_Of):
    """`AudioSource`."""

    type: str
    channels: _Channels
    source: str
    video: dict[str, int | float] | None = None


class FeatureMatrix(_Of):
    """`Features`."""

    type: str
    num_frames: _Count
    num_features: _Count
    sampling_rate: _Rate
    start: _Seconds
    duration: _Seconds
    storage_type: str
    storage_key: str
    frame_shift: Annotated[float, Meta(gt=0, le=1e6)]
    storage_path: str | None = None
    recording_id: str | None = None
    channels: _Channel | _Channels | None = None


class Stored(_Of):
    """`Array`."""

    storage_type: str
    storage_key: str
    shape: _Shape
    storage_path: str | None = None


class Temporal(_Of):
    """`TemporalArray`."""

    array: Stored
    temporal_dim: Annotated[int, Meta(ge=0, le=31)]
    frame_shift: Annotated[float, Meta(gt=0, le=1e6)]
    start: _Seconds


class Speed(_Of):
    """Also `Tempo`."""

    factor: _Factor


class Volume(_Of):
    """Any factor is allowed: it is only multiplied."""

    factor: _Level


class Resample(_Of):
    """Sampling rates; `record.py` checks how they fit together."""

    source_sampling_rate: _Rate
    target_sampling_rate: _Rate


class Clipping(_Of):
    """A limit of the amplitude."""

    hard: bool = False
    gain_db: _Level = 0.0
    normalize: bool = True


class Compress(_Of):
    """A lossy codec, there and back in memory."""

    codec: Literal["opus", "mp3", "vorbis", "gsm"]
    compression_level: Annotated[float, Meta(ge=0, le=1)] | None = None


class Loudness(_Of):
    """`LoudnessNormalization`."""

    target: _Level


class Narrowband(_Of):
    """A telephone."""

    codec: Literal["mulaw", "lpc10"]
    source_sampling_rate: _Rate
    restore_orig_sr: bool


class Dereverb(_Of):
    """`DereverbWPE`."""

    n_fft: _Small = 512
    hop_length: _Small = 128
    taps: Annotated[int, Meta(ge=1, le=256)] = 10
    delay: Annotated[int, Meta(ge=0, le=256)] = 3
    iterations: Annotated[int, Meta(ge=1, le=100)] = 3
    statistics_mode: str = "full"


class Room(_Of):
    """`FastRandomRIRGenerator`."""

    sr: Annotated[int, Meta(ge=1, le=200_000)] = 16000
    direct_range: Annotated[list[_Level], Meta(min_length=2, max_length=2)] | None = None
    max_T60: Annotated[float, Meta(ge=0.1, le=10)] = 0.8
    alpha: _Level = 0.25
    a: _Level = -2.0
    b: _Level = 2.0
    tau: _Level = 0.2
    room_seed: _Count | None = None
    source_seed: _Count | None = None


class Reverb(_Of):
    """`ReverbWithImpulseResponse`; its impulse response is a recording or a cut."""

    rir: _Record | None = None
    normalize_output: bool = True
    early_only: bool = False
    rir_channels: _Channels | None = None
    rir_generator: Room | None = None


class Transform(_Of):
    """An entry of `transforms`."""

    name: str
    kwargs: _Record


TRANSFORMS: dict[str, type[Struct]] = {
    "Speed": Speed,
    "Tempo": Speed,
    "Volume": Volume,
    "Resample": Resample,
    "Clipping": Clipping,
    "Compress": Compress,
    "LoudnessNormalization": Loudness,
    "Narrowband": Narrowband,
    "DereverbWPE": Dereverb,
    "ReverbWithImpulseResponse": Reverb,
}


def fits(record: Any, schema: type[Struct]) -> None:
    """Check that a record has the fields of a schema, and no others.

    Raises:
        msgspec.ValidationError: It does not; the message names the field.
    """
    msgspec.convert(record, schema)
