"""A source with some of the data keys of another, for targets that hold fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.index import CorpusIndex
from headrace.sources import Source
from headrace.sources.base import check_data_key


class SomeKeys(Source):
    """The same sequences with fewer data keys; the others are not read.

    Args:
        source: The corpus.
        data_keys: The keys to keep, in this order.

    Raises:
        ConfigError: There is no such key, or one is named twice.
    """

    def __init__(self, source: Source, data_keys: Sequence[str]) -> None:
        for key in data_keys:
            if key not in source.specs:
                raise ConfigError(f"the corpus has no data key {key!r}", fix=did_you_mean(key, source.specs))
            if list(data_keys).count(key) > 1:
                raise ConfigError(f"the data key {key!r} is named twice", fix="name it once")
        self._source = source
        self.specs = {key: source.specs[key] for key in data_keys}
        self.labels = {key: source.labels[key] for key in data_keys if key in source.labels}

    @property
    def index(self) -> CorpusIndex:
        """Tags and lengths of the whole source."""
        return self._source.index

    @property
    def runs_user_code(self) -> bool:
        """Whether reading the source does."""
        return self._source.runs_user_code

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence."""
        return self._source.read(corpus_idx, check_data_key(data_key, self.specs))

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key."""
        return self._source.read_slice(corpus_idx, check_data_key(data_key, self.specs), start, end)

    def close(self) -> None:
        """Release the files of the source."""
        self._source.close()
