"""Rows of a streaming dataset of Hugging Face's library whose recordings are decoded here, by soundfile.

The library decodes recordings by torchcodec, and needs that package even to pass on what is stored. So its feature is
replaced by one that leaves a recording as its bytes or its path, and `RowDecoder` makes samples of these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec
import numpy as np
from numpy.typing import NDArray

import datasets
from headrace.errors import SourceError

from ..audio.codec import read_samples, resample


class StoredAudio(datasets.Audio):  # type: ignore[misc, unused-ignore]
    """A recording as it is stored, by its bytes, its path, or its samples."""

    def encode_example(self, value: Any) -> dict[str, Any]:
        """Return a dict of "bytes" and "path", or of "array" and "sampling_rate", of what a dataset gives."""
        if isinstance(value, str | os.PathLike):
            return {"bytes": None, "path": os.fspath(value)}
        if isinstance(value, bytes | bytearray):
            return {"bytes": bytes(value), "path": None}
        return dict(value)


@dataclass
class RowDecoder:
    """Makes `float32[T, 1]` of the recordings of a row; to be called with one row after the other.

    Attributes:
        rates: Column -> sample rate in Hz that its feature asks for; None: that of the recordings, the same for all.
    """

    rates: Mapping[str, int | None]
    _found: dict[str, int] = field(default_factory=dict)  # the rate of the first recording

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with samples in place of recordings."""
        return {name: self._decode(name, value) if name in self.rates else value for name, value in row.items()}

    def _decode(self, name: str, stored: Any) -> NDArray[np.float32]:
        if stored is None:
            raise SourceError(f"the column {name!r} is null", fix="leave such rows out: dataset.filter(...)")
        where = f"column {name!r}, {stored.get('path') or 'bytes without a path'}"
        samples, rate = self._read(stored, where)
        wanted = self.rates[name] or self._found.setdefault(name, rate)
        if rate != wanted and self.rates[name] is None:
            raise SourceError(
                f"the recordings have different sample rates: {wanted} and {rate} Hz",
                where=where,
                fix=f"say the one to resample to: dataset.cast_column({name!r}, Audio(sampling_rate={wanted}))",
            )
        return resample(samples, rate, wanted)[:, None]

    def _read(self, stored: Mapping[str, Any], where: str) -> tuple[NDArray[np.float32], int]:
        if "array" in stored:
            samples = np.asarray(stored["array"], np.float32)
            if samples.ndim != 1:
                raise SourceError(f"the recording has {samples.ndim} axes, not one", where=where)
            return samples, int(stored["sampling_rate"])
        data, path = stored.get("bytes"), stored.get("path")
        if data is None:
            if path is None:
                raise SourceError("the recording has neither bytes nor a path", where=where)
            try:
                with fsspec.open(path, "rb") as file:  # a path of this machine, or a URL
                    data = file.read()
            except (OSError, ValueError) as error:
                raise SourceError(f"the recording cannot be read: {error}", where=where) from error
        return read_samples(data, None, where)


def decode_here(dataset: Any) -> tuple[Any, RowDecoder | None]:
    """Return a streaming dataset that leaves recordings as they are, and what decodes its rows, if it has recordings.

    Args:
        dataset: A `datasets.IterableDataset`, without a format.
    """
    features = dataset.features or {}
    rates = {
        name: feature.sampling_rate
        for name, feature in features.items()
        if isinstance(feature, datasets.Audio) and feature.decode
    }
    for name, rate in rates.items():
        dataset = dataset.cast_column(name, StoredAudio(sampling_rate=rate, decode=False))
    return dataset, RowDecoder(rates) if rates else None
