"""`ForeignCorpus`: what is known of a dataset by its epochs: tags, lengths, orders, and any sequence.

For classes that were written for RETURNN, and for datasets of ours that are streams. All code that starts an epoch to
answer a question, or to read some sequences, is here. Our own classes answer without.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, SourceError, takes_note
from headrace.index import CorpusIndex
from headrace.order import ArrayOrder, Order
from headrace.specs import DataSpec

from .checks import check_indices, is_of_headrace, takes_argument
from .corpus import Corpus, InnerCorpus, LengthsOf, ask_inner
from .digests import digest_array
from .orders import Orders
from .reading.reader import CountedOrder, Features, GivenOrder, Reader, ReadRequest, SeqStream
from .returnn.walk import check_not_stale
from .seq import DatasetSeq


@dataclass(frozen=True)
class Overrides:
    """What a user-defined class does in its own way, by methods that are named as in RETURNN.

    Attributes:
        is_ours: Whether the class is one of Headrace's, so that nothing is.
        reads: Whether it reads.
        orders: Whether it makes the order.
        lengths: Whether it tells lengths.
        tags: Whether it returns tags and an order, and accepts one.
    """

    is_ours: bool
    reads: bool
    orders: bool
    lengths: bool
    tags: bool


_overrides: weakref.WeakKeyDictionary[Any, Overrides] = weakref.WeakKeyDictionary()


def overrides_of(cls: Any) -> Overrides:
    """Return what a class of datasets does in its own way."""
    if cls in _overrides:
        return _overrides[cls]

    def has_own(*names: str) -> bool:
        return not all(is_of_headrace(getattr(cls, name)) for name in names)

    found = _overrides[cls] = Overrides(
        is_ours=is_of_headrace(cls),
        reads=has_own("load_seqs", "get_seq", "get_data", "get_tag"),
        orders=has_own("init_seq_order", "get_current_seq_order", "get_seq_order_for_epoch"),
        lengths=has_own("get_seq_length"),
        tags=has_own("get_all_tags")
        and has_own("get_current_seq_order")
        and takes_argument(cls.init_seq_order, "seq_order"),
    )
    return found


class ForeignCorpus(InnerCorpus):
    """What is known of a dataset by its epochs: a copy of it is asked, while it is read.

    Args:
        dataset: A `Dataset`.
        orders: Its options of the order.
        own: The corpus that a dataset of ours, or of a sub-class, reads: asked where the class leaves it as it is.
    """

    def __init__(self, dataset: Any, orders: Orders, own: Corpus | None) -> None:
        self.dataset, self.name, self.kind = dataset, dataset.name, type(dataset).__name__
        self._inner, self._is_bare = (Corpus(dataset.name, orders), True) if own is None else (own, False)
        self._overrides = overrides_of(type(dataset))
        self._answers_alone = False
        self._checks_tags = False
        self._told_tags: CorpusIndex | None = None  # what it returned
        self._apart: Any = None  # the copy that is asked, made once
        self._cannot_be_copied = False
        self._fresh: tuple[int | None, int] | None = None  # epoch that was started to see its order, and its version

    @property
    def parts(self) -> tuple[Corpus, ...]:  # type: ignore[override]
        """Those of what it reads, or of a user-defined class that is made of others, see `Dataset.get_parts`."""
        return tuple(part.get_corpus() for part in self.dataset.get_parts()) if self._is_bare else self._inner.parts

    @property
    def inner(self) -> Corpus:
        """What it reads; of a class that was written for RETURNN, a corpus of which hardly anything is known."""
        if self._is_bare:
            self._inner.parts = self.parts
        return self._inner

    # --- other ones; which object answers ---

    def with_orders(self, **options: Any) -> Corpus:  # type: ignore[override]
        """Return the corpus of a copy with these options; of the dataset itself, if it cannot be copied."""
        dataset = self.dataset
        with contextlib.suppress(Exception):  # a user's constructor may raise anything
            made = copy.copy(dataset)
            made.initialize()
            dataset = made
        dataset.change_orders(**options)
        return self._of(dataset)

    def seeded_by_tag(self) -> Corpus:
        """Tell the dataset."""
        self.dataset.seed_by_tag()
        return self._of(self.dataset)

    def apart(self) -> Corpus:
        """Return the corpus of a copy.

        Raises:
            Exception: What its constructor raises, if it cannot be copied.
        """
        try:
            dataset = copy.copy(self.dataset)
        except Exception as error:
            takes_note(error, f"each thread needs a copy of the {self.title}")
            raise
        dataset.initialize()
        return self._of(dataset)

    def _of(self, dataset: Any) -> Corpus:
        return _of_dataset(dataset, self._answers_alone, self._checks_tags)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_unpickled, (self.dataset, self._answers_alone, self._checks_tags)

    def answer_alone(self) -> None:
        """Let the dataset itself answer, see `Corpus.answer_alone`.

        Afterwards the current order may be any; an `EpochReader` starts its own again.
        """
        self._answers_alone = True

    def check_tags(self) -> None:
        """From now on, compare `get_all_tags` of a user-defined class with the tag of each sequence that is read."""
        self._checks_tags = True

    def close(self) -> None:
        """Close the dataset, if it is not used by others."""
        if self._answers_alone:
            self.dataset.close()
        self.forget()

    def forget(self) -> None:
        """Forget the tags, and close the copy that is asked."""
        self._told_tags = None
        if self._apart is not None:
            self._apart.close()

    def _asked(self) -> Any:
        """Return what answers while the dataset is read: a copy, made once; `None` if it cannot be copied."""
        if self._answers_alone:
            return self.dataset
        if self._apart is None and not self._cannot_be_copied:
            try:
                apart = copy.copy(self.dataset)
                apart.initialize()
            except Exception:  # noqa: BLE001 - a user's constructor may raise anything
                self._cannot_be_copied = True
            else:
                self._apart = apart
        return self._apart

    # --- sequences ---

    @property
    def _told(self) -> CorpusIndex | None:
        """The result of `get_all_tags` of a user-defined class; called once, until the dataset is closed."""
        dataset = self.dataset
        if not self._is_bare or not self._overrides.tags or not dataset.order_version or not self.knows_order():
            return None  # before `init_seq_order`, such a class need not know anything
        if self._told_tags is None:
            try:
                tags = list(dataset.get_all_tags())
            except NotImplementedError:
                return None
            self._told_tags = CorpusIndex.from_columns(tags=tags, lengths={})
        return self._told_tags

    @property
    def is_indexed(self) -> bool:  # type: ignore[override]
        """Whether the tags are known by corpus index."""
        return self._told is not None if self._is_bare else self.inner.is_indexed

    @property
    def index(self) -> CorpusIndex:
        """The tags by corpus index."""
        return self._told or self.inner.index

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of corpus indices, `int64[n]`."""
        told = self._told
        return self.inner.tags_of(indices) if told is None else told.tags.take(indices)

    sort_keys = Corpus.sort_keys

    def size(self) -> int | None:
        """Return what the dataset says."""
        if not self._is_bare:
            return self.inner.size()
        told = self._told
        return len(told) if told is not None else told_size(self.dataset)

    def all_tags(self) -> Sequence[str]:
        """Ask the dataset."""
        tags: Sequence[str] = self.dataset.get_all_tags()
        return tags

    def num_seqs(self, *, fast: bool = False) -> int:
        """Ask the dataset."""
        total = self.dataset.get_total_num_seqs
        return int(total(fast=fast) if takes_argument(total, "fast") else total())

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:  # type: ignore[override]
        """Those of the dataset."""
        labels: Mapping[str, Sequence[str]] = self.dataset.labels
        return labels

    @property
    def text_keys(self) -> Sequence[str]:  # type: ignore[override]
        """Ask the dataset."""
        keys: Sequence[str] = self.dataset.get_text_keys()
        return keys

    @property
    def group(self) -> int:  # type: ignore[override]
        """Ask the dataset."""
        return int(self.dataset.shuffle_frames_of_nseqs)

    def layout(self) -> Mapping[str, DataSpec | None] | None:
        """Ask the dataset, which says it by the epoch API."""
        outputs = self.dataset.num_outputs
        if outputs is None:
            return None
        return {key: self.spec_of(key) if key in outputs else None for key in self.dataset.get_data_keys()}

    def spec_of(self, key: str) -> DataSpec:
        """Ask the dataset, which may have to read a sequence."""
        dataset, known = self.dataset, self.specs.get(key)
        dim, is_sparse = dataset.get_data_dim(key), dataset.is_data_sparse(key)
        shape, outputs = tuple(dataset.get_data_shape(key)), dataset.num_outputs or {}
        has_time = key not in outputs or outputs[key][1] > len(shape)
        if known is None:
            return DataSpec(dataset.get_data_dtype(key), shape, is_sparse, dim, has_time)
        dim = None if is_sparse and known.dim is None else dim  # the epoch API cannot say what is known
        return DataSpec(dataset.get_data_dtype(key), shape, is_sparse, dim, has_time, known.is_text)

    @property
    def has_fixed_lengths(self) -> bool:  # type: ignore[override]
        """Not if the class tells them."""
        return self.inner.has_fixed_lengths and not self._overrides.lengths

    @property
    def may_change_lengths(self) -> bool:
        """Whether a sub-class of ours reads in its own way, or what it reads may."""
        return self.inner.may_change_lengths or (self._overrides.reads and not self._is_bare)

    def lengths(self, key: str, may_cost: bool, epoch: int | None = None) -> LengthsOf | None:
        """Return the lengths that `get_seq_length` of a user-defined class gives in an order started for this."""
        if not self._overrides.lengths:
            return self.inner.lengths(key, may_cost, epoch)
        apart = self._asked() if may_cost and self.knows_order() else None
        if apart is None:
            return None

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            start_order(apart, epoch, indices, self._told)
            return np.array([apart.get_seq_length(seq_idx)[key] for seq_idx in range(len(indices))], np.int64)

        return lengths_of

    def sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:
        """Return the sort keys of the sequences, `int[N]`: the lengths of the first data key."""
        if not self._is_bare:
            return self.inner.sort_lengths(epoch)
        lengths_of = self.lengths(next(iter(self.dataset.get_data_keys())), may_cost=True, epoch=epoch)
        if lengths_of is None:
            raise ConfigError(
                f"{self.kind} does not tell the lengths of its sequences, by which they are to be sorted",
                where=f"dataset {self.name!r}",
                fix="let it define get_seq_length, give seq_order_seq_lens_file, or choose an order without lengths",
            )
        return lengths_of(np.arange(len(self.index)))

    def knows_sort_lengths(self) -> bool:
        """Ask the dataset."""
        return bool(self.dataset.supports_seq_order_sorting())

    def kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`, what the filter keeps."""
        if not self._is_bare:
            return self.inner.kept()
        return None if self.orders.wanted_tags is None else self.orders.mask(self.dataset.get_all_tags())

    # --- order ---

    def knows_order(self) -> bool:
        """Tell whether `get_current_seq_order` returns the order of an epoch.

        A user-defined method need not work before an epoch was started: then only `NotImplementedError` says no.
        """
        if not self._is_bare and not self._overrides.orders:
            return self.inner.knows_order()
        try:
            self.dataset.get_current_seq_order()
        except NotImplementedError:
            return False
        except Exception:
            if int(self.dataset.epoch) or is_of_headrace(type(self.dataset).get_current_seq_order):
                raise
        return True

    def order(self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False) -> CountedOrder:
        """Start an epoch to see its order, on a copy; on the dataset itself if it cannot be copied."""
        if not self._is_bare and not self._overrides.orders:
            return self.inner.order(epoch, given, counts=counts)
        asked = self._asked() or self.dataset
        start_given(asked, epoch, given)
        self._fresh = None if given is not None else (epoch, asked.order_version)
        order = checked_order(asked)
        draws = order.may_repeat and (counts or self.draws_by_occurrence)
        return order, asked.count_occurrences() if draws else None

    def take_fresh(self, epoch: int | None) -> bool:
        """Tell, once, whether an epoch was started just now to see its order, and was not read since."""
        fresh, self._fresh = self._fresh, None
        return self._answers_alone and fresh == (epoch, self.dataset.order_version)

    def may_draw_order(self) -> bool:
        """Yes, for a user-defined class."""
        return not self._overrides.is_ours or self.inner.may_draw_order()

    def can_be_sharded(self) -> bool:
        """Ask the dataset."""
        return bool(self.dataset.supports_sharding())

    @property
    def can_jump(self) -> bool:  # type: ignore[override]
        """Ask the dataset: a user-defined class says so by an attribute."""
        return bool(self.dataset.supports_jumps)

    # --- reading ---

    def reader(self) -> Reader:
        """Return a reader that starts epochs of the dataset, if the class reads in its own way."""
        if not self._is_bare and not self._overrides.reads and self.inner.knows_order():
            return self.inner.reader()
        return EpochReader(self.dataset, self)

    def stream(self, epoch: int | None, given: GivenOrder | None = None) -> SeqStream:
        """Start an epoch of the dataset, see `Corpus.stream`."""
        start_given(self.dataset, epoch, given)
        return EpochStream(self.dataset)

    def tags_to_check(self, indices: NDArray[np.int64]) -> list[str] | None:
        """Return the tags that `get_tag` must give for corpus indices, `int64[n]`; `None`: any, see `check_tags`."""
        if not self._checks_tags or is_of_headrace(type(self.dataset).get_tag):
            return None
        told = self._told
        return None if told is None else told.tags.take(indices)

    def start_order(self, epoch: int | None, indices: NDArray[np.int64]) -> None:
        """Start an epoch of the dataset in the order of these corpus indices, see `start_order`."""
        start_order(self.dataset, epoch, indices, self._told)

    def can_give_stored(self) -> bool:
        """Ask the dataset."""
        return bool(self.dataset.have_get_corpus_seq())

    def stored(self, corpus_idx: int) -> DatasetSeq:
        """Ask the dataset."""
        seq: DatasetSeq = self.dataset.get_corpus_seq(corpus_idx)
        return seq

    @property
    def shard(self) -> tuple[int, int]:
        """Ask the dataset."""
        return self.dataset.num_shards, self.dataset.shard_index

    # --- what decides what comes ---

    def digest_text(self) -> str:
        """Return that of what it reads, or a digest of the class and its tags, as far as it tells them."""
        if not self._is_bare:
            return self.inner.digest_text()
        digest = xxhash.xxh3_128(self.kind.encode())
        with contextlib.suppress(NotImplementedError):
            for tag in self.dataset.get_all_tags():
                digest.update(tag.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()

    def order_text(self, epoch: int) -> str:
        """Return the text of what it reads, for a class of ours."""
        return self.inner.order_text(epoch) if self._overrides.is_ours else Corpus.order_text(self, epoch)

    def reading_text(self, epoch: int) -> str:
        """Return the text of what it reads, for a class of ours."""
        return self.inner.reading_text(epoch) if self._overrides.is_ours else super().reading_text(epoch)

    def order_texts(self, epoch: int) -> list[str]:
        """Return texts of what the order depends on; of one that a user-defined class makes itself, a digest, O(N)."""
        texts = self.inner.order_texts(epoch)
        if self._is_bare and self.orders.lengths_file is not None:
            with contextlib.suppress(NotImplementedError):  # without tags, nothing is sorted by it
                texts.append(f"sorted by {digest_array(self.orders.lengths(self.dataset.get_all_tags()))}")
        if self._overrides.orders and self.knows_order() and self._asked() is not None:
            order, _ = self.order(epoch)
            texts.append(f"own order {digest_array(order.block(0, len(order)))}")
        return texts

    def reading_texts(self) -> list[str]:
        """Return texts of what a user-defined class does to sequences: by its arguments, all of them for a stream."""
        texts = self.inner.reading_texts()
        if self._overrides.is_ours:
            return texts
        content, recipe = self.dataset.given_text(only_content=self.knows_order()), self.orders.recipe
        if self._is_bare and self.dataset.window > 1:
            texts.append(f"window {self.dataset.window}")
        if content:
            texts.append(f"given {content}")
        return [*texts, f"draws {recipe.fixed_random_seed} {recipe.random_seed_offset}"]


ask_inner(ForeignCorpus, "skips_failed", "workers", "stored_counts")


def _of_unpickled(dataset: Any, answers_alone: bool, checks_tags: bool) -> Corpus:
    dataset.initialize()
    return _of_dataset(dataset, answers_alone, checks_tags)


def _of_dataset(dataset: Any, answers_alone: bool, checks_tags: bool) -> Corpus:
    corpus: Corpus = dataset.get_corpus()
    if answers_alone:
        corpus.answer_alone()
    if checks_tags and isinstance(corpus, ForeignCorpus):
        corpus.check_tags()
    return corpus


def told_size(dataset: Any) -> int | None:
    """Return how many sequences a dataset says that it has, `None` if it does not, or a filter changes it."""
    try:
        return None if dataset.seq_list_filter_file is not None else int(dataset.get_total_num_seqs(fast=True))
    except (NotImplementedError, TypeError):  # a user-defined class need not have the parameter `fast`
        return None


# --- starting an epoch with sequences that are given ---


def start_given(dataset: Any, epoch: int | None, order: GivenOrder | None) -> None:
    """Call `init_seq_order` with the given arguments only: a user-defined class need not have every parameter.

    Raises:
        ConfigError: It lacks one that is needed.
    """
    both: dict[str, Any] = {} if order is None else {"seq_list": order.seq_list, "seq_order": order.seq_order}
    given = {name: value for name, value in both.items() if value is not None}
    try:
        dataset.init_seq_order(epoch=epoch, **given)
    except TypeError as error:
        lacking = [name for name in given if not takes_argument(dataset.init_seq_order, name)]
        if not lacking:
            raise
        raise _cannot_start(dataset, f"its init_seq_order has no parameter {lacking[0]}") from error


def start_order(dataset: Any, epoch: int | None, indices: NDArray[np.int64], told: CorpusIndex | None) -> None:
    """Start an epoch in the order of these corpus indices, `int64[n]`, and check that it begins with them.

    Args:
        dataset: A `Dataset`.
        epoch: The epoch.
        indices: The corpus indices.
        told: Its tags by corpus index, if they are known.

    Raises:
        ConfigError: A user-defined class has started another order, or accepts none.
    """

    def started_with(given: GivenOrder) -> NDArray[np.int64]:
        start_given(dataset, epoch, given)
        return np.asarray(checked_order(dataset, 2**62))

    started = started_with(GivenOrder(seq_order=indices.tolist()))
    is_right = np.array_equal(started[: len(indices)], indices)
    if not is_right and told is not None and takes_argument(dataset.init_seq_order, "seq_list"):
        by_tags = started_with(GivenOrder(seq_list=told.tags.take(indices)))
        is_right = np.array_equal(by_tags[: len(indices)], indices)
    if not is_right:
        asked = f"init_seq_order(seq_order={_first_of(indices)})"
        raise _cannot_start(dataset, f"{asked} has started the order {_first_of(started)}")


def checked_order(dataset: Any, num_seqs: int | None = None) -> Order:
    """Return the current order of a dataset, which a user-defined class may give as any list of numbers.

    Args:
        dataset: A `Dataset`.
        num_seqs: Size of the corpus; `None`: what `get_total_num_seqs` returns, if that is fast.

    Raises:
        ConfigError: It holds something else than corpus indices.
        OptionalNotImplementedError: The order is not known.
    """
    order: Any = dataset.get_current_seq_order()
    if isinstance(order, Order):
        return order
    num_seqs = told_size(dataset) if num_seqs is None else num_seqs
    where, limit = f"{type(dataset).__name__} {dataset.name!r}", 2**62 if num_seqs is None else num_seqs
    return ArrayOrder(check_indices(order, limit, where, what="get_current_seq_order"))


def _cannot_start(dataset: Any, what: str) -> ConfigError:
    return ConfigError(
        what,
        where=f"{type(dataset).__name__} {dataset.name!r}",
        fix="where init_seq_order is given seq_order (corpus indices) or seq_list (tags), let these be the order "
        "of the epoch, and tell its corpus indices by get_current_seq_order",
    )


def _first_of(indices: NDArray[np.int64]) -> str:
    """Return the first few of an order as a text."""
    texts = [*map(str, indices[:4].tolist()), *(["..."] if len(indices) > 4 else [])]
    return f"[{', '.join(texts)}] of {len(indices)} sequences"


class EpochStream(SeqStream):
    """The sequences of the current epoch of a dataset.

    Args:
        dataset: Not read by others meanwhile.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._version = dataset, dataset.order_version
        self.jumps, self.gives_own = dataset.supports_jumps, dataset.gives_own

    @property
    def num_seqs(self) -> int | None:  # type: ignore[override]  # a stream may find out
        """Ask the dataset."""
        num_seqs: int | None = self._dataset.known_num_seqs()
        return num_seqs

    def has_next(self) -> bool:
        """Ask the dataset.

        Raises:
            ConfigError: It has ended this epoch, or started another.
        """
        check_not_stale(self._dataset, self._version, "the stream of an epoch", where=f"sequence {self.position}")
        return bool(self._dataset.is_less_than_num_seqs(self.position))

    def __next__(self) -> DatasetSeq:
        """Read the next sequence.

        Raises:
            ConfigError: The dataset has ended this epoch, or started another.
        """
        if not self.has_next():
            raise StopIteration
        dataset, position = self._dataset, self.position
        dataset.load_seqs(position, position + 1)
        seq: DatasetSeq = dataset.get_seq(position)
        self.position = position + 1
        return seq

    def texts(self) -> Features:
        """Ask the dataset."""
        dataset, position = self._dataset, self.position - 1
        return {key: dataset.get_data(position, key) for key in dataset.get_text_keys()}

    def frac(self) -> float | None:
        """Ask the dataset."""
        frac: float | None = self._dataset.get_complete_frac(self.position - 1, allow_only_lr_suitable=True)
        return frac


class EpochReader(Reader):
    """Reads by the epoch API: the sequences that are wanted become the current order of a dataset.

    If the dataset is moved meanwhile, such as by a question for the order of another epoch, the epoch is started again.

    Args:
        dataset: Its owner is that of this reader.
        corpus: What is known of it.
    """

    def __init__(self, dataset: Any, corpus: ForeignCorpus) -> None:
        self._dataset, self._corpus = dataset, corpus
        self.gives_own = dataset.gives_own
        self._wanted: ReadRequest | None = None
        self._version: int | None = None
        self._first = 0
        self._tags: Sequence[str] | None = None  # that it must deliver, where that is known and to be checked
        self._num_checked = 0  # of them

    def start(self, wanted: ReadRequest) -> None:
        """Start an epoch with the sequences that are wanted."""
        dataset = self._dataset
        self._first = self._num_checked = 0
        self._tags = wanted.tags
        if wanted.is_whole and self._starts_by_itself(wanted):
            self._num_checked = len(wanted.order)  # it was not asked by tags
        elif wanted.tags is not None:
            start_given(dataset, wanted.epoch, GivenOrder(wanted.tags))
        else:
            self._first = dataset.start_part(wanted)
            self._tags = self._corpus.tags_to_check(wanted.indices)
        self._wanted, self._version = wanted, dataset.order_version

    def _starts_by_itself(self, wanted: ReadRequest) -> bool:
        """Start a whole epoch, as a class can that takes no order; tell whether the order is the one that is wanted."""
        dataset = self._dataset
        if not self._corpus.take_fresh(wanted.epoch):
            dataset.init_seq_order(epoch=wanted.epoch)
        if not self._corpus.may_draw_order():
            return True
        started = checked_order(dataset)
        return np.array_equal(np.asarray(started), wanted.indices)

    def _position(self) -> int:
        """Return the position of the first one that is wanted."""
        assert self._wanted is not None
        if self._version != self._dataset.order_version:
            self.start(self._wanted)
        return self._first

    def _seq_idx(self, number: int) -> int:
        """Return the position of a sequence, which has the tag that was asked for."""
        first = self._position()
        if self._tags is not None and number >= self._num_checked:
            self._check_tag(first + number, number, self._tags)
            self._num_checked = number + 1
        return first + number

    def _check_tag(self, seq_idx: int, number: int, tags: Sequence[str]) -> None:
        dataset = self._dataset
        found = dataset.get_tag(seq_idx) if dataset.is_less_than_num_seqs(seq_idx) else None
        if found == tags[number]:
            return
        assert self._wanted is not None
        if self._wanted.tags is None:
            raise SourceError(
                f"get_all_tags has the tag {tags[number]!r} at corpus index {self._wanted.order[number]}, and the "
                f"sequence that was read for it has the tag {found!r}",
                where=f"{type(dataset).__name__} {dataset.name!r}, sequence {seq_idx}",
                fix="let get_all_tags return the tags by corpus index, and init_seq_order take seq_order",
            )
        what = f"it was asked for the tag {tags[number]!r}, and "
        what += f"delivers {found!r}" if found is not None else f"ends after {number} of {len(tags)} sequences"
        raise SourceError(
            f"a sub-dataset does not deliver what it is asked for: {what}",
            where=f"{type(dataset).__name__} {dataset.name!r}, sequence {number}",
            fix=f"{type(dataset).__name__} must take init_seq_order(seq_list=...), or be the seq_order_control_dataset",
        )

    def tags(self) -> list[str] | None:
        """Ask the corpus for the tags."""
        assert self._wanted is not None
        if self._wanted.tags is not None:
            return list(self._wanted.tags)
        corpus = self._corpus
        return corpus.tags_of(self._wanted.indices) if corpus.is_indexed else None

    def read(self, number: int) -> DatasetSeq:
        """Load a sequence, and take it."""
        position = self._position() + number
        self._dataset.load_seqs(position, position + 1)
        seq: DatasetSeq = self._dataset.get_seq(self._seq_idx(number))
        return seq

    def texts(self, number: int) -> Features:
        """Take the texts."""
        dataset, seq_idx = self._dataset, self._seq_idx(number)
        return {key: dataset.get_data(seq_idx, key) for key in dataset.get_text_keys()}

    def known_frames(self, number: int) -> NumbersDict:
        """Ask the dataset, which may have to read the sequence."""
        frames: NumbersDict = self._dataset.get_seq_length(self._seq_idx(number))
        return frames
