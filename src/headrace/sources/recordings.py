"""What sources of recordings have in common: from the fields of a sequence to its arrays, checked with the index.

A sub-class opens its index and says what the fields of a sequence are (a line of a manifest, or what a folder says of a
file) and where its recording is. Nothing is decoded before it is asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from .arguments import check_data_key
from .audio_file import read_samples, resample
from .audio_gather import AudioOptions
from .base import Source
from .manifest import field_of


class RecordingSource(Source):
    """Recordings: key "data", and a key for each target."""

    _changed_place = "the corpus"  # what errors say has changed

    def _attach(self, options: AudioOptions, index: CorpusIndex) -> None:
        """Work out everything that follows from the options and the index."""
        self._options, self._index, self._fields = options, index, options.fields
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in index.meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = dict(index.meta["labels"])
        for key, field in self._fields.items():
            field.settle(self.labels.get(key))
        self._sample_rate: int | None = index.meta["sample_rate"]
        self._log_mel = options.front_end(self._sample_rate)

    @abstractmethod
    def _record(self, corpus_idx: int) -> Mapping[str, Any]:
        """Return the fields of a sequence, or raise `IndexError`."""

    @abstractmethod
    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:
        """Return the path of a recording."""

    @property
    @abstractmethod
    def _place(self) -> str:
        """What errors name."""

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where each sequence is."""
        return self._index

    @property
    def sample_rate(self) -> int | None:
        """The rate of the samples that "data" is made of, in Hz; `None` if there are no recordings to have one."""
        return self._sample_rate

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one recording: "data" as float32[T, D], targets as integers [T]."""
        check_data_key(data_key, self.specs)
        return self._read_key(corpus_idx, data_key, self._record(corpus_idx))

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one recording."""
        record = self._record(corpus_idx)
        return {data_key: self._read_key(corpus_idx, data_key, record) for data_key in self.specs}

    def _read_key(self, corpus_idx: int, data_key: str, record: Mapping[str, Any]) -> NDArray[Any]:
        where = f"{self._place}, tag {self._index.tags[corpus_idx]!r}"
        if data_key == "data":
            array = self._read_audio(corpus_idx, record, where)
        else:
            field = self._fields[data_key]
            array = field.encode(field_of(record, field.name, object, where), where)
        expected = int(self._index.lengths(data_key)[corpus_idx])
        if len(array) != expected:
            raise self._changed(f"the length of {data_key!r} was {expected} and is {len(array)}", where)
        return array

    def _read_audio(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> NDArray[np.float32]:
        path = self._recording(corpus_idx, record, where)
        samples, rate = read_samples(path, self._options.channel)
        index = self._index
        for what, name, actual in (("samples", "num_samples", len(samples)), ("Hz", "sample_rate", rate)):
            expected = int(index.locator(name)[corpus_idx])
            if actual != expected:
                raise SourceError(
                    f"the recording has {actual} {what}, but {expected} are expected",
                    where=f"{where}, {path}",
                    fix=self._wrong_length_fix,
                )
        samples = resample(samples, rate, self._sample_rate or rate)
        return samples[:, None] if self._log_mel is None else self._log_mel(samples)

    _wrong_length_fix = "open the corpus again to have headers read again; replace a torn recording"

    def _changed(self, what: str, where: str) -> SourceError:
        return SourceError(
            f"{self._changed_place} changed since it was read: {what}", where=where, fix="build the source again"
        )
