"""Several corpora, one after the other, as one, with their tags, lengths, orders and sources, and what reads them.

Nothing is copied; tags are looked up where they are. `JointSource` reads many sequences at once, past the parts: only
where every part is one whose sequences come out as they are in its source. Invariant: joint corpus index = first index
of the part + corpus index in the part.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, takes_note
from headrace.index import CorpusIndex, Tags
from headrace.index.storage import About
from headrace.index.tags import check_indices
from headrace.order import Order, OrderCorpus, RangeOrder, full_epoch_of, occurrences, slice_bounds
from headrace.sources import Source
from headrace.specs import DataSpec

from ..checks import check_key
from ..corpus import Corpus, LengthsOf
from ..orders import Orders
from ..reading.reader import Features, Reader, ReadRequest
from ..seq import DatasetSeq
from .base import CompositeReader, JoinedCorpus, PartReader
from .layout import JointLayout
from .order import GumbelScale, JointPolicy, parse_joint_ordering

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


class JointCorpus(JoinedCorpus):
    """Several corpora as one. The index of a part is built only where all tags are needed.

    Args:
        name: See `Corpus`.
        orders: Likewise: they are laid over what the parts offer by their own orders.
        parts: Name -> part; all are indexed.
        joint: The data keys.
        sampling_sizes: See `CombinedDataset`.
        gumbel_scale: See `Interleave`.

    Attributes:
        starts: `int64[K + 1]`: the joint corpus index at which each part begins, and the end.
        joint: See above.
    """

    def __init__(
        self,
        name: str,
        orders: Orders,
        parts: Mapping[str, Corpus],
        joint: JointLayout,
        *,
        sampling_sizes: Mapping[str, int] | None = None,
        gumbel_scale: GumbelScale = None,
    ) -> None:
        super().__init__(name, orders, parts, joint.keys)
        self.joint, self.labels = joint, dict(joint.labels)
        self.specs = {key: spec for key, spec in joint.specs.items() if spec is not None}
        self._sampling_sizes, self._gumbel_scale = sampling_sizes, gumbel_scale
        self.starts = starts_of([part.size() or 0 for part in self.parts])
        self._starts: list[int] = self.starts.tolist()
        self._offered: NDArray[np.int64] | None = None
        self._counted_full: tuple[Order, NDArray[np.int64]] | None = None

    def with_orders(self, **options: Any) -> Self:
        """Return this corpus with other options of the order, see `Orders.changed`."""
        given = options.get("seq_ordering", self.orders.seq_ordering)
        if "seq_ordering" in options:
            options["seq_ordering"] = parse_joint_ordering(given, self._gumbel_scale)
        made = super().with_orders(**options)
        made.orders.seq_ordering = given
        return made

    def close(self) -> None:
        """Release what the parts hold, and what is kept."""
        super().close()
        self._offered = self._counted_full = None

    # --- sequences ---

    def size(self) -> int:
        """Return how many sequences there are."""
        return self._starts[-1]

    @cached_property
    def index(self) -> CorpusIndex:
        """The tags of all; lengths stay with the parts."""
        return CorpusIndex(JointTags([part.index.tags for part in self.parts]), {}, {}, about=About())

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of joint corpus indices; no others need be known for it."""
        return _take_tags(self.starts, indices, [part.tags_of for part in self.parts])

    def shares(self, indices: NDArray[np.int64]) -> list[Share]:
        """Return what each part has of joint corpus indices."""
        return share_out(self.starts, indices)

    def locate(self, corpus_idx: int) -> tuple[int, int]:
        """Return the part of a joint corpus index, and the corpus index there."""
        part = bisect_right(self._starts, corpus_idx) - 1
        return part, corpus_idx - self._starts[part]

    def layout(self) -> Mapping[str, DataSpec | None]:
        """Return the layouts; `None` for one that is learnt from the first sequence."""
        return self.joint.specs

    def spec_of(self, key: str) -> DataSpec | None:
        """Return the layout of a data key, asked of a part if need be."""
        check_key(key, self.joint.specs, f"dataset {self.name!r}")
        if self.joint.specs[key] is not None:
            return self.joint.specs[key]
        name, part = next((name, part) for name, part in self.by_name.items() if key in self.keys[name])
        return part.spec_of(self.keys[name][key])

    def kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what the filter of the whole and those of the parts keep; `None` without any."""
        own, kept = super().kept(), [part.kept() for part in self.parts]
        if all(mask is None for mask in kept):
            return own
        sizes = np.diff(self.starts).tolist()
        masks = [np.ones(size, bool) if mask is None else mask for mask, size in zip(kept, sizes, strict=True)]
        joined = np.concatenate(masks)
        return joined if own is None else joined & own

    def lengths(self, key: str, may_cost: bool, epoch: int | None = None) -> LengthsOf | None:
        """Return those of the parts, where they are."""
        check_key(key, self.joint.specs, f"dataset {self.name!r}")
        columns = {}
        for number, (name, part) in enumerate(self.by_name.items()):
            if key in self.keys[name]:
                column = part.lengths(self.keys[name][key], may_cost, self._part_epoch(number, epoch))
                if column is None:
                    return None
                columns[number] = column
        return JointLengths(self, columns, self.joint.empty_length(key)).__getitem__

    def sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:
        """Return `int[N]`: what the parts sort by."""
        return self._fixed_lengths if self.has_fixed_lengths else self._lengths_in(epoch)

    @cached_property
    def _fixed_lengths(self) -> NDArray[Any]:
        return self._lengths_in(None)

    def _lengths_in(self, epoch: int | None) -> NDArray[Any]:
        keys = [part.sort_keys(self._part_epoch(number, epoch)) for number, part in enumerate(self.parts)]
        return np.concatenate(keys)

    def knows_sort_lengths(self) -> bool:
        """Whether all parts know what they sort by, or a file tells it."""
        return self.orders.lengths_file is not None or all(part.knows_sort_lengths() for part in self.parts)

    # --- order ---

    def order_corpus(self, epoch: int) -> OrderCorpus:
        """Return what an order may ask."""
        return dataclasses.replace(super().order_corpus(epoch), is_fixed=self.has_fixed_lengths)

    def _order_of_epoch(self, epoch: int) -> Order:
        self._set_policy(epoch)
        return super()._order_of_epoch(epoch)

    def _set_policy(self, epoch: int) -> None:
        """Tell the planner what the parts offer: that of a full epoch, so that its sub-epochs divide one thing."""
        recipe, planner = self.orders.recipe, self.orders.planner
        full_epoch = full_epoch_of(epoch, recipe.num_sub_epochs) + 1
        orders = [self.part_order(number, full_epoch) for number in range(len(self.parts))]
        offered, may_repeat = self._offer(orders, full_epoch)
        if not np.array_equal(offered, self._offered):  # type: ignore[arg-type]  # None is equal to None alone
            planner.invalidate()
            self._offered = offered
        sizes = tuple(self._num_offered(name, len(order)) for name, order in zip(self.names, orders, strict=True))
        policy = JointPolicy(recipe.policy_for_epoch(epoch), sizes, self._offered, may_repeat)
        planner.recipe = dataclasses.replace(recipe, seq_ordering=policy)

    def part_order(self, number: int, full_epoch: int) -> Order:
        """Return the order of a part in a full epoch."""
        return self.parts[number].order(full_epoch + self.epoch_offset(number))[0]

    def epoch_offset(self, number: int) -> int:  # noqa: ARG002 (a sub-class reads other epochs of some)
        """Return what is added to the number of a full epoch to get the epoch that a part is read in."""
        return 0

    def _part_epoch(self, number: int, epoch: int | None) -> int | None:
        """Return the epoch that a part is read in."""
        if epoch is None:
            return None
        return full_epoch_of(epoch, self.orders.recipe.num_sub_epochs) + 1 + self.epoch_offset(number)

    def _num_offered(self, name: str, num_seqs: int) -> int:
        return num_seqs if self._sampling_sizes is None else self._sampling_sizes[name]

    def _offer(self, orders: Sequence[Order], full_epoch: int) -> tuple[NDArray[np.int64] | None, bool]:
        """Return the joint corpus indices that the orders of the parts hold, `None` if all; and whether some repeat."""
        offered, may_repeat = [], any(order.may_repeat for order in orders)
        sizes = np.diff(self.starts).tolist()
        if self._sampling_sizes is None and all(map(_is_whole, orders, sizes)):
            return None, False
        for name, order, start in zip(self.names, orders, self._starts, strict=False):
            indices, size = order.block(0, len(order)), self._num_offered(name, len(order))
            if self._sampling_sizes is not None:
                if size and not len(order):
                    raise ConfigError(
                        f"sampling_sizes asks for {size} sequences of {name!r}, which has none",
                        where=f"dataset {self.name!r}, epoch {full_epoch}",
                        fix="leave the sub-dataset out, or write 0",
                    )
                first = (full_epoch - 1) * size % max(len(order), 1)
                indices = indices[np.arange(first, first + size) % max(len(order), 1)]
                may_repeat = may_repeat or size > len(order)
            offered.append(indices + start)
        return np.concatenate(offered), may_repeat

    def _count(self, epoch: int, order: Order) -> NDArray[np.int64]:
        """Count over all sub-epochs: the parts draw by the full epoch, and must not draw the same in two of them."""
        recipe, full = self.orders.recipe, self.orders.planner.full_order
        if recipe.num_sub_epochs == 1:
            return super()._count(epoch, order)
        if self._counted_full is None or self._counted_full[0] is not full:
            self._counted_full = full, occurrences(full)
        start, stop = slice_bounds(len(full), epoch, recipe.num_sub_epochs, recipe.num_shards, recipe.shard_index)
        return self._counted_full[1][start:stop]

    # --- reading ---

    def reader(self) -> Reader:
        """Return a reader of all parts."""
        sides = [PartReader(name, part, self.keys[name]) for name, part in self.by_name.items()]
        offsets = [self.epoch_offset(number) for number in range(len(sides))]
        return JointReader(self.name, self, self.joint, sides, offsets, self.orders.recipe.num_sub_epochs)

    def stored(self, corpus_idx: int) -> DatasetSeq:
        """Return any sequence of the joint corpus as it is stored."""
        (corpus_idx,) = check_indices([corpus_idx], self.size()).tolist()
        number, own_idx = self.locate(corpus_idx)
        seq = self.parts[number].stored(own_idx)
        features = {key: seq.features[own] for key, own in self.keys[self.names[number]].items()}
        return DatasetSeq(corpus_idx, self.joint.filled(features), seq_tag=seq.seq_tag, corpus_idx=corpus_idx)

    # --- what decides what comes ---

    def digest_text(self) -> str:
        """Return a digest of the parts and of their data keys."""
        return xxhash.xxh3_128_hexdigest(" | ".join(["joint", *self.part_texts()]).encode())

    def order_text(self, epoch: int) -> str:
        """Return what decides the joint order, and the orders of the parts."""
        number = full_epoch_of(epoch, self.orders.recipe.num_sub_epochs) + 1
        parts = [f"of {name}: {part.order_text(number)}" for name, part in self.by_name.items()]
        return "; ".join([*self.order_texts(epoch), *parts])

    def reading_text(self, epoch: int) -> str:
        """Return what decides what the sequences of the parts hold: they are read by full epochs."""
        return super().reading_text(full_epoch_of(epoch, self.orders.recipe.num_sub_epochs) + 1)

    def order_texts(self, epoch: int) -> list[str]:
        """Return texts of what the order depends on."""
        sizes = [] if self._sampling_sizes is None else [f"sizes {sorted(self._sampling_sizes.items())}"]
        return [*super().order_texts(epoch), *sizes]


def _is_whole(order: Order, num_seqs: int) -> bool:
    """Tell whether an order is 0, 1, ... to the end of the corpus."""
    if len(order) != num_seqs or not isinstance(order, RangeOrder):
        return False
    return num_seqs == 0 or (order[0] == 0 and order[num_seqs - 1] == num_seqs - 1)


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
        return self._corpus.size()

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
        super().__init__(corpus.tags_of, sides)

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
            if not self._corpus.parts[number].size():
                continue
            source = side.reader.fast_source()
            if source is None or not all(map(source.index.has_lengths, side.keys.values())):
                return None
            known[number] = side.name, source
        is_known = known and all(spec is not None for spec in self._layout.specs.values())
        return JointSource(self._corpus, self._layout, known) if is_known else None
