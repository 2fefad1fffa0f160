"""Lhotse's recordings, features and arrays, read from regular files by libsndfile, NumPy and h5py alone.

lhotse looks for a program that reads a file: by its ending, and after others have failed. These classes never start
one. They are lhotse's in all else, and equal to lhotse's with the same content.
"""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any

import h5py
import numpy as np
from lhotse.array import Array, TemporalArray
from lhotse.audio import AudioSource, DurationMismatchError
from lhotse.audio.utils import get_audio_duration_mismatch_tolerance
from lhotse.features import Features
from lhotse.features.io import lookup_cache_or_open
from lhotse.utils import compute_num_samples

from headrace.errors import ConfigError, SourceError

from .cuts_roots import open_regular
from .hdf_inside import refuse_dataset_elsewhere

FILES = ("numpy_files", "lilcom_files")  # one file an array, in the folder `storage_path`
_HDF = ("numpy_hdf5", "lilcom_hdf5", "chunked_lilcom_hdf5")
ARCHIVES = (*_HDF, "lilcom_chunky")  # one file, `storage_path`
PLACEHOLDER = "shar"  # filled with bytes of a shard
_IN_MEMORY = ("memory_npy", "memory_lilcom")
_CHUNK_SIZE = "__LHOTSE_INTERNAL_CHUNK_SIZE__"
# gzip makes at most 1032 bytes of one, and only of such.
_MAX_RATIO = 1100
_FREE_BYTES = 1 << 20


class _Equal:
    """Equal to what lhotse makes of the same fields."""

    def __eq__(self, other: object) -> bool:
        kind = type(self).__mro__[2]
        if not isinstance(other, kind):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(kind)]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment] # as lhotse's


class FileAudio(_Equal, AudioSource):  # type: ignore[misc] # lhotse has no type hints
    """Audio in a file, or in memory once Shar's placeholder was filled."""

    def load_audio(
        self,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,
    ) -> Any:
        """Return `float32[channels, T]`: the samples from `offset` on, for `duration` seconds."""
        del force_opus_sampling_rate  # libsndfile decodes at the rate of the file
        if self.type == "memory" and isinstance(self.source, bytes):
            samples, rate = _decode(io.BytesIO(self.source), offset, duration)
        elif self.type == "file":
            fd = open_regular(self.source)
            try:
                samples, rate = _decode(fd, offset, duration)
            finally:
                os.close(fd)
        else:
            raise SourceError(f"the recording has no data: its source is a placeholder of type {self.type!r}")
        found = samples.shape[1] / rate
        if duration is not None and found < duration - get_audio_duration_mismatch_tolerance():
            raise DurationMismatchError(f"Requested more audio ({duration}s) than available ({found}s)")
        return samples

    def load_video(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: video is decoded by FFmpeg, which opens what its input names.

        Raises:
            SourceError: Always.
        """
        del args, kwargs
        raise SourceError("video is not read", fix="read it by lhotse: CutSet.from_file(...)")


class StoredFeatures(_Equal, Features):  # type: ignore[misc]
    """Features in a file, or in memory."""

    def load(self, *args: Any, **kwargs: Any) -> Any:
        """Return them, see lhotse's."""
        _check_storage(self)
        return super().load(*args, **kwargs)


class StoredArray(_Equal, Array):  # type: ignore[misc]
    """An array in a file, or in memory."""

    def load(self) -> Any:
        """Return it."""
        _check_storage(self)
        return super().load()


class StoredTemporalArray(_Equal, TemporalArray):  # type: ignore[misc]
    """An array with time."""

    def load(self, *args: Any, **kwargs: Any) -> Any:
        """Return a part of it, see lhotse's."""
        _check_storage(self.array)
        return super().load(*args, **kwargs)


def _decode(file: Any, offset: float, duration: float | None) -> tuple[Any, int]:
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise ConfigError(f"audio is read by soundfile: {error}", fix="pip install 'headrace[audio]'") from error
    try:
        with soundfile.SoundFile(file, closefd=False) as decoder:
            rate = int(decoder.samplerate)
            if offset > 0:
                decoder.seek(compute_num_samples(offset, rate))
            num_frames = -1 if duration is None else compute_num_samples(duration, rate)
            return decoder.read(frames=num_frames, dtype=np.float32, always_2d=True).T, rate
    except soundfile.LibsndfileError as error:  # lhotse raises it anew, which it does not survive
        raise ValueError(f"libsndfile cannot decode it: {error.error_string}") from error


def _check_storage(stored: Any) -> None:
    """Refuse what is stored otherwise than a manifest may say, before lhotse opens it.

    Raises:
        OSError: There is no regular file.
        SourceError: The kind is not read, or a part is in another file.
    """
    kind = stored.storage_type
    if kind in _IN_MEMORY and isinstance(stored.storage_key, bytes):
        return
    if kind not in FILES and kind not in ARCHIVES:
        raise SourceError(f"data that are stored as {kind!r} are not read")
    path = os.path.join(stored.storage_path, stored.storage_key) if kind in FILES else stored.storage_path
    os.close(open_regular(path))
    if kind in _HDF:
        _check_hdf(lookup_cache_or_open(path), stored.storage_key, path)
        if kind == "chunked_lilcom_hdf5":
            _check_hdf(lookup_cache_or_open(path), _CHUNK_SIZE, path)


def _check_hdf(file: h5py.File, name: str, path: str) -> None:
    refuse_dataset_elsewhere(file, name, path)
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise SourceError(f"{name!r} is no dataset", where=path)
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > _FREE_BYTES + _MAX_RATIO * stored:
        raise SourceError(
            f"{name!r} claims {dataset.nbytes} bytes, and {stored} are stored", where=path, fix="write the file again"
        )
