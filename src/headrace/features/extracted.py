"""Features of OggZip corpora: the options and the arithmetic of RETURNN's `ExtractAudioFeatures`, in NumPy.

What it computes with librosa (0.10 and later) is computed here from the definitions: a centred short-time Fourier
transform under a periodic Hann window, the mel scale of Slaney's Auditory Toolbox with bands of equal area, decibels
80 below the largest at least. Results agree to the rounding of float32. What draws random numbers there, from one
generator that all sequences share, is not offered: give the dataset a `transform` with `rng`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean

from .bands import Bands, cosine_transform

_OWN_OPTIONS: dict[str, dict[str, Any]] = {  # of "feature_options", with their defaults
    "raw": {},
    "mfcc": {"n_mels": 128, "fmin": 0.0, "fmax": None, "center": True},
    "log_mel_filterbank": {},
    "log_log_mel_filterbank": {},
    "db_mel_filterbank": {"fmin": 0.0, "fmax": None, "min_amp": 1e-10, "center": True},
    "linear_spectrogram": {"center": True},
}
_KINDS = tuple(_OWN_OPTIONS)
_REFUSED = {
    "random_permute": "augment by transform= of the dataset, with a generator for each sequence",
    "with_delta": "compute deltas by transform= of the dataset",
    "num_channels": "choose one channel when the archive is made",
    "pre_process": "use transform= of the dataset",
    "post_process": "use transform= of the dataset",
    "raw_ogg_opts": "use features='raw'",
}
_NAMES = (
    "features",
    "feature_options",
    "join_frames",
    "norm_mean",
    "norm_std_dev",
    "num_feature_filters",
    "peak_normalization",
    "preemphasis",
    "sample_rate",
    "step_len",
    "window_len",
)
_LOG_FLOOR, _POWER_FLOOR, _TOP_DB, _SMALLEST_STD = 1e-3, 1e-10, 80.0, 1e-2
_BLOCK_FRAMES = 256  # frames transformed at a time, so that their spectra stay near the processor

Samples = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExtractedFeatures:
    """From the samples of a recording to its features; made by `parse`.

    Attributes:
        kind: One of the names of features.
        num_filters: Features of a frame, before frames are joined.
        window_len: Seconds.
        step_len: Seconds.
        sample_rate: That recordings must have, in Hz; `None` for any.
        peak_normalization: Whether the largest sample becomes 1.
        preemphasis: a in `y[i] = x[i] - a * x[i - 1]`; 0 is none.
        norm_mean: Subtracted: a number, `float32[D]`, "per_seq" or `None`.
        norm_std_dev: Divided by, likewise.
        join_frames: Frames in a row that become one, if not 1; the last one is repeated where some are missing.
        options: More options of the kind.
    """

    kind: str
    num_filters: int
    window_len: float
    step_len: float
    sample_rate: int | None
    peak_normalization: bool
    preemphasis: float
    norm_mean: Any
    norm_std_dev: Any
    join_frames: int
    options: dict[str, Any]

    @classmethod
    def parse(cls, audio: Mapping[str, Any]) -> ExtractedFeatures:
        """Read the dict that RETURNN takes as `audio`.

        Raises:
            ConfigError: An option is unknown, wrong, or one that is not offered.
        """
        _check_names(audio)
        kind = audio.get("features", "mfcc")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ConfigError(f"features {kind!r} are not offered", where="OggZip", fix=f"one of {', '.join(_KINDS)}")
        filters = audio.get("num_feature_filters")
        join_frames = audio.get("join_frames")
        parsed = cls(
            kind,
            int(_number(audio, "num_feature_filters", 1, 1)) if filters is not None else 1 if kind == "raw" else 40,
            _number(audio, "window_len", 0.025, 1e-6),
            _number(audio, "step_len", 0.010, 1e-6),
            int(_number(audio, "sample_rate", 1, 1)) if audio.get("sample_rate") is not None else None,
            bool(audio.get("peak_normalization", True)),
            _number(audio, "preemphasis", 0.0, 0.0),
            None,
            None,
            int(_number(audio, "join_frames", 1, 1)) if join_frames is not None else 1,
            _own_options(kind, audio.get("feature_options")),
        )
        if kind == "raw" and parsed.num_filters != 1:
            raise ConfigError(f"raw samples have 1 feature, not {filters}", where="OggZip", fix="leave it out")
        for name in ("norm_mean", "norm_std_dev"):
            object.__setattr__(parsed, name, _norm(name, audio.get(name), parsed.dim))
        return parsed

    @property
    def dim(self) -> int:
        """Features of a frame."""
        return self.num_filters * self.join_frames

    @property
    def identity(self) -> list[Any]:
        """JSON data that names all that changes the features."""
        norms = [
            xxhash.xxh3_128_hexdigest(norm.tobytes()) if isinstance(norm, np.ndarray) else norm
            for norm in (self.norm_mean, self.norm_std_dev)
        ]
        lengths = [self.window_len, self.step_len, self.sample_rate, self.join_frames]
        return [self.kind, self.num_filters, *lengths, self.peak_normalization, self.preemphasis, *norms, self.options]

    def num_frames(self, num_samples: int, sample_rate: int) -> int:
        """Return how many frames the features of a recording have; none for no samples."""
        frames = num_samples
        if self.kind != "raw" and num_samples:
            window, step = self._window_and_step(sample_rate)
            size = self._fft_size(window)
            padding = 2 * (size // 2) if self.options.get("center", True) else 0
            frames = max(1 + (num_samples + padding - size) // step, 0)
        return -(-frames // self.join_frames)

    def __call__(self, samples: NDArray[np.float32], sample_rate: int, where: str) -> NDArray[np.float32]:
        """Return the features of a recording.

        Args:
            samples: `float32[n]`.
            sample_rate: In Hz.
            where: The recording, for errors.

        Returns:
            `float32[T, dim]`.

        Raises:
            SourceError: The recording has another rate, or is too short for a window.
        """
        if self.sample_rate not in (None, sample_rate):
            raise SourceError(
                f"the recording has {sample_rate} Hz, not {self.sample_rate}",
                where=where,
                fix="convert it; or leave sample_rate out, if recordings may differ",
            )
        if self.num_frames(len(samples), sample_rate) == 0:
            if len(samples):
                raise SourceError(f"{len(samples)} samples are too few for a window", where=where, fix="center: True")
            return np.zeros((0, self.dim), np.float32)
        features = self._features(self._prepared(samples), sample_rate, where)
        # Sums over frames are rounded by how an array lies in memory; there, all frames of a feature are neighbours.
        return np.ascontiguousarray(self._joined(self._normalized(np.asfortranarray(features))))

    def _prepared(self, samples: NDArray[np.float32]) -> Samples:
        audio = samples.astype(np.float64)
        if self.preemphasis:
            audio[1:] -= self.preemphasis * audio[:-1].copy()
        peak = np.max(np.abs(audio)) if self.peak_normalization else 0.0
        if peak != 0.0:
            audio /= peak
        return audio

    def _features(self, audio: Samples, sample_rate: int, where: str) -> NDArray[np.float32]:
        if self.kind == "raw":
            return audio.astype(np.float32)[:, None]
        if self.kind == "linear_spectrogram":
            window, _ = self._window_and_step(sample_rate)
            if self.num_filters % 2 or 2 * self.num_filters < window:
                what = f"{self.num_filters} frequencies for windows of {window} samples"
                raise SourceError(what, where=where, fix=f"num_feature_filters: even, and at least {window / 2:g}")
            return np.concatenate([np.abs(part)[:, 1:] for part in self._spectra(audio, sample_rate)]).astype(
                np.float32
            )
        options = self.options
        num_mels = options.get("n_mels", self.num_filters)
        low, high = options.get("fmin", 0.0), options.get("fmax")
        window, step = self._window_and_step(sample_rate)
        bands = _slaney_bands(sample_rate, window, num_mels, low, sample_rate / 2 if high is None else high)
        mels = np.concatenate([bands.sums(part.real**2 + part.imag**2) for part in self._spectra(audio, sample_rate)])
        if self.kind == "mfcc":
            if self.num_filters > num_mels:
                raise SourceError(
                    f"{self.num_filters} MFCC need as many mel bands, and there are {num_mels}",
                    where=where,
                    fix="lower num_feature_filters, or raise the number of bands",
                )
            result = cosine_transform(_decibels(mels), self.num_filters)
            frames = self._frames(audio, window, step)
            # Energy in place of the first coefficient; in float32, as there.
            result[:, 0] = np.sqrt(np.mean(np.square(frames.T, dtype=np.float32), axis=0))
        elif self.kind == "db_mel_filterbank":
            result = 20 * np.log10(np.maximum(options["min_amp"], mels))
        else:
            result = np.log(np.maximum(_LOG_FLOOR, mels))
            if self.kind == "log_log_mel_filterbank":
                result = _decibels(result**2)
        return result.astype(np.float32)

    def _window_and_step(self, sample_rate: int) -> tuple[int, int]:
        window, step = int(self.window_len * sample_rate), int(self.step_len * sample_rate)
        if window < 1 or step < 1:
            raise ConfigError(
                f"windows and steps need at least 1 sample: got {window} and {step}",
                where=f"audio, {sample_rate} Hz",
                fix="raise window_len and step_len (seconds)",
            )
        return window, step

    def _fft_size(self, window: int) -> int:
        return 2 * self.num_filters if self.kind == "linear_spectrogram" else window

    def _frames(self, audio: Samples, size: int, step: int) -> Samples:
        """Return `float64[T, size]`, a view: frames around multiples of the step, with zeros outside the recording."""
        if self.options.get("center", True):
            audio = np.pad(audio, size // 2)
        return sliding_window_view(audio, size)[::step]

    def _spectra(self, audio: Samples, sample_rate: int) -> list[NDArray[np.complex128]]:
        """Return blocks `complex128[T, size / 2 + 1]` of the short-time Fourier transform."""
        window, step = self._window_and_step(sample_rate)
        size = self._fft_size(window)
        taper = np.zeros(size)
        start = (size - window) // 2
        taper[start : start + window] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
        frames = self._frames(audio, size, step)
        starts = range(0, len(frames), _BLOCK_FRAMES)
        return [np.fft.rfft(frames[first : first + _BLOCK_FRAMES] * taper) for first in starts]

    def _normalized(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.norm_mean is not None:
            per_seq = isinstance(self.norm_mean, str)
            features -= np.mean(features, axis=0, keepdims=True) if per_seq else self.norm_mean
        if self.norm_std_dev is not None:
            per_seq = isinstance(self.norm_std_dev, str)
            std = np.maximum(np.std(features, axis=0, keepdims=True), _SMALLEST_STD) if per_seq else self.norm_std_dev
            features /= std
        return features

    def _joined(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.join_frames == 1:
            return features
        missing = -len(features) % self.join_frames
        return np.pad(features, ((0, missing), (0, 0)), mode="edge").reshape(-1, self.dim)


def _check_names(audio: Any) -> None:
    """Refuse options that are unknown or not offered."""
    if not isinstance(audio, Mapping):
        raise ConfigError(f"audio is a dict of options, not {audio!r}", where="OggZip", fix="{} for the defaults")
    for name, value in audio.items():
        if name in _REFUSED:
            if value is not None and value is not False and value != 0:
                raise ConfigError(f"audio option {name}={value!r} is not offered", where="OggZip", fix=_REFUSED[name])
        elif name not in _NAMES:
            raise ConfigError(f"unknown audio option {name!r}", where="OggZip", fix=did_you_mean(str(name), _NAMES))


def _own_options(kind: str, given: Any) -> dict[str, Any]:
    """Return all options of a kind of features, those that were not given with their defaults."""
    defaults = _OWN_OPTIONS[kind]
    for name, value in (given or {}).items():
        if name not in defaults:
            fix = did_you_mean(str(name), defaults)
            raise ConfigError(f"{kind} has no option {name!r}", where="feature_options", fix=fix)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        if not (isinstance(value, bool) if name == "center" else is_number or (name == "fmax" and value is None)):
            raise ConfigError(f"{name} cannot be {value!r}", where="feature_options")
    return {**defaults, **(given or {})}


def _number(options: Mapping[str, Any], name: str, default: float, smallest: float) -> float:
    value = options.get(name, default)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not smallest <= value < 1e9:
        raise ConfigError(f"{name} must be a number of at least {smallest:g}, not {value!r}", where="audio")
    return value


def _norm(name: str, value: Any, dim: int) -> Any:
    """Return a number, "per_seq", an array `float32[dim]` (also from a text file), or `None`."""
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
    if array.shape != (dim,) or array.dtype.kind not in "iuf":
        raise ConfigError(f"{name} is {array.dtype}{list(array.shape)}, but there are {dim} features", where="audio")
    return array.astype(np.float32)


def _decibels(power: Samples) -> Samples:
    """Return 10 log10 of a power, not less than 80 below its largest value."""
    result = 10.0 * np.log10(np.maximum(_POWER_FLOOR, power))
    floored: Samples = np.maximum(result, result.max() - _TOP_DB)
    return floored


@lru_cache(maxsize=16)
def _slaney_bands(sample_rate: int, fft_size: int, num_mels: int, low: float, high: float) -> Bands:
    """Return the bands that sum powers by triangles of equal area."""
    return Bands(_slaney_filters(sample_rate, fft_size, num_mels, low, high))


def _slaney_filters(sample_rate: int, fft_size: int, num_mels: int, low: float, high: float) -> Samples:
    """Return triangles of equal area, `[fft_size / 2 + 1, num_mels]`, as float64 of float32 values."""
    edges = _mel_to_hz(np.linspace(_hz_to_mel(low), _hz_to_mel(high), num_mels + 2))
    hz = np.fft.rfftfreq(fft_size, 1.0 / sample_rate)[:, None]
    rising, falling = (hz - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - hz) / np.diff(edges)[1:]
    weights = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    weights *= 2.0 / (edges[2:] - edges[:-2])
    result: Samples = weights.astype(np.float64)
    return result


# The scale is linear up to 1000 Hz (15 mels), and logarithmic above: 27 steps to the frequency 6.4 times as high.
_LINEAR_HZ, _BREAK_HZ, _BREAK_MEL, _LOG_STEP = 200.0 / 3, 1000.0, 15.0, np.log(6.4) / 27.0


def _hz_to_mel(hz: float) -> float:
    if hz >= _BREAK_HZ:
        return float(_BREAK_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)
    return hz / _LINEAR_HZ


def _mel_to_hz(mels: Samples) -> Samples:
    above = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels >= _BREAK_MEL, above, _LINEAR_HZ * mels)
