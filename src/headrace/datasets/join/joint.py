"""`JointDataset`: the sequences of several datasets as one corpus with random access.

One order is laid over the sequences that the parts offer in an epoch; each part is started with its share of it when it
is first read, and read at its own positions. Corpus indices are those of the parts, one part after the other.
It is the base of `CombinedDataset`, `ConcatDataset` and `MixDataset`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.order import (
    Order,
    RangeOrder,
    full_epoch_of,
    occurrences,
    slice_bounds,
)
from headrace.specs import DataSpec

from ..base import Dataset
from ..checks import check_indices
from ..corpus import Corpus, LengthsOf
from ..digests import recipe_text
from ..parts import MetaPart, PartReader
from ..reading.reader import Reader
from ..seq import DatasetSeq
from .base import OverCorpora
from .corpus import JointCorpus, JointLengths
from .layout import JointLayout
from .order import GumbelScale, JointPolicy, parse_joint_ordering
from .reader import JointPart, JointReader


class JointDataset(OverCorpora):
    """The sequences of several datasets, each of which knows its corpus. A sub-class opens them, and calls `_join`.

    Args:
        interleave_gumbel_scale: See `Interleave`.
        **kwargs: See `Dataset`. `seq_ordering` is laid over what the sub-datasets offer by their own orders.
    """

    def __init__(self, *, interleave_gumbel_scale: GumbelScale = None, **kwargs: Any) -> None:
        self._gumbel_scale = interleave_gumbel_scale
        ordering = kwargs.get("seq_ordering", "default")
        super().__init__(**{**kwargs, "seq_ordering": parse_joint_ordering(ordering, interleave_gumbel_scale)})
        self._seq_ordering = ordering

    def _join(
        self, datasets: Mapping[str, Dataset], layout: JointLayout, sampling_sizes: Mapping[str, int] | None = None
    ) -> None:
        """Take the sub-datasets.

        Args:
            datasets: Sub-dataset by name, in the order of the joint corpus; each knows its order and its tags.
            layout: Where each data key comes from.
            sampling_sizes: Sub-dataset -> how many of its sequences a full epoch takes: the n-th one from position
                (n - 1) * size of its own order in that epoch, and from the end to the start.
        """
        self.layout = layout
        self.sampling_sizes = None if sampling_sizes is None else dict(sampling_sizes)
        self.num_outputs, self.labels = dict(layout.outputs), dict(layout.labels)
        self.num_inputs = self.num_outputs.get("data", (0, 0))[0]
        self.members = [MetaPart(name, dataset, layout.keys[name]) for name, dataset in datasets.items()]
        self._corpus: JointCorpus | None = None
        self._joined: list[object] = []
        self._lengths: NDArray[Any] | None = None
        self._offered: NDArray[np.int64] | None = None
        self._version = 0
        self._counted_full: tuple[Order, NDArray[np.int64]] | None = None

    def _change_recipe(self, **changes: Any) -> None:
        if "seq_ordering" in changes:
            changes["seq_ordering"] = parse_joint_ordering(changes["seq_ordering"], self._gumbel_scale)
        super()._change_recipe(**changes)

    # --- the joint corpus ---

    @property
    def corpus(self) -> JointCorpus:
        """The corpora of the parts, one after the other."""
        sources = [part.source for part in self.members]
        if self._corpus is None or any(a is not b for a, b in zip(sources, self._joined, strict=True)):
            self._corpus = JointCorpus([part.corpus for part in self.members])
            self._joined, self._keep, self._file_lengths, self._lengths = sources, None, None, None
            self._planner.invalidate()
        return self._corpus

    def _kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what the filter of the whole and those of the parts keep; `None` without any."""
        own = None if self._wanted_tags is None else self._keep_mask()
        kept = [part.corpus.kept() for part in self.members]
        if all(mask is None for mask in kept):
            return own
        sizes = np.diff(self.corpus.starts).tolist()
        masks = [np.ones(size, bool) if mask is None else mask for mask, size in zip(kept, sizes, strict=True)]
        joined = np.concatenate(masks)
        return joined if own is None else joined & own

    # --- what is known without reading ---

    @property
    def _made_of(self) -> Sequence[MetaPart]:
        return self.members

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the corpora of the parts, one after the other."""
        parts = [(part, part.dataset.get_corpus(self._part_epoch(part, epoch))) for part in self.members]

        def lengths_of(key: str, may_cost: bool) -> LengthsOf | None:
            self._layout_of(key)
            columns = {}
            for number, (part, corpus) in enumerate(parts):
                if key in part.keys:
                    column = corpus.lengths(part.keys[key], may_cost)
                    if column is None:
                        return None
                    columns[number] = column
            return JointLengths(self.corpus, columns, self.layout.empty_length(key)).__getitem__

        def digest_text() -> str:
            texts = [f"{part.name} {sorted(part.keys.items())} {corpus.digest_text()}" for part, corpus in parts]
            return xxhash.xxh3_128_hexdigest(" | ".join(["joint", *texts]).encode())

        specs = {key: spec for key, spec in self.layout.specs.items() if spec is not None}
        return self._corpus_over(parts, epoch, specs=specs, lengths=lengths_of, digest_text=digest_text)

    def order_text(self, epoch: int) -> str:
        """Return what decides the joint order, and the orders of the parts."""
        number = full_epoch_of(epoch, self.partition_epoch) + 1
        parts = [f"of {part.name}: {part.dataset.order_text(number)}" for part in self.members]
        return "; ".join([recipe_text(self._recipe, epoch), *self._order_details(epoch), *parts])

    def reading_text(self, epoch: int) -> str:
        """Return what decides what the sequences of the parts hold: they are read by full epochs."""
        return super().reading_text(full_epoch_of(epoch, self.partition_epoch) + 1)

    def _order_details(self, epoch: int) -> list[str]:
        details = super()._order_details(epoch)
        if self.sampling_sizes is not None:
            details.append(f"sizes {sorted(self.sampling_sizes.items())}")
        return details

    # --- order ---

    def _order_of_epoch(self, epoch: int) -> Order:
        self._set_policy(epoch)
        corpus = dataclasses.replace(
            self._order_corpus(len(self.corpus), None), is_fixed=self.get_corpus().has_fixed_lengths
        )
        if self.seq_order_seq_lens_file is None:
            corpus = dataclasses.replace(corpus, lengths=lambda: self._sort_lengths(epoch))
        return self._planner.order_for_epoch(epoch, corpus)

    def _set_policy(self, epoch: int) -> None:
        """Tell the planner what the parts offer: that of a full epoch, so that its sub-epochs divide one thing."""
        full_epoch = full_epoch_of(epoch, self.partition_epoch) + 1
        orders = [self._own_order(part, full_epoch) for part in self.members]
        offered, may_repeat = self._offer(orders, full_epoch)
        is_same = (offered is None) == (self._offered is None) and (
            offered is None or np.array_equal(offered, self._offered)  # type: ignore[arg-type]
        )
        if not is_same:
            self._offered, self._version = offered, self._version + 1
        sizes = tuple(self._num_offered(part, len(order)) for part, order in zip(self.members, orders, strict=True))
        policy = JointPolicy(self._recipe.policy_for_epoch(epoch), sizes, self._version, self._offered, may_repeat)
        self._planner.recipe = dataclasses.replace(self._recipe, seq_ordering=policy)

    def _own_order(self, part: MetaPart, full_epoch: int) -> Order:
        return part.dataset.get_epoch_order(full_epoch + self._epoch_offset(part))[0]

    def _epoch_offset(self, part: MetaPart) -> int:  # noqa: ARG002 (a sub-class reads other epochs of some)
        """Return what is added to the number of a full epoch to get the epoch that a part is read in."""
        return 0

    def _num_offered(self, part: MetaPart, num_seqs: int) -> int:
        return num_seqs if self.sampling_sizes is None else self.sampling_sizes[part.name]

    def _offer(self, orders: Sequence[Order], full_epoch: int) -> tuple[NDArray[np.int64] | None, bool]:
        """Return the joint corpus indices that the orders of the parts hold, `None` if all; and whether some repeat."""
        starts, offered = self.corpus.starts.tolist(), []
        may_repeat = any(order.may_repeat for order in orders)
        if self.sampling_sizes is None and all(
            _is_whole(order, size) for order, size in zip(orders, np.diff(starts).tolist(), strict=True)
        ):
            return None, False
        for part, order, start in zip(self.members, orders, starts, strict=False):
            indices, size = order.block(0, len(order)), self._num_offered(part, len(order))
            if self.sampling_sizes is not None:
                if size and not len(order):
                    raise ConfigError(
                        f"sampling_sizes asks for {size} sequences of {part.name!r}, which has none",
                        where=f"dataset {self.name!r}, epoch {full_epoch}",
                        fix="leave the sub-dataset out, or write 0",
                    )
                first = (full_epoch - 1) * size % max(len(order), 1)
                indices = indices[np.arange(first, first + size) % max(len(order), 1)]
                may_repeat = may_repeat or size > len(order)
            offered.append(indices + start)
        return np.concatenate(offered), may_repeat

    def _sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:
        """Return `int[N]`: what the parts sort by, in an epoch; `None`: in the current one."""
        _ = self.corpus  # forgets lengths that are too old
        if self._lengths is not None:
            return self._lengths
        lengths = np.concatenate([part.dataset.sort_lengths_in(self._part_epoch(part, epoch)) for part in self.members])
        if self.get_corpus().has_fixed_lengths:
            self._lengths = lengths
        return lengths

    def _part_epoch(self, part: MetaPart, epoch: int | None) -> int | None:
        """Return the epoch that a part is read in."""
        if epoch is None:
            return None
        return full_epoch_of(epoch, self.partition_epoch) + 1 + self._epoch_offset(part)

    def _counter(self, epoch: int, order: Order) -> Callable[[], NDArray[np.int64]]:
        if self.partition_epoch == 1:
            return super()._counter(epoch, order)
        return partial(self._count_in_full_epoch, self._planner.full_order, epoch)

    def _count_in_full_epoch(self, full: Order, epoch: int) -> NDArray[np.int64]:
        """Count over all sub-epochs: the parts draw by the full epoch, and must not draw the same in two of them."""
        if self._counted_full is None or self._counted_full[0] is not full:
            self._counted_full = full, occurrences(full)
        start, stop = slice_bounds(len(full), epoch, self.partition_epoch, self.num_shards, self.shard_index)
        return self._counted_full[1][start:stop]

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, of the parts as well, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        if free_resources:
            self._corpus, self._offered, self._lengths, self._counted_full = None, None, None, None
            self._version += 1

    def supports_seq_order_sorting(self) -> bool:
        """Whether all parts know what they sort by, or a file tells it."""
        known = all(part.dataset.supports_seq_order_sorting() for part in self.members)
        return known or self.seq_order_seq_lens_file is not None

    # --- reading ---

    def _new_reader(self) -> Reader:
        parts = [
            JointPart(PartReader(part), part.corpus.draws_by_occurrence, self._epoch_offset(part))
            for part in self.members
        ]
        return JointReader(self.name, self.corpus, self.layout, parts, self.partition_epoch)

    def have_get_corpus_seq(self) -> bool:
        """Whether all parts have it."""
        return all(part.dataset.have_get_corpus_seq() for part in self.members)

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the joint corpus as it is stored, whatever the current order."""
        corpus = self.corpus
        (corpus_idx,) = check_indices([corpus_seq_idx], len(corpus), f"dataset {self.name!r}")
        number = int(corpus.owners_of(np.array([corpus_idx]))[0])
        part = self.members[number]
        seq = part.dataset.get_corpus_seq(int(corpus_idx - corpus.starts[number]))
        features = self.layout.filled({key: seq.features[own] for key, own in part.keys.items()})
        return DatasetSeq(int(corpus_idx), features, seq_tag=seq.seq_tag, corpus_idx=int(corpus_idx))

    # --- how much there is, layout ---

    def get_data_keys(self) -> list[str]:
        """Return the data keys, "data" first."""
        return self.layout.data_keys

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data"."""
        return [key for key in self.layout.data_keys if key != "data"]

    def _check_key(self, key: str) -> None:
        self._layout_of(key)

    def _layout_of(self, key: str) -> DataSpec:
        specs = self.layout.specs
        if key not in specs:
            raise ConfigError(f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, specs))
        spec = specs[key]
        if spec is not None:
            return spec
        part = next(part for part in self.members if key in part.keys)
        own, dataset = part.keys[key], part.dataset
        return DataSpec(dataset.get_data_dtype(own), tuple(dataset.get_data_shape(own)), dataset.is_data_sparse(own))


def _is_whole(order: Order, num_seqs: int) -> bool:
    """Tell whether an order is 0, 1, ... to the end of the corpus."""
    if len(order) != num_seqs or not isinstance(order, RangeOrder):
        return False
    return num_seqs == 0 or (order[0] == 0 and order[num_seqs - 1] == num_seqs - 1)
