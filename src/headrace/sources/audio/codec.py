"""Recordings, wherever they are stored: decoded, one channel, at the wanted sample rate, as samples or features.

Needs `headrace[audio]`, but only when it reads. `soundfile` decides what a recording is, and how
many samples it has: the index has that number, and what is read must have it. Where a header claims more samples than
memory has room for, or does not say how many (FLAC in a pipe), decoding counts them.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.features.log_mel import LogMel
from headrace.specs import DataSpec

from ..shared.codec import Facts, FileCodec

# Of libsndfile's. Seeking changes the last bits of Opus, and sometimes those of Vorbis, and more of MP3; GSM and G.72x
# cannot be sought at all.
_EXACT_SUBTYPES = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW", "ALAC_", "IMA_ADPCM", "MS_ADPCM")
_MAX_SAMPLES = 1 << 28  # of one channel: 4 hours at 16 kHz, a GiB of memory
_BLOCK = 1 << 16  # samples that are decoded at a time where it is not known how many there are
Recording = str | bytes | IO[bytes]  # a path, the bytes of a file, or an open file that can seek


def read_header(recording: Recording, where: str) -> tuple[int, int]:
    """Return number of samples and sample rate of a recording.

    Raises:
        SourceError: The file is missing or damaged.
    """
    with _opened(recording, where) as file:
        num_samples = file.frames if _is_measured(file) else sum(map(len, _blocks(file)))
        return int(num_samples), int(file.samplerate)


def read_samples(recording: Recording, channel: int | None, where: str) -> tuple[NDArray[np.float32], int]:
    """Return the samples of one channel, `float32[n]` in -1..1, and their rate.

    Args:
        recording: Of any format that libsndfile reads.
        channel: Which channel, from 0; `None` for recordings with only one.
        where: What messages call it.

    Raises:
        SourceError: The file is missing, damaged, has other channels, or has samples that are not finite.
    """
    with _opened(recording, where) as file:
        if file.seekable():
            samples = file.read(dtype="float32", always_2d=True)
        else:
            samples = np.concatenate([np.zeros((0, file.channels), np.float32), *_blocks(file)])
        return _mono(samples, channel, 0, where), int(file.samplerate)


def read_part(
    path: str, channel: int | None, start: int, end: int, *, num_samples: int, sample_rate: int | None
) -> NDArray[np.float32] | None:
    """Return samples start..end of one channel, `float32[end - start]`, without decoding those before.

    Returns:
        The same as of the whole recording, bit for bit; `None` where only reading all of it tells: the samples before
        count (Vorbis, Opus, MP3, GSM), or it has not the number of samples and the rate that are expected.

    Raises:
        SourceError: As for `read_samples`.
    """
    with _opened(path, path) as file:
        is_exact = file.seekable() and file.subtype.startswith(_EXACT_SUBTYPES)
        if (file.frames, file.samplerate) != (num_samples, sample_rate) or not is_exact:
            return None
        file.seek(start)
        samples = file.read(end - start, dtype="float32", always_2d=True)
        return _mono(samples, channel, start, path) if len(samples) == end - start else None


@contextlib.contextmanager
def _opened(recording: Recording, where: str) -> Iterator[Any]:
    """Open a recording. What goes wrong in the block is a `SourceError`."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package is there, but not the C library
        raise ConfigError(
            f"reading audio needs the package soundfile: {error}", fix="pip install 'headrace[audio]'"
        ) from error
    try:
        file = soundfile.SoundFile(_start_of(recording))
        if not _is_measured(file):
            file.close()

            class Unmeasured(soundfile.SoundFile):  # type: ignore[misc] # soundfile has no type hints
                """Reads on where its header says that it ends."""

                def seekable(self) -> bool:
                    return False

            file = Unmeasured(_start_of(recording))
        with file:
            if not file.frames and file.format == "OGG":
                what = "no sample of the recording can be read"
                raise SourceError(what, where=where, fix="it is damaged, or empty: get or write it again")
            yield file
    except (RuntimeError, OSError, MemoryError) as error:  # soundfile's errors are RuntimeErrors
        raise SourceError(
            f"the recording cannot be read: {error}", where=where, fix="check the file; is it truncated?"
        ) from error


def _start_of(recording: Recording) -> str | IO[bytes]:
    if isinstance(recording, bytes):
        return io.BytesIO(recording)
    if not isinstance(recording, str):
        recording.seek(0)
    return recording


def _is_measured(file: Any) -> bool:
    return bool(0 <= file.frames <= _MAX_SAMPLES)


def _blocks(file: Any) -> Iterator[NDArray[np.float32]]:
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        yield block


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


class RecordingCodec(FileCodec):
    """Recordings as `float32[T, 1]` samples, or `float32[T, num_mels]` features. Needs `headrace[audio]`.

    Args:
        features: "raw", "log_mel", a `LogMel`, or a dict of its options.
        sample_rate: Rate to resample to, in Hz; `None` for that of the features, or else of the recordings, which must
            then have the same.
        channel: Which channel to read; `None` for recordings with only one.

    Attributes:
        features: All options of `LogMel`, with "sample_rate" `None` if it is that of the recordings; `None` for raw
            samples.
        channel: As given.
        rate: Sample rate of what it makes, once that is known.

    Raises:
        ConfigError: An option is wrong, or the rates of two of them differ.
    """

    def __init__(self, features: Any, sample_rate: Any, channel: Any) -> None:
        self.features = _feature_options(features)
        self._sample_rate = _checked_count("sample_rate", sample_rate, 1)
        self.channel = _checked_count("channel", channel, 0)
        self.rate: int | None = None
        self._log_mel: LogMel | None = None
        own = None if self.features is None else self.features["sample_rate"]
        self._take_rate(self._sample_rate or own)
        self._may_resample = self.rate is not None

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        size = 1 if self.features is None else self.features["num_mels"]
        return DataSpec("float32", (size,), dim=size)

    @property
    def identity(self) -> list[Any]:
        """Features and sample rate; which channel changes nothing that is indexed."""
        return [self.features, self._sample_rate]

    @property
    def learnt(self) -> int | None:
        """The sample rate."""
        return self.rate

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the sample rate."""
        self._take_rate(learnt)

    def _take_rate(self, rate: int | None) -> None:
        self.rate = rate
        if rate is not None and self.features is not None:
            own = self.features["sample_rate"]
            if own not in (None, rate):
                raise ConfigError(f"sample_rate is {rate}, but that of the features {own}", fix="give one of them")
            self._log_mel = LogMel(**{**self.features, "sample_rate": rate})

    def look(self, value: Recording, where: str) -> tuple[int, int]:
        """Return number of samples and rate of a recording."""
        return read_header(value, where)

    def note_look(self, found: tuple[int, int], where: str, facts: Facts) -> int:
        """Note what `look` returned; return the number of samples or frames."""
        num_samples, rate = found
        facts.setdefault(rate, where)
        to_rate = self.rate or rate
        num_samples = resampled_length(num_samples, rate, to_rate)
        if self.features is None:
            return num_samples
        if self._log_mel is None or self._log_mel.sample_rate != to_rate:  # of the recordings, as none is given
            self._log_mel = LogMel(**{**self.features, "sample_rate": to_rate})
        return self._log_mel.num_frames(num_samples)

    def conclude(self, facts: Facts) -> None:
        """Take the sample rate of the recordings, if none is given.

        Raises:
            ConfigError: They have different ones; or there is no recording, and features need one.
        """
        if self._may_resample:
            return
        if len(facts) > 1:
            rates = ", ".join(map(str, sorted(facts)))
            raise ConfigError(
                f"the recordings have different sample rates: {rates} Hz",
                where=", ".join(list(facts.values())[:2]),
                fix="give sample_rate=, in the field if there are several, to which they are resampled",
            )
        if not facts and self.features is not None:
            raise ConfigError(
                "an empty corpus does not say for which sample rate features are made", fix="give sample_rate="
            )
        self._take_rate(next(iter(facts), None))

    def encode(self, value: str | bytes, where: str) -> NDArray[np.float32]:
        """Return samples or features of a recording, `float32[T, D]`; a path or the bytes of its file."""
        samples, rate = read_samples(value, self.channel, where)
        if rate != self.rate and not self._may_resample:
            raise SourceError(f"the recording has {rate} Hz, not {self.rate}", where=where)
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
