"""Recordings in an archive: decoded from the bytes of the member, as samples or features. Needs `headrace[audio]`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.features.log_mel import LogMel
from headrace.specs import DataSpec

from ..audio.decode import read_header, read_samples, resample, resampled_length
from ..audio.gather import AudioOptions
from ..audio.manifest import Layout
from .archive import Member, MemberFile, TarBytes
from .members import Members

AUDIO_EXTENSIONS = frozenset(("wav", "flac", "ogg", "oga", "opus", "mp3", "aiff", "aif", "au", "w64", "rf64", "caf"))
_OPTIONS = ("field", "features", "sample_rate", "channel")


class AudioMembers(Members):
    """Recordings: `float32[T, 1]` samples, or `float32[T, num_mels]` features.

    Args:
        ext: The extension.
        options: `features`, `sample_rate` and `channel`, as `AudioSource` takes them.
    """

    def __init__(self, ext: str, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise ConfigError(
                    f"unknown option {name!r} of a recording", where=f".{ext}", fix=did_you_mean(str(name), _OPTIONS)
                )
        self.ext = ext
        # There is no manifest; what its layout says is not looked at.
        no_manifest = Layout("", "", "", None, "")
        features, sample_rate = options.get("features", "raw"), options.get("sample_rate")
        self._options = AudioOptions.parse(no_manifest, features, None, sample_rate, options.get("channel"))
        own = None if self._options.features is None else self._options.features["sample_rate"]
        self._rate: int | None = sample_rate or own
        self._may_resample = self._rate is not None
        self._log_mel: LogMel | None = None
        if self._rate is not None:
            self._log_mel = self._options.front_end(self._rate)

    @property
    def identity(self) -> list[Any]:
        """Its kind, extension, features and sample rate; which channel changes nothing that is indexed."""
        return ["audio", self.ext, self._options.features, self._options.sample_rate]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        num_mels = (self._options.features or {"num_mels": 1})["num_mels"]
        return DataSpec("float32", (num_mels,), dim=num_mels)

    @property
    def learnt(self) -> Any:
        """The sample rate of the samples or features."""
        return self._rate

    def scan(self, archive: TarBytes, member: Member, where: str) -> int:
        """Read a header; return the number of samples or frames."""
        num_samples, rate = read_header(io.BufferedReader(MemberFile(archive, member), 1 << 13), where)
        if self._rate is None:
            self._rate, self._log_mel = rate, self._options.front_end(rate)
        if rate != self._rate and not self._may_resample:
            raise ConfigError(
                f"the recording has {rate} Hz, others have {self._rate}",
                where=where,
                fix=f'give {{"field": "{self.ext}", "sample_rate": ...}} by fields=, to which they are resampled',
            )
        num_samples = resampled_length(num_samples, rate, self._rate)
        return num_samples if self._log_mel is None else self._log_mel.num_frames(num_samples)

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any) -> None:  # noqa: ARG002
        """Take the sample rate."""
        self._rate = learnt
        self._log_mel = None if learnt is None else self._options.front_end(learnt)

    def decode(self, data: bytes, where: str) -> NDArray[np.float32]:
        """Return samples or features of a recording, `float32[T, D]`."""
        samples, rate = read_samples(data, self._options.channel, where)
        if rate != self._rate and not self._may_resample:
            raise SourceError(f"the recording has {rate} Hz, not {self._rate}", where=where)
        samples = resample(samples, rate, self._rate or rate)
        return samples[:, None] if self._log_mel is None else self._log_mel(samples)
