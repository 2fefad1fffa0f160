"""What a loader asks its dataset in the trainer: which sequences an epoch has, in which order, and their lengths.

Nothing here reads a sequence: `reading.py` is the other side, which does.
Invariant: everything that a subject says of an epoch is a pure function of the epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import WINDOW_SEQS
from headrace.datasets.checks import check_key
from headrace.datasets.corpus import Corpus, LengthsOf
from headrace.datasets.orders import Orders
from headrace.datasets.workers import DatasetWorkers
from headrace.errors import ConfigError
from headrace.order import Order, OrderCorpus, OrderPlanner, OrderRecipe, occurrences

from .reading import DatasetReading, ItemsReading, Reading
from .state import digest_array, digest_text


@dataclass(frozen=True)
class PlanNeeds:
    """What a loader needs to know about an epoch in addition to its order.

    Attributes:
        data_key: The data key whose lengths count; None for the first one.
        lengths: Whether lengths may be expensive to get; otherwise they are given only where they are at hand.
        occurrences: Whether the loader itself seeds random draws by how often a sequence came before.
    """

    data_key: str | None = None
    lengths: bool = True
    occurrences: bool = False


@dataclass(frozen=True)
class EpochOrder:
    """Order and lengths of one epoch, as needed to plan its batches.

    Attributes:
        epoch: The epoch number.
        order: Corpus indices.
        lengths_of: Returns the frames of sequences, `int[n]`, by corpus index; None if they are not known.
        occurrences: How often each sequence of the order came before in it, `int64[N]`; None if none repeats.
        shortest: Returns the least frames of any sequence of the corpus, which is not empty, O(N); None: not known.
        batch_starts: Where each batch starts, and the end, `int64[B + 1]`, if a sampler defines the batches.
    """

    epoch: int
    order: Order
    lengths_of: LengthsOf | None = None
    occurrences: NDArray[np.int64] | None = None
    shortest: Callable[[], int] | None = None
    batch_starts: NDArray[np.int64] | None = None

    def lengths_digest(self) -> str | None:
        """Return a digest of the frames of all sequences in this order, O(N); None if they are not known."""
        if self.lengths_of is None:
            return None
        starts = range(0, len(self.order), WINDOW_SEQS)
        blocks = [self.order.block(start, min(start + WINDOW_SEQS, len(self.order))) for start in starts]
        return digest_text(" ".join(digest_array(self.lengths_of(block).astype(np.int64)) for block in blocks))


class Subject(ABC):
    """What a loader loads: the part of it that the trainer needs.

    Attributes:
        name: Its name in messages.
        reading: How workers read it.
        data_key: The first data key, None if sequences are not by data key.
        num_shards: Into how many shards it divides itself already.
        sharded_by: The options that divide it, for messages.
        has_even_shards: Whether all shards have as many sequences.
        is_stream: Whether the order is not known beforehand.
        window_seqs: How many sequences are planned at a time, by default.
        workers: The workers that the dataset was given, which the loader's workers replace.
    """

    is_stream = False
    window_seqs = WINDOW_SEQS
    name: str
    reading: Reading
    data_key: str | None = None
    num_shards: int = 1
    sharded_by: str = ""
    has_even_shards: bool = False
    workers: DatasetWorkers | None = None

    @property
    @abstractmethod
    def corpus(self) -> Corpus:
        """What is known about the sequences without reading them; where epochs differ, in the epoch started last."""

    @abstractmethod
    def start(self, epoch: int, wanted: PlanNeeds) -> EpochOrder:
        """Return the order of an epoch."""

    @abstractmethod
    def knows_lengths(self, data_key: str | None) -> bool:
        """Tell whether `start` can give the lengths of a data key, None: of the first one.

        Raises:
            ConfigError: There is no such data key.
        """

    @abstractmethod
    def order_text(self, epoch: int) -> str:
        """Return a text of everything that determines the order of an epoch."""

    def reading_text(self, epoch: int) -> str:  # noqa: ARG002
        """Return a text of everything, except the corpus, that determines the content of a sequence."""
        return ""

    def may_draw_order(self) -> bool:
        """Tell whether user code defines the order, and may draw it from the global random generators."""
        return False

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Release resources."""


class DatasetSubject(Subject):
    """A dataset whose order is known.

    Args:
        config: What workers make theirs of: a config, or the dataset itself, which is copied.
        corpus: The corpus here. It is asked for its order only.
        is_own: Whether it was made for the loader, which closes it.
    """

    def __init__(self, config: Any, corpus: Corpus, *, is_own: bool) -> None:
        self.is_own = is_own
        self._epoch: int | None = None  # the one that was started last
        while (
            workers := corpus.workers
        ) is not None and workers.is_same_without:  # only one of the two should have some
            self.workers = self.workers or workers
            if workers.corpus is None or workers.corpus is corpus:
                break
            config, corpus = workers.config, workers.corpus
        self.name = corpus.title if "dataset_id" not in corpus.name else corpus.kind
        self._corpus = corpus
        if is_own:
            corpus.answer_alone()
        check_dataset_options(corpus, self.name, is_stream=False)
        self.reading = DatasetReading(config, corpus.specs)
        self.data_key = next(iter(corpus.layout() or ()), None)
        self.num_shards, _ = corpus.shard
        self.sharded_by = f"{corpus.sharded_by} of {self.name}"

    @property
    def corpus(self) -> Corpus:
        """The corpus of the dataset."""
        return self._corpus

    def start(self, epoch: int, wanted: PlanNeeds) -> EpochOrder:
        """Return the order of an epoch."""
        self._epoch = epoch
        order, counted = self.corpus.order(epoch, counts=wanted.occurrences)
        lengths_of = self._lengths_of(wanted.data_key, may_cost=wanted.lengths)
        return EpochOrder(epoch, order, lengths_of, counted, self._shortest_by(lengths_of))

    def _lengths_of(self, data_key: str | None, *, may_cost: bool) -> LengthsOf | None:
        """Return the lengths of a data key by corpus index.

        Raises:
            ConfigError: There is no such data key.
        """
        if self.data_key is None:
            return _no_lengths  # an empty corpus without data keys
        key = data_key or self.data_key
        check_key(key, self.corpus.layout() or {}, self.name)
        return self.corpus.lengths(key, may_cost, self._epoch)

    def _shortest_by(self, lengths_of: LengthsOf | None) -> Callable[[], int] | None:
        if lengths_of is None:
            return None  # and the corpus is not asked: that may cost as much
        size = self.corpus.size()
        return None if not size else lambda: int(np.min(lengths_of(np.arange(size))))

    def reading_text(self, epoch: int) -> str:
        """Return how the dataset reads, and what it draws."""
        return self.corpus.reading_text(epoch)

    def may_draw_order(self) -> bool:
        """Ask the corpus."""
        return self.corpus.may_draw_order()

    def knows_lengths(self, data_key: str | None) -> bool:
        """Ask the index."""
        return self._lengths_of(data_key, may_cost=True) is not None

    def order_text(self, epoch: int) -> str:
        """Return the recipe of the order."""
        return self.corpus.order_text(epoch)

    def shuffle(self, seq_ordering: str) -> None:
        """Shuffle a dataset that has no order of its own.

        Raises:
            ConfigError: It has an order of its own.
        """
        own = self.corpus.orders.seq_ordering
        if own != "default":
            raise ConfigError(
                f"shuffle=True, and the dataset has an order of its own: {own!r}",
                where=self.name,
                fix="leave shuffle out",
            )
        self._corpus = self._corpus.with_orders(seq_ordering=seq_ordering)

    def close(self) -> None:
        """Release files and caches, of a dataset that was made here."""
        if self.is_own:
            self.corpus.close()


class PlainCorpus(Corpus):
    """What is known of items that are no dataset.

    Args:
        name: Their class.
        digest: Tells them from others, as far as that is known.
        size: How many there are.
    """

    def __init__(self, name: str, digest: str, size: int | None = None) -> None:
        super().__init__(name, Orders({}))
        self._digest, self._size = digest, size

    def size(self) -> int | None:
        """Return how many there are."""
        return self._size

    def digest_text(self) -> str:
        """Return what was given."""
        return self._digest


class ItemsSubject(Subject):
    """An object with `__len__` and `__getitem__` whose items are left as they are.

    Args:
        items: The object.
        seq_ordering: The order.
    """

    def __init__(self, items: Any, seq_ordering: str = "default") -> None:
        self.name = type(items).__name__
        self._items = items
        self._planner = OrderPlanner(OrderRecipe(seq_ordering=seq_ordering))
        self.reading = ItemsReading(items)

    @property
    def corpus(self) -> Corpus:
        """How many items there are: nothing else is known."""
        return PlainCorpus(self.name, digest_text(f"{len(self._items)} items"), len(self._items))

    def start(self, epoch: int, wanted: PlanNeeds) -> EpochOrder:
        """Return the order of an epoch; lengths are those of `get_seq_len(i)`, if the object has it."""
        order = self._planner.order_for_epoch(epoch, OrderCorpus(len(self._items), lengths=self._all_lengths))
        counted = occurrences(order) if wanted.occurrences and order.may_repeat else None
        get_seq_len = getattr(self._items, "get_seq_len", None)
        lengths_of = None if get_seq_len is None or not wanted.lengths else _ask_each(get_seq_len)
        shortest = None if lengths_of is None or not len(self._items) else lambda: int(self._all_lengths().min())
        return EpochOrder(epoch, order, lengths_of, counted, shortest)

    def _all_lengths(self) -> NDArray[Any]:
        return _ask_each(self._items.get_seq_len)(np.arange(len(self._items)))

    def knows_lengths(self, data_key: str | None) -> bool:
        """Ask the object: by its method `get_seq_len(i)`."""
        return data_key is None and hasattr(self._items, "get_seq_len")

    def order_text(self, epoch: int) -> str:
        """Return the recipe of the order."""
        return str(self._planner.recipe.policy_for_epoch(epoch))


def _no_lengths(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.zeros(len(indices), np.int64)


def _ask_each(get_seq_len: Callable[[int], int]) -> LengthsOf:
    return lambda indices: np.array([get_seq_len(i) for i in indices.tolist()], np.int64)


def check_dataset_options(corpus: Corpus, name: str, *, is_stream: bool) -> None:
    """Refuse options that only `generate_batches` uses and a loader would ignore, here or in a part.

    Raises:
        ConfigError: A dataset, or one that it is made of, has such an option.
    """
    if corpus.group and not is_stream:  # a stream is read in its order
        raise ConfigError(
            f"shuffle_frames_of_nseqs={corpus.group} mixes neighbours of the order, which are in "
            "different batches here",
            where=name,
            fix="leave it out",
        )
    for option in corpus.batch_options:
        raise ConfigError(
            f"the option {option} is for generate_batches, and a loader has no use for it",
            where=name,
            fix="leave it out, and give the loader batching=Chunks(...), which takes a context as well",
        )
    if not is_stream:
        for part in corpus.parts:
            check_dataset_options(part, f"{part.title}, a part of {name}", is_stream=False)
