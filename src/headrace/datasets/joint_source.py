"""The sources of several datasets as one: for those who read many sequences at once, past the datasets.

Only where that makes no difference: every part must be one whose sequences come out as they are in its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.index import CorpusIndex
from headrace.index.storage import About
from headrace.sources import Source

from .joint_corpus import JointCorpus
from .joint_layout import JointLayout

_BLOCK = 1 << 20  # lengths looked up at a time


class JointLengths:
    """The lengths of one data key over several corpora, looked up where they are.

    Args:
        corpus: The corpora.
        columns: Number of a corpus -> function of its corpus indices, `int[n]`; corpora without the key are left out.
        absent: The length in those.
    """

    def __init__(
        self, corpus: JointCorpus, columns: Mapping[int, Callable[[NDArray[np.int64]], NDArray[Any]]], absent: int
    ) -> None:
        self._corpus, self._columns, self._absent = corpus, dict(columns), absent

    def __len__(self) -> int:
        return len(self._corpus)

    def max(self, initial: int = 0) -> int:
        """Return the greatest length. O(number of sequences)."""
        starts = range(0, len(self), _BLOCK)
        return max([initial, *(int(self[start : start + _BLOCK].max()) for start in starts)])

    def __getitem__(self, indices: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return the lengths of sequences, `int64[n]`, by joint corpus indices."""
        indices = np.arange(*indices.indices(len(self))) if isinstance(indices, slice) else np.asarray(indices)
        owners = self._corpus.owners_of(indices)
        lengths = np.full(indices.shape, self._absent, np.int64)
        for number, column in self._columns.items():
            is_own = owners == number
            if is_own.any():
                lengths[is_own] = column(indices[is_own] - self._corpus.starts[number])
        return lengths


class JointIndex(CorpusIndex):
    """The index of a `JointSource`: lengths are looked up, not gathered."""

    def __init__(self, corpus: JointCorpus, columns: Mapping[str, JointLengths]) -> None:
        super().__init__(corpus.index.tags, {}, {}, about=About("", {}, ()))
        self._columns = dict(columns)

    def has_lengths(self, data_key: str) -> bool:
        """Tell whether the lengths of a data key are known."""
        return data_key in self._columns

    def lengths(self, data_key: str) -> Any:
        """Return what gives lengths by `[corpus indices]`."""
        return self._columns[data_key]


class JointSource(Source):
    """Several sources as one, for reading many sequences at once. Not thread-safe.

    Args:
        corpus: The corpora of the sources.
        layout: The data keys; the layout of each is known.
        sources: By number of the corpus: its name in the layout, and the source; empty corpora may be left out.
    """

    def __init__(self, corpus: JointCorpus, layout: JointLayout, sources: Mapping[int, tuple[str, Source]]) -> None:
        self._corpus, self._layout, self._sources = corpus, layout, dict(sources)
        self.specs = {key: spec for key in layout.data_keys if (spec := layout.specs[key]) is not None}
        self.labels = dict(layout.labels)
        self._index = JointIndex(corpus, {key: self._lengths(key) for key in self.specs})

    def _lengths(self, key: str) -> JointLengths:
        columns = {}
        for number, (name, source) in self._sources.items():
            own = self._layout.keys[name].get(key)
            if own is not None:
                columns[number] = source.index.lengths(own).__getitem__
        return JointLengths(self._corpus, columns, self._layout.empty_length(key))

    @property
    def index(self) -> CorpusIndex:
        """Tags and lengths."""
        return self._index

    @property
    def has_fast_rows(self) -> bool:
        """Yes: that is what it is for."""
        return True

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, `dtype[T, ...]`."""
        number = int(self._corpus.owners_of(np.array([corpus_idx]))[0])
        name, source = self._sources[number]
        own = self._layout.keys[name].get(data_key)
        if own is None:
            return self._layout.empty(data_key)
        return source.read(int(corpus_idx - self._corpus.starts[number]), own)

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array, one after the other, see `Source.read_rows`."""
        shares = self._shares(corpus_indices, data_key)
        if len(shares) == 1 and len(shares[0][3]) == len(corpus_indices):
            source, own, indices, _ = shares[0]
            source.read_rows(indices, own, out)
        elif self.specs[data_key].has_time:
            ends = np.cumsum(self._index.lengths(data_key)[corpus_indices])
            bounds = [0, *ends.tolist()]
            self.read_into(corpus_indices, data_key, [out[a:b] for a, b in pairwise(bounds)])
        else:
            out[...] = 0
            for source, own, indices, places in shares:
                rows = np.empty((len(indices), *out.shape[1:]), out.dtype)
                source.read_rows(indices, own, rows)
                out[places] = rows

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own, see `Source.read_into`."""
        for source, own, indices, places in self._shares(corpus_indices, data_key):
            source.read_into(indices, own, [outs[place] for place in places.tolist()])

    def _shares(
        self, corpus_indices: NDArray[np.int64], data_key: str
    ) -> list[tuple[Source, str, NDArray[np.int64], NDArray[np.intp]]]:
        """Return, for each source that has some of the sequences with the key: it, its key, and which, `int[n]` twice.

        The first numbers are corpus indices of the source, the second are places among those that are asked for.
        """
        owners, shares = self._corpus.owners_of(corpus_indices), []
        for number in np.unique(owners).tolist():
            name, source = self._sources[number]
            own = self._layout.keys[name].get(data_key)
            if own is not None:
                places = np.flatnonzero(owners == number)
                shares.append((source, own, corpus_indices[places] - self._corpus.starts[number], places))
        return shares
