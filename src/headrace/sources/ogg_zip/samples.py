"""`OggZipSamples`: what becomes of the samples of a recording, by RETURNN's options.

These are the options of RETURNN's `ExtractAudioFeatures` that leave samples as samples. What draws random numbers
there, from one generator that all sequences share, is not offered: give the dataset a `transform` with `rng`. Nor are
features: a transform computes them, for example by `LogMel`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, NotCarriedOverError, SourceError, did_you_mean

_NAMES = (
    *("features", "join_frames", "norm_mean", "norm_std_dev", "num_feature_filters", "peak_normalization"),
    *("preemphasis", "sample_rate", "step_len", "window_len"),  # the last two are of windows, which samples do not have
)
_REFUSED = (
    *("random_permute", "with_delta", "num_channels", "pre_process", "post_process", "raw_ogg_opts"),
    "feature_options",
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
        if not isinstance(audio, Mapping):
            fix = 'write {"features": "raw"}'
            raise ConfigError(f"audio is a dict of options, not {audio!r}", where="OggZip", fix=fix)
        for name, value in audio.items():
            if name not in _NAMES and (name not in _REFUSED or (value is not None and value not in (0, {}))):
                what = f"audio option {name}={value!r} is not offered"
                raise ConfigError(what, where="OggZip", fix=did_you_mean(str(name), _NAMES))
        if audio.get("num_feature_filters") not in (None, 1) and audio.get("features") == "raw":
            raise ConfigError("raw samples have 1 feature", where="OggZip", fix="leave num_feature_filters out")
        kind = audio.get("features", "mfcc")
        if kind != "raw":
            raise NotCarriedOverError(
                f"the features {kind!r} of RETURNN{'' if 'features' in audio else ', its default,'} are not offered",
                fix='write audio={"features": "raw"}, and compute features by transform= of the dataset, for example '
                "by headrace.LogMel",
            )
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
        audio = samples.astype(np.float64)
        if self.preemphasis:
            audio[1:] -= self.preemphasis * audio[:-1].copy()
        peak = np.max(np.abs(audio)) if self.peak_normalization else 0.0
        if peak != 0.0:
            audio /= peak
        frames = audio.astype(np.float32)[:, None]
        if self.norm_mean is not None:
            per_seq = isinstance(self.norm_mean, str)
            frames -= np.mean(frames, axis=0, keepdims=True) if per_seq else self.norm_mean
        if self.norm_std_dev is not None:
            per_seq = isinstance(self.norm_std_dev, str)
            frames /= np.maximum(np.std(frames, axis=0, keepdims=True), _SMALLEST_STD) if per_seq else self.norm_std_dev
        return np.pad(frames, ((0, -len(frames) % self.dim), (0, 0)), mode="edge").reshape(-1, self.dim)


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
