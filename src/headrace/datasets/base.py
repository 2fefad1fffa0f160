"""`Dataset`: the epoch API, by its RETURNN-compatible names, and what others ask of a dataset without reading it.

Life cycle: construct, `initialize`, then for each epoch `init_seq_order(epoch=E)` and, in rising order,
`load_seqs(i, i + 1)`, `get_data(i, key)`; or, in one line, `for seq in dataset.epoch(E)`. `order` says which sequence
comes when, `batching` cuts it into chunks, `returnn` groups these into batches.

Each question about the sequences of any epoch has a default answer by the epoch API (`foreign.py`), so a sub-class that
was written for RETURNN answers, too. Headrace's classes answer at a lower cost. An object serves one thread.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import operator
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Chunking, ChunkingFunction, NumbersDict, parse_chunking, parse_context_window
from headrace.errors import ConfigError, OptionalNotImplementedError, did_you_mean
from headrace.exports import refuse_departed
from headrace.order import (
    ArrayOrder,
    Order,
    OrderCorpus,
    OrderPlanner,
    OrderRecipe,
    OrderReport,
    Policy,
    RangeOrder,
    derive_order_seed,
    occurrences,
)
from headrace.show.card import Card, card_of
from headrace.sources import Source
from headrace.sources.naming import options_of
from headrace.specs import DataSpec

from .checks import (
    check_count,
    check_epoch,
    check_flag,
    check_indices,
    check_outputs,
    check_path,
    check_share,
    check_window,
    is_of_headrace,
    takes_argument,
)
from .corpus import (
    Corpus,
    DistributesFiles,
    IndexedFiles,
    StoredCounts,
    as_lengths,
    first_of_tag,
    lengths_of_tags,
    mask_of_tags,
    read_wanted_tags,
    sum_left_out,
)
from .digests import IDLE_OPTIONS, digest_array, digest_text, given_options, options_text, recipe_text
from .foreign import EpochReader, EpochStream, ForeignCorpus
from .reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest
from .returnn.batch import index_shape_for_batches
from .returnn.batch_generator import Batch, BatchSetGenerator, plan_batches
from .returnn.walk import EpochHandle, check_not_stale, iterate_chunks
from .seq import DatasetSeq
from .workers import DatasetWorkers

SeqOrdering = str | Policy | Callable[..., "str | Policy"]

_UNKNOWN_COUNT_SCALE = 100.0  # RETURNN's shape of the pseudo progress when the number of sequences is unknown
# Options that may be set on an object, besides those of the order: a copy has them, too.
_PLAIN_OPTIONS = (
    "window",
    "context_window",
    "chunking",
    "min_chunk_size",
    "chunking_variance",
    "unique_seq_tags",
)
# Methods by which a user-defined class may read in its own way, named as in RETURNN.
_ways_of = operator.attrgetter("load_seqs", "get_seq", "get_data", "get_tag")
_orders_of = operator.attrgetter(
    "init_seq_order", "get_current_seq_order", "get_seq_order_for_epoch", "_order_of_epoch"
)


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
    """Whether its options say how many workers read it, see `get_workers`."""

    distributes_files: ClassVar[bool] = False
    """Whether it distributes files, see `distributed_files`."""

    content_options: tuple[str, ...] = ()
    """Arguments that change what a sequence holds, and that neither tags nor lengths nor the order tell."""

    gives_own: ClassVar[bool] = False
    """Whether `get_seq` gives arrays that are the caller's own; else the same ones may come again."""

    supports_window = False
    supports_frame_shuffling = False
    num_inputs: int = 0
    num_outputs: dict[str, tuple[int, int]] | None = None
    labels: dict[str, Sequence[str]]

    claimed_by: Callable[[], object] | None = None
    """Whose part it is, if it cannot be copied; see `parts.py`."""

    _ctor_args: tuple[tuple[Any, ...], dict[str, Any]]
    _given: tuple[tuple[Any, ...], dict[str, Any]]  # as they were written: a class may put others into `_ctor_args`
    _content: str | None = None
    _is_ours: ClassVar[bool] = True  # whether the class is one of Headrace's
    _has_user_ways: ClassVar[bool] = False  # whether a user-defined class reads in its own way
    _has_user_order: ClassVar[bool] = False  # whether it makes the order in its own way
    _has_user_tags: ClassVar[bool] = False  # whether it returns tags and an order, and accepts one

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Note what a user-defined class overrides."""
        super().__init_subclass__(**kwargs)
        cls._is_ours = is_of_headrace(cls)
        cls._has_user_ways = not all(map(is_of_headrace, _ways_of(cls)))
        cls._has_user_order = not all(map(is_of_headrace, _orders_of(cls)))
        tells = not any(map(is_of_headrace, (cls.get_all_tags, cls.get_current_seq_order)))
        cls._has_user_tags = tells and takes_argument(cls.init_seq_order, "seq_order")
        if cls._has_user_ways:
            cls.gives_own = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the constructor's arguments: a pickled dataset is made again from them, not from its open files."""
        self = super().__new__(cls)
        self._ctor_args = self._given = (args, kwargs)
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
        self.seq_list_filter_file = check_path("seq_list_filter_file", seq_list_filter_file)
        self.seq_order_seq_lens_file = check_path("seq_order_seq_lens_file", seq_order_seq_lens_file)
        self.unique_seq_tags = check_flag("unique_seq_tags", unique_seq_tags)
        self.labels: dict[str, Sequence[str]] = {}
        self.weights: dict[int, float] = {}
        self._drop_seed = 0
        self._rnd_seq_drop: random.Random | None = None
        self.order_version = 0
        self.seeds_by_tag = False  # see `seed_by_tag`
        self._order_options: dict[str, Any] = {}  # those that were set since it was made
        self._epoch: int | None = None
        self._unsettled_shard: tuple[int, int] | None = None  # assigned, and not in agreement yet
        self._estimated_num_seqs = estimated_num_seqs
        self._recipe = OrderRecipe(
            seq_ordering=seq_ordering,
            fixed_random_seed=fixed_random_seed,
            random_seed_offset=random_seed_offset,
            partition_epoch=partition_epoch,
            repeat_epoch=repeat_epoch,
            num_shards=_num_shards,
            shard_index=_shard_index,
        )
        self._seq_ordering = seq_ordering
        self._planner = OrderPlanner(self._recipe)
        # Read now and kept: a file that changes between two sub-epochs must not change what they divide.
        self._wanted_tags = None if self.seq_list_filter_file is None else read_wanted_tags(self.seq_list_filter_file)
        self._keep: NDArray[np.bool_] | None = None
        self._file_lengths: NDArray[Any] | None = None

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

    # --- options by their RETURNN-compatible names ---

    @property
    def order_recipe(self) -> OrderRecipe:
        """The options that make the order."""
        return self._recipe

    def _change_recipe(self, **changes: Any) -> None:
        """Set options after construction, as sub-classes do; takes effect with the next `init_seq_order`."""
        self._recipe = dataclasses.replace(self._recipe, **changes)
        self._planner = OrderPlanner(self._recipe)
        if "foreign" in vars(self):
            self.foreign.forget_copy()

    @property
    def seq_ordering(self) -> SeqOrdering:
        """The ordering as it was given: text, a policy, or a function."""
        return self._seq_ordering

    @seq_ordering.setter
    def seq_ordering(self, value: SeqOrdering) -> None:
        self._change_recipe(seq_ordering=value)
        self._order_options["seq_ordering"] = value
        self._seq_ordering = value

    @property
    def partition_epoch(self) -> int:
        """Number of sub-epochs of a full pass."""
        return self._recipe.num_sub_epochs

    @partition_epoch.setter
    def partition_epoch(self, value: int | None) -> None:
        self._change_recipe(partition_epoch=value)
        self._order_options["partition_epoch"] = value

    @property
    def repeat_epoch(self) -> int:
        """How often the order is given in one epoch."""
        return self._recipe.num_repeats

    @repeat_epoch.setter
    def repeat_epoch(self, value: int | None) -> None:
        self._change_recipe(repeat_epoch=value)
        self._order_options["repeat_epoch"] = value

    @property
    def fixed_random_seed(self) -> int | None:
        """The seed of every epoch, if fixed."""
        return self._recipe.fixed_random_seed

    @fixed_random_seed.setter
    def fixed_random_seed(self, value: int | None) -> None:
        self._change_recipe(fixed_random_seed=value)
        self._order_options["fixed_random_seed"] = value

    @property
    def random_seed_offset(self) -> int:
        """What is added to the number of the full epoch to give its seed."""
        return self._recipe.random_seed_offset or 0

    @random_seed_offset.setter
    def random_seed_offset(self, value: int | None) -> None:
        self._change_recipe(random_seed_offset=value)
        self._order_options["random_seed_offset"] = value

    @property
    def num_shards(self) -> int:
        """Number of shards of each sub-epoch."""
        return self._recipe.num_shards

    @property
    def shard_index(self) -> int:
        """Which of the shards this is."""
        return self._recipe.shard_index

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
        self._change_recipe(num_shards=num_shards, shard_index=shard_index)

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
        if self._recipe.num_shards > 1 and not self.supports_sharding():
            raise ConfigError(
                f"{type(self).__name__} does not support sharding (_num_shards={self._recipe.num_shards})",
                where=f"dataset {self.name!r}",
            )
        self._epoch = check_epoch(epoch)
        self.order_version += 1
        self._complete_outputs()
        self._drop_seed = self.get_random_seed_for_epoch(self._epoch)
        self._rnd_seq_drop = None
        return True

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, of the parts as well: reads are invalid until the next one; `num_seqs` still answers.

        Args:
            free_resources: Also release the order, files and caches; they come back with the next `init_seq_order`.
        """
        self._epoch = None
        self.order_version += 1
        if free_resources:
            self._planner.invalidate()
            self._keep = None
            if "foreign" in vars(self):
                self.foreign.close()
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
        """Pickle as constructor arguments: a copy has the options, sharding and epoch number, but no current order."""
        args, kwargs = self._ctor_args
        return _rebuild, (type(self), args, kwargs, self._state())

    def __copy__(self) -> Self:
        """Return a dataset of the same arguments and options, with parts of its own; arrays are shared.

        Raises:
            ConfigError: An argument is an iterator, which can be read once.
        """
        if type(self).__reduce__ is not Dataset.__reduce__:
            return copy.deepcopy(self)
        args, kwargs = self._ctor_args
        for value in (*args, *kwargs.values()):
            if isinstance(value, Iterator):
                raise ConfigError(
                    f"a dataset made of a {type(value).__name__} cannot be copied: that can be iterated over only once",
                    where=f"dataset {self.name!r}",
                    fix="give an object whose __iter__ starts from the beginning",
                )
        made = _rebuild(type(self), with_copied_parts(args), with_copied_parts(kwargs), self._state())
        assert isinstance(made, type(self))
        return made

    def _state(self) -> dict[str, Any]:
        """Return what a copy needs in addition to the constructor's arguments."""
        self._check_shard()
        return {
            "shard": (self._recipe.num_shards, self._recipe.shard_index),
            "epoch": self._epoch,
            "order": dict(self._order_options),
            "options": {name: getattr(self, name) for name in _PLAIN_OPTIONS},
            "weights": dict(self.weights),
            "content": self.content_text() if self.content_options else self._content,
            "by_tag": self.seeds_by_tag,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `_state` returned."""
        if state["shard"] != (self._recipe.num_shards, self._recipe.shard_index):
            self.set_sharding(*state["shard"])
        for name, value in {**state["order"], **state["options"]}.items():
            setattr(self, name, value)
        self.weights, self._content = dict(state["weights"]), state["content"]
        if state["by_tag"]:
            self.seed_by_tag()
        self._epoch = state["epoch"]

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
        return self._planned_order(epoch, num_seqs, get_seq_len).to_indices()

    def _lazy_order_for_epoch(self, epoch: int | None, num_seqs: int) -> Order:
        """Return what `get_seq_order_for_epoch` does, not held in memory where that is not overridden."""
        if self._plans_order:
            return self._planned_order(epoch, num_seqs, None)
        return self._explicit_order(self.get_seq_order_for_epoch(epoch, num_seqs), num_seqs)

    @property
    def _plans_order(self) -> bool:
        """Whether orders come from the planner: `get_seq_order_for_epoch` is not overridden."""
        return type(self).get_seq_order_for_epoch is Dataset.get_seq_order_for_epoch

    def _planned_order(self, epoch: int | None, num_seqs: int, get_seq_len: Any) -> Order:
        if epoch is None:
            return RangeOrder(range(0))
        return self._planner.order_for_epoch(epoch, self._order_corpus(int(num_seqs), get_seq_len))

    def _order_corpus(self, num_seqs: int, get_seq_len: Any) -> OrderCorpus:
        """Say what an order may ask of the corpus. A sub-class's corpus may change from epoch to epoch."""
        lengths: Callable[[], NDArray[Any]] | None = None
        if self.seq_order_seq_lens_file is not None:
            lengths = self._lengths_of_file
        elif get_seq_len is not None:
            lengths = lambda: as_lengths(get_seq_len, num_seqs)  # noqa: E731 (a named function would say no more)
        return OrderCorpus(
            num_seqs=num_seqs,
            lengths=lengths,
            keep=self._keep_mask if self._wanted_tags is not None else None,
            first_of_tag=self._first_of_tag if self.unique_seq_tags else None,
            is_fixed=False,
        )

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, by corpus index, before any filter."""
        return self.get_all_tags()

    def _keep_mask(self) -> NDArray[np.bool_]:
        """Return `bool[N]`: which sequences the filter keeps."""
        assert self._wanted_tags is not None
        return mask_of_tags(self.get_corpus_tags(), self._wanted_tags, where=str(self.seq_list_filter_file))

    def _lengths_of_file(self) -> NDArray[Any]:
        if self._file_lengths is None:
            assert self.seq_order_seq_lens_file is not None
            self._file_lengths = lengths_of_tags(self.get_corpus_tags(), self.seq_order_seq_lens_file)
        return self._file_lengths

    def _first_of_tag(self) -> NDArray[np.int64]:
        return first_of_tag(self.get_corpus_tags())

    def _order_of_epoch(self, epoch: int) -> Order:
        self._not_offered(f"the order of epoch {epoch}")

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        self._not_offered("get_current_seq_order")

    def get_checked_seq_order(self, num_seqs: int | None = None) -> Order:
        """Return `get_current_seq_order` as an order, which a user-defined class may give as any list of numbers.

        Args:
            num_seqs: Size of the corpus; `None`: what `get_total_num_seqs` returns, if that is fast.

        Raises:
            ConfigError: It holds something else than corpus indices.
            OptionalNotImplementedError: The order is not known.
        """
        order: Any = self.get_current_seq_order()
        if isinstance(order, Order):
            return order
        num_seqs = self._told_size() if num_seqs is None else num_seqs
        where = f"{type(self).__name__} {self.name!r}"
        return ArrayOrder(
            check_indices(order, 2**62 if num_seqs is None else num_seqs, where, what="get_current_seq_order")
        )

    def _explicit_order(self, seq_order: Sequence[int] | NDArray[Any], num_seqs: int) -> Order:
        """Check an order given by corpus indices."""
        return ArrayOrder(check_indices(seq_order, num_seqs, f"dataset {self.name!r}"))

    def _told_size(self) -> int | None:
        try:
            return None if self._wanted_tags is not None else self.get_total_num_seqs(fast=True)
        except (NotImplementedError, TypeError):  # a user-defined class need not have the parameter `fast`
            return None

    @property
    def order_report(self) -> OrderReport | None:
        """What the recipe leaves out or repeats in the full epoch that was last asked for; `None` before the first."""
        return self._planner.report

    def supports_seq_order_sorting(self) -> bool:
        """Whether lengths are known, so that sorting orders work."""
        return self.seq_order_seq_lens_file is not None

    def supports_sharding(self) -> bool:
        """Whether `_num_shards > 1` is legal."""
        return False

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
        self._not_offered("get_all_tags")

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus, without those that the filter drops.

        Args:
            fast: Raise `OptionalNotImplementedError` rather than do slow work.
        """
        self._not_offered("get_total_num_seqs")

    def have_corpus_seq_idx(self) -> bool:
        """Whether `get_corpus_seq_idx` works."""
        return False

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        self._not_offered("get_corpus_seq_idx")

    def have_get_corpus_seq(self) -> bool:
        """Whether `get_corpus_seq` works."""
        return False

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus, whatever the current order."""
        self._not_offered("get_corpus_seq")

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

    def stored_counts(self) -> StoredCounts | None:
        """Return how much its files hold, if that is known without reading sequences."""
        return None

    def len_info(self, *, fast: bool = False) -> str:
        """Return one line about the size of the corpus, in RETURNN's words.

        Args:
            fast: Say "unknown" rather than do slow work.
        """
        size, stored = self._told_size(), self.stored_counts()
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
            ("order", f"order {self._seq_ordering}{divided}"),
        ]
        parts = [part._card() for part in vars(self).values() if isinstance(part, Dataset)]
        title = type(self).__name__ + ("" if self.name.startswith("dataset_id") else f" {self.name!r}")
        return Card(title, facts, parts=parts)

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
        return []

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
        return None

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

    # --- what is known without reading: asked by loaders, and by datasets made of others ---

    def get_parts(self) -> Sequence[Dataset]:
        """Return the datasets that this one is made of. They are not shared."""
        return ()

    @cached_property
    def foreign(self) -> ForeignCorpus:
        """What is known of it by its epochs, where it is of a class that was written for RETURNN."""
        return ForeignCorpus(self, tells_tags=self._has_user_tags)

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the sequences without reading them. Nothing is computed until it is asked for.

        For a user-defined class: what `get_all_tags`, `get_total_num_seqs` and `get_seq_length` return.

        Args:
            epoch: Where lengths differ between epochs, the epoch whose lengths to give; `None`: the current one.
        """
        parts = [part.get_corpus(epoch) for part in self.get_parts()]
        epoch = self._epoch if epoch is None else epoch
        corpus = Corpus(
            digest_text=self.foreign.digest_of_tags,
            knows_order=self.foreign.knows_order,
            size=self._told_size,
            lengths=partial(self.foreign.lengths, epoch=epoch),
            may_change_lengths=any(part.may_change_lengths for part in parts),
            num_filtered=lambda: sum_left_out(parts),
            encodes_texts=any(part.encodes_texts for part in parts),
        )
        return self.foreign.with_tags(corpus, epoch, self._kept)

    def _kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what filters keep; `None` without any."""
        return None if self._wanted_tags is None else self._keep_mask()

    def get_epoch_order(
        self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False
    ) -> CountedOrder:
        """Return the order of an epoch. The current epoch, which may be in use, is not changed.

        A user-defined class that makes its order by `init_seq_order` is asked by a copy, see `ForeignCorpus`.

        Args:
            epoch: The epoch number; `None`: of no epoch.
            given: The order to use in place of that of the epoch.
            counts: Whether the caller seeds random draws by how often a sequence came before.

        Returns:
            Corpus indices; and how often each of them came before, `int64[n]`, or `None` if nothing is drawn by it.

        Raises:
            OptionalNotImplementedError: The order is not known.
        """
        if self._has_user_order:
            return self.foreign.order(epoch, given, counts=counts)
        return self._make_order(epoch, given, counts=counts)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        """Do what `get_epoch_order` does, where no user-defined class makes the order."""
        return self.foreign.order(epoch, given, counts=counts)

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences.

        Returns:
            The position under which the first one is read here.
        """
        self.foreign.start_order(wanted.epoch, wanted.indices)
        return 0

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        return occurrences(self.get_checked_seq_order())

    def seed_by_tag(self) -> None:
        """Key the generators of transforms by the tags of sequences, not by their corpus indices.

        For a dataset that is a part of a larger corpus, a different part each time: corpus indices mean nothing there.
        """
        self.seeds_by_tag = True
        for part in self.get_parts():
            part.seed_by_tag()

    def check_tags(self) -> None:
        """Compare tags from now on, also of the parts, see `ForeignCorpus.check_tags`."""
        self.foreign.check_tags()
        for part in self.get_parts():
            part.check_tags()

    def indexed_files(self) -> list[IndexedFiles]:
        """Return fingerprints of the files that this dataset and its parts were made of, as they were indexed."""
        return [files for part in self.get_parts() for files in part.indexed_files()]

    def indexed_source(self) -> Source | None:
        """Return the source whose index tells the lengths of sequences as they are stored, if there is one."""
        return self.make_reader().fast_source()

    def sort_lengths_in(self, epoch: int | None) -> NDArray[Any]:
        """Return the sort keys of an epoch by corpus index, `int[N]`; from a file if one is given."""
        if self.seq_order_seq_lens_file is not None:
            return self._lengths_of_file()
        return self.get_corpus(epoch).sort_lengths()

    def source_of_tags(self) -> object:
        """Return the object that the tags come from: a new one if the tags may have changed."""
        return self

    def may_draw_order(self) -> bool:
        """Whether user code determines the order, here or in a part: it may draw from the global generators."""
        ordering = self._seq_ordering
        is_ours = self._is_ours and (isinstance(ordering, str) or is_of_headrace(type(ordering)))
        return not is_ours or any(part.may_draw_order() for part in self.get_parts())

    def order_text(self, epoch: int) -> str:
        """Return a text of everything, except the corpus, that determines what an epoch delivers.

        Equal texts, equal streams of equal corpora: the order, what is drawn, and options of how sequences are read.
        Where the current epoch is does not matter, and stays.
        """
        return "; ".join([recipe_text(self._recipe, epoch), *self._order_details(epoch), self.reading_text(epoch)])

    def reading_text(self, epoch: int) -> str:
        """Return a text of everything that determines the content of a sequence, whatever the order."""
        inner = [f"of {inner.reading_text(epoch)}" for inner in self.get_parts()]
        return "; ".join([*self._reading_details(), *inner])

    def _reading_details(self) -> list[str]:
        """Return what this dataset itself does to sequences."""
        content, draws = self.content_text(), not self._is_ours or self.get_corpus().draws_by_occurrence
        return [
            *([f"window {self.window}"] if self.window > 1 else []),
            *([f"options {content}"] if content else []),
            *([f"draws {self.fixed_random_seed} {self.random_seed_offset}"] if draws else []),
        ]

    def _order_details(self, epoch: int) -> list[str]:
        """Return what the order depends on in addition to the recipe."""
        details = [f"unique {self.unique_seq_tags}"]
        if self._wanted_tags is not None:
            details.append(f"kept {digest_text(' '.join(sorted(self._wanted_tags)))}")
        if self.seq_order_seq_lens_file is not None:
            with contextlib.suppress(NotImplementedError):  # without tags, nothing is sorted by it
                details.append(f"sorted by {digest_array(np.asarray(self._lengths_of_file()))}")
        own = self._own_order_text(epoch)
        return [*details, own] if own else details

    def _own_order_text(self, epoch: int) -> str:
        """Return a digest of the order that a user-defined class makes itself, as a text, O(N); else nothing."""
        if not self._has_user_order or not self.foreign.has_own_order():
            return ""
        order, _ = self.get_epoch_order(epoch)
        return f"own order {digest_array(order.block(0, len(order)))}"

    def content_text(self) -> str:
        """Return the arguments named by `content_options` as a text; of a copy, those of the first one.

        For a stream of a user-defined class, about which nothing else is known: all arguments.
        """
        if self._content is None:
            args, kwargs = self._given
            given = given_options(type(self), args, kwargs)
            if self._is_ours or self.get_corpus().knows_order():
                given = {name: given[name] for name in self.content_options if name in given}
            self._content = options_text(given, dataset_text) if given else ""
        return self._content

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:  # noqa: ARG003 (for those whose stream depends)
        """Return those of the given options that do not change what is delivered: speed, names and locations.

        A user-defined class may add arguments, such as a folder for its copies: a state is accepted with others.
        """
        return IDLE_OPTIONS

    @property
    def supports_jumps(self) -> bool:
        """Whether the sequence at any position is given without reading those before it.

        A user-defined class says so by this attribute. All others are read from their start on, each position once:
        that is what the epoch API promises to a sub-class.
        """
        return False

    def get_workers(self) -> DatasetWorkers | None:
        """Return the workers that this dataset itself was given, `None` if it has none."""
        return None

    @property
    def has_workers(self) -> bool:
        """Whether processes other than the caller's read it, or a part of it."""
        own = self.get_workers()
        return (own is not None and not own.is_inline) or any(part.has_workers for part in self.get_parts())

    @property
    def sharded_by(self) -> str:
        """The option by which it is one of several shards, for messages."""
        return f"_num_shards={self.num_shards}"

    def distributed_files(self) -> DistributesFiles | None:
        """Return the dataset that knows the files of an epoch, if files are distributed; `None` for all others."""
        return None

    @classmethod
    def unwrap_options(cls, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """Return the options of the dataset that workers of this class read, and into how many shards they divide it.

        Args:
            options: Options of this class; they are what is returned for one that wraps nothing in workers.
        """
        return options, 1

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out, so that an order does not say how many come."""
        return False

    def batch_options(self) -> list[str]:
        """Return the given options, here or in a part, that only affect the batches of the epoch API."""
        given = {"chunking": self.chunking is not None, "context_window": any(self.context_window)}
        found = [f"{name} of {type(self).__name__} {self.name!r}" for name, is_given in given.items() if is_given]
        for inner in self.get_parts():
            found += inner.batch_options()
        return found

    def forget_positions(self) -> None:
        """Note that this dataset is started with sequences whose positions are not those of the epoch.

        Datasets that pass positions to functions then pass corpus indices instead, and not how much of the epoch is
        done. Datasets with a reader of their own learn the positions from each request.
        """
        for inner in self.get_parts():
            inner.forget_positions()

    def make_reader(self) -> Reader:
        """Return a reader of sequences by their corpus indices, for the owner of this dataset.

        It may start epochs of this dataset, or of parts of it. For all others there is `open_reader` in `parts.py`.
        """
        return EpochReader(self) if self._has_user_ways else self._new_reader()

    def make_stream(self, epoch: int, start: int = 0) -> EpochStream:
        """Start an epoch, and return an iterator over its sequences: for what has no index.

        Args:
            epoch: The epoch number.
            start: The position from which on the caller wants them.

        Returns:
            The sequences from `start` on, where any of them is given at once (see `supports_jumps`); else all of them:
            its `position` says which comes first, and the caller passes over those that are not wanted.
        """
        self.init_seq_order(epoch=epoch)
        return EpochStream(self, start if self.supports_jumps else 0)

    def _new_reader(self) -> Reader:
        """Return a reader of any sequence, where no user-defined class reads in its own way."""
        return EpochReader(self)


def _rebuild(cls: type[Dataset], args: tuple[Any, ...], kwargs: dict[str, Any], state: Mapping[str, Any]) -> Dataset:
    dataset = cls(*args, **kwargs)
    dataset._restore(state)
    return dataset


def dataset_text(value: Any, epoch: int = 1) -> str | None:
    """Return a text of a dataset in an epoch, for `options_text`; `None` for all else."""
    if isinstance(value, Owned):
        value = value.dataset
    if isinstance(value, Dataset):
        return f"{type(value).__name__} {value.get_corpus().digest_text()} {value.order_text(epoch)}"
    return None


class Owned:
    """A dataset that belongs to the one that gets this: it is used as it is, where any other object would be copied.

    It stands among the arguments of a composed dataset for a part that is made already, so that a copy of the whole
    copies each part once.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset


def with_copied_parts(value: Any) -> Any:
    """Return constructor arguments in which each dataset and source is a copy; arrays and all else are shared.

    Raises:
        Exception: What user code raises, where a dataset cannot be made again, or a source not be pickled.
    """
    if isinstance(value, Dataset):
        return copy.copy(value)
    if isinstance(value, Owned):
        return Owned(copy.copy(value.dataset))
    if isinstance(value, Source):
        return value.for_another_reader() or pickle.loads(pickle.dumps(value))  # noqa: S301 - made here
    if type(value) in (list, tuple):
        return type(value)(map(with_copied_parts, value))
    if type(value) is dict:
        return {key: with_copied_parts(item) for key, item in value.items()}
    return value
