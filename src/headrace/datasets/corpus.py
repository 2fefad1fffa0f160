"""`Corpus`: what a dataset is, without a position: its sequences, their order in each epoch, and how they are read.

A dataset of the epoch API reads one; a corpus that is made of others has them as parts; the loader asks nothing else.
All answers are functions of data, options and epoch, so a corpus is shared freely, and what would change it returns
another one. What is worked out is kept. Invariant: nothing is gathered, joined or asked of a user's object before
somebody wants to know it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InternalError, OptionalNotImplementedError, SourceError
from headrace.index import CorpusIndex
from headrace.order import ArrayOrder, Order, OrderCorpus, RangeOrder, occurrences
from headrace.sources import MapSource, Source
from headrace.specs import DataSpec

from .checks import check_epoch, check_indices, check_tags, is_of_headrace
from .digests import digest_array
from .orders import Orders
from .reading.reader import CountedOrder, GivenOrder, OrderStream, Reader, ReadRequest, SeqStream

if TYPE_CHECKING:
    from .seq import DatasetSeq
    from .workers import DatasetWorkers

LengthsOf = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Returns the lengths of sequences, `int[n]`, by corpus index, `int64[n]`."""


@dataclass(frozen=True)
class IndexedFiles:
    """A fingerprint of the files of a source as they were indexed. Paths and times do not count: a copy is equal.

    Attributes:
        path: The first file.
        num_bytes: Size of all files.
        num_seqs: How many sequences they hold.
        digest: Digest of tags, lengths, and samples of their bytes.
    """

    path: str = field(compare=False)
    num_bytes: int
    num_seqs: int
    digest: str

    @classmethod
    def of(cls, source: Source) -> IndexedFiles | None:
        """Return the fingerprint of the files of a source; `None` if it has none. O(N) once for an index in memory."""
        if isinstance(source, MapSource) or not source.index.files:
            return None
        index, files = source.index, source.index.files
        digest = xxhash.xxh3_128_hexdigest(" ".join([index.digest, *(stamp.digest for stamp in files)]).encode())
        return cls(files[0].path, sum(stamp.size for stamp in files), len(index), digest)


@dataclass(frozen=True, slots=True)
class StoredCounts:
    """What files hold, whatever options make of it.

    Attributes:
        files: Their names.
        num_seqs: How many sequences.
        num_frames: How many frames of the first data key.
    """

    files: Sequence[str]
    num_seqs: int
    num_frames: int


def check_files(now: Sequence[IndexedFiles], before: Sequence[IndexedFiles]) -> None:
    """Refuse files that were changed between two constructions of a dataset.

    Args:
        now: What its files are, see `Dataset.indexed_files`.
        before: What they were.

    Raises:
        SourceError: They hold something else.
    """
    for found, known in zip(now, before, strict=False):
        if found != known:
            raise SourceError(
                f"the files were changed since the dataset was made: {known.num_seqs} sequences in {known.num_bytes} "
                f"bytes then, {found.num_seqs} in {found.num_bytes} bytes now, with another content",
                where=known.path,
                fix="make the dataset again, and leave its files as they are while it is read",
            )


class Corpus:
    """Sequences, their order in each epoch, and how they are read.

    Args:
        name: The name of its dataset.
        orders: The options of the order.
        parts: What it is made of.

    Attributes:
        kind: The class of the dataset, for messages.
        name: See above.
        orders: Likewise.
        parts: Likewise.
        is_indexed: Whether it is known under which corpus index each tag is. The order of each epoch is then known,
            too, and any sequence is read by its corpus index.
        specs: Layout by data key, as far as it is that of the arrays and not a guess.
        labels: Data key -> class labels, for the keys that have some.
        knows_dtypes: Whether the dtypes of the layout are those of the arrays, and not the guess of RETURNN's API.
        text_keys: The keys of texts, see `Dataset.get_text_keys`.
        has_fixed_lengths: Whether lengths, of all data keys and for sorting, are the same in all epochs, and a part of
            what `digest_text` tells.
        group: Neighbours in the order whose frames are shuffled among each other; 0: none are.
        content: The options that change what a sequence holds, and that neither tags nor lengths nor the order tell.
        batch_options: Given options, also of parts, that only affect the batches of the epoch API.
        seeds_by_tag: Whether what is drawn for a sequence is keyed by its tag, and not by its corpus index: in a part
            of a larger corpus, a different part each time, corpus indices mean nothing.
        can_jump: Whether the sequence at any position is given without reading those before it.
    """

    kind = "Dataset"
    is_indexed = False
    specs: Mapping[str, DataSpec] = {}
    labels: Mapping[str, Sequence[str]] = {}
    knows_dtypes = False
    text_keys: Sequence[str] = ()
    has_fixed_lengths = False
    group = 0
    content = ""
    batch_options: Sequence[str] = ()
    seeds_by_tag = False
    can_jump = True

    def __init__(self, name: str, orders: Orders, parts: Sequence[Corpus] = ()) -> None:
        self.name, self.parts = name, tuple(parts)
        self._orders = orders

    @property
    def orders(self) -> Orders:
        """The options of the order."""
        return self._orders

    @property
    def title(self) -> str:
        """Class and name of the dataset, for messages."""
        return f"{self.kind} {self.name!r}"

    # --- other ones ---

    def with_parts(self, change: Callable[[Corpus], Corpus]) -> Self:
        """Return this corpus with each part changed."""
        made = copy.copy(self)
        made.parts = tuple(map(change, self.parts))
        return made

    def with_orders(self, **options: Any) -> Self:
        """Return this corpus with other options of the order, see `Orders.changed`."""
        made = copy.copy(self)
        made._orders = self._orders.changed(**options)
        return made

    def seeded_by_tag(self) -> Corpus:
        """Return this corpus, where what is drawn is keyed by tags, see `seeds_by_tag`."""
        made = self.with_parts(lambda part: part.seeded_by_tag())
        made.seeds_by_tag = True
        return made

    def apart(self) -> Corpus:
        """Return this corpus for another thread: with files, and objects of the user, that no other one reads.

        Raises:
            Exception: What user code raises, if there is no other one.
        """
        made = self.with_parts(lambda part: part.apart())
        made._orders = self._orders.changed()
        return made

    def answer_alone(self) -> None:
        """Let a dataset that can only be asked by its epochs be asked itself, without a copy: nobody else reads it."""
        for part in self.parts:
            part.answer_alone()

    def close(self) -> None:
        """Release files, workers and what is kept; they come back when they are needed."""
        for part in self.parts:
            part.close()
        self.orders.planner.invalidate()
        for name in [name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)]:
            del vars(self)[name]

    def __copy__(self) -> Self:
        """Return another object with all that is known here; how it is pickled is another matter."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __getstate__(self) -> dict[str, Any]:
        kept = [name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)]
        return {name: value for name, value in vars(self).items() if name not in kept}

    # --- sequences ---

    def size(self) -> int | None:
        """Return how many corpus indices there are, `None` if that is not known."""
        return None

    @property
    def index(self) -> CorpusIndex:
        """The tags by corpus index, if it is indexed."""
        raise InternalError(f"{self.title} is not indexed")

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of corpus indices, `int64[n]`, if it is indexed; no others need be known for it."""
        return self.index.tags.take(indices)

    def layout(self) -> Mapping[str, DataSpec | None] | None:
        """Return the data keys and what is said of their arrays, which may be a guess; `None`: reading tells it."""
        return self.specs

    def spec_of(self, key: str) -> DataSpec | None:
        """Return what is said of the arrays of a data key, asked for again; a sequence may have to be read."""
        return (self.layout() or {}).get(key)

    def lengths(self, key: str, may_cost: bool, epoch: int | None = None) -> LengthsOf | None:  # noqa: ARG002
        """Return the lengths of a data key by corpus index, `None` if they are not known without reading.

        Args:
            key: The data key.
            may_cost: Whether it may cost something: to ask a user's object.
            epoch: Where lengths differ between epochs, in which.
        """
        return None

    def sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:  # noqa: ARG002
        """Return what sequences are sorted by, `int[N]`, if it is indexed."""
        self._not_offered("lengths to sort by")

    def sort_keys(self, epoch: int | None = None) -> NDArray[Any]:
        """Return the same, from the file of lengths if one is given."""
        return self.sort_lengths(epoch) if self.orders.lengths_file is None else self.orders.lengths(self.index.tags)

    def knows_sort_lengths(self) -> bool:
        """Whether sequences can be sorted without reading them."""
        return False

    @property
    def may_change_lengths(self) -> bool:
        """Whether sequences may come out with other lengths, after a transform."""
        return any(part.may_change_lengths for part in self.parts)

    @property
    def draws_by_occurrence(self) -> bool:
        """Whether what is read depends on how often a sequence came before in the epoch."""
        return any(part.draws_by_occurrence for part in self.parts)

    @property
    def encodes_texts(self) -> bool:
        """Whether reading encodes texts by a vocabulary, which a conversion would store."""
        return any(part.encodes_texts for part in self.parts)

    def kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`, what filters keep, `None` without one, if it is indexed."""
        return None

    def num_filtered(self) -> tuple[int, int] | None:
        """Return how many sequences filters leave out, and of how many; `None` without one: nothing is read for it.

        Of parts without a filter all count, if their size is known. O(N).
        """
        found = [part.num_filtered() for part in self.parts]
        if all(counts is None for counts in found):
            return None
        known = [counts or (0, part.size() or 0) for part, counts in zip(self.parts, found, strict=True)]
        return sum(left_out for left_out, _ in known), sum(total for _, total in known)

    def all_tags(self) -> Sequence[str]:
        """Return the tags of all sequences, without those that a filter leaves out.

        Raises:
            OptionalNotImplementedError: They are not known.
        """
        self._not_offered("get_all_tags")

    def num_seqs(self, *, fast: bool = False) -> int:  # noqa: ARG002
        """Return how many sequences there are, without those that a filter leaves out.

        Args:
            fast: Raise rather than do slow work.

        Raises:
            OptionalNotImplementedError: It is not known.
        """
        self._not_offered("get_total_num_seqs")

    def stored_counts(self) -> StoredCounts | None:
        """Return how much its files hold, if that is known without reading sequences."""
        return None

    def indexed_files(self) -> list[IndexedFiles]:
        """Return fingerprints of the files that it is made of, as they were indexed."""
        return [files for part in self.parts for files in part.indexed_files()]

    # --- order ---

    def knows_order(self) -> bool:
        """Return whether the sequences of an epoch and their order are known before it is read."""
        return True

    def order(self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False) -> CountedOrder:  # noqa: ARG002
        """Return the order of an epoch.

        Args:
            epoch: Its number; `None`: of no epoch.
            given: The order to use in place of that of the epoch.
            counts: Whether the caller seeds random draws by how often a sequence came before.

        Returns:
            Corpus indices; and how often each of them came before, `int64[n]`, or `None` if nothing is drawn by it.

        Raises:
            OptionalNotImplementedError: The order is not known.
        """
        self._not_offered("the order of an epoch")

    def may_draw_order(self) -> bool:
        """Whether user code determines the order, here or in a part: it may draw from the global generators."""
        ordering = self.orders.seq_ordering
        is_ours = isinstance(ordering, str) or is_of_headrace(type(ordering))
        return not is_ours or any(part.may_draw_order() for part in self.parts)

    def can_be_sharded(self) -> bool:
        """Whether it can be one of several shards."""
        return True

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out, so that an order does not say how many come."""
        return False

    # --- reading ---

    def reader(self) -> Reader:
        """Return a reader of sequences by their corpus indices."""
        self._not_offered("sequences by their corpus indices")

    def stream(self, epoch: int | None, given: GivenOrder | None = None) -> SeqStream:
        """Start an epoch, and return an iterator over its sequences.

        Args:
            epoch: The epoch number.
            given: The order to use in place of that of the epoch.
        """
        order, counted = self.order(epoch, given)
        reader = self.reader()
        reader.start(ReadRequest(epoch, order, counted, 0, is_whole=given is None and epoch is not None))
        return OrderStream(reader, len(order))

    def fast_source(self) -> Source | None:
        """Return the source whose index tells the lengths of sequences as they are stored, if there is one."""
        return self.reader().fast_source()

    def can_give_stored(self) -> bool:
        """Whether `stored` works."""
        return False

    def stored(self, corpus_idx: int) -> DatasetSeq:  # noqa: ARG002
        """Return any sequence as it is stored."""
        self._not_offered("get_corpus_seq")

    @property
    def workers(self) -> DatasetWorkers | None:
        """The workers that its dataset itself was given, `None` if it has none."""
        return None

    def has_workers(self) -> bool:
        """Whether processes other than the caller's read it, or a part of it."""
        own = self.workers
        return (own is not None and not own.is_inline) or any(part.has_workers() for part in self.parts)

    @property
    def shard(self) -> tuple[int, int]:
        """Into how many shards it is divided, and which of them it is."""
        return self.orders.recipe.num_shards, self.orders.recipe.shard_index

    @property
    def sharded_by(self) -> str:
        """The option by which it is one of several shards, for messages."""
        return f"_num_shards={self.orders.recipe.num_shards}"

    # --- what decides what comes ---

    def digest_text(self) -> str:
        """Return a text that tells this corpus from others. O(N) at most once, where the index is kept."""
        return self.kind

    def order_text(self, epoch: int) -> str:
        """Return a text of everything, except the corpus, that determines what an epoch delivers.

        Equal texts, equal streams of equal corpora: the order, what is drawn, and options of how sequences are read.
        """
        return "; ".join([*self.order_texts(epoch), self.reading_text(epoch)])

    def order_texts(self, epoch: int) -> list[str]:
        """Return texts of what the order of an epoch depends on."""
        return self.orders.texts(epoch)

    def reading_text(self, epoch: int) -> str:
        """Return a text of everything that determines the content of a sequence, whatever the order."""
        return "; ".join([*self.reading_texts(), *(f"of {part.reading_text(epoch)}" for part in self.parts)])

    def reading_texts(self) -> list[str]:
        """Return texts of what is done here to sequences."""
        recipe = self.orders.recipe
        return [
            *([f"options {self.content}"] if self.content else []),
            *([f"draws {recipe.fixed_random_seed} {recipe.random_seed_offset}"] if self.draws_by_occurrence else []),
        ]

    def _not_offered(self, what: str) -> NoReturn:
        raise OptionalNotImplementedError(f"{self.kind} does not offer {what}", where=f"dataset {self.name!r}")


class InnerCorpus(Corpus):
    """A corpus around another one, as which it answers where a sub-class does not.

    Args:
        name: See `Corpus`.
        inner: The other one.
    """

    def __init__(self, name: str, inner: Corpus) -> None:
        super().__init__(name, inner.orders, (inner,))

    @property
    def inner(self) -> Corpus:
        """The corpus inside."""
        return self.parts[0]

    @property
    def orders(self) -> Orders:
        """Those of the inner corpus."""
        return self.inner.orders

    def with_orders(self, **options: Any) -> Self:
        """Return this corpus around the inner one with other options of the order."""
        return self.with_parts(lambda inner: inner.with_orders(**options))

    @property
    def is_indexed(self) -> bool:  # type: ignore[override]
        """Whether the inner corpus is, and the order is known."""
        return self.inner.is_indexed and self.knows_order()


def ask_inner(cls: type[InnerCorpus], *names: str) -> None:
    """Have a class answer by the inner corpus."""
    for name in names:
        setattr(cls, name, property(attrgetter(f"inner.{name}")))


ask_inner(
    InnerCorpus,
    *("size", "index", "tags_of", "layout", "spec_of", "specs", "labels", "knows_dtypes", "group", "can_jump"),
    *("lengths", "has_fixed_lengths", "may_change_lengths", "sort_lengths", "sort_keys", "knows_sort_lengths"),
    *("kept", "num_filtered", "all_tags", "num_seqs", "draws_by_occurrence", "encodes_texts", "indexed_files"),
    *("knows_order", "order", "shard", "sharded_by", "can_be_sharded", "digest_text", "order_text"),
)


class IndexedCorpus(Corpus):
    """A corpus whose tags are known by corpus index. A sub-class says `index`, and what sequences are sorted by."""

    is_indexed = True

    def size(self) -> int:
        """Return how many sequences there are, before any filter."""
        return len(self.index)

    # --- filters and what is sorted by ---

    @cached_property
    def _own_mask(self) -> NDArray[np.bool_]:
        return self.orders.mask(self.index.tags)

    @cached_property
    def _lengths_of_file(self) -> NDArray[Any]:
        return self.orders.lengths(self.index.tags)

    def kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what the filter keeps."""
        return None if self.orders.wanted_tags is None else self._own_mask

    def num_filtered(self) -> tuple[int, int] | None:
        """Return how many sequences filters leave out, and of how many; those of a user's dataset are in no corpus."""
        kept = self.kept()
        if kept is None:
            return super().num_filtered()
        counts = [(found[1], part.size()) for part in self.parts if (found := part.num_filtered()) is not None]
        num_hidden = sum(total - size for total, size in counts if size is not None)
        return len(kept) - int(np.count_nonzero(kept)) + num_hidden, len(kept) + num_hidden

    def all_tags(self) -> Sequence[str]:
        """Return the tags of all sequences that are kept; they may live on disk."""
        kept, tags = self.kept(), self.index.tags
        return tags if kept is None else tags.take(np.flatnonzero(kept))

    def num_seqs(self, *, fast: bool = False) -> int:  # noqa: ARG002 (fast but for joins and filters)
        """Return how many sequences are kept."""
        kept = self.kept()
        return self.size() if kept is None else int(np.count_nonzero(kept))

    def sort_keys(self, epoch: int | None = None) -> NDArray[Any]:
        """Return what sequences are sorted by, `int[N]`; from a file if one is given."""
        return self.sort_lengths(epoch) if self.orders.lengths_file is None else self._lengths_of_file

    # --- order ---

    def order(self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False) -> CountedOrder:
        """Return the order of an epoch, see `Corpus.order`."""
        order = self._order(check_epoch(epoch), given)
        if not order.may_repeat or not (counts or self.draws_by_occurrence):
            return order, None
        return order, occurrences(order) if epoch is None or given is not None else self._count(epoch, order)

    def _order(self, epoch: int | None, given: GivenOrder | None) -> Order:
        if given is not None and given.seq_list is not None:
            return ArrayOrder(self.index.find_tags(check_tags(given.seq_list)))
        if given is not None and given.seq_order is not None:
            return ArrayOrder(check_indices(given.seq_order, self.size(), f"dataset {self.name!r}"))
        return RangeOrder(range(0)) if epoch is None else self._order_of_epoch(epoch)

    def _order_of_epoch(self, epoch: int) -> Order:
        return self.orders.planner.order_for_epoch(epoch, self.order_corpus(epoch))

    def _count(self, epoch: int, order: Order) -> NDArray[np.int64]:  # noqa: ARG002
        """Return how often each sequence of the order of an epoch, just made, came before in it."""
        return self.orders.planner.counter(epoch)()

    def order_corpus(self, epoch: int) -> OrderCorpus:
        """Return what an order may ask. Lengths are not asked yet: that may cost a pass over the corpus."""
        return OrderCorpus(
            num_seqs=self.size(),
            lengths=partial(self.sort_keys, epoch),
            keep=None if self.orders.wanted_tags is None else lambda: self._own_mask,
            first_of_tag=self.index.tag_groups if self.orders.has_unique_tags else None,
        )

    def order_texts(self, epoch: int) -> list[str]:
        """Return texts of what the order of an epoch depends on; lengths, where no digest covers them."""
        texts = super().order_texts(epoch)
        if self.orders.lengths_file is not None:
            return [*texts, f"sorted by {digest_array(np.asarray(self._lengths_of_file))}"]
        if self.has_fixed_lengths or not self.orders.recipe.policy_for_epoch(epoch).needs_lengths:
            return texts
        return [*texts, f"sorted by lengths {digest_array(self.sort_lengths(epoch))}"]


def first_of_tag(tags: Sequence[str]) -> NDArray[np.int64]:
    """Return `int64[N]`: for each sequence the smallest corpus index with the same tag."""
    seen: dict[str, int] = {}
    return np.fromiter((seen.setdefault(tag, i) for i, tag in enumerate(tags)), dtype=np.int64, count=len(tags))


def as_lengths(get_seq_len: Any, num_seqs: int) -> NDArray[Any]:
    """Return `int[N]` or `float[N]` from a function corpus index -> length, or from an array of lengths."""
    if not callable(get_seq_len):
        return np.asarray(get_seq_len)
    return np.array([get_seq_len(i) for i in range(num_seqs)]) if num_seqs else np.zeros(0, dtype=np.int64)
