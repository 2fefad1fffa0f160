"""Recordings, wherever they are stored: decoded, one channel, at the wanted sample rate, as samples or features.

Needs `headrace[audio]`, but only when it reads.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.features.log_mel import LogMel
from headrace.specs import DataSpec

from ..shared.codec import Codec

# Of libsndfile's. Seeking changes the last bits of Opus, and sometimes those of Vorbis, and more of MP3; GSM and G.72x
# cannot be sought at all.
_EXACT_SUBTYPES = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW", "ALAC_", "IMA_ADPCM", "MS_ADPCM")

if TYPE_CHECKING:
    from types import ModuleType


def read_header(recording: str | bytes | IO[bytes], where: str | None = None) -> tuple[int, int]:
    """Return number of samples and sample rate of a recording, without decoding it.

    Args:
        recording: A path, the bytes of the file, or an open file that can seek, of which only what is needed is read.
        where: What messages call it; the path if `None`.

    Raises:
        SourceError: The file is missing or damaged.
    """
    soundfile = _soundfile()
    name = where or _name_of(recording)
    file = io.BytesIO(recording) if isinstance(recording, bytes) else recording
    try:
        info = soundfile.info(file)
    except (RuntimeError, OSError) as error:  # soundfile's errors are RuntimeErrors
        raise _unreadable(name, error) from error
    return int(info.frames), int(info.samplerate)


def read_samples(
    recording: str | bytes, channel: int | None, where: str | None = None
) -> tuple[NDArray[np.float32], int]:
    """Return the samples of one channel, `float32[n]` in -1..1, and their rate.

    Args:
        recording: The path of a file of any format that libsndfile reads, or its bytes.
        channel: Which channel, from 0; `None` for recordings with only one.
        where: What messages call it; the path if `None`.

    Raises:
        SourceError: The file is missing, damaged, has other channels, or has samples that are not finite.
    """
    soundfile = _soundfile()
    path = where or _name_of(recording)
    file = io.BytesIO(recording) if isinstance(recording, bytes) else recording
    try:
        samples, sample_rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (RuntimeError, OSError) as error:
        raise _unreadable(path, error) from error
    except MemoryError as error:
        raise SourceError(
            f"there is not enough memory for the recording that the header describes: {error}",
            where=path,
            fix="if it is not that long, it is damaged: write it again; else read with fewer workers",
        ) from error
    return _mono(samples, channel, 0, path), int(sample_rate)


def read_part(
    path: str, channel: int | None, start: int, end: int, *, num_samples: int, sample_rate: int
) -> NDArray[np.float32] | None:
    """Return samples start..end of one channel, `float32[end - start]`, without decoding those before.

    Args:
        path: Path of the recording.
        channel: See `read_samples`.
        start: First sample.
        end: The one after the last.
        num_samples: That the whole recording is expected to have.
        sample_rate: Likewise.

    Returns:
        The same as of the whole recording, bit for bit; `None` where only reading all of it tells: the samples before
        count (Vorbis, Opus, MP3, GSM), or its header does not say what is expected.

    Raises:
        SourceError: As for `read_samples`.
    """
    soundfile = _soundfile()
    try:
        with soundfile.SoundFile(path) as file:
            if (file.frames, file.samplerate) != (num_samples, sample_rate) or not _can_seek(file):
                return None
            file.seek(start)
            samples = file.read(end - start, dtype="float32", always_2d=True)
    except (RuntimeError, OSError) as error:
        raise _unreadable(path, error) from error
    return _mono(samples, channel, start, path) if len(samples) == end - start else None


def _can_seek(file: Any) -> bool:
    """Tell whether decoding from any sample gives the same as decoding from the start."""
    return bool(file.seekable()) and file.subtype.startswith(_EXACT_SUBTYPES)


def _mono(samples: NDArray[np.float32], channel: int | None, start: int, path: str) -> NDArray[np.float32]:
    """Return one channel of `float32[n, C]`, the first of which is sample `start`, if it can be used."""
    num_channels = samples.shape[1]
    if channel is None and num_channels != 1:
        raise SourceError(
            f"the recording has {num_channels} channels",
            where=path,
            fix="choose one with channel=, an option of sources, or convert the recordings to mono",
        )
    if channel is not None and not 0 <= channel < num_channels:
        raise SourceError(f"there is no channel {channel}: the recording has {num_channels}, from 0", where=path)
    mono = np.ascontiguousarray(samples[:, channel or 0])
    wrong = np.flatnonzero(~np.isfinite(mono))
    if len(wrong):
        what = f"sample {start + wrong[0]} is {mono[wrong[0]]}, and {len(wrong)} are not finite"
        raise SourceError(what, where=path)
    return mono


def resample(samples: NDArray[np.float32], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """Return `float32[resampled_length(n, ...)]`: the samples at another rate, by soxr in its high quality."""
    if from_rate == to_rate:
        return samples
    try:
        import soxr
    except ImportError as error:
        raise ConfigError(
            f"resampling from {from_rate} to {to_rate} Hz needs the package soxr", fix="pip install 'headrace[audio]'"
        ) from error
    result: NDArray[np.float32] = soxr.resample(samples, from_rate, to_rate)
    return result


def resampled_length(num_samples: int, from_rate: int, to_rate: int) -> int:
    """Return how many samples there are after resampling: n * to / from, a half rounded up, as soxr does."""
    return (2 * num_samples * to_rate + from_rate) // (2 * from_rate)


def _soundfile() -> ModuleType:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package is there, but not the C library
        raise ConfigError(
            f"reading audio needs the package soundfile: {error}", fix="pip install 'headrace[audio]'"
        ) from error
    module: ModuleType = soundfile
    return module


def _name_of(recording: str | bytes | IO[bytes]) -> str:
    if isinstance(recording, bytes):
        return f"a recording of {len(recording)} bytes in memory"
    return recording if isinstance(recording, str) else "a recording in an open file"


def _unreadable(path: str, error: Any) -> SourceError:
    return SourceError(f"the recording cannot be read: {error}", where=path, fix="check the file; is it truncated?")


class RecordingCodec(Codec):
    """Recordings as `float32[T, 1]` samples, or `float32[T, num_mels]` features. Needs `headrace[audio]`.

    Args:
        features: "raw", "log_mel", a `LogMel`, or a dict of its options.
        sample_rate: Rate to resample to, in Hz; `None` for that of the features, or else of the recordings, which must
            then have the same.
        channel: Which channel to read; `None` for recordings with only one.

    Attributes:
        features: All options of `LogMel`, with "sample_rate" `None` if it is that of the recordings; `None` for raw
            samples.
        sample_rate: As given.
        channel: As given.
        rate: Sample rate of what it makes, once that is known.

    Raises:
        ConfigError: An option is wrong, or the rates of two of them differ.
    """

    def __init__(self, features: Any, sample_rate: Any, channel: Any) -> None:
        self.features = _feature_options(features)
        self.sample_rate = _checked_count("sample_rate", sample_rate, 1)
        self.channel = _checked_count("channel", channel, 0)
        self.rate: int | None = None
        self._log_mel: LogMel | None = None
        own = None if self.features is None else self.features["sample_rate"]
        self.settle(self.spec, None, self.sample_rate or own)
        self._may_resample = self.rate is not None

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        size = 1 if self.features is None else self.features["num_mels"]
        return DataSpec("float32", (size,), dim=size)

    @property
    def identity(self) -> list[Any]:
        """Features and sample rate; which channel changes nothing that is indexed."""
        return [self.features, self.sample_rate]

    @property
    def learnt(self) -> int | None:
        """The sample rate."""
        return self.rate

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the sample rate.

        Raises:
            ConfigError: The features have another.
        """
        self.rate = learnt
        if learnt is not None and self.features is not None:
            own = self.features["sample_rate"]
            if own not in (None, learnt):
                raise ConfigError(f"sample_rate is {learnt}, but that of the features {own}", fix="give one of them")
            self._log_mel = LogMel(**{**self.features, "sample_rate": learnt})

    def scan(self, value: str | bytes | IO[bytes], where: str) -> int:
        """Read the header of a recording; return the number of samples or frames."""
        return self.num_frames(*read_header(value, where), where)

    def num_frames(self, num_samples: int, rate: int, where: str) -> int:
        """Return the length of the array for `num_samples` samples; the first recording sets the rate if none is given.

        Raises:
            ConfigError: The rate differs, and no rate to resample to was given.
        """
        if self.rate is None:
            self.settle(self.spec, None, rate)
        assert self.rate is not None
        if rate != self.rate and not self._may_resample:
            raise ConfigError(
                f"the recordings have different sample rates: {self.rate} and {rate} Hz",
                where=where,
                fix="give sample_rate=, in the field if there are several, to which they are resampled",
            )
        num_samples = resampled_length(num_samples, rate, self.rate)
        return num_samples if self._log_mel is None else self._log_mel.num_frames(num_samples)

    @property
    def scanned(self) -> int | None:
        """The sample rate of the recordings, as far as it is known."""
        return self.rate

    def join(self, scanned: int | None) -> None:
        """Take the sample rate of other recordings."""
        if scanned is not None:
            self.num_frames(0, scanned, "")

    def encode(self, value: str | bytes, where: str) -> NDArray[np.float32]:
        """Return samples or features of a recording, `float32[T, D]`; a path or the bytes of its file."""
        samples, rate = read_samples(value, self.channel, where)
        if rate != self.rate and not self._may_resample:
            raise SourceError(f"the recording has {rate} Hz, not {self.rate}", where=where)
        return self.of_samples(samples, rate)

    def keeps_samples(self, rate: int) -> bool:
        """Tell whether recordings of a sample rate stay as they are: part of the array is part of the samples."""
        return self._log_mel is None and rate == self.rate

    def of_samples(self, samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
        """Return the array of decoded samples, `float32[n]`."""
        samples = resample(samples, rate, self.rate or rate)
        return samples[:, None] if self._log_mel is None else self._log_mel(samples)


def _checked_count(name: str, value: Any, smallest: int) -> int | None:
    """Return an optional whole number, or refuse it."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < smallest):
        raise ConfigError(f"{name} is a whole number of at least {smallest}, not {value!r}")
    return value


def _feature_options(features: Any) -> dict[str, Any] | None:
    """Return all options of `LogMel`, those that were not given with their defaults, or `None` for raw samples."""
    options = {option.name: None if option.default is MISSING else option.default for option in fields(LogMel)}
    if isinstance(features, LogMel):
        return {name: getattr(features, name) for name in options}
    if isinstance(features, str) and features in ("raw", "log_mel"):
        return None if features == "raw" else options
    if not isinstance(features, Mapping):
        raise ConfigError(f"features cannot be read: {features!r}", fix='give "raw", "log_mel", a LogMel or a dict')
    for name in features:
        if name not in options:
            fix = did_you_mean(str(name), list(options))
            raise ConfigError(f"LogMel has no option {name!r}", where="features=", fix=fix)
    return {**options, **features}
