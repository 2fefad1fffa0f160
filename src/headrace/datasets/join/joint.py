"""Several corpora, one after the other, as one, with their tags, lengths, sources, and what reads them.

Nothing is copied; tags are looked up where they are. `JointSource` reads many sequences at once, past the datasets:
only where every part is one whose sequences come out as they are in its source. Invariant: joint corpus index = first
index of the part + corpus index in the part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.batching import NumbersDict
from headrace.errors import takes_note
from headrace.index import CorpusIndex, Tags
from headrace.index.storage import About
from headrace.index.tags import check_indices
from headrace.order import full_epoch_of
from headrace.sources import Source

from ..corpus import Corpus, LengthsOf
from ..reading.reader import Features, ReadRequest
from .base import CompositeReader, PartReader
from .layout import JointLayout

_LENGTHS_AT_ONCE = 1 << 20  # lengths looked up at a time


def starts_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return where each of several parts begins, and the end, `int64[K + 1]`."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


class Share(NamedTuple):
    """What is one part's of some joint corpus indices.

    Attributes:
        part: Number of the part.
        numbers: Which of them, `int[n]`, ascending.
        indices: Its corpus indices, `int64[n]`.
    """

    part: int
    numbers: NDArray[np.intp]
    indices: NDArray[np.int64]


def share_out(starts: NDArray[np.int64], indices: NDArray[np.int64]) -> list[Share]:
    """Return the shares of the parts that have some of the joint corpus indices. O(n) for up to 2**15 parts."""
    # The last one that begins at or before an index, so never an empty one
    owners = np.searchsorted(starts, indices, side="right") - 1
    counts = np.bincount(owners, minlength=1)
    parts = np.flatnonzero(counts).tolist()
    if len(parts) == 1:
        return [Share(parts[0], np.arange(len(indices)), indices - starts[parts[0]])]
    by_part = np.argsort(owners.astype(np.int16 if len(starts) < 2**15 else np.int64), kind="stable")
    shares, first = [], 0
    for part, count in zip(parts, counts[parts].tolist(), strict=True):
        numbers = by_part[first : first + count]
        shares.append(Share(part, numbers, indices[numbers] - starts[part]))
        first += count
    return shares


TakeTags = Callable[[NDArray[np.int64]], list[str]]


def _take_tags(starts: NDArray[np.int64], indices: NDArray[np.int64], takes: Sequence[TakeTags]) -> list[str]:
    """Return the tags of joint corpus indices by the functions of the parts that return those of theirs."""
    found: NDArray[Any] = np.empty(len(indices), dtype=object)
    for part, numbers, own in share_out(starts, indices):
        found[numbers] = takes[part](own)
    tags: list[str] = found.tolist()
    return tags


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
        self._starts: list[int] = self.starts.tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    @cached_property
    def index(self) -> CorpusIndex:
        """The tags of all; lengths stay with the parts."""
        return CorpusIndex(JointTags([corpus.index().tags for corpus in self.corpora]), {}, {}, about=About())

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of joint corpus indices; no others need be known for it."""
        return _take_tags(self.starts, indices, [corpus.tags_of for corpus in self.corpora])

    def shares(self, indices: NDArray[np.int64]) -> list[Share]:
        """Return what each part has of joint corpus indices."""
        return share_out(self.starts, indices)

    def locate(self, corpus_idx: int) -> tuple[int, int]:
        """Return the part of a joint corpus index, and the corpus index there."""
        part = bisect_right(self._starts, corpus_idx) - 1
        return part, corpus_idx - self._starts[part]


class JointLengths:
    """The lengths of one data key over several corpora, looked up where they are.

    Args:
        corpus: The corpora.
        columns: Number of a corpus -> function of its corpus indices, `int[n]`; corpora without the key are left out.
        absent: The length in those.
    """

    def __init__(self, corpus: JointCorpus, columns: Mapping[int, LengthsOf], absent: int) -> None:
        self._corpus, self._columns, self._absent = corpus, dict(columns), absent

    def __len__(self) -> int:
        return len(self._corpus)

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        return np.asarray(self[:], *args, **kwargs)

    def max(self, initial: int = 0) -> int:
        """Return the greatest length. O(number of sequences)."""
        starts = range(0, len(self), _LENGTHS_AT_ONCE)
        return max([initial, *(int(self[start : start + _LENGTHS_AT_ONCE].max()) for start in starts)])

    def __getitem__(self, indices: NDArray[np.int64] | slice | int) -> NDArray[np.int64]:
        """Return the lengths of sequences, `int64[n]`, by joint corpus indices."""
        wanted = np.arange(*indices.indices(len(self))) if isinstance(indices, slice) else np.asarray(indices)
        lengths = np.full(wanted.size, self._absent, np.int64)
        for part, numbers, own in self._corpus.shares(wanted.reshape(-1)):
            if part in self._columns:
                lengths[numbers] = self._columns[part](own)
        return lengths.reshape(wanted.shape)


class JointSource(Source):
    """Several sources as one, for reading many sequences at once. Not thread-safe.

    Args:
        corpus: The corpora of the sources.
        layout: The data keys; the layout of each is known.
        sources: By number of the corpus: its name in the layout, and the source; empty corpora may be left out.
    """

    has_fast_rows = True

    def __init__(self, corpus: JointCorpus, layout: JointLayout, sources: Mapping[int, tuple[str, Source]]) -> None:
        self._corpus, self._layout, self._sources = corpus, layout, dict(sources)
        self.specs = {key: spec for key in layout.data_keys if (spec := layout.specs[key]) is not None}
        self.labels = dict(layout.labels)
        columns: dict[str, Any] = {key: self._lengths(key) for key in self.specs}
        self._index = CorpusIndex(corpus.index.tags, columns, {}, about=About())

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

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, `dtype[T, ...]`."""
        part, own_idx = self._corpus.locate(int(corpus_idx))
        name, source = self._sources[part]
        own = self._layout.keys[name].get(data_key)
        return self._layout.empty(data_key) if own is None else source.read(own_idx, own)

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array, one after the other, see `Source.read_rows`."""
        shares = self._shares(corpus_indices, data_key)
        if len(shares) == 1 and len(shares[0][2].numbers) == len(corpus_indices):
            source, own, share = shares[0]
            source.read_rows(share.indices, own, out)
        elif self.specs[data_key].has_time:
            ends = np.cumsum(self._index.lengths(data_key)[corpus_indices])
            outs = [out[a:b] for a, b in pairwise([0, *ends.tolist()])]
            for source, own, share in shares:
                source.read_into(share.indices, own, [outs[number] for number in share.numbers.tolist()])
        else:
            out[...] = 0
            for source, own, share in shares:
                rows = np.empty((len(share.indices), *out.shape[1:]), out.dtype)
                source.read_rows(share.indices, own, rows)
                out[share.numbers] = rows

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own, see `Source.read_into`."""
        for source, own, share in self._shares(corpus_indices, data_key):
            source.read_into(share.indices, own, [outs[number] for number in share.numbers.tolist()])

    def _shares(self, corpus_indices: NDArray[np.int64], data_key: str) -> list[tuple[Source, str, Share]]:
        """Return for each source that has some of the sequences with the key: it, its data key, and its share."""
        shares = []
        for share in self._corpus.shares(corpus_indices):
            name, source = self._sources[share.part]
            own = self._layout.keys[name].get(data_key)
            if own is not None:
                shares.append((source, own, share))
        return shares


class JointReader(CompositeReader):
    """Reads the sequences of a joint corpus.

    Each part is asked for its share of all that is wanted, when the first sequence of it is read.

    Args:
        name: Name of the joint dataset, for messages.
        corpus: The corpora of the parts.
        layout: Where each data key comes from.
        sides: In the order of the corpora.
        epoch_offsets: For each part, what is added to the number of a full epoch to get the epoch that it is read in.
        num_sub_epochs: Number of sub-epochs of a full epoch: parts are read by full epochs.
    """

    def __init__(
        self,
        name: str,
        corpus: JointCorpus,
        layout: JointLayout,
        sides: Sequence[PartReader],
        epoch_offsets: Sequence[int],
        num_sub_epochs: int,
    ) -> None:
        self._name, self._corpus, self._layout = name, corpus, layout
        self._epoch_offsets, self._num_sub_epochs = epoch_offsets, num_sub_epochs
        super().__init__(corpus, sides)

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        super().start(wanted)
        self._shares: dict[int, Share] | None = None  # of parts that are not started yet
        self._numbers: dict[int, memoryview] = {}  # of those that are: which of the sequences they have

    def _at(self, number: int) -> tuple[PartReader, int]:
        """Return what reads a sequence, started with its share, and the number of the sequence there."""
        part, _ = self._corpus.locate(self._cursor[number])
        numbers = self._numbers.get(part)
        if numbers is None:
            numbers = self._numbers[part] = self._start_part(part)
        return self._sides[part], bisect_left(numbers, number)

    def _start_part(self, part: int) -> memoryview:
        wanted, side, epoch = self._wanted, self._sides[part], self._wanted.epoch
        if self._shares is None:
            self._shares = {share.part: share for share in self._corpus.shares(wanted.indices)}
        _, numbers, indices = self._shares[part]
        counted = wanted.occurrences[numbers] if wanted.occurrences is not None and side.draws else None
        if epoch is not None:
            epoch = full_epoch_of(epoch, self._num_sub_epochs) + 1 + self._epoch_offsets[part]
        side.reader.start(ReadRequest.of(epoch, indices, counted, None if wanted.first is None else 0))
        del self._shares[part]
        return numbers.astype(np.uint32 if len(wanted.order) <= 2**32 else np.int64).data

    def features(self, number: int) -> Features:
        """Return all arrays of a sequence."""
        side, own = self._at(number)
        try:
            return self._layout.filled(side.features(own))
        except Exception as error:
            takes_note(error, f"sub-dataset {side.name!r} of {self._name!r}, sequence {self._tag(number)!r}")
            raise

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return one data key; no frames if the part of the sequence has no such key."""
        side, own = self._at(number)
        return side.array(own, key) if key in side.keys else self._layout.empty(key)

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return some frames of one data key."""
        side, own = self._at(number)
        return side.frames(own, key, start, stop) if key in side.keys else self._layout.empty(key)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the part of the sequence; what it lacks is read whole, without frames."""
        side, own = self._at(number)
        found = side.sliced_frames(own)
        return None if found is None else {key: found.get(key) for key in self._layout.data_keys}

    def known_frames(self, number: int) -> NumbersDict | None:
        """Return data key -> number of frames."""
        side, own = self._at(number)
        frames, empty_length = side.known_frames(own), self._layout.empty_length
        if frames is None:
            return None
        return NumbersDict({key: frames.get(key, empty_length(key)) for key in self._layout.data_keys})

    def fast_source(self) -> Source | None:
        """Return a source that reads many sequences at once, past the parts, if that makes no difference."""
        known: dict[int, tuple[str, Source]] = {}
        for number, side in enumerate(self._sides):
            if not self._corpus.corpora[number].size():
                continue
            source = side.reader.fast_source()
            if source is None or not all(map(source.index.has_lengths, side.keys.values())):
                return None
            known[number] = side.name, source
        is_known = known and all(spec is not None for spec in self._layout.specs.values())
        return JointSource(self._corpus, self._layout, known) if is_known else None
