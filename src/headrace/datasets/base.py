"""`Dataset`: what a loader, or a dataset made of others, asks of a dataset without reading it.

Each question has a default answer here through the RETURNN-compatible API of one epoch (`epoch.py`), so a sub-class
that was written for RETURNN answers, too. Headrace's classes answer more questions, or at a lower cost. An object
serves one thread.
"""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.sources import Source

from .checks import is_of_headrace, takes_argument
from .corpus import Corpus, DistributesFiles, IndexedFiles, sum_left_out
from .digests import IDLE_OPTIONS, digest_array, digest_text, given_options, options_text, recipe_text
from .reading.by_epoch import EpochReader, EpochStream
from .reading.foreign import ForeignAnswers
from .reading.reader import Reader
from .workers import DatasetWorkers

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


class Dataset(ForeignAnswers):
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

    _ctor_args: tuple[tuple[Any, ...], dict[str, Any]]
    _given: tuple[tuple[Any, ...], dict[str, Any]]  # as they were written: a class may put others into `_ctor_args`
    _content: str | None = None
    claimed_by: Callable[[], object] | None = None
    """Whose part it is, if it cannot be copied; see `parts.py`."""

    _is_ours: ClassVar[bool] = True  # whether the class is one of Headrace's
    _has_user_ways: ClassVar[bool] = False  # whether a user-defined class reads in its own way

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

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, of the parts as well, see `EpochApi.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        for part in self.get_parts():
            part.finish_epoch(free_resources=free_resources)

    def seed_by_tag(self) -> None:
        """Key the generators of transforms by the tags of sequences, not by their corpus indices.

        For a dataset that is a part of a larger corpus, a different part each time: corpus indices mean nothing there.
        """
        self.seeds_by_tag = True
        for part in self.get_parts():
            part.seed_by_tag()

    def check_tags(self) -> None:
        """Compare tags, also of the parts, see `ForeignAnswers.check_tags`."""
        super().check_tags()
        for part in self.get_parts():
            part.check_tags()

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

    def indexed_files(self) -> list[IndexedFiles]:
        """Return fingerprints of the files that this dataset and its parts were made of, as they were indexed."""
        return [files for part in self.get_parts() for files in part.indexed_files()]

    def indexed_source(self) -> Source | None:
        """Return the source whose index tells the lengths of sequences as they are stored, if there is one."""
        return self.make_reader().fast_source()

    # --- what is known without reading: asked by loaders, and by datasets made of others ---

    def get_parts(self) -> Sequence[Dataset]:
        """Return the datasets that this one is made of. They are not shared."""
        return ()

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the sequences without reading them. Nothing is computed until it is asked for.

        For a user-defined class: what `get_all_tags`, `get_total_num_seqs` and `get_seq_length` return.

        Args:
            epoch: Where lengths differ between epochs, the epoch whose lengths to give; `None`: the current one.
        """
        parts = [part.get_corpus(epoch) for part in self.get_parts()]
        epoch = self._epoch if epoch is None else epoch
        corpus = Corpus(
            digest_text=self._digest_of_tags,
            knows_order=self._knows_order,
            size=self._told_size,
            lengths=partial(self._told_lengths, epoch=epoch),
            may_change_lengths=any(part.may_change_lengths for part in parts),
            num_filtered=lambda: sum_left_out(parts),
            encodes_texts=any(part.encodes_texts for part in parts),
        )
        return self._with_told_tags(corpus, epoch)

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
        content, drawn = self.content_text(), self.draws_text()
        return [
            *([f"window {self.window}"] if self.window > 1 else []),
            *([f"options {content}"] if content else []),
            *([f"draws {drawn}"] if drawn else []),
        ]

    def _order_details(self, epoch: int) -> list[str]:
        """Return what the order depends on in addition to the recipe."""
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
        """Return a digest of the order that a user-defined class makes itself, as a text, O(N); else nothing."""
        if not self._has_user_order or not self.get_corpus().knows_order() or self._asked_apart() is None:
            return ""
        order, _ = self.get_epoch_order(epoch)
        return f"own order {digest_array(order.block(0, len(order)))}"

    def draws_text(self) -> str:
        """Return the seeds by which this dataset itself draws content of sequences, as a text; or nothing."""
        return f"{self.fixed_random_seed} {self.random_seed_offset or 0}"

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
        """Tell the parts as well, see `ForeignAnswers.forget_positions`."""
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
