"""The dataset of a sub-epoch, as the user's function describes it, checked and completed.

The function returns the config of a dataset for some files (or a dataset). Exactly one level divides the data: here the
outer dataset does, so a config that divides them once more, into sub-epochs or shards, is refused with both levels
named. `SubEpochLayout` is what the sequences of all sub-epochs have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ConfigError, takes_note
from headrace.files.cache.entry import CachedFile, replace_cached_files
from headrace.files.lists.tree import FileTree, tree_leaves
from headrace.files.locations import is_url
from headrace.sources.naming import options_of
from headrace.specs import DataSpec

from ..base import Dataset
from ..configs import resolve_class
from ..corpus import Corpus

SubDataset = Mapping[str, Any] | Dataset
GetSubEpochDataset = Callable[[list[FileTree]], SubDataset]

_OURS = "headrace"
_NUM_NAMED = 3  # files named in a message


@dataclass(frozen=True, slots=True)
class SubDatasetDefaults:
    """What the outer dataset says about each sub-dataset.

    Attributes:
        random_seed_offset: Used where the config says nothing.
        num_shards: Number of shards of the outer dataset.
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
    if not isinstance(made, Dataset) and (not isinstance(made, Mapping) or "class" not in made):
        got = f"a dict with the keys {sorted(map(str, made))}" if isinstance(made, Mapping) else type(made).__name__
        raise ConfigError(
            f"the function returned no dataset: {got}",
            where=where,
            fix='return a dict such as {"class": "HDFDataset", "files": files}, or a Dataset',
        )
    _check_config(made, defaults, where, "")
    if isinstance(made, Dataset):
        return made
    config = dict(_with_own_marks(made))
    # Only what differs from a dataset's defaults: a user-defined class need not accept options that change nothing.
    if defaults.random_seed_offset:
        config.setdefault("random_seed_offset", defaults.random_seed_offset)
    if defaults.shards_twice and defaults.num_shards > 1:
        config.setdefault("_num_shards", defaults.num_shards)
        config.setdefault("_shard_index", defaults.shard_index)
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
    at = f"{where}, {path}" if path else where
    if isinstance(config, Dataset):
        _check_divides(config.partition_epoch, config.num_shards, defaults, at)
    elif isinstance(config, Mapping):
        _check_divides(config.get("partition_epoch"), config.get("_num_shards"), defaults, at)
        for key, value in config.items():
            _check_config(value, defaults, where, f"{path}[{key!r}]")
    elif isinstance(config, list | tuple):
        for number, value in enumerate(config):
            _check_config(value, defaults, where, f"{path}[{number}]")


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


def cannot_share(dataset: Dataset, num_workers: int, where: str) -> ConfigError:
    """Return the error about a sub-dataset that several workers cannot share."""
    return ConfigError(
        f"{num_workers} workers cannot share a {type(dataset).__name__}, which gives its sequences one after the "
        "other: each of them would have to read all",
        where=where,
        fix="set num_workers=1; or, if it can give any sequence at once, set the class attribute supports_jumps = True",
    )


@dataclass(frozen=True, slots=True)
class SubEpochLayout:
    """The layout of a sub-dataset, and its data keys.

    Attributes:
        keys: Data key -> what the sub-dataset says of it. The number of classes is perhaps only that of those seen.
        specs: Data key -> what is known of its arrays, see `Corpus.specs`.
        labels: Data key -> class labels.
        num_labels: Data key -> how many classes have names, if some have.
        source: Which files it was learnt from, for messages.
    """

    keys: Mapping[str, DataSpec]
    specs: Mapping[str, DataSpec]
    labels: Mapping[str, Sequence[str]]
    num_labels: Mapping[str, int]
    source: str

    @classmethod
    def of(cls, corpus: Corpus, source: str) -> SubEpochLayout | None:
        """Return the layout of a corpus; `None` if only sequences show it, or if it has no data keys."""
        layout = corpus.layout() or {}
        keys = {key: spec for key, spec in layout.items() if spec is not None}
        if not keys or len(keys) < len(layout):
            return None
        labels = {key: list(texts) for key, texts in corpus.labels.items()}
        num_labels = {key: len(texts) for key, texts in labels.items() if texts}
        return cls(keys, dict(corpus.specs), labels, num_labels, source)

    def check_same(self, other: SubEpochLayout) -> None:
        """Refuse files whose sequences have another layout.

        Raises:
            ConfigError: The data keys differ, or a key has another layout; both files are named.
        """
        if set(self.keys) != set(other.keys):
            differ = f"the data keys are {list(self.keys)} in the one and {list(other.keys)} in the other"
        else:
            key = next((key for key in self.keys if not self._fits(other, key)), None)
            if key is None:
                return
            differ = f"{key!r} is {self._key_text(key)} in the one and {other._key_text(key)} in the other"
        raise ConfigError(
            f"files hold different data: {differ}",
            where=f"{self.source}, and {other.source}",
            fix="convert one of them, or read them as two datasets",
        )

    def _fits(self, other: SubEpochLayout, key: str) -> bool:
        """Whether data of two such layouts can be read as one key."""
        one, two, counts = self.keys[key], other.keys[key], {self.num_labels.get(key), other.num_labels.get(key)}
        return replace(one, dim=None) == replace(two, dim=None) and len(counts - {None}) <= 1

    def _key_text(self, key: str) -> str:
        spec, num_labels = self.keys[key], self.num_labels.get(key)
        axes = ", ".join(["T", *("?" if size is None else str(size) for size in spec.shape)])
        labels = "" if num_labels is None else f" with {num_labels} labels"
        return f"{'sparse ' if spec.sparse else ''}{spec.dtype}[{axes}]{labels}"


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
        """What an error is about."""
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
