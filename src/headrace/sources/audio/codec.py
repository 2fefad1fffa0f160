"""`RecordingCodec`: from recordings, wherever they are stored, to samples or features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.features.log_mel import LogMel
from headrace.specs import DataSpec

from ..shared.codec import Codec
from .decode import read_header, read_samples, resample, resampled_length


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
