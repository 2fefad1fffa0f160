"""`MetaDataset`: several datasets that describe the same sequences, read as one.

One order, of the control dataset or its own, is laid over all of them. Corpus indices of one lead to those of the
others by a join of the tags (`tags.py`) that is made once, before anything is read. It reads nothing itself: each array
is asked of the sub-dataset that has it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, did_you_mean, takes_note
from headrace.order import Order, OrderCorpus, OrderReport, RangeOrder, occurrences

from ..base import Dataset, Owned
from ..checks import absolute_name, check_indices, check_path, remark_once
from ..configs import DatasetConfig
from ..corpus import Corpus, LengthsOf, StoredCounts
from ..digests import digest_array
from ..parts import open_part
from ..reading.reader import Features, GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq
from .base import CompositeReader, MetaPart, OverCorpora, PartReader, brief, check_configs, check_names
from .layout import check_own_key, data_first
from .tags import MetaCorpus, SeqListFile, read_key_lengths, read_seq_lists

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


class MetaDataset(OverCorpora):
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
        self.data_keys = data_first(data_map)
        self.data_map = {key: (data_map[key][0], data_map[key][1]) for key in self.data_keys}
        names = {name for name, _ in self.data_map.values()} | ({control} if control is not None else set())
        self.members = [self._open_part(name, datasets[name], filter_file) for name in sorted(names)]
        self._parts = {part.name: part for part in self.members}
        self._control = None if control is None else self._parts[control]
        self._default = self._control or self._parts[self.data_map["data"][0]]
        # Read now and kept: a file that changes later must not change what belongs together.
        self._lists = None if seq_list_file is None else read_seq_lists(self.seq_list_file, list(self._parts))
        self._take_layout(data_dims or {}, data_dtypes or {})
        if self._control is not None:
            self._follow_control()
        self._remarks = self._remarks_on(given, data_dtypes or {})
        if type(self).__init__ is MetaDataset.__init__:  # as in HDFDataset: a copy may be made in another folder
            self._ctor_args = ((), self._args_of_copy(given))

    def _open_part(self, name: str, config: DatasetConfig, filter_file: Any) -> MetaPart:
        """Open a sub-dataset. The control dataset is the shard that the whole is, and has its filter.

        Raises:
            ConfigError: A config is wrong, a data key does not exist, or two levels would shard or filter.
        """
        defaults: dict[str, Any] = {"name": f"{self.name}_{name}", "random_seed_offset": self.random_seed_offset}
        is_control = name == self.seq_order_control_dataset
        if is_control:
            defaults.update(_num_shards=self.num_shards, _shard_index=self.shard_index)
        if is_control and filter_file is not None:
            if not isinstance(config, Mapping) or config.get("seq_list_filter_file", filter_file) != filter_file:
                raise ConfigError(
                    f"seq_list_filter_file={str(filter_file)!r} is meant for the seq_order_control_dataset {name!r}, "
                    "which has one of its own, or is not described by a dict",
                    fix="give one filter, to the control dataset",
                )
            config = {**config, "seq_list_filter_file": filter_file}
        dataset = open_part(config, defaults, owner=self)
        if is_control and self.num_shards > 1:
            if dataset.num_shards == 1:
                dataset.set_sharding(self.num_shards, self.shard_index)
            wanted, found = (self.num_shards, self.shard_index), (dataset.num_shards, dataset.shard_index)
            if found != wanted:
                raise ConfigError(
                    f"two levels would shard: the MetaDataset is shard {wanted[1]} of {wanted[0]}, its control dataset "
                    f"{name!r} shard {found[1]} of {found[0]}",
                    fix="give _num_shards and _shard_index to one of them",
                )
        workers = dataset.get_workers()
        if workers is not None and workers.sharding_method == "dedicated":
            raise ConfigError(
                f'the sub-dataset {name!r} has sharding_method="dedicated", which takes no order and tells none',
                fix='use sharding_method="seq_order"',
            )
        keys = {key: own for key, (part, own) in self.data_map.items() if part == name}
        for key, own in keys.items():
            check_own_key(dataset, name, own, f"data_map[{key!r}] = {(name, own)}")
        return MetaPart(name, dataset, keys)

    def _take_layout(self, data_dims: Mapping[str, Any], data_dtypes: Mapping[str, str]) -> None:
        """Say what is known of the data keys: of a sub-dataset that learns it from its first sequence, nothing.

        Raises:
            ConfigError: What was declared does not exist, or has another dim or number of axes.
        """
        self.num_outputs = {}
        for key, (name, own) in self.data_map.items():
            dataset = self._parts[name].dataset
            if dataset.num_outputs is not None and own in dataset.num_outputs:
                self.num_outputs[key] = (dataset.get_data_dim(own), dataset.num_outputs[own][1])
            if own in dataset.labels:
                self.labels[key] = dataset.labels[own]
        self.num_inputs = self.num_outputs.get("data", (self.num_inputs, 0))[0]
        sizes = [part.dataset.shuffle_frames_of_nseqs or 1 for part in self.members]
        if max(sizes) > 1:  # a part of an epoch must be read in whole groups
            self.shuffle_frames_of_nseqs = math.lcm(*sizes)
        check_names("data_dims", data_dims, "data key", self.data_keys)
        check_names("data_dtypes", data_dtypes, "data key", self.data_keys)
        for key, dims in data_dims.items():
            wanted = tuple(dims) if isinstance(dims, tuple | list) else (dims,)
            if key in self.num_outputs and wanted != self.num_outputs[key][: len(wanted)]:
                raise ConfigError(
                    f"data_dims says that {key!r} has (dim, ndim) {dims}, it has {self.num_outputs[key]}",
                    where=f"dataset {self.name!r}",
                    fix="correct data_dims, or leave it out",
                )

    def _remarks_on(self, given: Mapping[str, Any], data_dtypes: Mapping[str, str]) -> list[str]:
        """Return remarks on options that are legal and have no effect."""
        default = self._default.dataset
        if self._control is not None:
            idle = {name: value for name, value in given.items() if name in _ORDER_OPTIONS and value}
            idle = {name: value for name, value in idle.items() if value != getattr(default, name)}
            owner, reason = "the MetaDataset", f"the order is that of its control dataset {self._default.name!r}"
        else:
            present = {name: getattr(default, name) for name in _ORDER_OPTIONS}
            idle = {name: value for name, value in present.items() if value != _ORDER_OPTIONS[name]}
            owner, own = f"the sub-dataset {self._default.name!r}", f"seq_order_control_dataset={self._default.name!r}"
            reason = f"the MetaDataset makes its own order; did you mean {own}?"
        texts = [f"{name}={value!r} of {owner} has no effect: {reason}" for name, value in idle.items()]
        for key, dtype in data_dtypes.items():
            if key in (self.num_outputs or {}) and dtype != self.get_data_dtype(key):
                texts.append(f"data_dtypes says that {key!r} has dtype {dtype}, it has {self.get_data_dtype(key)}")
        return texts

    def _args_of_copy(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that make a copy: with the sub-datasets themselves, which know how to be copied."""
        passed_on = ("_num_shards", "_shard_index") if self._control is not None else ()
        return {
            **{name: value for name, value in given.items() if name not in passed_on},
            "datasets": {name: Owned(part.dataset) for name, part in self._parts.items()},
            "data_map": self.data_map,
            "seq_list_file": self.seq_list_file,
            "seq_order_control_dataset": self.seq_order_control_dataset,
            "seq_lens_file": self.seq_lens_file,
        }

    def _follow_control(self) -> None:
        """Take over the options that make the order, which are those of the control dataset."""
        assert self._control is not None
        control = self._control.dataset
        self._recipe, self._seq_ordering = control.order_recipe, control.seq_ordering

    def _change_recipe(self, **changes: Any) -> None:
        if self._control is None:
            super()._change_recipe(**changes)
            return
        self._control.dataset._change_recipe(**changes)
        self._follow_control()

    # --- the joined corpus ---

    @property
    def corpus(self) -> MetaCorpus:
        """The sequences and where each is in each sub-dataset; the first access joins the tags, see `join_tags`.

        Raises:
            ConfigError: The base does not tell its tags.
            SourceError: An index is damaged.
        """
        return self._join_once(
            lambda: MetaCorpus(
                f"dataset {self.name!r}",
                {part.name: part.tag_index() for part in self.members},
                control=self.seq_order_control_dataset,
                default=self._default.name,
                lists=self._lists,
            )
        )

    def _kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what the filter keeps, of the control dataset if there is one; `None` without a filter."""
        if self._control is None:
            return super()._kept()
        return self._control.corpus.kept()

    def _check_corpus(self) -> None:
        """Check that the tags fit together."""
        corpus = self.corpus
        if not corpus.is_checked:
            corpus.check(self._kept())
            for remark in self._remarks:  # here, since workers only get parts of an order
                remark_once(remark, f"MetaDataset {self.name!r}")

    # --- what is known without reading ---

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the sub-datasets, of each as far as its data keys are mapped."""
        parts = [(part, part.dataset.get_corpus(epoch)) for part in self.members]
        corpora = {part.name: corpus for part, corpus in parts}

        def lengths_of(key: str, may_cost: bool) -> LengthsOf | None:
            self._check_key(key)
            (name, own), joined = self.data_map[key], self.corpus
            if not corpora[name].is_indexed:  # it is read by tags, and its corpus indices are not known
                return None
            inner = corpora[name].lengths(own, may_cost)
            return None if inner is None else lambda indices: inner(joined.part_indices(name, indices))

        def digest_text() -> str:
            texts = [f"{part.name} {sorted(part.keys.items())} {corpus.digest_text()}" for part, corpus in parts]
            if self._lists is not None:
                texts += [f"list of {name} {tags.digest}" for name, tags in self._lists.items()]
            return xxhash.xxh3_128_hexdigest(" | ".join([self.corpus.index.digest, *sorted(texts)]).encode())

        found = {key: corpora[name].specs.get(own) for key, (name, own) in self.data_map.items()}
        corpus = self._corpus_over(
            parts,
            epoch,
            specs={key: spec for key, spec in found.items() if spec is not None},
            knows_dtypes=all(corpus.knows_dtypes for corpus in corpora.values()),
            lengths=lengths_of,
            digest_text=digest_text,
        )
        if self._control is None:
            return corpus
        return dataclasses.replace(corpus, num_filtered=corpora[self._control.name].num_filtered)

    def stored_counts(self) -> StoredCounts | None:
        """Return how much the files of the default sub-dataset hold, if it says what the sequences are."""
        return self._default.dataset.stored_counts() if self._lists is None else None

    def order_text(self, epoch: int) -> str:
        """Return what decides the order, of the control dataset if there is one, and what the others hold."""
        if self._control is None:
            return super().order_text(epoch)
        return f"{self._control.name}: {self._control.dataset.order_text(epoch)}; {self.reading_text(epoch)}"

    def _order_details(self, epoch: int) -> list[str]:
        details = super()._order_details(epoch)
        if self.seq_lens_file is not None:
            details.append(f"sorted by {digest_array(np.asarray(self._sort_lengths()))}")
        return details

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`. Reads no data.

        Raises:
            SourceError: A sequence is not in all sub-datasets, or its tag is there more than once.
        """
        super().init_seq_order(epoch, seq_list, seq_order)
        if self._cursor.stop and not all(part.corpus.is_indexed for part in self._read_parts):
            _ = self._order_reader  # they say now whether they take the order
        return True

    def _plan(self, epoch: int | None, given: GivenOrder | None) -> tuple[Order, Callable[[], NDArray[np.int64]]]:
        if epoch is not None and given is None:
            self._check_corpus()
        order, count = super()._plan(epoch, given)
        if given is not None:
            self.corpus.check_these(order.block(0, len(order)))
        return order, count

    def _order_of_epoch(self, epoch: int) -> Order:
        control = self._control
        if control is None:
            return self._lazy_order_for_epoch(epoch, len(self.corpus.index))
        try:
            order, _ = control.dataset.get_epoch_order(epoch)
        except NotImplementedError as error:
            raise ConfigError(
                f"{type(control.dataset).__name__} does not tell its order, so it cannot control that of others",
                where=f"dataset {self.name!r}, seq_order_control_dataset={control.name!r}",
                fix="choose another seq_order_control_dataset, or let it define get_current_seq_order",
            ) from error
        if not control.corpus.is_indexed:  # a user-defined class, which may return anything
            where = f"{type(control.dataset).__name__} {control.dataset.name!r}"
            check_indices(order, len(self.corpus.index), where, what="get_current_seq_order")
        return order

    def _counter(self, epoch: int, order: Order) -> Callable[[], NDArray[np.int64]]:
        control = self._control
        if control is None:
            return super()._counter(epoch, order)
        if not control.corpus.is_indexed:
            return partial(occurrences, order)
        return partial(_count_by, control.dataset, epoch, order)

    def _order_corpus(self, num_seqs: int, get_seq_len: Any) -> OrderCorpus:
        corpus = super()._order_corpus(num_seqs, get_seq_len)
        return dataclasses.replace(corpus, lengths=corpus.lengths or self._sort_lengths, is_fixed=True)

    def _sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:  # noqa: ARG002 (they are those of all)
        """Return `int[N]`: what sequences are sorted by, if this dataset gives the order."""
        joined = self.corpus
        if self._lengths is not None:
            return self._lengths
        if self.seq_lens_file is not None and self._control is None:
            self._lengths = read_key_lengths(self.seq_lens_file, joined.index.tags, "data")
            return self._lengths
        corpus = self._default.corpus
        if not corpus.is_indexed:
            raise ConfigError(
                f"seq_ordering={self.seq_ordering!r} sorts by length, and {type(self._default.dataset).__name__} does "
                "not tell the lengths of its sequences",
                where=f"dataset {self.name!r}, sub-dataset {self._default.name!r}",
                fix="give seq_lens_file, or seq_order_seq_lens_file",
            )
        self._lengths = corpus.sort_lengths()
        if self._lists is not None and self._control is None:
            self._lengths = self._lengths[joined.part_indices(self._default.name, np.arange(len(joined)))]
        return self._lengths

    @property
    def order_report(self) -> OrderReport | None:
        """What the recipe leaves out or repeats in the current full epoch; `None` before the first one."""
        return super().order_report if self._control is None else self._control.dataset.order_report

    def supports_seq_order_sorting(self) -> bool:
        """Whether the lengths that sequences are sorted by are known."""
        own = self._control is None and (self.seq_lens_file or self.seq_order_seq_lens_file) is not None
        return own or self._default.dataset.supports_seq_order_sorting()

    def supports_sharding(self) -> bool:
        """Whether the control dataset does; any order of its own can be sharded."""
        return self._control is None or self._control.dataset.supports_sharding()

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make this dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        if self._control is None:
            super()._take_shard(num_shards, shard_index)
            return
        self._control.dataset.set_sharding(num_shards, shard_index)
        self._follow_control()

    # --- layout ---

    def _asked(self, key: str) -> tuple[Dataset, str]:
        """Return the dataset that has a data key, and its data key."""
        self._check_key(key)
        name, own = self.data_map[key]
        return self._parts[name].dataset, own

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        dataset, own = self._asked(key)
        return dataset.get_data_dim(own)

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        dataset, own = self._asked(key)
        return dataset.get_data_dtype(own)

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        dataset, own = self._asked(key)
        return dataset.is_data_sparse(own)

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame."""
        dataset, own = self._asked(key)
        return dataset.get_data_shape(own)

    # --- reading ---

    @property
    def _read_parts(self) -> Sequence[MetaPart]:
        """The sub-datasets that have data keys of the whole; others are never read."""
        return [part for part in self.members if part.keys]

    def _new_reader(self) -> Reader:
        sides = [PartReader(part) for part in self._read_parts]
        return MetaReader(self.name, self.corpus, sides, self.data_keys, self.seq_order_control_dataset)

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return the length that sequences are sorted by."""
        if self._control is None:
            return super().get_estimated_seq_length(seq_idx)
        corpus_idx = self._corpus_idx(seq_idx)  # is that of the control dataset
        if not self._control.corpus.is_indexed:
            return self._control.dataset.get_estimated_seq_length(seq_idx)
        return self._control.dataset.sort_lengths_in(None)[corpus_idx].item()  # type: ignore[no-any-return]

    def have_get_corpus_seq(self) -> bool:
        """Whether all sub-datasets have it."""
        return all(part.corpus.is_indexed and part.dataset.have_get_corpus_seq() for part in self._read_parts)

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus as it is stored, whatever the current order."""
        check_indices([corpus_seq_idx], len(self.corpus.index), f"dataset {self.name!r}")
        found = {}
        for part in self._read_parts:
            own_idx = int(self.corpus.part_indices(part.name, np.array([corpus_seq_idx]))[0])
            seq = part.dataset.get_corpus_seq(own_idx)
            found.update({key: seq.features[own] for key, own in part.keys.items()})
        features = {key: found[key] for key in self.get_data_keys()}
        tag = self.corpus.index.tags[corpus_seq_idx]
        return DatasetSeq(corpus_seq_idx, features, seq_tag=tag, corpus_idx=corpus_seq_idx)


def _count_by(control: Dataset, epoch: int, order: Order) -> NDArray[np.int64]:
    """Return how often each sequence of the order of a control dataset came before, as it counts."""
    counted = control.get_epoch_order(epoch, counts=True)[1]
    return occurrences(order) if counted is None else counted


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
        self, name: str, corpus: MetaCorpus, sides: Sequence[PartReader], data_keys: Sequence[str], control: str | None
    ) -> None:
        self._name, self._corpus, self._data_keys, self._control = name, corpus, list(data_keys), control
        self._side_of = {key: side for side in sides for key in side.keys}
        super().__init__(corpus, sides)

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
