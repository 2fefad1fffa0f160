"""`MetaDataset`: several datasets that describe the same sequences, read as one.

One order, of the control dataset or its own, is laid over all of them. Corpus indices of one lead to those of the
others by a join of the tags (`tags.py`) that is made once, before anything is read. It reads nothing itself: each array
is asked of the sub-dataset that has it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, did_you_mean, takes_note
from headrace.index import CorpusIndex
from headrace.order import Order, RangeOrder, occurrences
from headrace.specs import DataSpec

from ..checks import absolute_name, check_indices, check_key, check_path, remark_once
from ..configs import DatasetConfig
from ..corpus import Corpus, LengthsOf, StoredCounts
from ..digests import digest_array
from ..ordered import OrderedDataset
from ..orders import Orders
from ..parts import open_named, tags_of
from ..reading.reader import CountedOrder, Features, GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq
from .base import CompositeReader, JoinedCorpus, PartReader, brief, check_configs, check_names
from .layout import check_own_key, data_first
from .tags import SeqListFile, TagJoins, read_key_lengths, read_seq_lists

# What an order is made of; where another dataset gives it, these say nothing.
_ORDER_OPTIONS = {
    "seq_ordering": "default",
    "partition_epoch": 1,
    "repeat_epoch": 1,
    "fixed_random_seed": None,
    "unique_seq_tags": False,
    "seq_order_seq_lens_file": None,
    "seq_list_filter_file": None,
}


class MetaCorpus(JoinedCorpus):
    """Several corpora that hold different data of the same sequences.

    Args:
        name: See `Corpus`.
        orders: Likewise; without effect if there is a control.
        parts: Name -> part.
        data_map: Data key -> (name of a part, its data key), "data" first.
        control: The part that gives the order.
        lists: Part -> tags, where these differ, see `read_seq_lists`.
        seq_lens_file: See `MetaDataset`.

    Attributes:
        data_map: See above.
        control: Likewise.
        default: The part whose sequences they are, if no lists say it.
        remarks: What to log when an order is first asked for.
    """

    def __init__(
        self,
        name: str,
        orders: Orders,
        parts: Mapping[str, Corpus],
        data_map: Mapping[str, tuple[str, str]],
        control: str | None,
        lists: Mapping[str, CorpusIndex] | None,
        seq_lens_file: str | None,
    ) -> None:
        by_part = {name: {key: own for key, (part, own) in data_map.items() if part == name} for name in parts}
        super().__init__(name, orders, parts, by_part)
        self.data_map, self.control, self.remarks = data_map, control, list[str]()
        self._lists, self._seq_lens_file = lists, seq_lens_file
        self.default = control or data_map["data"][0]
        sizes = [part.group or 1 for part in self.parts]
        self.group = math.lcm(*sizes) if max(sizes) > 1 else 0  # a part of an epoch must be read in whole groups
        self._is_checked = False

    @property
    def orders(self) -> Orders:
        """Those of the control, if there is one."""
        return super().orders if self.control is None else self.by_name[self.control].orders

    def with_orders(self, **options: Any) -> Self:
        """Return this corpus with other options of the order, which are those of the control, if there is one."""
        if self.control is None:
            return super().with_orders(**options)
        control = self.by_name[self.control]
        return self.with_parts(lambda part: part.with_orders(**options) if part is control else part)

    # --- sequences ---

    @cached_property
    def joined(self) -> TagJoins:
        """Where each sequence is in each part, see `TagJoins`.

        Raises:
            ConfigError: The base does not tell its tags.
            SourceError: An index is damaged.
        """
        indices = {name: tags_of(part) for name, part in self.by_name.items()}
        where = f"dataset {self.name!r}"
        return TagJoins(where, indices, control=self.control, default=self.default, lists=self._lists)

    @property
    def index(self) -> CorpusIndex:
        """The tags of the base."""
        return self.joined.index

    def layout(self) -> Mapping[str, DataSpec | None]:
        """Return the layouts of the parts; of one that learns it from its first sequence, `None`."""
        layouts = {name: part.layout() or {} for name, part in self.by_name.items()}
        return {key: layouts[name].get(own) for key, (name, own) in self.data_map.items()}

    def spec_of(self, key: str) -> DataSpec | None:
        """Ask the part."""
        check_key(key, self.data_map, f"dataset {self.name!r}")
        name, own = self.data_map[key]
        return self.by_name[name].spec_of(own)

    @property
    def specs(self) -> Mapping[str, DataSpec]:  # type: ignore[override]
        """Those of the parts."""
        parts = self.by_name
        found = {key: parts[name].specs.get(own) for key, (name, own) in self.data_map.items()}
        return {key: spec for key, spec in found.items() if spec is not None}

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:  # type: ignore[override]
        """Those of the parts."""
        labels = {name: part.labels for name, part in self.by_name.items()}
        return {key: labels[name][own] for key, (name, own) in self.data_map.items() if own in labels[name]}

    def kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what the filter keeps, of the control if there is one."""
        return super().kept() if self.control is None else self.by_name[self.control].kept()

    def num_filtered(self) -> tuple[int, int] | None:
        """Return how many the filter leaves out, of the control if there is one."""
        return super().num_filtered() if self.control is None else self.by_name[self.control].num_filtered()

    def lengths(self, key: str, may_cost: bool, epoch: int | None = None) -> LengthsOf | None:
        """Ask the part; not one that is read by tags, and whose corpus indices are not known."""
        check_key(key, self.data_map, f"dataset {self.name!r}")
        (name, own), joined = self.data_map[key], self.joined
        part = self.by_name[name]
        inner = part.lengths(own, may_cost, epoch) if part.is_indexed else None
        return None if inner is None else lambda indices: inner(joined.part_indices(name, indices))

    def sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:
        """Return `int[N]`: what sequences are sorted by, if this corpus gives the order."""
        if self._seq_lens_file is not None and self.control is None:
            return self._lengths_by_tag
        part = self.by_name[self.default]
        if not part.is_indexed:
            raise ConfigError(
                f"seq_ordering={self.orders.seq_ordering!r} sorts by length, and {part.kind} does not tell the lengths "
                "of its sequences",
                where=f"dataset {self.name!r}, sub-dataset {self.default!r}",
                fix="give seq_lens_file, or seq_order_seq_lens_file",
            )
        lengths = part.sort_lengths(epoch)
        if self._lists is None or self.control is not None:
            return lengths
        return lengths[self.joined.part_indices(self.default, np.arange(self.size()))]

    def sort_keys(self, epoch: int | None = None) -> NDArray[Any]:
        """Return what sequences are sorted by, of the control if there is one."""
        return super().sort_keys(epoch) if self.control is None else self.by_name[self.control].sort_keys(epoch)

    @cached_property
    def _lengths_by_tag(self) -> NDArray[np.int64]:
        assert self._seq_lens_file is not None
        return read_key_lengths(self._seq_lens_file, self.index.tags, "data")

    def knows_sort_lengths(self) -> bool:
        """Whether the lengths that sequences are sorted by are known."""
        own = self.control is None and (self._seq_lens_file or self.orders.lengths_file) is not None
        return own or self.by_name[self.default].knows_sort_lengths()

    def stored_counts(self) -> StoredCounts | None:
        """Return how much the files of the default part hold, if it says what the sequences are."""
        return self.by_name[self.default].stored_counts() if self._lists is None else None

    # --- order ---

    def order(self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False) -> CountedOrder:
        """Return the order of an epoch, see `Corpus.order`.

        Raises:
            SourceError: A sequence is not in all sub-datasets, or its tag is there more than once.
        """
        if epoch is not None and given is None and not self._is_checked:
            self.joined.check(self.kept())
            self._is_checked = True
            for remark in self.remarks:  # here, since workers only get parts of an order
                remark_once(remark, f"MetaDataset {self.name!r}")
        order, counted = super().order(epoch, given, counts=counts)
        if given is not None:
            self.joined.check_these(order.block(0, len(order)))
        return order, counted

    def _order_of_epoch(self, epoch: int) -> Order:
        if self.control is None:
            return super()._order_of_epoch(epoch)
        control = self.by_name[self.control]
        try:
            order, _ = control.order(epoch)
        except NotImplementedError as error:
            raise ConfigError(
                f"{control.kind} does not tell its order, so it cannot control that of others",
                where=f"dataset {self.name!r}, seq_order_control_dataset={self.control!r}",
                fix="choose another seq_order_control_dataset, or let it define get_current_seq_order",
            ) from error
        if not control.is_indexed:  # a user-defined class, which may return anything
            check_indices(order, self.size(), control.title, what="get_current_seq_order")
        return order

    def _count(self, epoch: int, order: Order) -> NDArray[np.int64]:
        """Return how often each sequence came before, as the control counts."""
        if self.control is None:
            return super()._count(epoch, order)
        control = self.by_name[self.control]
        counted = control.order(epoch, counts=True)[1] if control.is_indexed else None
        return occurrences(order) if counted is None else counted

    def can_be_sharded(self) -> bool:
        """Whether the control can; any order of its own can."""
        return self.control is None or self.by_name[self.control].can_be_sharded()

    # --- reading ---

    def reader(self) -> Reader:
        """Return a reader of the parts that have data keys of the whole; others are never read."""
        sides = [PartReader(name, part, self.keys[name]) for name, part in self.by_name.items() if self.keys[name]]
        return MetaReader(self.name, self.joined, sides, list(self.data_map), self.control)

    def stored(self, corpus_idx: int) -> DatasetSeq:
        """Return any sequence as it is stored."""
        check_indices([corpus_idx], self.size(), f"dataset {self.name!r}")
        found, parts = {}, self.by_name
        for name in {name: None for name, _ in self.data_map.values()}:
            seq = parts[name].stored(int(self.joined.part_indices(name, np.array([corpus_idx]))[0]))
            found.update({key: seq.features[own] for key, own in self.keys[name].items()})
        features = {key: found[key] for key in self.data_map}
        return DatasetSeq(corpus_idx, features, seq_tag=self.index.tags[corpus_idx], corpus_idx=corpus_idx)

    # --- what decides what comes ---

    def digest_text(self) -> str:
        """Return a digest of the parts, of their data keys, and of the lists."""
        texts = self.part_texts()
        if self._lists is not None:
            texts += [f"list of {name} {tags.digest}" for name, tags in self._lists.items()]
        return xxhash.xxh3_128_hexdigest(" | ".join([self.index.digest, *sorted(texts)]).encode())

    def order_text(self, epoch: int) -> str:
        """Return what decides the order, of the control if there is one, and what the others hold."""
        if self.control is None:
            return super().order_text(epoch)
        return f"{self.control}: {self.by_name[self.control].order_text(epoch)}; {self.reading_text(epoch)}"

    def order_texts(self, epoch: int) -> list[str]:
        """Return texts of what the order depends on."""
        texts = super().order_texts(epoch)
        if self._seq_lens_file is not None:
            texts.append(f"sorted by {digest_array(self._lengths_by_tag)}")
        return texts


class MetaDataset(OrderedDataset):
    """Several datasets that hold different data of the same sequences, such as features and alignments.

    The order is that of `seq_order_control_dataset`: its `seq_ordering`, sub-epochs, shards, filter. Without one, it is
    made by this dataset's own options; sequences are then those of the lists, or of the default dataset (the one that
    "data" comes from), and sorted by its lengths. The other datasets may hold more sequences than that, but not fewer.

    Args:
        datasets: Key -> config of a sub-dataset. Only those are opened that are needed.
        data_map: Data key -> (key of a sub-dataset, its data key).
        seq_list_file: Which sequences belong together, if their tags differ, see `read_seq_lists`: what stands at the
            same index of each list. Without a control dataset they are also which sequences there are.
        seq_order_control_dataset: The sub-dataset that gives the order. Of this dataset's own options that say an order
            only `seq_list_filter_file`, `_num_shards` and `random_seed_offset` then have an effect: they are passed on.
        seq_lens_file: JSON tag -> data key -> length: those of "data" are sorted by, where this dataset's own options
            give the order.
        data_dims: Data key -> (dim, ndim): what must be found.
        data_dtypes: Data key -> dtype, likewise; only logged if something else is found.
        window: Only 1.
        **kwargs: See `Dataset`.

    Raises:
        ConfigError: An option is wrong, or names a sub-dataset or data key that does not exist.
        SourceError: A file is missing; with `init_seq_order`: the tags do not fit together.
    """

    def __init__(
        self,
        datasets: Mapping[str, DatasetConfig],
        data_map: Mapping[str, tuple[str, str]],
        seq_list_file: SeqListFile | None = None,
        seq_order_control_dataset: str | None = None,
        seq_lens_file: str | os.PathLike[str] | None = None,
        data_dims: Mapping[str, tuple[int, int]] | None = None,
        data_dtypes: Mapping[str, str] | None = None,
        window: int = 1,
        **kwargs: Any,
    ) -> None:
        _check_options(datasets, data_map, seq_order_control_dataset)
        control, given = seq_order_control_dataset, dict(kwargs)
        filter_file = given.pop("seq_list_filter_file", None) if control is not None else None
        super().__init__(window=window, **given)
        self.seq_order_control_dataset = control
        self.seq_list_file: Any = None
        if isinstance(seq_list_file, Mapping):
            self.seq_list_file = {name: _existing("seq_list_file", path) for name, path in seq_list_file.items()}
        elif seq_list_file is not None:
            self.seq_list_file = _existing("seq_list_file", seq_list_file)
        self.seq_lens_file = None if seq_lens_file is None else _existing("seq_lens_file", seq_lens_file)
        self.data_map = {key: (data_map[key][0], data_map[key][1]) for key in data_first(data_map)}
        names = {name for name, _ in self.data_map.values()} | ({control} if control is not None else set())
        parts = {name: self._open(name, datasets[name], filter_file) for name in sorted(names)}
        # Read now and kept: a file that changes later must not change what belongs together.
        lists = None if seq_list_file is None else read_seq_lists(self.seq_list_file, list(parts))
        corpus = MetaCorpus(self.name, self._orders, parts, self.data_map, control, lists, self.seq_lens_file)
        self._set_corpus(corpus)
        self.shuffle_frames_of_nseqs = corpus.group
        self._check_declared(data_dims or {}, data_dtypes or {})
        corpus.remarks = self._remarks_on(corpus, given, data_dtypes or {})

    def _open(self, name: str, config: DatasetConfig, filter_file: Any) -> Corpus:
        """Open a sub-dataset. The control dataset is the shard that the whole is, and has its filter.

        Raises:
            ConfigError: A config is wrong, a data key does not exist, or two levels would shard or filter.
        """
        is_control = name == self.seq_order_control_dataset
        if is_control and filter_file is not None:
            if not isinstance(config, Mapping) or config.get("seq_list_filter_file", filter_file) != filter_file:
                raise ConfigError(
                    f"seq_list_filter_file={str(filter_file)!r} is meant for the seq_order_control_dataset {name!r}, "
                    "which has one of its own, or is not described by a dict",
                    fix="give one filter, to the control dataset",
                )
            config = {**config, "seq_list_filter_file": filter_file}
        shard = {"_num_shards": self.num_shards, "_shard_index": self.shard_index} if is_control else {}
        part = open_named(name, config, self, **shard)
        if is_control and self.num_shards > 1:
            if part.orders.recipe.num_shards == 1:
                part = part.with_orders(num_shards=self.num_shards, shard_index=self.shard_index)
            wanted, found = (self.num_shards, self.shard_index), part.orders.recipe
            if (found.num_shards, found.shard_index) != wanted:
                raise ConfigError(
                    f"two levels would shard: the MetaDataset is shard {wanted[1]} of {wanted[0]}, its control dataset "
                    f"{name!r} shard {found.shard_index} of {found.num_shards}",
                    fix="give _num_shards and _shard_index to one of them",
                )
        if part.workers is not None and part.workers.sharding_method == "dedicated":
            raise ConfigError(
                f'the sub-dataset {name!r} has sharding_method="dedicated", which takes no order and tells none',
                fix='use sharding_method="seq_order"',
            )
        for key, (owner, own) in self.data_map.items():
            if owner == name:
                check_own_key(part, name, own, f"data_map[{key!r}] = {(name, own)}")
        return part

    def _check_declared(self, data_dims: Mapping[str, Any], data_dtypes: Mapping[str, str]) -> None:
        """Compare what was declared with what is known.

        Raises:
            ConfigError: It does not exist, or has another dim or number of axes.
        """
        outputs = self.num_outputs or {}
        check_names("data_dims", data_dims, "data key", self.data_map)
        check_names("data_dtypes", data_dtypes, "data key", self.data_map)
        for key, dims in data_dims.items():
            wanted = tuple(dims) if isinstance(dims, tuple | list) else (dims,)
            if key in outputs and wanted != outputs[key][: len(wanted)]:
                raise ConfigError(
                    f"data_dims says that {key!r} has (dim, ndim) {dims}, it has {outputs[key]}",
                    where=f"dataset {self.name!r}",
                    fix="correct data_dims, or leave it out",
                )

    def _remarks_on(self, corpus: MetaCorpus, given: Mapping[str, Any], data_dtypes: Mapping[str, str]) -> list[str]:
        """Return remarks on options that are legal and have no effect."""
        orders, name = corpus.by_name[corpus.default].orders, corpus.default
        present = {option: _option_of(orders, option) for option in _ORDER_OPTIONS}
        if corpus.control is not None:
            idle = {option: value for option, value in given.items() if option in _ORDER_OPTIONS and value}
            idle = {option: value for option, value in idle.items() if value != present[option]}
            owner, reason = "the MetaDataset", f"the order is that of its control dataset {name!r}"
        else:
            idle = {option: value for option, value in present.items() if value != _ORDER_OPTIONS[option]}
            owner, own = f"the sub-dataset {name!r}", f"seq_order_control_dataset={name!r}"
            reason = f"the MetaDataset makes its own order; did you mean {own}?"
        texts = [f"{option}={value!r} of {owner} has no effect: {reason}" for option, value in idle.items()]
        for key, dtype in data_dtypes.items():
            if key in (self.num_outputs or {}) and dtype != self.get_data_dtype(key):
                texts.append(f"data_dtypes says that {key!r} has dtype {dtype}, it has {self.get_data_dtype(key)}")
        return texts

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`. Reads no data.

        Raises:
            SourceError: A sequence is not in all sub-datasets, or its tag is there more than once.
        """
        super().init_seq_order(epoch, seq_list, seq_order)
        corpus = self._read
        assert isinstance(corpus, MetaCorpus)
        if self.num_seqs and not all(part.is_indexed for name, part in corpus.by_name.items() if corpus.keys[name]):
            _ = self._order_reader  # they say now whether they take the order
        return True

    def _layout_of(self, key: str) -> DataSpec | None:
        return self._read.spec_of(key)

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        if key in (self.num_outputs or {}):
            return super().get_data_dim(key)
        spec = self._layout_of(key)
        return 1 if spec is None else spec.num_outputs[0]


def _option_of(orders: Orders, option: str) -> Any:
    of_orders = {
        "seq_ordering": orders.seq_ordering,
        "unique_seq_tags": orders.has_unique_tags,
        "seq_order_seq_lens_file": orders.lengths_file,
        "seq_list_filter_file": orders.filter_file,
    }
    return of_orders[option] if option in of_orders else getattr(orders.recipe, option)


class MetaReader(CompositeReader):
    """Reads the sub-datasets that have data keys of the whole, side by side.

    A sub-dataset is started with its share of the request when it is first read; asking only for the order starts none.
    Those that are read by tags are started at once: only they can tell whether they accept the tags.

    Args:
        name: Name of the whole, for messages.
        corpus: Leads from its corpus indices to theirs.
        sides: The sub-datasets.
        data_keys: Data keys of the whole, in its order.
        control: The one of them that gives the order, if one does.
    """

    def __init__(
        self, name: str, corpus: TagJoins, sides: Sequence[PartReader], data_keys: Sequence[str], control: str | None
    ) -> None:
        self._name, self._corpus, self._data_keys, self._control = name, corpus, list(data_keys), control
        self._side_of = {key: side for side in sides for key in side.keys}
        super().__init__(corpus.tags_of, sides)

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        super().start(wanted)
        self._started: set[str] = set()
        for side in self._sides if len(wanted.order) else ():
            if not side.knows_corpus:
                self._ready(side)

    def _ready(self, side: PartReader) -> PartReader:
        """Return what reads a sub-dataset, started with its share."""
        if side.name not in self._started:
            wanted = self._wanted
            if side.knows_corpus:
                indices, counted = self._corpus.part_indices(side.name, wanted.indices), wanted.occurrences
                share = ReadRequest.of(wanted.epoch, indices, counted if side.draws else None, wanted.first)
            else:
                tags = self._corpus.tags(side.name, wanted.indices)
                share = ReadRequest(wanted.epoch, RangeOrder(range(len(tags))), None, wanted.first, tags)
            is_whole = wanted.is_whole and side.name == self._control
            side.reader.start(dataclasses.replace(share, is_whole=is_whole))
            self._started.add(side.name)
        return side

    def features(self, number: int) -> Features:
        """Return all arrays of a sequence."""
        found: Features = {}
        for side in self._sides:
            try:
                found.update(self._ready(side).features(number))
            except Exception as error:
                takes_note(error, f"sub-dataset {side.name!r} of {self._name!r}, sequence {self._tag(number)!r}")
                raise
        return {key: found[key] for key in self._data_keys}

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return one data key, of the sub-dataset that has it."""
        return self._ready(self._side_of[key]).array(number, key)

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return some frames of one data key."""
        return self._ready(self._side_of[key]).frames(number, key, start, stop)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the sub-datasets; where one has no random access, sequences are read whole."""
        if self.is_sequential:
            return None
        found: dict[str, int | None] = {}
        for side in self._sides:
            found.update(self._ready(side).sliced_frames(number) or dict.fromkeys(side.keys))
        return {key: found[key] for key in self._data_keys}

    def known_frames(self, number: int) -> NumbersDict | None:
        """Return data key -> number of frames, where all sub-datasets know it."""
        found: dict[str, Any] = {}
        for side in self._sides:
            frames = self._ready(side).known_frames(number)
            if frames is None:
                return None
            found.update(frames)
        return NumbersDict({key: found[key] for key in self._data_keys})


def _existing(option: str, path: Any) -> str:
    """Return the name of an existing file as an absolute path: a copy may be made in another folder."""
    return absolute_name(check_path(option, path))


def _check_options(datasets: Any, data_map: Any, control: Any) -> None:
    """Check what can be known before a sub-dataset is opened."""
    check_configs(datasets)
    if not isinstance(data_map, Mapping) or not data_map:
        raise ConfigError(
            f"data_map must be a dict data key -> (sub-dataset, its data key), got {brief(data_map)}",
            fix='write {"data": ("features", "data"), ...}',
        )
    named = {} if control is None else {f"seq_order_control_dataset={control!r}": control}
    for key, source in data_map.items():
        if not isinstance(source, tuple | list) or list(map(type, source)) != [str, str]:
            raise ConfigError(
                f"data_map[{key!r}] must be (sub-dataset, its data key), got {brief(source)}",
                fix=f'write {{{key!r}: ("features", "data"), ...}}',
            )
        named[f"data_map[{key!r}] = {tuple(source)}"] = source[0]
    for where, name in named.items():
        if name not in datasets:
            raise ConfigError(f"there is no sub-dataset {name!r}", where=where, fix=did_you_mean(str(name), datasets))
    if control is None and "data" not in data_map:
        raise ConfigError(
            f"without a seq_order_control_dataset the order is that of 'data', and data_map has only "
            f"{sorted(data_map)}",
            fix="give seq_order_control_dataset, or map the data key 'data'",
        )
