"""`MetaDataset`: several datasets that describe the same sequences, read as one.

One order, of the control dataset or its own, is laid over all of them. Corpus indices of one lead to those of the
others by a join of the tags (`index/join.py`) that is made once, before anything is read. It reads nothing itself:
each array is asked of the sub-dataset that has it (`reader.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order import Order, OrderCorpus, OrderReport, occurrences

from ...base import Dataset, Owned
from ...checks import absolute_name, check_indices, check_path, remark_once
from ...configs import DatasetConfig
from ...corpus import Corpus, LengthsOf, StoredCounts
from ...digests import digest_array
from ...parts import MetaPart, PartReader
from ...reading.reader import GivenOrder, Reader
from ...seq import DatasetSeq
from .corpus import MetaCorpus, join_corpora
from .layout import LaidOutByParts, check_layout
from .lists import SeqListFile, absolute_names, read_key_lengths, read_seq_lists
from .options import MetaOptions, open_parts, remarks
from .reader import MetaReader, MetaSide


class MetaDataset(LaidOutByParts):
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
        options = MetaOptions(datasets, data_map, seq_order_control_dataset)
        given = dict(kwargs)
        filter_file = given.pop("seq_list_filter_file", None) if options.control is not None else None
        super().__init__(window=window, **given)
        self.seq_order_control_dataset = options.control
        self.seq_list_file = absolute_names(seq_list_file)
        self.seq_lens_file = (
            None if seq_lens_file is None else absolute_name(check_path("seq_lens_file", seq_lens_file))
        )
        self._parts = open_parts(options, self, filter_file)
        self._control = None if options.control is None else self._parts[options.control]
        self._default = self._parts[options.default]
        # Read now and kept: a file that changes later must not change what belongs together.
        self._lists = None if seq_list_file is None else read_seq_lists(self.seq_list_file, list(self._parts))
        self._corpus: MetaCorpus | None = None
        self._joined: list[Any] = []
        self._is_checked = False
        self._own_lengths: NDArray[Any] | None = None
        self._take_parts(data_map, self._parts)
        check_layout(self, data_dims or {}, data_dtypes or {})
        if self._control is not None:
            self._follow_control()
        self._remarks = remarks(self, options, given, self._default.dataset, data_dtypes or {})
        if type(self).__init__ is MetaDataset.__init__:  # as in HDFDataset: a copy may be made in another folder
            self._ctor_args = ((), self._args_of_copy(given))

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
        sources = [part.source for part in self._parts.values()]
        if self._corpus is None or any(a is not b for a, b in zip(sources, self._joined, strict=True)):
            self._corpus = join_corpora(
                f"dataset {self.name!r}",
                {name: part.tag_index() for name, part in self._parts.items()},
                control=None if self._control is None else self._control.name,
                default=self._default.name,
                lists=self._lists,
            )
            self._joined, self._is_checked, self._keep = sources, False, None
            self._own_lengths, self._file_lengths = None, None
            self._planner.invalidate()
        return self._corpus

    def _kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what the filter keeps, of the control dataset if there is one; `None` without a filter."""
        if self._control is None:
            return super()._kept()
        return self._control.corpus.kept()

    def _check_corpus(self) -> MetaCorpus:
        """Return the corpus, whose tags fit together."""
        corpus = self.corpus
        if not self._is_checked:
            corpus.check(self._kept())
            self._is_checked = True
            for remark in self._remarks:  # here, since workers only get parts of an order
                remark_once(remark, f"MetaDataset {self.name!r}")
        return corpus

    # --- what is known without reading ---

    @property
    def _made_of(self) -> Sequence[MetaPart]:
        return sorted(self._parts.values(), key=lambda part: part.name)

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the sub-datasets, of each as far as its data keys are mapped."""
        parts = [(part, part.dataset.get_corpus(epoch)) for part in self._made_of]
        corpora = {part.name: corpus for part, corpus in parts}

        def lengths_of(key: str, may_cost: bool) -> LengthsOf | None:
            part, joined = self._part(key), self.corpus
            corpus = corpora[part.name]
            if not corpus.is_indexed:  # it is read by tags, and its corpus indices are not known
                return None
            inner = corpus.lengths(part.keys[key], may_cost)
            return None if inner is None else lambda indices: inner(joined.part_indices(part.name, indices))

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
        corpus = self.corpus
        if self._own_lengths is None:
            if self.seq_lens_file is not None and self._control is None:
                self._own_lengths = read_key_lengths(self.seq_lens_file, corpus.index.tags, "data")
            else:
                lengths = self._lengths_of_default()
                is_base = self._lists is None or self._control is not None
                of_default = None if is_base else corpus.part_indices(self._default.name, np.arange(len(corpus.index)))
                self._own_lengths = lengths if of_default is None else lengths[of_default]
        return self._own_lengths

    def _lengths_of_default(self) -> NDArray[Any]:
        corpus = self._default.corpus
        if not corpus.is_indexed:
            raise ConfigError(
                f"seq_ordering={self.seq_ordering!r} sorts by length, and {type(self._default.dataset).__name__} does "
                "not tell the lengths of its sequences",
                where=f"dataset {self.name!r}, sub-dataset {self._default.name!r}",
                fix="give seq_lens_file, or seq_order_seq_lens_file",
            )
        return corpus.sort_lengths()

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, of the sub-datasets as well, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        if free_resources:
            self._corpus, self._own_lengths = None, None

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

    # --- reading ---

    @property
    def _read_parts(self) -> Sequence[MetaPart]:
        """The sub-datasets that have data keys of the whole; others are never read."""
        return [part for part in self._parts.values() if part.keys]

    def _new_reader(self) -> Reader:
        sides = []
        for part in self._read_parts:
            corpus, reader = part.corpus, PartReader(part)
            sides.append(MetaSide(reader, corpus.is_indexed, corpus.draws_by_occurrence, part is self._control))
        return MetaReader(self.name, self.corpus, sides, self.get_data_keys())

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return the length that sequences are sorted by."""
        if self._control is None:
            return super().get_estimated_seq_length(seq_idx)
        corpus_idx = self._corpus_idx(seq_idx)
        if not self._control.corpus.is_indexed:
            return self._control.dataset.get_estimated_seq_length(seq_idx)
        own_idx = self.corpus.part_indices(self._control.name, np.array([corpus_idx]))[0]
        return self._control.dataset.sort_lengths_in(None)[own_idx].item()  # type: ignore[no-any-return]

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
