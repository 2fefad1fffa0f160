"""`VariableDataset`: another dataset in each epoch, chosen by a user's function."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import ConfigError, SourceError, check_count, takes_note
from headrace.specs import DataSpec

from ..base import Dataset
from ..checks import check_flag
from ..corpus import Corpus, IndexedFiles, check_files
from ..delegating import DelegatingDataset, inherited_options, outer_options
from ..parts import open_part, spec_of
from ..reading.passing import PassingReader
from ..reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest

GetDataset = Callable[..., "Mapping[str, Any] | Dataset"]


class VariableDataset(DelegatingDataset):
    """A dataset that a user's function chooses for each (sub-)epoch.

    Args:
        get_dataset: Called as `get_dataset(self=dataset, epoch=E)` (without `self` if it takes none) at the start of
            each epoch, and with epoch 1 when this is built, for the layout; returns the config of a dataset, or one.
            It must be a function of the epoch alone. All must have the same data keys and layout, and the files of an
            epoch must stay as they were when its dataset was first made.
        dataset_lru_cache_size: How many datasets stay open: for a config equal to one of theirs, none is built.
        always_same_tags: Whether all hold the same sequences at the same corpus indices; only then tags are known.
        **kwargs: See `Dataset`. `random_seed_offset`, `_num_shards` and `_shard_index` are defaults for the datasets;
            all else about the order is theirs.

    Raises:
        ConfigError: An option is wrong, or the function returns no dataset.
    """

    def __init__(
        self,
        *,
        get_dataset: GetDataset,
        dataset_lru_cache_size: int = 1,
        always_same_tags: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**outer_options(kwargs, type(self).__name__))
        if not callable(get_dataset):
            raise ConfigError(
                f"get_dataset must be a function, got {get_dataset!r}",
                fix='define get_dataset(epoch, **_) that returns {"class": ...}; in a config file "module:function"',
            )
        self._get_dataset = get_dataset
        self._wants_self = _takes(get_dataset, "self")
        self._max_open = check_count("dataset_lru_cache_size", dataset_lru_cache_size, minimum=1)
        self.has_one_corpus = check_flag("always_same_tags", always_same_tags)
        self._defaults = inherited_options(kwargs, f"{type(self).__name__} {kwargs.get('name') or ''}")
        self._open: list[tuple[Any, Dataset]] = []  # config or dataset that was returned, and what it became
        self._asked: tuple[int, tuple[Any, Dataset]] | None = None  # an epoch that somebody asks about, and its dataset
        self._files: dict[int, list[IndexedFiles]] = {}  # what those of an epoch held when its dataset was first made
        self._specs: dict[str, DataSpec | None] | None = None
        self._knows_positions = True
        self._loaded = 0  # the epoch whose dataset is the current one
        self._load(1)

    @property
    def inner(self) -> Dataset:
        """The dataset of the current epoch; before the first one, that of epoch 1."""
        return self._open[-1][1]

    def forget_positions(self) -> None:
        """See `ForeignAnswers.forget_positions`; datasets that are made later are told, too."""
        self._knows_positions = False
        super().forget_positions()

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the one corpus, of which each epoch may have other lengths.

        Where there are several, almost nothing is known; `order_text` tells that of the epoch.
        """
        chosen = self.inner if epoch is None else self.dataset_of(epoch)
        corpus = dataclasses.replace(chosen.get_corpus(epoch), has_fixed_lengths=False)
        if self.has_one_corpus:
            return corpus
        return dataclasses.replace(
            corpus.without_index(),
            digest_text=lambda: type(self).__name__,
            size=lambda: None,
            covers_lengths=lambda _: False,
        )

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        self._check_has_epoch(epoch, given)
        chosen = self.inner if epoch is None else self.dataset_of(epoch)
        return chosen.get_epoch_order(epoch, given, counts=counts)

    def order_text(self, epoch: int) -> str:
        """Return the corpus of an epoch, and what decides its order."""
        chosen = self.dataset_of(epoch)
        return f"{chosen.get_corpus().digest_text()}; {chosen.order_text(epoch)}"

    def reading_text(self, epoch: int) -> str:
        """Return a text of what the content of an epoch's sequences depends on, its corpus included."""
        chosen = self.dataset_of(epoch)
        return f"{chosen.get_corpus().digest_text()}; {chosen.reading_text(epoch)}"

    def may_draw_order(self) -> bool:
        """Yes: the function may."""
        return True

    def _load(self, epoch: int) -> None:
        """Make the dataset of an epoch the current one."""
        found = self._find(epoch)
        if self._asked is not None and self._asked[1] is found:
            self._asked = None
        self._open = [entry for entry in self._open if entry is not found] + [found]  # not `remove`: arrays in configs
        while len(self._open) > self._max_open:
            self._open.pop(0)[1].close()
        self._tell(self.inner)
        self._loaded = epoch
        self._follow()

    def _tell(self, dataset: Dataset) -> None:
        """Pass the settings of this dataset on to a chosen one."""
        if self.seeds_by_tag:
            dataset.seed_by_tag()
        if not self._knows_positions:
            dataset.forget_positions()

    def _find(self, epoch: int) -> tuple[Any, Dataset]:
        """Return what the function returns for an epoch, and the dataset: one that is open, or a new one."""
        where = f"get_dataset of {self.name!r}, epoch {epoch}"
        try:
            config = self._get_dataset(epoch=epoch, **({"self": self} if self._wants_self else {}))
        except Exception as error:
            takes_note(error, where)
            raise
        if not isinstance(config, Mapping | Dataset):
            raise ConfigError(
                f"the function returned no dataset: {type(config).__name__}",
                where=where,
                fix='return a dict such as {"class": "HDFDataset", "files": [...]}',
            )
        known: list[tuple[Any, Dataset]] = [*self._open, *([] if self._asked is None else [self._asked[1]])]
        for entry in known:
            if _are_equal(entry[0], config):
                self._check_files(epoch, entry[1])
                return entry
        made = _copied(config), open_part(config, self._defaults, owner=self)
        try:
            self._check_layout(made[1], where)
            self._check_files(epoch, made[1])
        except (ConfigError, SourceError):
            made[1].close()
            raise
        return made

    def _check_files(self, epoch: int, dataset: Dataset) -> None:
        """Refuse files of an epoch that were changed since its dataset was first made, here or in the original."""
        now = dataset.indexed_files()
        check_files(now, self._files.setdefault(epoch, now))

    def indexed_files(self) -> list[IndexedFiles]:
        """Return fingerprints of the files of epoch 1: its dataset is made first, wherever this one is made."""
        return self._files[1]

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "files": dict(self._files)}

    def _restore(self, state: Mapping[str, Any]) -> None:
        check_files(self._files[1], state["files"][1])
        self._files.update(state["files"])
        super()._restore(state)

    def dataset_of(self, epoch: int) -> Dataset:
        """Return the dataset of an epoch, to ask it or to read it by a reader; the current one stays that."""
        if self._loaded == epoch:
            return self.inner
        before = self._asked
        if before is None or before[0] != epoch:
            found = self._find(epoch)
            self._asked = epoch, found
            if before is not None and not any(before[1] is entry for entry in (*self._open, found)):
                before[1][1].close()
            self._tell(found[1])
            return found[1]
        return before[1][1]

    def _check_layout(self, dataset: Dataset, where: str) -> None:
        specs = {key: spec_of(dataset, key) for key in dataset.get_data_keys()} if dataset.num_outputs else {}
        if not self._specs:
            self._specs = specs
            return
        if specs and set(specs) != set(self._specs):
            raise ConfigError(
                f"the dataset has the data keys {sorted(specs)}, those before it have {sorted(self._specs)}",
                where=where,
                fix="let all epochs have the same data keys",
            )
        for key, spec in specs.items():
            before = self._specs[key]
            if spec is None or before is None:
                continue
            for name in ("dtype", "shape", "sparse", "has_time"):
                if getattr(spec, name) != getattr(before, name):
                    raise ConfigError(
                        f"{name} of the data key {key!r} is {getattr(spec, name)}, and was {getattr(before, name)}",
                        where=where,
                        fix="let all epochs have the same layout",
                    )

    def _change_recipe(self, **changes: Any) -> None:
        raise ConfigError(
            f"{', '.join(changes)} cannot be set: the order is that of the dataset which get_dataset returns",
            where=f"dataset {self.name!r}",
            fix="let get_dataset return it",
        )

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start an epoch, with its dataset.

        Raises:
            ConfigError: An order is given without an epoch, or the function returns no dataset that fits.
        """
        self._check_has_epoch(epoch, GivenOrder.of(seq_list, seq_order))
        if epoch is not None:
            self._load(epoch)
        return super().init_seq_order(epoch, seq_list, seq_order)

    def _check_has_epoch(self, epoch: int | None, given: GivenOrder | None) -> None:
        if epoch is None and given is not None:
            raise ConfigError("seq_list and seq_order need an epoch here", where=f"dataset {self.name!r}")

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request, with its dataset."""
        self._check_has_epoch(wanted.epoch, GivenOrder(seq_order=wanted.indices))
        assert wanted.epoch is not None
        self._load(wanted.epoch)
        return super().start_part(wanted)

    def _new_reader(self) -> Reader:
        return VariableReader(self)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch; with `free_resources` all datasets that are open release theirs."""
        super().finish_epoch(free_resources=free_resources)
        if not free_resources:
            return
        if self._asked is not None:
            self._asked[1][1].close()
            self._asked = None
        for _, dataset in self._open[:-1]:
            dataset.finish_epoch(free_resources=True)

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make this dataset one shard of `num_shards`, in all epochs."""
        self._defaults = {**self._defaults, "_num_shards": num_shards, "_shard_index": shard_index}
        for _, dataset in self._open:
            dataset.set_sharding(num_shards, shard_index)
        if self._asked is not None:
            self._asked[1][1].set_sharding(num_shards, shard_index)
        self._recipe = self.inner._recipe

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags, if they are the same in all epochs."""
        if not self.has_one_corpus:
            self._not_offered("get_all_tags without always_same_tags=True")
        return super().get_all_tags()

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences, if they are the same in all epochs."""
        if not self.has_one_corpus:
            self._not_offered("get_total_num_seqs without always_same_tags=True")
        return super().get_total_num_seqs(fast=fast)


class VariableReader(PassingReader):
    """Reads the dataset of each epoch, by a reader of that.

    Args:
        dataset: Says which dataset an epoch has.
    """

    def __init__(self, dataset: VariableDataset) -> None:
        self._dataset = dataset
        self._chosen = dataset.inner
        self._reader = self._chosen.make_reader()

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next.

        Raises:
            ConfigError: It is of no epoch, or the function returns no dataset that fits.
        """
        if wanted.epoch is not None:
            chosen = self._dataset.dataset_of(wanted.epoch)
            if chosen is not self._chosen:
                self._chosen, self._reader = chosen, chosen.make_reader()
        elif len(wanted.order):
            raise ConfigError("sequences of no epoch are asked for", where=f"dataset {self._dataset.name!r}")
        self._reader.start(wanted)

    def _at(self, number: int) -> tuple[Reader, int]:
        return self._reader, number

    def tags(self) -> list[str] | None:
        """Ask the reader."""
        return self._reader.tags()

    def load(self, start: int, stop: int) -> None:
        """Load the sequences."""
        self._reader.load(start, stop)


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    # a method has its own `self`, which `**kwargs` does not show
    takes_all = inspect.isfunction(function) and any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return name in parameters or takes_all


def _copied(config: Any) -> Any:
    """Return a config that its owner cannot change any more; arrays and objects in it are shared."""
    if isinstance(config, Mapping):
        return {key: _copied(value) for key, value in config.items()}
    return type(config)(map(_copied, config)) if type(config) in (list, tuple) else config


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)
