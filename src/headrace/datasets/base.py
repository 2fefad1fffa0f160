"""`Dataset`: the epoch API, by its RETURNN-compatible names.

Life cycle: construct, `initialize`, then for each epoch `init_seq_order(epoch=E)` and, in rising order,
`load_seqs(i, i + 1)`, `get_data(i, key)`; or, in one line, `for seq in dataset.epoch(E)`. A dataset is a position in a
corpus (`corpus.py`), which says which sequence comes when and how it is read; `batching` cuts sequences into chunks,
`returnn` groups these into batches. A class that was written for RETURNN has no corpus of its own, and is asked by its
epochs (`foreign.py`). An object serves one thread.
"""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Chunking, ChunkingFunction, NumbersDict, parse_chunking, parse_context_window
from headrace.errors import ConfigError, OptionalNotImplementedError, did_you_mean
from headrace.exports import refuse_departed
from headrace.order import Order, OrderCorpus, derive_order_seed, occurrences
from headrace.show.card import Card, card_of
from headrace.sources import Source
from headrace.sources.naming import options_of
from headrace.specs import DataSpec

from .checks import (
    check_count,
    check_epoch,
    check_outputs,
    check_share,
    check_window,
    takes_argument,
)
from .corpus import Corpus, IndexedCorpus, as_lengths, check_files, first_of_tag
from .digests import IDLE_OPTIONS, given_options, options_text
from .foreign import ForeignCorpus, checked_order, overrides_of, told_size
from .orders import Orders, SeqOrdering
from .reading.reader import GivenOrder, ReadRequest
from .returnn.batch import index_shape_for_batches
from .returnn.batch_generator import Batch, BatchSetGenerator, plan_batches
from .returnn.walk import EpochHandle, check_not_stale, iterate_chunks
from .seq import DatasetSeq

_UNKNOWN_COUNT_SCALE = 100.0  # RETURNN's shape of the pseudo progress when the number of sequences is unknown
# Options that may be set on an object, besides those of the order: a copy that is made again has them, too.
_PLAIN_OPTIONS = ("window", "context_window", "chunking", "min_chunk_size", "chunking_variance", "weights")
_ORDER_OPTIONS = (
    *("seq_ordering", "fixed_random_seed", "random_seed_offset", "partition_epoch", "repeat_epoch", "_num_shards"),
    *("_shard_index", "seq_list_filter_file", "unique_seq_tags", "seq_order_seq_lens_file"),
)


class _OrderOption:
    """An option of the order: to set it takes effect with the next `init_seq_order`."""

    def __init__(self, get: Callable[[Orders], Any], doc: str) -> None:
        self._get, self.__doc__ = get, doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, dataset: Dataset | None, owner: type | None = None) -> Any:
        return self if dataset is None else self._get(dataset._orders)

    def __set__(self, dataset: Dataset, value: Any) -> None:
        dataset.change_orders(**{self._name: value})


class Dataset:
    """Sequences by epoch, in an order that is a pure function of the recipe and the epoch number.

    Args:
        name: Shown in messages; made up if empty.
        window: Frames t - w/2 .. t + w/2 of the key "data" are joined into frame t, oldest first, zeros outside; an
            even number is raised by one. Only for classes that support it.
        context_window: Extra frames around each chunk in batches: int n (for "data"), dict, or a pair (left, right) of
            dicts. n counts the frame itself: n - 1 extra frames, the odd one to the right.
        chunking: `None`, 50, "50:25", (50, 25), dicts by data key, or a function (see `iterate_seqs`). Also to be set
            later: it, or its parts `chunk_size`, `chunk_step` (0: that of the size) and `custom_chunking_func`.
        seq_ordering: An ordering such as "laplace:.1000", a policy such as `order.Laplace(seqs_per_bin=1000)`, or a
            function called as `f(epoch=E)` that returns one of them.
        fixed_random_seed: The seed of every epoch, whatever its number.
        random_seed_offset: Added to the number of the full epoch to give its seed; 0 if `None`, on every rank.
        partition_epoch: P > 1 divides a full pass into P sub-epochs; epoch numbers then count sub-epochs.
        repeat_epoch: R > 1 gives the order R times in each epoch. Not together with `partition_epoch`.
        seq_list_filter_file: Text file of tags: only these are kept. Applied before the order is cut into sub-epochs
            and shards, so that these stay even; `get_all_tags` and `get_total_num_seqs` count what is kept. (RETURNN
            filters afterwards.)
        unique_seq_tags: Keep the first of equal tags in the order.
        seq_order_seq_lens_file: File (JSON or Python literal) tag -> length, used for sorting in place of the real
            lengths.
        shuffle_frames_of_nseqs: Only for the `CachedDataset` family.
        min_chunk_size: A chunk after the first must be longer than this; int or dict by key.
        chunking_variance: v in 0..1: each sequence's chunk size and step are scaled by 1 - v * random.
        estimated_num_seqs: Used for progress where the number of sequences is unknown.
        _num_shards: Number of shards of each sub-epoch.
        _shard_index: Which of them this is.

    Raises:
        ConfigError: An option is wrong; valid forms are named.
    """

    has_own_workers: ClassVar[bool] = False
    """Whether its options say how many workers read it."""

    distributes_files: ClassVar[bool] = False
    """Whether it distributes files, as `DistributeFilesDataset` does."""

    _content_options: tuple[str, ...] = ()
    """Arguments that change what a sequence holds, and that neither tags nor lengths nor the order tell."""

    gives_own: ClassVar[bool] = False
    """Whether `get_seq` gives arrays that are the caller's own; else the same ones may come again."""

    supports_window = False
    supports_frame_shuffling = False
    supports_jumps: bool = False
    """Whether the sequence at any position is given without reading those before it: a class of your own may say so.

    Others are read from their start on, each position once: that is what the epoch API promises to a sub-class.
    """

    num_inputs: int = 0
    num_outputs: dict[str, tuple[int, int]] | None = None
    labels: dict[str, Sequence[str]]

    _given: tuple[tuple[Any, ...], dict[str, Any]]
    _corpus: Corpus | None = None  # what it reads; `None` for a class that was written for RETURNN
    _foreign: ForeignCorpus | None = None  # what others see, if that is not it
    _request: ReadRequest | None = None  # the current order, where it is known
    _of_epoch: ClassVar[frozenset[str]] = frozenset({"_corpus", "_foreign", "_request", "_rnd_seq_drop"})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the constructor's arguments: a user-defined dataset is made again from them, not from open files."""
        self = super().__new__(cls)
        self._given = (args, kwargs)
        return self

    def __init__(
        self,
        name: str | None = None,
        window: int = 1,
        context_window: Any = None,
        chunking: Any = None,
        seq_ordering: SeqOrdering = "default",
        fixed_random_seed: int | None = None,
        random_seed_offset: int | None = None,
        partition_epoch: int | None = None,
        repeat_epoch: int | None = None,
        seq_list_filter_file: str | Path | None = None,
        unique_seq_tags: bool = False,
        seq_order_seq_lens_file: str | Path | None = None,
        shuffle_frames_of_nseqs: int = 0,
        min_chunk_size: int | Mapping[str, int] = 0,
        chunking_variance: float = 0,
        estimated_num_seqs: int | None = None,
        _num_shards: int = 1,
        _shard_index: int = 0,
        **unknown: Any,
    ) -> None:
        if unknown:
            option, cls = next(iter(unknown)), type(self)
            refuse_departed(option, f"the option {option!r} of {cls.__name__}")
            fix = did_you_mean(option, options_of(cls))
            raise TypeError(f"{cls.__name__} has no option {option!r}\n  fix: {fix}")  # as Python's own
        given = locals()
        self.name = name or f"dataset_id{id(self)}"
        self.window = check_window(window, supported=self.supports_window, owner=type(self).__name__)
        self.shuffle_frames_of_nseqs = check_count("shuffle_frames_of_nseqs", shuffle_frames_of_nseqs)
        if shuffle_frames_of_nseqs and not self.supports_frame_shuffling:
            raise ConfigError(
                f"{type(self).__name__} cannot shuffle frames (shuffle_frames_of_nseqs={shuffle_frames_of_nseqs})",
                fix="use a dataset of the CachedDataset family, or leave the option out",
            )
        self.context_window = parse_context_window(context_window)
        self.chunking = chunking
        self.min_chunk_size = NumbersDict(min_chunk_size)
        self.chunking_variance = check_share("chunking_variance", chunking_variance)
        self.labels: dict[str, Sequence[str]] = {}
        self.weights: dict[int, float] = {}
        self._drop_seed = 0
        self._rnd_seq_drop: random.Random | None = None
        self.order_version = 0
        self._own_orders = Orders({option: given[option] for option in _ORDER_OPTIONS})
        self._changes: dict[str, Any] = {}  # options of the order that were set since it was made
        self._epoch: int | None = None
        self._unsettled_shard: tuple[int, int] | None = None  # assigned, and not in agreement yet
        self._estimated_num_seqs = estimated_num_seqs

    def __len__(self) -> int:
        """Return the number of sequences of the corpus: `get_total_num_seqs`, of all sub-epochs and shards together.

        Raises:
            TypeError: It is not known without reading, as that of a stream.
        """
        total = self.get_total_num_seqs
        try:
            return total(fast=True) if takes_argument(total, "fast") else total()
        except NotImplementedError as error:
            raise TypeError(
                f"{type(self).__name__} {self.name!r} has no len(): how many sequences it has is not known without "
                f"reading them ({error})"
            ) from error

    def __bool__(self) -> bool:
        """Return True, also of an empty corpus: whether there is a dataset is no question of its size."""
        return True

    # --- the corpus ---

    def get_corpus(self) -> Corpus:
        """Return what it is without a position: sequences, their order in each epoch, and how they are read.

        It has the options of now. That of a class that was written for RETURNN, and of a stream, asks this object.
        """
        self._check_shard()
        own = self._corpus
        if own is not None and overrides_of(type(self)).is_ours and own.knows_order() and not own.skips_failed:
            corpus: Corpus = own
        else:
            if self._foreign is None:
                self._foreign = ForeignCorpus(self, self._orders, own)
            corpus = self._foreign
        corpus.batch_options = self._batch_options()
        return corpus

    @property
    def _read(self) -> Corpus:
        """The corpus that it reads.

        Raises:
            ConfigError: It has none yet.
        """
        if self._corpus is None:
            raise ConfigError(
                f"{type(self).__name__} has no data yet",
                where=f"dataset {self.name!r}",
                fix="name them in the constructor (HDFDataset: files=, or add_file)",
            )
        return self._corpus

    def _set_corpus(self, corpus: Corpus) -> None:
        """Read this corpus from now on."""
        corpus.kind = type(self).__name__
        if self._content_options:
            corpus.content = self.given_text(only_content=True)
        self._corpus, self._foreign = corpus, None
        layout = corpus.layout()
        if layout is not None:
            self.num_outputs = {key: spec.num_outputs for key, spec in layout.items() if spec is not None}
            self.num_inputs = self.num_outputs.get("data", (0, 0))[0]
            self.labels = dict(corpus.labels)

    # --- options by their RETURNN-compatible names ---

    @property
    def _orders(self) -> Orders:
        """The options that make the order."""
        return self._own_orders if self._corpus is None else self._corpus.orders

    def change_orders(self, **options: Any) -> None:
        """Set options of the order, by their names in `Orders.changed`; takes effect with the next `init_seq_order`."""
        if self._corpus is None:
            self._own_orders = self._own_orders.changed(**options)
        else:
            self._corpus = self._corpus.with_orders(**options)
        self._foreign = None  # a copy that it asks has old options
        self._changes.update(options)

    seq_ordering = _OrderOption(lambda orders: orders.seq_ordering, "The ordering as it was given.")
    partition_epoch = _OrderOption(lambda orders: orders.recipe.num_sub_epochs, "Number of sub-epochs of a full pass.")
    repeat_epoch = _OrderOption(lambda orders: orders.recipe.num_repeats, "How often an epoch gives the order.")
    fixed_random_seed = _OrderOption(lambda orders: orders.recipe.fixed_random_seed, "The seed of all epochs, if fixed")
    random_seed_offset = _OrderOption(
        lambda orders: orders.recipe.random_seed_offset or 0,
        "Added to the number of a full epoch to give its seed.",
    )
    unique_seq_tags = _OrderOption(lambda orders: orders.has_unique_tags, "Whether the first of equal tags is kept.")

    @property
    def seq_list_filter_file(self) -> str | None:
        """The file of the tags that are kept."""
        return self._orders.filter_file

    @property
    def seq_order_seq_lens_file(self) -> str | None:
        """The file of the lengths that are sorted by."""
        return self._orders.lengths_file

    @property
    def num_shards(self) -> int:
        """Number of shards of each sub-epoch."""
        return self._orders.recipe.num_shards

    @property
    def shard_index(self) -> int:
        """Which of the shards this is."""
        return self._orders.recipe.shard_index

    # RETURNN's loader for PyTorch reads these two names of a dataset to share it out to the workers, and classes that
    # are written for RETURNN assign them, one after the other: they count from the next `init_seq_order` on.
    @property
    def _num_shards(self) -> int:
        return self.num_shards if self._unsettled_shard is None else self._unsettled_shard[0]

    @_num_shards.setter
    def _num_shards(self, value: int) -> None:
        self._assign_shard(check_count("_num_shards", value, minimum=1), self._shard_index)

    @property
    def _shard_index(self) -> int:
        return self.shard_index if self._unsettled_shard is None else self._unsettled_shard[1]

    @_shard_index.setter
    def _shard_index(self, value: int) -> None:
        self._assign_shard(self._num_shards, check_count("_shard_index", value))

    def _assign_shard(self, num_shards: int, shard_index: int) -> None:
        """Take a shard, or wait for the other half of it: a shard 3 of 1 may become one of 4."""
        if shard_index < num_shards:
            self._unsettled_shard = None
            self._take_shard(num_shards, shard_index)
        else:
            self._unsettled_shard = num_shards, shard_index

    def _check_shard(self) -> None:
        if self._unsettled_shard is not None:
            num_shards, shard_index = self._unsettled_shard
            raise ConfigError(
                f"_shard_index={shard_index} is none of the {num_shards} shards that _num_shards says",
                where=f"dataset {self.name!r}",
                fix="assign both: _shard_index is 0 .. _num_shards - 1",
            )

    def set_sharding(self, num_shards: int, shard_index: int) -> None:
        """Make this dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        self._unsettled_shard = None
        self._take_shard(num_shards, shard_index)

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Do what `set_sharding` says, which a sub-class may override to assign `_num_shards` and `_shard_index`."""
        self.change_orders(num_shards=num_shards, shard_index=shard_index)

    @property
    def chunking(self) -> Chunking | ChunkingFunction | None:
        """How `iterate_seqs` cuts sequences: parsed, or the function that was given; `None` if it does not."""
        if self.custom_chunking_func is not None:
            return self.custom_chunking_func
        if not self.chunk_size:  # whatever the step: nothing is cut
            return None
        return parse_chunking((self.chunk_size, self.chunk_step))

    @chunking.setter
    def chunking(self, value: Any) -> None:
        """Set it in any of the forms that the constructor takes."""
        parsed = parse_chunking(value)
        self.chunk_size: Any = 0
        self.chunk_step: Any = 0
        self.custom_chunking_func: ChunkingFunction | None = None
        if isinstance(parsed, Chunking):
            self.chunk_size, self.chunk_step = parsed.size, parsed.step
        else:
            self.custom_chunking_func = parsed

    # --- life cycle ---

    @property
    def epoch(self) -> EpochHandle:
        """The current epoch number (0: none), and the reader of one: `for seq in dataset.epoch(3)`."""
        return EpochHandle.of(self, self._epoch)

    @epoch.setter
    def epoch(self, number: int | None) -> None:
        self._epoch = check_epoch(number)

    def initialize(self) -> None:
        """Get ready to read: check that the layout is known. `init_dataset` calls it.

        Raises:
            ConfigError: `num_outputs` is not set.
        """
        if self.num_outputs is None:
            raise ConfigError(f"{type(self).__name__} did not set num_outputs", where=f"dataset {self.name!r}")
        self.init_seq_order()
        self._complete_outputs()

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch.

        Sub-classes call this first. Without `epoch` the dataset is prepared, but holds no sequences. An explicit
        `seq_list` (tags) or `seq_order` (corpus indices) is the order: no partition, shard or filter applies to it.

        Args:
            epoch: 1, 2, ...; with `partition_epoch > 1` it counts sub-epochs.
            seq_list: Tags, in the order wanted.
            seq_order: Corpus indices, in the order wanted.

        Returns:
            Whether the order may have changed.
        """
        if seq_list is not None and seq_order is not None:
            raise ConfigError("seq_list and seq_order are both given: one of them is the order")
        self._check_shard()
        if self.num_shards > 1 and not self.supports_sharding():
            raise ConfigError(
                f"{type(self).__name__} does not support sharding (_num_shards={self.num_shards})",
                where=f"dataset {self.name!r}",
            )
        self._epoch = check_epoch(epoch)
        self.order_version += 1
        self._request = None
        self._complete_outputs()
        self._drop_seed = self.get_random_seed_for_epoch(self._epoch)
        self._rnd_seq_drop = None
        return True

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch: reads are invalid until the next one; `num_seqs` still answers.

        Args:
            free_resources: Also release the order, files and caches; they come back with the next `init_seq_order`.
        """
        self._epoch = None
        self.order_version += 1
        if free_resources:
            self._orders.planner.invalidate()
            self._request = None
            if self._corpus is not None:
                self._corpus.close()
            if self._foreign is not None:
                self._foreign.forget()
        for part in self.get_parts():
            part.finish_epoch(free_resources=free_resources)

    def close(self) -> None:
        """Release all that is held. The same as `finish_epoch(free_resources=True)`; harmless twice."""
        self.finish_epoch(free_resources=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- copies ---

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle one of our classes with its corpus, any other as constructor arguments; without a current order."""
        self._check_shard()
        if self._corpus is None or not overrides_of(type(self)).is_ours:
            return _made_again, (type(self), *self._given, self._set_since())
        return _with_corpus, (type(self), self._state(), self._corpus)

    def __copy__(self) -> Self:
        """Return a dataset of the same options, with an epoch of its own. One of our classes opens nothing for it.

        Raises:
            ConfigError: An argument is an iterator, which can be read once.
        """
        self._check_shard()
        cls = type(self)
        if cls.__reduce__ is not Dataset.__reduce__ and not overrides_of(cls).is_ours:
            return copy.deepcopy(self)
        if self._corpus is not None and overrides_of(cls).is_ours:
            made = _with_corpus(cls, self._state(), self._corpus.apart())
        else:
            args, kwargs = self._given
            for value in (*args, *kwargs.values()):
                if isinstance(value, Iterator):
                    raise ConfigError(
                        f"a dataset made of a {type(value).__name__} cannot be copied: that can be iterated over only "
                        "once",
                        where=f"dataset {self.name!r}",
                        fix="give an object whose __iter__ starts from the beginning",
                    )
            made = _made_again(cls, with_copied_parts(args), with_copied_parts(kwargs), self._set_since())
        assert isinstance(made, cls)
        return made

    def _state(self) -> dict[str, Any]:
        """Return all attributes but the corpus, what it was made of, and those of the current epoch."""
        left_out = {*self._of_epoch, "_given"}
        state = {name: value for name, value in vars(self).items() if name not in left_out}
        return {**state, "labels": dict(self.labels), "weights": dict(self.weights), "_changes": dict(self._changes)}

    def _begin(self) -> None:
        """Begin without an order, as a copy whose attributes are here already."""
        self.order_version, self._rnd_seq_drop = 0, None

    def _set_since(self) -> dict[str, Any]:
        """Return what a copy needs in addition to the constructor's arguments."""
        return {
            "orders": dict(self._changes),
            "options": {name: copy.copy(getattr(self, name)) for name in _PLAIN_OPTIONS},
            "epoch": self._epoch,
            "indexed": [] if self._corpus is None else self._corpus.indexed_files(),
            "by_tag": self._corpus is not None and self._corpus.seeds_by_tag,
        }

    def _restore(self, since: Mapping[str, Any]) -> None:
        """Take over what `_set_since` returned."""
        if since["orders"]:
            self.change_orders(**since["orders"])
        for name, value in since["options"].items():
            setattr(self, name, value)
        if since["by_tag"]:
            self.seed_by_tag()
        self._epoch = since["epoch"]
        if self._corpus is not None:
            check_files(self._corpus.indexed_files(), since["indexed"])

    # --- order ---

    def get_random_seed_for_epoch(self, epoch: int | None, num_epochs_fixed: int = 1) -> int:
        """Return the seed of an epoch by RETURNN's rule: constant over a full pass."""
        return derive_order_seed(
            check_epoch(epoch) or 1,
            num_epochs=num_epochs_fixed,
            partition_epoch=self.partition_epoch,
            fixed_random_seed=self.fixed_random_seed,
            random_seed_offset=self.random_seed_offset,
        )

    def get_seq_order_for_epoch(
        self, epoch: int | None, num_seqs: int, get_seq_len: Callable[[int], int] | NDArray[Any] | None = None
    ) -> range | NDArray[np.int64]:
        """Return the corpus indices of an epoch, in order: for sub-classes that keep their own corpus.

        A sub-class may override it, to have an order of its own.

        Args:
            epoch: The epoch number; `None` gives an empty order.
            num_seqs: Number of sequences in the corpus.
            get_seq_len: Corpus index -> length, or `int[N]`; only asked by orderings that need lengths.

        Returns:
            A `range`, where the order is one, else `int64[n]`, which is the caller's own.

        Raises:
            ConfigError: The ordering needs lengths and there are none.
        """
        if epoch is None:
            return range(0)
        orders, own = self._orders, self._corpus
        if get_seq_len is None and isinstance(own, IndexedCorpus) and num_seqs == own.size():
            return orders.planner.order_for_epoch(epoch, own.order_corpus(epoch)).to_indices()
        tags = (lambda: own.index.tags) if own is not None and own.is_indexed else self.get_all_tags
        lengths = None if get_seq_len is None else lambda: as_lengths(get_seq_len, int(num_seqs))
        corpus = OrderCorpus(
            num_seqs=int(num_seqs),
            lengths=lengths if orders.lengths_file is None else lambda: orders.lengths(tags()),
            keep=None if orders.wanted_tags is None else lambda: orders.mask(tags()),
            first_of_tag=(lambda: first_of_tag(tags())) if orders.has_unique_tags else None,
            is_fixed=False,
        )
        return orders.planner.order_for_epoch(epoch, corpus).to_indices()

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        if self._request is None:
            self._not_offered("get_current_seq_order")
        return self._request.order

    def _plan(self, epoch: int | None, given: GivenOrder | None) -> ReadRequest:
        """Return what an epoch reads; touches nothing of the current one."""
        epoch = check_epoch(epoch)
        order, counted = self._read.order(epoch, given)
        return ReadRequest(epoch, order, counted, 0, is_whole=given is None and epoch is not None)

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences.

        Returns:
            The position under which the first one is read here.
        """
        corpus = self.get_corpus()
        assert isinstance(corpus, ForeignCorpus)
        corpus.start_order(wanted.epoch, wanted.indices)
        return 0

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        wanted = self._request
        if wanted is None:
            return occurrences(checked_order(self))
        if wanted.occurrences is not None:
            return wanted.occurrences
        counted = self._read.order(wanted.epoch, counts=True)[1] if wanted.is_whole else None
        return occurrences(wanted.order) if counted is None else counted

    def supports_seq_order_sorting(self) -> bool:
        """Whether lengths are known, so that sorting orders work."""
        return self.seq_order_seq_lens_file is not None if self._corpus is None else self._corpus.knows_sort_lengths()

    def supports_sharding(self) -> bool:
        """Whether `_num_shards > 1` is legal."""
        return self._corpus is not None and self._corpus.can_be_sharded()

    # --- reading ---

    def load_seqs(self, start: int, end: int) -> None:
        """Get sequences start..end (exclusive; may exceed the epoch) ready.

        Sequences before `start` may be gone afterwards.
        """
        raise OptionalNotImplementedError(f"{type(self).__name__} must define load_seqs")

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define get_data")

    def get_input_data(self, sorted_seq_idx: int) -> NDArray[Any]:
        """Return `get_data` of "data": an older name of RETURNN's."""
        return self.get_data(sorted_seq_idx, "data")

    def get_targets(self, target: str, sorted_seq_idx: int) -> NDArray[Any]:
        """Return `get_data` of a data key: an older name of RETURNN's."""
        return self.get_data(sorted_seq_idx, target)

    def get_data_slice(self, seq_idx: int, key: str, start_frame: int, end_frame: int) -> NDArray[Any]:
        """Return frames start..end (exclusive) of one data key."""
        return self.get_data(seq_idx, key)[start_frame:end_frame]

    def get_seq(self, seq_idx: int) -> DatasetSeq:
        """Return one loaded sequence with all of its data keys."""
        features = {key: self.get_data(seq_idx, key) for key in self.get_data_keys()}
        return DatasetSeq(seq_idx, features, seq_tag=self.get_tag(seq_idx))

    def iterate_epoch(self) -> Iterator[DatasetSeq]:
        """Return an iterator over the sequences of the current epoch; it is stale once another epoch is started."""
        return self._iterate(self.order_version)

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        seq_idx = 0
        while True:
            self._check_version(version, seq_idx)
            if not self.is_less_than_num_seqs(seq_idx):
                return
            self.load_seqs(seq_idx, seq_idx + 1)
            yield self.get_seq(seq_idx)
            seq_idx += 1

    def _check_version(self, version: int, seq_idx: int) -> None:
        if self.order_version != version:
            check_not_stale(self, version, "the iterator over an epoch", where=f"sequence {seq_idx}")

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames (scalars count 1)."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define get_seq_length")

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return one number to sort a sequence by."""
        self._not_offered("get_estimated_seq_length")

    def get_num_timesteps(self) -> int | NumbersDict:
        """Return data key -> number of frames of the current epoch. O(num_seqs) unless a class knows better."""
        total = NumbersDict(0)
        for seq_idx in range(int(self.num_seqs)):
            total += self.get_seq_length(seq_idx)
        return total

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        return f"seq-{seq_idx}"

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus (all sub-epochs and shards), without those that the filter drops."""
        if self._corpus is None:
            self._not_offered("get_all_tags")
        return self._corpus.all_tags()

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus, without those that the filter drops.

        Args:
            fast: Raise `OptionalNotImplementedError` rather than do slow work.
        """
        if self._corpus is None:
            self._not_offered("get_total_num_seqs")
        return self._corpus.num_seqs(fast=fast)

    def have_corpus_seq_idx(self) -> bool:
        """Whether `get_corpus_seq_idx` works."""
        return self._corpus is not None and self._corpus.knows_order()

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        if self._request is None:
            self._not_offered("get_corpus_seq_idx")
        return self._request.order[seq_idx - (self._request.first or 0)]

    def have_get_corpus_seq(self) -> bool:
        """Whether `get_corpus_seq` works."""
        return self._corpus is not None and self._corpus.can_give_stored()

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus as it is stored, whatever the current order."""
        if self._corpus is None:
            self._not_offered("get_corpus_seq")
        return self._corpus.stored(corpus_seq_idx)

    def get_times(self, seq_idx: int) -> NDArray[Any]:
        """Return the times of the frames, where a corpus stores them."""
        self._not_offered("get_times")

    # --- chunks and batches, for RETURNN's own trainers ---

    @property
    def rnd_seq_drop(self) -> random.Random:
        """The generator of the current epoch, as in RETURNN: for `sample` and for chunks of random size."""
        if self._rnd_seq_drop is None:
            self._rnd_seq_drop = random.Random(self._drop_seed)  # noqa: S311 (not for secrets)
        return self._rnd_seq_drop

    def sample(self, seq_idx: int) -> bool:
        """Draw whether to use a sequence, with probability `weights[seq_idx]`; always, if it has no weight."""
        return seq_idx not in self.weights or self.rnd_seq_drop.random() < self.weights[seq_idx]

    def iterate_seqs(
        self, recurrent_net: bool = True, used_data_keys: Sequence[str] | None = None
    ) -> Iterator[tuple[int, NumbersDict, NumbersDict]]:
        """Walk through the epoch by chunks.

        Args:
            recurrent_net: If false, chunking is ignored; a function is asked all the same, and told so.
            used_data_keys: The keys that count for chunking; all if `None`.

        Yields:
            (seq_idx, start, end): the frames start..end (exclusive) by data key.
        """
        return iterate_chunks(self, recurrent_net=recurrent_net, used_data_keys=used_data_keys)

    def get_start_end_frames_full_seq(self, seq_idx: int) -> tuple[NumbersDict, NumbersDict]:
        """Return start and end frames of a whole sequence, the context window included."""
        left, right = self.context_window
        end = self.get_seq_length(seq_idx)
        return NumbersDict.constant_like(0, end) - left, end + right

    def generate_batches(self, shuffle_batches: bool = False, **kwargs: Any) -> BatchSetGenerator:
        """Group the current epoch into batches, see `plan_batches` for the arguments.

        Args:
            shuffle_batches: Shuffle the kept batches on `reset` (only where the whole epoch is kept).
            **kwargs: Passed to `plan_batches`.
        """
        return BatchSetGenerator(self, plan_batches(self, **kwargs), shuffle_batches=shuffle_batches)

    def _generate_batches(self, recurrent_net: bool, batch_size: Any, **kwargs: Any) -> Iterator[Batch]:
        """Yield the batches of the current epoch, see `plan_batches`."""
        return plan_batches(self, recurrent_net=recurrent_net, batch_size=batch_size, **kwargs)

    def batch_set_generator_cache_whole_epoch(self) -> bool:
        """Whether a batch generator keeps its batches, so that it can be reset."""
        return False

    def index_shape_for_batches(self, batches: Sequence[Batch], data_key: str = "data") -> tuple[int, int]:
        """Return (longest row, number of rows) of several batches."""
        return index_shape_for_batches(batches, data_key)

    # --- how much there is ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; 0 if none is active.

        Raises:
            OptionalNotImplementedError: The number is unknown.
        """
        self._not_offered("num_seqs")

    def known_num_seqs(self) -> int | None:
        """Return the number of sequences of the current epoch; `None` if it is not known, or infinite."""
        try:
            num_seqs = self.num_seqs
        except NotImplementedError:
            return None
        return None if math.isinf(num_seqs) else int(num_seqs)

    @property
    def estimated_num_seqs(self) -> int | None:
        """`num_seqs` if known, else what the constructor was given, else `None`."""
        try:
            return self.num_seqs
        except NotImplementedError:
            return self._estimated_num_seqs

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position: the one safe end test. May load."""
        return seq_idx < self.num_seqs

    def have_seqs(self) -> bool:
        """Whether the corpus holds any sequence.

        Raises:
            OptionalNotImplementedError: That cannot be known without an active epoch.
        """
        try:
            return self.get_total_num_seqs() > 0
        except NotImplementedError:
            if self._epoch is None:
                raise
            return self.is_less_than_num_seqs(0)

    def get_complete_frac(self, sorted_seq_idx: int, *, allow_only_lr_suitable: bool = False) -> float | None:
        """Return how much of the epoch is done after a sequence, in (0, 1], never falling.

        Args:
            sorted_seq_idx: Position in the current order.
            allow_only_lr_suitable: Return `None` rather than a guess if the number of sequences is unknown: a share of
                `estimated_num_seqs`, or a pseudo value.
        """
        num_seqs = self.known_num_seqs()
        if num_seqs is None:
            if allow_only_lr_suitable:
                return None
            estimated = self.estimated_num_seqs
            if not estimated or math.isinf(estimated):
                return max(1e-10, 0.99 * (1 - 1 / (math.sqrt(sorted_seq_idx) / _UNKNOWN_COUNT_SCALE + 1)))
            return min(1.0, (sorted_seq_idx + 1) / estimated)
        if not 0 <= sorted_seq_idx < num_seqs:
            raise IndexError(f"sequence {sorted_seq_idx} is outside an epoch of {num_seqs}")
        return min(1.0, (sorted_seq_idx + 1) / num_seqs)

    def len_info(self, *, fast: bool = False) -> str:
        """Return one line about the size of the corpus, in RETURNN's words.

        Args:
            fast: Say "unknown" rather than do slow work.
        """
        size, stored = told_size(self), None if self._corpus is None else self._corpus.stored_counts()
        frames = "unknown" if stored is None else str(stored.num_frames)
        if stored is None and not fast:
            with contextlib.suppress(NotImplementedError):
                frames = str(self.get_num_timesteps())
        return f"{type(self).__name__}, sequences: {'unknown' if size is None else size}, frames: {frames}"

    def __repr__(self) -> str:
        return card_of(self).line()

    def _repr_html_(self) -> str:
        return card_of(self).html()

    def _card(self) -> Card:
        epoch = int(self.epoch)
        divided = f" in {self.partition_epoch} sub-epochs" if self.partition_epoch > 1 else ""
        facts = [
            ("epoch", f"epoch {epoch}" if epoch else "no epoch yet"),
            ("order", f"order {self.seq_ordering}{divided}"),
        ]
        title = type(self).__name__ + ("" if self.name.startswith("dataset_id") else f" {self.name!r}")
        return Card(title, facts)

    def _not_offered(self, what: str) -> NoReturn:
        raise OptionalNotImplementedError(
            f"{type(self).__name__} does not offer {what}", where=f"dataset {self.name!r}"
        )

    # --- layout: `num_inputs`, `num_outputs`, `labels`, and what follows from them ---

    def _complete_outputs(self) -> None:
        """Bring what a sub-class has set as `num_outputs` to one form: (dim, ndim) of every key, "data" included."""
        if isinstance(getattr(type(self), "num_outputs", None), property) or self.num_outputs is None:
            return  # a property may have to read files, and is asked when somebody wants to know
        outputs = check_outputs(self.num_outputs, self.num_inputs or 0, f"dataset {self.name!r}")
        if outputs != self.num_outputs:
            self.num_outputs = outputs

    def get_data_keys(self) -> list[str]:
        """Return the data keys: "data", then the targets."""
        return ["data", *self.get_target_list()]

    def get_text_keys(self) -> list[str]:
        """Return the keys of texts, which `get_data` returns as arrays of one string, `str[]`.

        They are no part of batches and no data keys: the functions of a `PostprocessingDataset` get them, and make
        arrays of them.
        """
        return [] if self._corpus is None else list(self._corpus.text_keys)

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data": those that `num_outputs` names; "classes" as long as it is not set."""
        outputs = self.num_outputs
        if outputs is None:
            return ["classes"]
        return [key for key in check_outputs(outputs, 0, f"dataset {self.name!r}") if key != "data"]

    def _num_output(self, key: str) -> tuple[int, int]:
        outputs = self.num_outputs or {}
        if key not in outputs:
            raise ConfigError(f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, outputs))
        return outputs[key]

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        dim = self._num_output(key)[0]
        return dim * self.window if key == "data" else dim

    def _layout_of(self, key: str) -> DataSpec | None:
        """Return what is known of the arrays of a data key, `None` if that is what `num_outputs` tells."""
        layout = None if self._corpus is None else self._corpus.layout()
        return None if layout is None else layout.get(key)

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        known = self._layout_of(key)
        if known is not None:
            return known.dtype
        return "int32" if self.is_data_sparse(key) else "float32"

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        known = self._layout_of(key)
        return self._num_output(key)[1] <= 1 if known is None else known.sparse

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame, `None` for a free axis."""
        known = self._layout_of(key)
        if known is not None:
            shape = list(known.shape)
            if key == "data" and self.window > 1 and shape and shape[-1] is not None:
                shape[-1] *= self.window
            return shape
        dim, ndim = self._num_output(key)
        if self.is_data_sparse(key):
            return []
        return [None] * (ndim - 2) + [self.get_data_dim(key)] if ndim > 1 else [dim]

    def can_serialize_data(self, key: str) -> bool:
        """Whether this key has labels that tell classes apart: more than one."""
        return len(self.labels.get(key, ())) > 1

    def serialize_data(self, key: str, data: NDArray[Any]) -> str:
        """Return the text of class indices, `int[T]` or an int, by `labels[key]`.

        Words are joined by blanks, single characters (of fewer than 1000) by nothing; the 256 byte values are the
        bytes of UTF-8 text.

        Raises:
            ConfigError: There are no labels, or a class has none.
        """
        if key not in self.labels:
            raise ConfigError(
                f"no labels of {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, self.labels)
            )
        labels, classes = self.labels[key], np.asarray(data)
        wrong = classes[(classes < 0) | (classes >= len(labels))].tolist()
        if wrong:
            what = f"the class {wrong[0]} of {key!r} has no label: there are {len(labels)}"
            raise ConfigError(what, where=f"dataset {self.name!r}", fix="take out what marks no class, such as -1")
        if classes.ndim and len(labels) == 256 and all(label == chr(byte) for byte, label in enumerate(labels)):
            return classes.astype(np.uint8).tobytes().decode(errors="replace")
        are_characters = len(labels) < 1000 and all(len(label) == 1 for label in labels)
        return ("" if are_characters else " ").join(labels[index] for index in np.atleast_1d(classes).tolist())

    # --- asked by loaders, and where it is a part of another dataset ---

    def get_parts(self) -> Sequence[Dataset]:
        """Return the datasets that one of a class of your own is made of. They are not shared, see `open_part`."""
        return ()

    def seed_by_tag(self) -> None:
        """Key what is drawn for sequences by their tags, see `Corpus.seeds_by_tag`."""
        if self._corpus is not None:
            self._corpus, self._foreign = self._corpus.seeded_by_tag(), None
        for part in self.get_parts():
            part.seed_by_tag()

    def given_text(self, *, only_content: bool) -> str:
        """Return the constructor's arguments as a text: all that may matter, or those named by `_content_options`."""
        args, kwargs = self._given
        given = given_options(type(self), args, kwargs)
        if only_content:
            given = {name: given[name] for name in self._content_options if name in given}
        return options_text(given, dataset_text) if given else ""

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:  # noqa: ARG003 (for those whose stream depends)
        """Return those of the given options that do not change what is delivered: speed, names and locations.

        A user-defined class may add arguments, such as a folder for its copies: a state is accepted with others.
        """
        return IDLE_OPTIONS

    @classmethod
    def unwrap_options(cls, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """Return the options of the dataset that workers of this class read, and into how many shards they divide it.

        Args:
            options: Options of this class; they are what is returned for one that wraps nothing in workers.
        """
        return options, 1

    def _batch_options(self) -> list[str]:
        """Return the given options, here or in a part, that only affect the batches of the epoch API."""
        given = {"chunking": self.chunking is not None, "context_window": any(self.context_window)}
        found = [f"{name} of {type(self).__name__} {self.name!r}" for name, is_given in given.items() if is_given]
        parts = [part.get_corpus() for part in self.get_parts()] if self._corpus is None else self._corpus.parts
        return [*found, *(option for part in parts for option in part.batch_options)]


def _made_again(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], since: Mapping[str, Any]) -> Any:
    dataset = cls(*args, **kwargs)
    dataset._restore(since)
    return dataset


def _with_corpus(cls: Any, state: Mapping[str, Any], corpus: Corpus) -> Any:
    made = cls.__new__(cls)
    vars(made).update(state)
    made._corpus = corpus
    made._begin()
    return made


def dataset_text(value: Any, epoch: int = 1) -> str | None:
    """Return a text of a dataset in an epoch, for `options_text`; `None` for all else."""
    if isinstance(value, Dataset):
        value = value.get_corpus()
    if isinstance(value, Corpus):
        return f"{value.kind} {value.digest_text()} {value.order_text(epoch)}"
    return None


def with_copied_parts(value: Any) -> Any:
    """Return constructor arguments in which each dataset and source is a copy; arrays and all else are shared.

    Raises:
        Exception: What user code raises, where a dataset cannot be made again, or a source not be pickled.
    """
    if isinstance(value, Dataset):
        return copy.copy(value)
    if isinstance(value, Source):
        return value.for_another_reader() or pickle.loads(pickle.dumps(value))  # noqa: S301 - made here
    if type(value) in (list, tuple):
        return type(value)(map(with_copied_parts, value))
    if type(value) is dict:
        return {key: with_copied_parts(item) for key, item in value.items()}
    return value
