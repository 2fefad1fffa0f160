"""One sub-epoch, what the user's function said about it, its layout, and reading it once it is open.

The function returns the config of a dataset for some files (or a dataset). Exactly one level divides the data: here the
outer dataset does, so a config that divides them once more, into sub-epochs or shards, is refused with both levels
named. What the sequences of all sub-epochs have in common is learnt once and compared with each.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import note_place
from headrace.errors import ConfigError, takes_note
from headrace.files.cache.entry import CachedFile, replace_cached_files
from headrace.files.fetch.fetch import is_url
from headrace.files.lists.tree import FileTree, tree_leaves
from headrace.order import Order
from headrace.sources.named_classes import options_of

from ..base import Dataset
from ..configs import resolve_class
from ..wrap.runs import ReadSeqs

SubDataset = Mapping[str, Any] | Dataset
GetSubEpochDataset = Callable[[list[FileTree]], SubDataset]

_OURS = "headrace"
_NUM_NAMED = 3  # files named in a message


@dataclass(frozen=True, slots=True)
class SubDatasetDefaults:
    """What the outer dataset says about each sub-dataset.

    Attributes:
        random_seed_offset: Used where the config says nothing.
        num_shards: Of the outer dataset.
        shard_index: Which of them.
        shards_twice: The legacy behaviour: the sub-dataset is divided among the ranks once more.
        files_change: Whether the files of a sub-epoch are others in each full epoch, so that an index of them is never
            found again and need not be kept.
    """

    random_seed_offset: int = 0
    num_shards: int = 1
    shard_index: int = 0
    shards_twice: bool = False
    files_change: bool = False


def make_sub_dataset(
    function: GetSubEpochDataset, trees: list[FileTree], defaults: SubDatasetDefaults, where: str
) -> SubDataset:
    """Call the user's function, check what it returns, and complete it.

    Args:
        function: `get_sub_epoch_dataset`.
        trees: The files of the sub-epoch, as the user gave them, in order.
        defaults: What the config inherits.
        where: Which sub-epoch, for messages.

    Raises:
        ConfigError: It is no dataset, or one that divides the data once more.
        Exception: What the function raised, with a note.
    """
    where = f"get_sub_epoch_dataset, {where}, files {describe_files(trees)}"
    try:
        made: Any = function(trees)
    except Exception as error:
        takes_note(error, where)
        raise
    if isinstance(made, Dataset):
        _check_divides(made.partition_epoch, made.num_shards, defaults, where)
        return made
    if not isinstance(made, Mapping) or "class" not in made:
        got = f"a dict with the keys {sorted(map(str, made))}" if isinstance(made, Mapping) else type(made).__name__
        raise ConfigError(
            f"the function returned no dataset: {got}",
            where=where,
            fix='return a dict such as {"class": "HDFDataset", "files": files}, or a Dataset',
        )
    _check_config(made, defaults, where, "")
    config = _completed(_with_own_marks(made), defaults)
    return _without_kept_index(config) if defaults.files_change else config


def describe_files(trees: Sequence[FileTree]) -> str:
    """Return the first file names of some entries of a file list, for a message."""
    names: list[str] = []
    num_named = 0
    for tree in trees:
        if len(names) >= _NUM_NAMED:
            break
        names += tree_leaves(tree)
        num_named += 1
    more = len(trees) - num_named
    return ", ".join(names) + (f" and {more} more {'entry' if more == 1 else 'entries'}" if more else "")


def cached_files_of(config: Any) -> list[str]:
    """Return the sources of all `CachedFile` marks in a config, in its order, each once."""
    found: dict[str, None] = {}

    def note(file: CachedFile) -> CachedFile:
        found[file.filename] = None
        return file

    replace_cached_files(config, note)
    return list(found)


def read_in_place(config: SubDataset) -> SubDataset:
    """Return the config with the cached files read where they are; what cannot be read in place stays marked."""
    made: SubDataset = replace_cached_files(config, lambda file: file if is_url(file.filename) else file.filename)
    return made


def _check_config(config: Any, defaults: SubDatasetDefaults, where: str, path: str) -> None:
    """Look through a nested config for options that divide the data."""
    if isinstance(config, Dataset):
        _check_divides(config.partition_epoch, config.num_shards, defaults, f"{where}, {path}")
    elif isinstance(config, Mapping):
        _check_divides(
            config.get("partition_epoch"), config.get("_num_shards"), defaults, f"{where}, {path}" if path else where
        )
        for key, value in config.items():
            _check_config(value, defaults, where, f"{path}[{key!r}]")
    elif isinstance(config, list | tuple):
        for place, value in enumerate(config):
            _check_config(value, defaults, where, f"{path}[{place}]")


def _check_divides(partition_epoch: Any, num_shards: Any, defaults: SubDatasetDefaults, where: str) -> None:
    if partition_epoch not in (None, 0, 1):
        raise ConfigError(
            f"the sub dataset should not have partition_epoch: it has {partition_epoch!r}",
            where=where,
            fix="give partition_epoch to DistributeFilesDataset alone: a sub-epoch is read to its end",
        )
    if defaults.num_shards > 1 and not defaults.shards_twice and num_shards not in (None, 1):
        raise ConfigError(
            f"two levels would divide the data among ranks: DistributeFilesDataset into {defaults.num_shards} shards "
            f"of files, and the sub dataset into {num_shards!r} shards of sequences",
            where=where,
            fix="leave _num_shards and _shard_index out of the sub dataset, or set distrib_shard_files=False",
        )


def _with_own_marks(config: Any) -> Any:
    """Replace RETURNN's marks of cached files, which a config written for it has, by ours; copies what it changes."""
    kind = type(config)
    if kind.__name__ == CachedFile.__name__ and kind.__module__.partition(".")[0] == "returnn":
        return CachedFile(config.filename)
    if isinstance(config, dict):
        return {key: _with_own_marks(value) for key, value in config.items()}
    if kind in (list, tuple):
        return kind(_with_own_marks(value) for value in config)
    return config


def _completed(config: Mapping[str, Any], defaults: SubDatasetDefaults) -> dict[str, Any]:
    """Add what the outer dataset says, where it differs from what a dataset does by itself.

    So a class of the user's own need not take options that say nothing.
    """
    completed = dict(config)
    if defaults.random_seed_offset:
        completed.setdefault("random_seed_offset", defaults.random_seed_offset)
    if defaults.shards_twice and defaults.num_shards > 1:
        completed.setdefault("_num_shards", defaults.num_shards)
        completed.setdefault("_shard_index", defaults.shard_index)
    return completed


def _without_kept_index(config: Any) -> Any:
    """Tell datasets that index their files to keep that index in memory, unless the user said otherwise."""
    if isinstance(config, Mapping):
        inner = {key: _without_kept_index(value) for key, value in config.items()}
        if "class" in inner and _keeps_index(inner["class"]):
            inner.setdefault("index", None)
        return inner
    if isinstance(config, list | tuple) and any(isinstance(value, Mapping | list | tuple) for value in config):
        return [_without_kept_index(value) for value in config]
    return config


def _keeps_index(name: Any) -> bool:
    """Tell whether a class is a dataset of ours that indexes files. Others may mean something else by `index`."""
    try:
        cls = resolve_class(name)
    except ConfigError:  # no dataset: a source, a vocabulary
        return False
    return cls.__module__.startswith(f"{_OURS}.") and "index" in options_of(cls)


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """One data key: what `get_data_dim`, `get_data_dtype`, `is_data_sparse` and `get_data_shape` answer.

    Attributes:
        dim: Size of the last axis, or the number of classes; of a sparse key perhaps only of those that were seen.
        dtype: Name.
        sparse: Whether values are class indices.
        shape: Of a frame.
        num_labels: How many classes have names; `None` if none has.
    """

    dim: int
    dtype: str
    sparse: bool
    shape: tuple[int | None, ...]
    num_labels: int | None

    def fits(self, other: KeyLayout) -> bool:
        """Whether two can be read as one."""
        if None not in (self.num_labels, other.num_labels) and self.num_labels != other.num_labels:
            return False
        return (self.dtype, self.sparse, self.shape) == (other.dtype, other.sparse, other.shape)

    def __str__(self) -> str:
        axes = ", ".join(["T", *("?" if size is None else str(size) for size in self.shape)])
        labels = "" if self.num_labels is None else f" with {self.num_labels} labels"
        return f"{'sparse ' if self.sparse else ''}{self.dtype}[{axes}]{labels}"


@dataclass(frozen=True, slots=True)
class SubEpochLayout:
    """What a sub-dataset says of its layout, and its data keys.

    Attributes:
        num_inputs: See `DeclaredLayout`.
        num_outputs: Likewise.
        labels: Likewise.
        keys: Data key -> layout, in the order of the sub-dataset.
        source: Which files it was learnt from, for messages.
    """

    num_inputs: int
    num_outputs: dict[str, tuple[int, int]]
    labels: Mapping[str, Sequence[str]]
    keys: dict[str, KeyLayout]
    source: str

    @classmethod
    def of(cls, dataset: Dataset, source: str) -> SubEpochLayout | None:
        """Return the layout of a dataset; `None` if only sequences show it, or if it has none of them and no keys."""
        if not dataset.num_outputs:
            return None
        keys = {
            key: KeyLayout(
                dataset.get_data_dim(key),
                dataset.get_data_dtype(key),
                bool(dataset.is_data_sparse(key)),
                tuple(dataset.get_data_shape(key)),
                len(dataset.labels[key]) if dataset.labels.get(key) else None,
            )
            for key in dataset.get_data_keys()
        }
        outputs = {key: (dim, ndim) for key, (dim, ndim) in dataset.num_outputs.items()}
        labels = {key: list(texts) for key, texts in dataset.labels.items()}
        return cls(dataset.num_inputs, outputs, labels, keys, source)

    def check_same(self, other: SubEpochLayout) -> None:
        """Refuse files whose sequences are different.

        Raises:
            ConfigError: The data keys differ, or a key has another layout; both files are named.
        """
        if set(self.keys) != set(other.keys):
            differ = f"the data keys are {list(self.keys)} in the one and {list(other.keys)} in the other"
        else:
            key = next((key for key in self.keys if not self.keys[key].fits(other.keys[key])), None)
            if key is None:
                return
            differ = f"{key!r} is {self.keys[key]} in the one and {other.keys[key]} in the other"
        raise ConfigError(
            f"files hold different data: {differ}",
            where=f"{self.source}, and {other.source}",
            fix="convert one of them, or read them as two datasets",
        )


@dataclass(frozen=True, slots=True)
class SubEpochSpec:
    """What a worker needs to open a sub-epoch.

    Attributes:
        key: Equal for equal sub-epochs of one dataset, and only for these.
        epoch: Its number, as the user counts.
        full_epoch: The epoch number of the sub-dataset.
        files: Its files, as text for messages.
        dataset: What `get_sub_epoch_dataset` returned, checked and completed.
    """

    key: tuple[int, int]
    epoch: int
    full_epoch: int
    files: str
    dataset: SubDataset

    @property
    def where(self) -> str:
        """The place of an error."""
        return f"sub-epoch {self.epoch} (full epoch {self.full_epoch}), files {self.files}"


@dataclass(frozen=True, slots=True)
class SubEpochPlan:
    """What is to be read now and what comes next.

    Attributes:
        specs: The sub-epoch to read, then the coming ones, in order.
        layout: What the sequences must be like, if it is known.
    """

    specs: tuple[SubEpochSpec, ...]
    layout: SubEpochLayout | None


@dataclass(slots=True)
class ReadPart:
    """A part of a sub-epoch, as it comes back from a worker.

    Attributes:
        seqs: The sequences, in order.
        num_seqs: How many the sub-epoch has, if its dataset knows.
        is_last: Whether the sub-epoch ends with this part, or before it.
        layout: What the sequences are like, if the plan did not say it.
        failure: An encoded `Failure`: the sub-epoch cannot be opened, and there are no sequences. It is no error of the
            ticket, because a policy that skips those that fail must not skip what nobody has counted.
    """

    seqs: ReadSeqs = field(default_factory=ReadSeqs)
    num_seqs: int | None = None
    is_last: bool = False
    layout: SubEpochLayout | None = None
    failure: bytes | None = None


class OpenSubEpoch:
    """A sub-epoch whose dataset is open and whose order is started. Not thread-safe.

    Args:
        spec: What it is.
        dataset: Its dataset; from now on it is used here only.
        held: The cached files that it reads, to be released when it is closed.
    """

    def __init__(self, spec: SubEpochSpec, dataset: Dataset, held: Sequence[str]) -> None:
        self.spec = spec
        self.dataset = dataset
        self.held = held
        self._can_jump = dataset.supports_jumps
        self._place = 0  # the next one that a dataset without jumps gives
        # A sequence has the same draws in whatever sub-epoch and on whatever rank its file comes to be read.
        dataset.seed_by_tag()
        dataset.init_seq_order(epoch=spec.full_epoch)
        self.num_seqs = num_seqs_of(dataset)

    def read(self, start: int, stop: int) -> tuple[ReadSeqs, bool]:
        """Read sequences start..stop (exclusive; may exceed the sub-epoch); tell whether it ends there, or before.

        A sequence that fails is passed to the engine's policy, and left out.
        """
        seqs = ReadSeqs()
        if self.num_seqs is not None:
            stop = min(stop, self.num_seqs)
        if self.dataset.reads_singly:
            if start < stop:
                indices = _block(self.dataset.get_current_seq_order(), start, stop)
                seqs.read_range(self.dataset, start, indices, epoch=self.spec.epoch)
            return seqs, stop == self.num_seqs
        if start < stop:
            self._go_to(start)
        has_more = True
        while has_more and self._place < stop:
            name = f"(sequence {self._place} of sub-epoch {self.spec.epoch})"
            has_more = seqs.read(self.dataset, self._place, epoch=self.spec.epoch, name=name)
            self._place += has_more
        return seqs, not has_more or stop == self.num_seqs

    def _go_to(self, place: int) -> None:
        """Make a place the next one, by reading those before it if there is no other way."""
        if place < self._place:
            self.dataset.init_seq_order(epoch=self.spec.full_epoch)
            self._place = 0
        if self._can_jump:
            self._place = place
        while self._place < place and self.dataset.is_less_than_num_seqs(self._place):
            note_place(f"(passing over sequence {self._place} of sub-epoch {self.spec.epoch})", self.spec.epoch)
            with contextlib.suppress(Exception):  # nobody wants this sequence; whoever did was told of its error
                self.dataset.load_seqs(self._place, self._place + 1)
            self._place += 1


def num_seqs_of(dataset: Dataset) -> int | None:
    """Return the number of sequences of the current epoch of a dataset; `None` if it is not known, or infinite."""
    try:
        num_seqs = dataset.num_seqs
    except NotImplementedError:
        return None
    return None if math.isinf(num_seqs) else int(num_seqs)


def _block(order: Order | Sequence[int], start: int, stop: int) -> NDArray[np.int64]:
    return order.block(start, stop) if isinstance(order, Order) else np.asarray(order[start:stop], dtype=np.int64)
