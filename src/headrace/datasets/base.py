"""`Dataset`: the documented face of the epoch API.

It holds the options and the state of one epoch, and leaves the work to small parts: `order` says which sequence comes
when, `batching` cuts it into chunks, `batches` groups it, a source (in `CachedDataset`) reads it. Life cycle:
construct, `initialize`, then for each epoch `init_seq_order(epoch=E)` and, in rising order, `load_seqs(i, i + 1)`,
`get_data(i, key)`; or, in one line, `for seq in dataset.epoch(E)`. An object serves one thread.

The file is long because the documented face is: about sixty methods, most of them a line that asks a part.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.batching import Chunking, ChunkingFunction, NumbersDict, parse_chunking, parse_context_window
from headrace.errors import ConfigError, OptionalNotImplementedError, did_you_mean
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
)
from headrace.sources import Source
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
)
from .corpus import CorpusFacts, LengthsOf, as_lengths, first_of_tag, lengths_of_tags, mask_of_tags, read_wanted_tags
from .digests import IDLE_OPTIONS, digest_array, digest_text, given_options, options_text, recipe_text
from .returnn.batch import index_shape_for_batches
from .returnn.batch_generator import Batch, BatchSetGenerator, plan_batches
from .returnn.config_defaults import eval_defaults, fill_from_config, train_defaults
from .returnn.walk import EpochHandle, check_not_stale, iterate_chunks
from .seq import DatasetSeq

if TYPE_CHECKING:
    from headrace.engine import EngineOptions, WorkerInfo

SeqOrdering = str | Policy | Callable[..., "str | Policy"]
# Options that may be set on an object, besides those of the order: a copy has them, too.
_PLAIN_OPTIONS = (
    "window",
    "context_window",
    "chunking",
    "min_chunk_size",
    "chunking_variance",
    "unique_seq_tags",
)
_UNKNOWN_COUNT_SCALE = 100.0  # documented shape of the pseudo progress when the number of sequences is unknown
_MAKE_ORDER = ("init_seq_order", "get_current_seq_order", "get_seq_order_for_epoch", "_order_of_epoch")


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
        estimated_num_seqs: Shown where the number of sequences is unknown.
        _num_shards: Number of shards of each sub-epoch.
        _shard_index: Which of them this is.

    Raises:
        ConfigError: An option is wrong; valid forms are named.
    """

    supports_window = False
    supports_frame_shuffling = False
    content_options: tuple[str, ...] = ()
    """Arguments that change what a sequence holds, and that neither tags nor lengths nor the order tell."""

    num_inputs: int = 0
    num_outputs: dict[str, tuple[int, int]] | None = None
    _ctor_args: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the constructor's arguments: a pickled dataset is made again from them, not from its open files."""
        self = super().__new__(cls)
        self._ctor_args = (args, kwargs)
        return self

    @classmethod
    def from_config(cls, config: Any, **kwargs: Any) -> Self:
        """Make a dataset of this class, with options that the settings of a RETURNN config give it.

        Args:
            config: A mapping, or RETURNN's `Config`, see `kwargs_update_from_config`.
            **kwargs: Options of the class; they count first.
        """
        cls.kwargs_update_from_config(config, kwargs)
        return cls(**kwargs)

    @staticmethod
    def kwargs_update_from_config(config: Any, kwargs: dict[str, Any]) -> None:
        """Set options that `kwargs` lacks by the settings of a config: `batching`, `chunking`, `window`, ..."""
        fill_from_config(config, kwargs)

    @staticmethod
    def get_default_kwargs_eval(config: Any) -> dict[str, Any]:
        """Return the options that data for evaluation have by default: sorted, not cut."""
        return eval_defaults(config)

    @staticmethod
    def get_default_kwargs_train(config: Any) -> dict[str, Any]:
        """Return the options that training data have by default: those of a shard, if the config asks for shards."""
        return train_defaults(config)

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
    ) -> None:
        self._given = self._ctor_args  # as they were written: a class may put others in their place, for copies
        self._content: str | None = None
        self._apart: tuple[bool, Dataset | None] = False, None
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
        self._claim: Callable[[], object] | None = None  # whose part it is, if it cannot be copied
        self._order_options: dict[str, Any] = {}  # those that were set since it was made
        self._epoch: int | None = None
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

    # --- options by their RETURNN-compatible names ---

    def _change_recipe(self, **changes: Any) -> None:
        """Set options after construction, as sub-classes do; takes effect with the next `init_seq_order`."""
        self._recipe = dataclasses.replace(self._recipe, **changes)
        self._planner = OrderPlanner(self._recipe)
        if self._apart[1] is not self:
            self._apart = False, None  # it has the old options

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

    # RETURNN's loader for PyTorch reads these two names of a dataset to share it out to the workers.
    @property
    def _num_shards(self) -> int:
        return self.num_shards

    @property
    def _shard_index(self) -> int:
        return self.shard_index

    @property
    def epoch(self) -> EpochHandle:
        """The current epoch number (0: none), and the reader of one: `for seq in dataset.epoch(3)`."""
        return EpochHandle.of(self, self._epoch)

    @epoch.setter
    def epoch(self, number: int | None) -> None:
        self._epoch = check_epoch(number)

    @property
    def chunking(self) -> Chunking | ChunkingFunction | None:
        """How `iterate_seqs` cuts sequences: parsed, or the function that was given; `None` if it does not."""
        if self.custom_chunking_func is not None:
            return self.custom_chunking_func
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

    def initialize(self) -> None:
        """Get ready to read: check that the layout is known. `init_dataset` calls it.

        Raises:
            ConfigError: `num_outputs` is not set.
        """
        if self.num_outputs is None:
            raise ConfigError(f"{type(self).__name__} did not set num_outputs", where=f"dataset {self.name!r}")
        self.init_seq_order()
        self._complete_outputs()

    def _complete_outputs(self) -> None:
        """Bring what a sub-class has set as `num_outputs` to one form: (dim, ndim) of every key, "data" included."""
        if isinstance(getattr(type(self), "num_outputs", None), property) or self.num_outputs is None:
            return  # a property may have to read files, and is asked when somebody wants to know
        outputs = check_outputs(self.num_outputs, self.num_inputs or 0, f"dataset {self.name!r}")
        if outputs != self.num_outputs:
            self.num_outputs = outputs

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

    def init_part(
        self,
        epoch: int,
        first: int,
        indices: NDArray[np.int64],
        occurrences: NDArray[np.int64] | None = None,
    ) -> int:
        """Start a part of an epoch, as workers do who share one.

        Args:
            epoch: The epoch number.
            first: Place of the first sequence in the epoch.
            indices: `int64[n]`, corpus indices.
            occurrences: `int64[n]`, how often each of them came before in the epoch; `None` if never.

        Returns:
            The place under which the first sequence is read here: `first` where the class can count from there, else 0.
        """
        del first
        self.init_seq_order(epoch=epoch, seq_order=indices.tolist())
        return 0

    def seed_by_tag(self) -> None:
        """Key the generators of transforms by the tags of sequences, not by their places in the corpus.

        For a dataset that is a part of a larger corpus, and a different one each time: places mean nothing there.
        """
        self.seeds_by_tag = True

    def get_occurrences(self) -> NDArray[np.int64] | None:
        """Return what `init_part` needs as `occurrences` for the current order, `int64[n]`; `None` if nothing does."""
        return None

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch: reads are invalid until the next `init_seq_order`.

        Args:
            free_resources: Also release files and caches; they come back with the next `init_seq_order`.
        """
        self._epoch = None
        self.order_version += 1
        if free_resources:
            self._planner.invalidate()
            self._keep = None
            apart = self._apart[1]
            if apart is not None and apart is not self:
                apart.close()

    def close(self) -> None:
        """Release all that is held. The same as `finish_epoch(free_resources=True)`; harmless twice."""
        self.finish_epoch(free_resources=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

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
        args, kwargs = self._arguments_of_copy()
        for value in (*args, *kwargs.values()):
            if isinstance(value, Iterator):
                raise ConfigError(
                    f"it was made of a {type(value).__name__}, which can be read once",
                    where=f"dataset {self.name!r}",
                    fix="give an object whose __iter__ begins anew",
                )
        made = _rebuild(type(self), with_copied_parts(args), with_copied_parts(kwargs), self._state())
        assert isinstance(made, type(self))
        return made

    def _arguments_of_copy(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that make a copy in this process, which may share what cannot change."""
        return self._ctor_args

    def _state(self) -> dict[str, Any]:
        """Return what a copy needs besides the constructor's arguments."""
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
        """Return the documented seed of an epoch: constant over a full pass."""
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

    def _lazy_order_for_epoch(
        self, epoch: int | None, num_seqs: int, get_seq_len: Callable[[int], int] | NDArray[Any] | None = None
    ) -> Order:
        """Return what `get_seq_order_for_epoch` does, not held in memory where that is not overridden."""
        if type(self).get_seq_order_for_epoch is Dataset.get_seq_order_for_epoch:
            return self._planned_order(epoch, num_seqs, get_seq_len)
        return self._explicit_order(self.get_seq_order_for_epoch(epoch, num_seqs, get_seq_len), num_seqs)

    def _planned_order(self, epoch: int | None, num_seqs: int, get_seq_len: Any) -> Order:
        if epoch is None:
            return RangeOrder(range(0))
        if isinstance(num_seqs, float) and math.isinf(num_seqs):
            raise ConfigError("an infinite dataset has no order but 'default'", where=f"dataset {self.name!r}")
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

    def _corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, by corpus index, before any filter."""
        return self.get_all_tags()

    def _keep_mask(self) -> NDArray[np.bool_]:
        """Return `bool[N]`: which sequences the filter keeps."""
        assert self._wanted_tags is not None
        return mask_of_tags(self._corpus_tags(), self._wanted_tags, where=str(self.seq_list_filter_file))

    def _lengths_of_file(self) -> NDArray[Any]:
        if self._file_lengths is None:
            assert self.seq_order_seq_lens_file is not None
            self._file_lengths = lengths_of_tags(self._corpus_tags(), self.seq_order_seq_lens_file)
        return self._file_lengths

    def _first_of_tag(self) -> NDArray[np.int64]:
        return first_of_tag(self._corpus_tags())

    def _order_of_epoch(self, epoch: int) -> Order:
        self._not_offered(f"the order of epoch {epoch}")

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        self._not_offered("get_current_seq_order")

    @property
    def order_report(self) -> OrderReport | None:
        """What the recipe leaves out or repeats in the current full epoch; `None` before the first one."""
        return self._planner.report

    def supports_seq_order_sorting(self) -> bool:
        """Whether lengths are known, so that sorting orders work."""
        return self.seq_order_seq_lens_file is not None

    def supports_sharding(self) -> bool:
        """Whether `_num_shards > 1` is legal."""
        return False

    def set_sharding(self, num_shards: int, shard_index: int) -> None:
        """Make this dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        self._change_recipe(num_shards=num_shards, shard_index=shard_index)

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

    def get_num_timesteps(self) -> NumbersDict:
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
        """Return the place in the corpus of a sequence of the current order."""
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

    @property
    def rnd_seq_drop(self) -> random.Random:
        """The documented generator of the current epoch: for `sample` and for chunks of random size."""
        if self._rnd_seq_drop is None:
            self._rnd_seq_drop = random.Random(self._drop_seed)  # noqa: S311 (not for secrets)
        return self._rnd_seq_drop

    def sample(self, seq_idx: int) -> bool:
        """Draw whether to use a sequence, with probability `weights[seq_idx]`; always, if it has no weight."""
        return seq_idx not in self.weights or self.rnd_seq_drop.random() < self.weights[seq_idx]

    # --- how much there is ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; 0 if none is active.

        Raises:
            OptionalNotImplementedError: The number is unknown.
        """
        self._not_offered("num_seqs")

    @property
    def estimated_num_seqs(self) -> int | None:
        """`num_seqs` if known, else what the constructor was told, else `None`."""
        try:
            return self.num_seqs
        except NotImplementedError:
            return self._estimated_num_seqs

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this place: the one safe end test. May load."""
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
            sorted_seq_idx: Place in the current order.
            allow_only_lr_suitable: Return `None` rather than a pseudo value if the number of sequences is unknown.
        """
        try:
            num_seqs = self.num_seqs
        except NotImplementedError:
            num_seqs = math.inf  # type: ignore[assignment]
        if math.isinf(num_seqs):
            if allow_only_lr_suitable:
                return None
            return max(1e-10, 0.99 * (1 - 1 / (math.sqrt(sorted_seq_idx) / _UNKNOWN_COUNT_SCALE + 1)))
        if not 0 <= sorted_seq_idx < num_seqs:
            raise IndexError(f"sequence {sorted_seq_idx} is outside an epoch of {num_seqs}")
        return min(1.0, (sorted_seq_idx + 1) / num_seqs)

    def len_info(self, fast: bool = False) -> str:
        """Return one line about the size of the epoch."""
        parts = [f"name={self.name!r}", f"epoch={int(self.epoch) or None}"]
        estimated = self.estimated_num_seqs
        parts.append(f"num_seqs={estimated if estimated is not None else 'unknown'}")
        if not fast and self._epoch is not None:
            parts.append(f"frames={self.get_num_timesteps()}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} epoch={int(self.epoch) or None}>"

    # --- layout ---

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
        """Return the data keys without "data"."""
        return ["classes"]

    def _num_output(self, key: str) -> tuple[int, int]:
        outputs = self.num_outputs or {}
        if key not in outputs:
            raise ConfigError(f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, outputs))
        return outputs[key]

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        dim = self._num_output(key)[0]
        return dim * self.window if key == "data" else dim

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        return "int32" if self.is_data_sparse(key) else "float32"

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        return self._num_output(key)[1] <= 1

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame, `None` for a free axis."""
        dim, ndim = self._num_output(key)
        if self.is_data_sparse(key):
            return []
        return [None] * (ndim - 2) + [self.get_data_dim(key)] if ndim > 1 else [dim]

    def can_serialize_data(self, key: str) -> bool:
        """Whether `serialize_data` works for this key."""
        return key in self.labels

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

    def inner_datasets(self) -> Sequence[Dataset]:
        """Return the datasets that this one is made of; nobody else has them."""
        return ()

    def knows_order(self) -> bool:
        """Whether an epoch's sequences and their order are known before it is read; `initialize` was called."""
        try:
            self.get_current_seq_order()
        except NotImplementedError:
            return False
        return True

    def corpus_facts(self) -> CorpusFacts | None:
        """Return what is known of the corpus, `None` if it is not known under which index each tag is. O(1)."""
        return None

    def knows_corpus(self) -> bool:
        """Whether any sequence can be asked for by its corpus index, and the order is known."""
        return self.corpus_facts() is not None and self.knows_order()

    def corpus_size(self) -> int | None:
        """Return how many corpus indices there are, `None` if that is not known."""
        facts = self.corpus_facts()
        if facts is not None:
            return len(facts.index)
        try:
            return None if self._wanted_tags is not None else self.get_total_num_seqs(fast=True)
        except (NotImplementedError, TypeError):  # a class of the user's own need not know `fast`
            return None

    def num_filtered(self) -> tuple[int, int] | None:
        """Return how many sequences of the corpus a tag filter leaves out, here or in a part, and of how many.

        `None` where there is no filter: then nothing is read to answer it. O(N) otherwise.
        """
        found = [counts for inner in self.inner_datasets() if (counts := inner.num_filtered()) is not None]
        return (sum(left_out for left_out, _ in found), sum(total for _, total in found)) if found else None

    def known_specs(self) -> dict[str, DataSpec]:
        """Return the layout of the data keys, as far as it is that of the arrays and not a guess."""
        return {}

    def corpus_lengths(self, key: str, *, may_cost: bool) -> LengthsOf | None:
        """Return the lengths of a data key by corpus index, `None` if they are not known without reading.

        A class of the user's own that defines `get_seq_length` is asked by it, in an order of its own.

        Args:
            key: The data key.
            may_cost: Whether to generate sequences, or to ask a user's object, in order to learn them.
        """
        apart = self._asked_apart() if may_cost and self._defines_lengths() else None
        if apart is None:
            return None
        epoch = self._epoch

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            apart.init_seq_order(epoch, seq_order=indices.tolist())
            return np.array([apart.get_seq_length(place)[key] for place in range(len(indices))], np.int64)

        return lengths_of

    def _defines_lengths(self) -> bool:
        """Whether a sub-class says lengths without reading."""
        return type(self).get_seq_length is not Dataset.get_seq_length and self.knows_order()

    def answer_alone(self) -> None:
        """Take it that nobody reads this dataset: to be asked about epochs it needs no copy of itself, as else it does.

        For one whose `get_current_seq_order` is taken at once; the current order is any, afterwards.
        """
        self._apart = True, self

    def _asked_apart(self) -> Dataset | None:
        """Return a copy of this dataset, which can be asked while this one is read; `None` if there can be none."""
        is_known, apart = self._apart
        if not is_known:
            try:
                apart = copy.copy(self)
                apart.initialize()
            except Exception:  # noqa: BLE001 - of the user's constructor: anything
                apart = None
            self._apart = True, apart
        return apart

    def may_draw_order(self) -> bool:
        """Whether code of the user's says the order, here or in a part: it may draw from the global generators."""
        ordering = self._seq_ordering
        is_ours = _is_of_headrace(type(self)) and (isinstance(ordering, str) or _is_of_headrace(type(ordering)))
        return not is_ours or any(inner.may_draw_order() for inner in self.inner_datasets())

    def may_change_lengths(self) -> bool:
        """Whether sequences may come out with other lengths than `corpus_lengths` says, behind a transform."""
        return any(inner.may_change_lengths() for inner in self.inner_datasets())

    def has_fixed_lengths(self) -> bool:
        """Whether lengths are the same in all epochs."""
        return False

    def covers_lengths(self, key: str) -> bool:
        """Whether the lengths of a data key are part of what `data_text` tells."""
        return False

    def data_text(self) -> str:
        """Return a text that tells this corpus from others: a digest of its tags and lengths, where these are known."""
        facts = self.corpus_facts()
        if facts is not None:
            return facts.index.digest
        digest = xxhash.xxh3_128(type(self).__name__.encode())
        try:
            for tag in self.get_all_tags():
                digest.update(tag.encode("utf-8", "surrogatepass") + b"\0")
        except NotImplementedError:
            pass
        return digest.hexdigest()

    def order_text(self, epoch: int) -> str:
        """Return a text of all that decides what an epoch delivers, besides the corpus.

        Equal texts, equal streams of equal corpora: the order, what is drawn, and options of how sequences are read.
        Where the current epoch is does not matter, and stays.
        """
        return "; ".join([recipe_text(self._recipe, epoch), *self._order_details(epoch), self.reading_text(epoch)])

    def reading_text(self, epoch: int) -> str:
        """Return a text of all that decides what a sequence holds, in whatever order sequences are asked for."""
        inner = [f"of {inner.reading_text(epoch)}" for inner in self.inner_datasets()]
        return "; ".join([*self._reading_details(), *inner])

    def _reading_details(self) -> list[str]:
        """Return what this dataset itself does to sequences."""
        content, drawn = self.content_text(), self.draws_text()
        return [
            *([f"window {self.window}"] if self.window > 1 else []),
            *([f"options {content}"] if content else []),
            *([f"draws {drawn}"] if drawn else []),
        ]

    def _order_details(self, epoch: int) -> list[str]:
        """Return what the order depends on besides the recipe."""
        parts = [f"unique {self.unique_seq_tags}"]
        if self._wanted_tags is not None:
            parts.append(f"kept {self._kept_text()}")
        if self.seq_order_seq_lens_file is not None:
            parts.append(f"sorted by {self._sorted_text()}")
        own = self._own_order_text(epoch)
        return [*parts, own] if own else parts

    def _kept_text(self) -> str:
        try:
            return digest_array(self._keep_mask())
        except NotImplementedError:
            return digest_text(" ".join(sorted(map(str, self._wanted_tags or ()))))

    def _sorted_text(self) -> str:
        try:
            return digest_array(np.asarray(self._lengths_of_file()))
        except NotImplementedError:
            return str(self.seq_order_seq_lens_file)

    def _own_order_text(self, epoch: int) -> str:
        """Return the order of a class of the user's own that makes it itself, O(N); else nothing."""
        makes_order = any(not _is_of_headrace(getattr(type(self), name)) for name in _MAKE_ORDER)
        apart = self._asked_apart() if makes_order and self.knows_order() else None
        if apart is None:
            return ""
        apart.init_seq_order(epoch)
        return f"own order {digest_array(np.asarray(apart.get_current_seq_order(), np.int64))}"

    def draws_text(self) -> str:
        """Return the seeds of what this dataset itself draws for the content of sequences; or nothing."""
        return f"{self.fixed_random_seed} {self.random_seed_offset or 0}"

    def content_text(self) -> str:
        """Return the arguments named by `content_options` as a text; of a copy, those of the first one.

        Of a stream of the user's own class, about which nothing else is known, all arguments.
        """
        if self._content is None:
            args, kwargs = self._given
            given = given_options(type(self), args, kwargs)
            if _is_of_headrace(type(self)) or self.knows_order():
                given = {name: given[name] for name in self.content_options if name in given}
            self._content = options_text(given, dataset_text) if given else ""
        return self._content

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:  # noqa: ARG003 (for those whose stream depends)
        """Return the options that change nothing that is delivered, of these: those of speed, names and places.

        A class of the user's own may add arguments, such as a folder for its copies: a state is accepted with others.
        """
        return IDLE_OPTIONS

    @property
    def supports_jumps(self) -> bool:
        """Whether the sequence at any place is given without reading those before it.

        A class of the user's own says so by an attribute. All others are read from their start on, each place once:
        that is what the epoch API promises to a sub-class.
        """
        return False

    @property
    def has_workers(self) -> bool:
        """Whether processes other than the caller's read it, or a part of it."""
        return any(inner.has_workers for inner in self.inner_datasets())

    def own_workers(self) -> OwnWorkers | None:
        """Return the workers that this dataset was given, if the stream is the same without them."""
        return None

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out, so that an order does not say how many come."""
        return False

    @property
    def knows_dtypes(self) -> bool:
        """Whether the dtypes that this dataset names are those of its arrays, and not the documented guess."""
        return False

    def batch_options(self) -> list[str]:
        """Return which options are given that count for the batches of the epoch API only, here or in a part."""
        frames = [count for side in self.context_window for count in side.values()]
        given = {"chunking": self.chunking is not None, "context_window": any(count > 0 for count in frames)}
        found = [f"{name} of {type(self).__name__} {self.name!r}" for name, is_given in given.items() if is_given]
        for inner in self.inner_datasets():
            found += inner.batch_options()
        return found

    def forget_places(self) -> None:
        """Take it that this is read in parts, whose places are not those of the epoch.

        Datasets that tell places to functions then tell corpus indices instead, and not how much of the epoch is done.
        """
        for inner in self.inner_datasets():
            inner.forget_places()

    def get_fast_source(self) -> Source | None:
        """Return the source, if sequences come out as they are in it, and it reads many at once quickly."""
        return None

    # --- chunks and batches ---

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

    def _not_offered(self, what: str) -> NoReturn:
        raise OptionalNotImplementedError(
            f"{type(self).__name__} does not offer {what}", where=f"dataset {self.name!r}"
        )

    def _explicit_order(self, seq_order: Sequence[int] | NDArray[Any], num_seqs: int) -> Order:
        """Check an order given by corpus indices."""
        return ArrayOrder(check_indices(seq_order, num_seqs, f"dataset {self.name!r}"))


@dataclasses.dataclass(frozen=True)
class OwnWorkers:
    """The workers that a user asked for at a dataset, and what is left of it without them: the same stream.

    Attributes:
        owner: The class that they were asked for at, for messages.
        config: Of what is left: a config, or the dataset itself.
        dataset: Made of it, in this process.
        num_workers: How many.
        executor: "process", "thread" or "inline"; `None`: nobody said.
        worker_init: Called in each.
        engine_options: What to do about errors, deaths and stalls.
        max_bytes: Limit of the shared memory of each.
    """

    owner: str
    config: Any
    dataset: Dataset
    num_workers: int
    executor: str | None = None
    worker_init: Callable[[WorkerInfo], None] | None = None
    engine_options: EngineOptions | None = None
    max_bytes: int | None = None


def _rebuild(cls: type[Dataset], args: tuple[Any, ...], kwargs: dict[str, Any], state: Mapping[str, Any]) -> Dataset:
    dataset = cls(*args, **kwargs)
    dataset._restore(state)
    return dataset


def dataset_text(value: Any, epoch: int = 1) -> str | None:
    """Return a text of a dataset in an epoch, for `options_text`; `None` for all else."""
    if isinstance(value, Owned):
        value = value.dataset
    if isinstance(value, Dataset):
        return f"{type(value).__name__} {value.data_text()} {value.order_text(epoch)}"
    return None


def _is_of_headrace(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("headrace.")


class Owned:
    """A dataset that belongs to whoever is given this: it is taken as it is, where any other object is copied.

    It stands among the arguments of a composed dataset for a part that is made already, so that a copy of the whole
    copies each part once.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset


def with_copied_parts(value: Any) -> Any:
    """Return constructor's arguments in which each dataset is a copy; arrays and all else are shared."""
    if isinstance(value, Dataset):
        return copy.copy(value)
    if isinstance(value, Owned):
        return Owned(copy.copy(value.dataset))
    if type(value) in (list, tuple):
        return type(value)(map(with_copied_parts, value))
    if type(value) is dict:
        return {key: with_copied_parts(item) for key, item in value.items()}
    return value
