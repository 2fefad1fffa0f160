"""Several corpora, one after the other, as one, with their tags, positions in the orders of the parts, and sources.

Nothing is copied; tags are looked up where they are. `JointSource` reads many sequences at once, past the datasets:
only where every part is one whose sequences come out as they are in its source. Invariant: joint corpus index = first
index of the part + corpus index in the part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.index import CorpusIndex, Tags
from headrace.index.storage import About
from headrace.index.tags import check_indices
from headrace.order import Order
from headrace.sources import Source

from ..corpus import Corpus
from .layout import JointLayout


class JointTags(Tags):
    """The tags of several corpora, one after the other.

    Args:
        parts: Their tags.
    """

    def __init__(self, parts: Sequence[Tags]) -> None:
        self._parts = tuple(parts)
        self._starts = starts_of([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[type[JointTags], tuple[tuple[Tags, ...]]]:
        return JointTags, (self._parts,)

    def block(self, start: int, stop: int) -> list[str]:
        """Return the tags of corpus indices start..stop."""
        found: list[str] = []
        for part, first in zip(self._parts, self._starts.tolist(), strict=False):
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                found += part.block(low, high)
        return found

    def take(self, indices: ArrayLike) -> list[str]:
        """Return the tags at the given corpus indices."""
        return _take_tags(self._starts, check_indices(indices, len(self)), [part.take for part in self._parts])

    def update_digest(self, digest: xxhash.xxh3_128) -> None:
        """Feed the tags of each part."""
        digest.update(f"joint {len(self._parts)} ".encode())
        for part in self._parts:
            part.update_digest(digest)


def _take_tags(
    starts: NDArray[np.int64], indices: NDArray[np.int64], takes: Sequence[Callable[[NDArray[np.int64]], list[str]]]
) -> list[str]:
    """Return the tags of joint corpus indices by the functions of the parts that return those of theirs."""
    owners = owners_of(starts, indices)
    if len(indices) and owners[0] == owners[-1] and (owners == owners[0]).all():
        return takes[int(owners[0])](indices - starts[owners[0]])
    found: NDArray[Any] = np.empty(len(indices), dtype=object)
    for number in np.unique(owners).tolist():
        is_own = owners == number
        found[is_own] = takes[number](indices[is_own] - starts[number])
    tags: list[str] = found.tolist()
    return tags


class JointCorpus:
    """Several corpora as one. The index of a part is built only where all tags are needed.

    Args:
        corpora: What is known of each; all are indexed.

    Attributes:
        corpora: As given.
        starts: `int64[K + 1]`: the joint corpus index at which each begins, and the end.
    """

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self.corpora = tuple(corpora)
        self.starts = starts_of([corpus.size() or 0 for corpus in corpora])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def index(self) -> CorpusIndex:
        """The tags of all; lengths stay with the parts."""
        return CorpusIndex(JointTags([corpus.index().tags for corpus in self.corpora]), {}, {}, about=About("", {}, ()))

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of joint corpus indices; no others need be known for it."""
        return _take_tags(self.starts, indices, [corpus.tags_of for corpus in self.corpora])

    def owners_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which part each joint corpus index belongs to, `int64[n]`."""
        return owners_of(self.starts, indices)


def starts_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return where each of several parts begins, and the end, `int64[K + 1]`."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def owners_of(starts: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of each index: the last one that begins at or before it, so never an empty one."""
    return np.searchsorted(starts, indices, side="right") - 1


_POSITIONS_AT_ONCE = 4096  # positions computed at a time
_FEW_PARTS = 16  # up to this number, each is looked for by itself, which takes no memory


class PartPositions:
    """Splits a joint order among its parts, in blocks, so that little is kept for each sequence.

    Args:
        corpus: Says whose a joint corpus index is.
        order: Joint corpus indices.
    """

    def __init__(self, corpus: JointCorpus, order: Order) -> None:
        self._corpus, self._order = corpus, order
        self._before: NDArray[np.int64] | None = None  # int64[blocks, K]: sequences of each part before each block
        self._by_part: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None  # positions, and the start of each part
        self._start = -1
        self._owners: list[int] = []
        self._ranks: list[int] = []

    def at(self, position: int) -> tuple[int, int]:
        """Return the part at a position, and the position in it; cheap for consecutive positions."""
        offset = position - self._start
        if self._start < 0 or not 0 <= offset < len(self._owners):
            self._start = position - position % _POSITIONS_AT_ONCE
            self._decode(self._start)
            offset = position - self._start
        return self._owners[offset], self._ranks[offset]

    def _decode(self, start: int) -> None:
        if self._before is None:
            self._before = self._count()
        owners = self._owners_at(start)
        ranks = np.empty(len(owners), np.int64)
        before = self._before[start // _POSITIONS_AT_ONCE]
        for part in np.unique(owners).tolist():
            own = np.flatnonzero(owners == part)
            ranks[own] = np.arange(before[part], before[part] + len(own))
        self._owners, self._ranks = owners.tolist(), ranks.tolist()

    def _owners_at(self, start: int) -> NDArray[np.int64]:
        return self._corpus.owners_of(self._order.block(start, min(start + _POSITIONS_AT_ONCE, len(self._order))))

    def _count(self) -> NDArray[np.int64]:
        """Count what each part has in each block. O(n) once."""
        num_parts = len(self._corpus.corpora)
        counts = [np.zeros(num_parts, np.int64)]
        starts = range(0, max(len(self._order) - _POSITIONS_AT_ONCE, 0), _POSITIONS_AT_ONCE)
        counts += [np.bincount(self._owners_at(start), minlength=num_parts) for start in starts]
        return np.cumsum(counts, axis=0)

    def of_part(self, part: int) -> NDArray[np.intp]:
        """Return the positions of a part, `int[n]`, ascending. O(length of the order); of many parts once for all."""
        indices, starts = self._order.block(0, len(self._order)), self._corpus.starts
        if len(starts) <= _FEW_PARTS:
            return np.flatnonzero((indices >= starts[part]) & (indices < starts[part + 1]))
        if self._by_part is None:
            owners = self._corpus.owners_of(indices)
            by_part = np.argsort(owners, kind="stable")
            self._by_part = by_part, np.searchsorted(owners[by_part], np.arange(len(starts)))
        by_part, bounds = self._by_part
        return by_part[bounds[part] : bounds[part + 1]]


_LENGTHS_AT_ONCE = 1 << 20  # lengths looked up at a time


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
        starts = range(0, len(self), _LENGTHS_AT_ONCE)
        return max([initial, *(int(self[start : start + _LENGTHS_AT_ONCE].max()) for start in starts)])

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
        """Return an object that gives lengths by `[corpus indices]`."""
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
    def runs_user_code(self) -> bool:
        """Whether reading any of the sources does."""
        return any(source.runs_user_code for _, source in self._sources.values())

    @property
    def has_fast_rows(self) -> bool:
        """Always: it is made for reading many sequences at once."""
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
            for source, own, indices, numbers in shares:
                rows = np.empty((len(indices), *out.shape[1:]), out.dtype)
                source.read_rows(indices, own, rows)
                out[numbers] = rows

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own, see `Source.read_into`."""
        for source, own, indices, numbers in self._shares(corpus_indices, data_key):
            source.read_into(indices, own, [outs[number] for number in numbers.tolist()])

    def _shares(
        self, corpus_indices: NDArray[np.int64], data_key: str
    ) -> list[tuple[Source, str, NDArray[np.int64], NDArray[np.intp]]]:
        """Return, for each source that has some of the sequences with the key: it, its key, and which, `int[n]` twice.

        The first numbers are corpus indices of the source, the second are indices among the requested ones.
        """
        owners, shares = self._corpus.owners_of(corpus_indices), []
        for number in np.unique(owners).tolist():
            name, source = self._sources[number]
            own = self._layout.keys[name].get(data_key)
            if own is not None:
                numbers = np.flatnonzero(owners == number)
                shares.append((source, own, corpus_indices[numbers] - self._corpus.starts[number], numbers))
        return shares
