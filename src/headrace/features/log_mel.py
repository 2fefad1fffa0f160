"""Log-mel features in NumPy.

The same samples give the same features on every call: no dithering, no state, blocks of a fixed size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError

_BLOCK_FRAMES = 256  # frames transformed at a time: with their spectra, 1.5 MiB for windows of 25 ms at 16 kHz


@dataclass(frozen=True, slots=True)
class LogMel:
    """Log energies of bands that are equally wide on the mel scale: `LogMel(16000)(samples)`.

    Frame t is samples `[t * step, t * step + window)`, padded with zeros after the last sample, under a Hann
    window; its power spectrum is summed by triangles whose edges are equally spaced on the mel scale, and the natural
    logarithm is taken. The scale is that of HTK (Young et al., "The HTK Book", section 5.4): mel(f) = 2595 log10(1 +
    f / 700), and so are the triangles, linear in mel. It is computed in float64.

    Attributes:
        sample_rate: Sample rate of the samples, in Hz.
        num_mels: Number of bands.
        window_seconds: Length of a frame.
        step_seconds: From the start of a frame to that of the next; not more than a frame, so that no sample is lost.
        min_hz: Lower edge of the first band.
        max_hz: Upper edge of the last band; half the sample rate if `None`.
        preemphasis: a in `y[i] = x[i] - a * x[i - 1]`, applied to the whole recording; 0 is none, 0.97 is usual.
        floor: Smaller energies are raised to it, so that silence has a logarithm; full scale is 1.0.

    Raises:
        ConfigError: An option is out of range, or the bands are too narrow for the window.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> features = hr.LogMel(16_000, num_mels=80)
        >>> features(np.zeros(16_000, np.float32)).shape  # a second
        (99, 80)
    """

    sample_rate: int
    num_mels: int = 40
    window_seconds: float = 0.025
    step_seconds: float = 0.010
    min_hz: float = 20.0
    max_hz: float | None = None
    preemphasis: float = 0.0
    floor: float = 1e-10

    def __post_init__(self) -> None:
        """Check all options."""
        for option in fields(self):
            value, kind = getattr(self, option.name), int if option.name in ("sample_rate", "num_mels") else float
            if value is None and option.name == "max_hz":
                continue
            if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
                raise ConfigError(f"{option.name} is of type {kind.__name__}, not {value!r}", where="LogMel")
        limits = [
            ("sample_rate", self.sample_rate, 1, 10**7),
            ("num_mels", self.num_mels, 1, 10**5),
            ("window_seconds", self.window_seconds * self.sample_rate, 2, 10**7),
            ("step_seconds", self.step_seconds * self.sample_rate, 1, self.window_seconds * self.sample_rate),
            ("min_hz", self.min_hz, 0, self.top_hz),
            ("max_hz", self.top_hz, 0, self.sample_rate / 2),
            ("preemphasis", self.preemphasis, 0, 1),
            ("floor", self.floor, np.finfo(np.float64).tiny, 1e10),
        ]
        for name, value, smallest, largest in limits:
            if not smallest <= value <= largest:  # a NaN fails as well
                unit = " samples" if name.endswith("_seconds") else ""
                raise ConfigError(
                    f"{name} = {getattr(self, name)} is out of range",
                    where=f"LogMel(sample_rate={self.sample_rate})",
                    fix=f"it must be in {smallest:g}..{largest:g}{unit}",
                )
        empty = np.flatnonzero(self._filters().sum(axis=0) == 0)
        if len(empty):
            raise ConfigError(
                f"{self.num_mels} bands are too narrow for windows of {self.window_samples} samples: "
                f"no frequency falls into band {empty[0]}",
                where=f"LogMel(sample_rate={self.sample_rate})",
                fix="take fewer num_mels, a longer window_seconds, or a wider range min_hz..max_hz",
            )

    @property
    def top_hz(self) -> float:
        """Upper edge of the last band."""
        return self.sample_rate / 2 if self.max_hz is None else self.max_hz

    @property
    def window_samples(self) -> int:
        """Samples of a frame."""
        return round(self.window_seconds * self.sample_rate)

    @property
    def step_samples(self) -> int:
        """Samples from the start of a frame to that of the next."""
        return round(self.step_seconds * self.sample_rate)

    def num_frames(self, num_samples: int) -> int:
        """Return the number of frames of a recording: enough that each sample is in one; 0 for no samples."""
        if num_samples <= 0:
            return 0
        return 1 + -(-max(num_samples - self.window_samples, 0) // self.step_samples)

    def __call__(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """Return the features of a recording.

        Args:
            samples: `float[n]`, one channel, full scale 1.0.

        Returns:
            `float32[T, num_mels]` with `T = num_frames(n)`.

        Raises:
            SourceError: The samples are not one row of numbers of kind float.
        """
        if samples.ndim != 1 or samples.dtype.kind != "f":
            raise SourceError(f"log-mel features need samples as float[n], not {samples.dtype}{list(samples.shape)}")
        num_frames = self.num_frames(len(samples))
        features = np.empty((num_frames, self.num_mels), dtype=np.float32)
        if num_frames == 0:
            return features
        window, step = self.window_samples, self.step_samples
        signal = np.zeros((num_frames - 1) * step + window)
        signal[: len(samples)] = samples
        signal[1 : len(samples)] -= self.preemphasis * samples[:-1].astype(np.float64)
        frames = sliding_window_view(signal, window)[::step]
        for start in range(0, num_frames, _BLOCK_FRAMES):
            spectrum = np.fft.rfft(frames[start : start + _BLOCK_FRAMES] * _hann(window), n=self._fft_size())
            power = spectrum.real**2 + spectrum.imag**2
            features[start : start + _BLOCK_FRAMES] = np.log(np.maximum(self._bands().sums(power), self.floor))
        return features

    def _fft_size(self) -> int:
        return 1 << (self.window_samples - 1).bit_length()

    def _filters(self) -> NDArray[np.float64]:
        return _mel_filters(self.sample_rate, self._fft_size(), self.num_mels, self.min_hz, self.top_hz)

    def _bands(self) -> Bands:
        return _mel_bands(self.sample_rate, self._fft_size(), self.num_mels, self.min_hz, self.top_hz)


class Bands:
    """Triangular bands, each of which begins where the last but one ends: sums over them, without a matrix product.

    A matrix product goes to a BLAS library, which shares even a small one among all processors. In a program that uses
    these already, each product then waits for its slowest part: 24 ms instead of 0.1 for 100 frames, in a trainer that
    has two busy workers beside it. Sums of neighbouring numbers are as fast as one thread of BLAS, and give the same
    bits whatever library there is.

    Args:
        weights: `float64[F, M]`, of each frequency in each band. Bands of even numbers do not overlap, nor do those of
            odd numbers; a band may be empty.
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._num_bands = weights.shape[1]
        self._halves: list[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]] = []
        for first in (0, 1):
            half = weights[:, first::2]
            filled = np.flatnonzero(half.any(axis=0))
            if len(filled):
                assert (np.count_nonzero(half, axis=1) <= 1).all()
                starts = np.argmax(half[:, filled] != 0, axis=0)  # from there on to the next one: zeros between count 0
                self._halves.append((first + 2 * filled, starts, half.sum(axis=1)))

    def sums(self, power: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `power @ weights`, `float64[T, F]` -> `float64[T, M]`."""
        result = np.zeros((len(power), self._num_bands))
        for bands, starts, weights in self._halves:
            result[:, bands] = np.add.reduceat(power * weights, starts, axis=1)
        return result


def hz_to_mel(hz: Any) -> Any:
    """Return the mel value of a frequency, by the formula of HTK."""
    return 2595.0 * np.log10(1.0 + np.asarray(hz, dtype=np.float64) / 700.0)


@lru_cache(maxsize=16)
def _mel_filters(sample_rate: int, fft_size: int, num_mels: int, min_hz: float, max_hz: float) -> NDArray[np.float64]:
    """Return the weights `float64[fft_size / 2 + 1, num_mels]` of each frequency in each band; read-only."""
    edges = np.linspace(hz_to_mel(min_hz), hz_to_mel(max_hz), num_mels + 2)
    mels = hz_to_mel(np.arange(fft_size // 2 + 1) * (sample_rate / fft_size))[:, None]
    width = (edges[-1] - edges[0]) / (num_mels + 1) or 1.0  # an empty range gives empty bands, which are refused
    rising, falling = (mels - edges[:-2]) / width, (edges[2:] - mels) / width
    weights: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    weights.flags.writeable = False
    return weights


@lru_cache(maxsize=16)
def _mel_bands(sample_rate: int, fft_size: int, num_mels: int, min_hz: float, max_hz: float) -> Bands:
    """Return the bands that sum powers."""
    return Bands(_mel_filters(sample_rate, fft_size, num_mels, min_hz, max_hz))


@lru_cache(maxsize=16)
def _hann(size: int) -> NDArray[np.float64]:
    """Return a Hann window `float64[size]`, of one period; read-only."""
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)
    window.flags.writeable = False
    return window
