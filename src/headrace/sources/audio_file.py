"""Reading one recording: decoded, one channel, at the wanted sample rate.

Needs `headrace[audio]`, but only when it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from types import ModuleType


def read_header(path: str) -> tuple[int, int]:
    """Return number of samples and sample rate of a recording, without decoding it."""
    soundfile = _soundfile()
    try:
        info = soundfile.info(path)
    except (RuntimeError, OSError) as error:  # soundfile's errors are RuntimeErrors
        raise _unreadable(path, error) from error
    return int(info.frames), int(info.samplerate)


def read_samples(path: str, channel: int | None) -> tuple[NDArray[np.float32], int]:
    """Return the samples of one channel, `float32[n]` in -1..1, and their rate.

    Args:
        path: A file of any format that libsndfile reads.
        channel: Which channel, from 0; `None` for recordings with only one.

    Raises:
        SourceError: The file is missing, damaged, has other channels, or has samples that are not finite.
    """
    soundfile = _soundfile()
    try:
        samples, sample_rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (RuntimeError, OSError) as error:
        raise _unreadable(path, error) from error
    num_channels = samples.shape[1]
    if channel is None and num_channels != 1:
        raise SourceError(f"the recording has {num_channels} channels", where=path, fix="choose one with channel=")
    if channel is not None and not 0 <= channel < num_channels:
        raise SourceError(f"there is no channel {channel}: the recording has {num_channels}, from 0", where=path)
    mono = np.ascontiguousarray(samples[:, channel or 0])
    wrong = np.flatnonzero(~np.isfinite(mono))
    if len(wrong):
        raise SourceError(f"sample {wrong[0]} is {mono[wrong[0]]}, and {len(wrong)} are not finite", where=path)
    return mono, int(sample_rate)


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


def _unreadable(path: str, error: Any) -> SourceError:
    return SourceError(f"the recording cannot be read: {error}", where=path, fix="check the file; is it torn?")
