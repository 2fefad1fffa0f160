"""`CombinedDataset` and `ConcatDataset`: the sequences of several datasets as one corpus with random access.

One order is laid over the sequences that the parts offer in an epoch; each part is started with its share of it when it
is first read, and read at its own positions. Corpus indices are those of the parts, one part after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order import Order, RangeOrder, full_epoch_of, occurrences, slice_bounds
from headrace.specs import DataSpec

from ..base import Owned
from ..checks import check_indices
from ..configs import DatasetConfig
from ..corpus import Corpus, LengthsOf
from ..digests import recipe_text
from ..parts import check_indexed, check_no_cycle, open_datasets
from ..reading.reader import Reader
from ..seq import DatasetSeq
from .base import MetaPart, OverCorpora, PartReader, check_configs, check_names
from .joint import JointCorpus, JointLengths, JointReader
from .layout import KeySource, make_layout, parse_data_map, same_keys
from .order import GumbelScale, JointPolicy, parse_joint_ordering


class JointDataset(OverCorpora):
    """The sequences of several datasets, each of which knows its corpus. A sub-class calls `_join`.

    Args:
        interleave_gumbel_scale: See `Interleave`.
        **kwargs: See `Dataset`. `seq_ordering` is laid over what the sub-datasets offer by their own orders.
    """

    sampling_sizes: dict[str, int] | None = None
    _offered: NDArray[np.int64] | None = None
    _counted_full: tuple[Order, NDArray[np.int64]] | None = None

    def __init__(self, *, interleave_gumbel_scale: GumbelScale = None, **kwargs: Any) -> None:
        self._gumbel_scale = interleave_gumbel_scale
        ordering = kwargs.get("seq_ordering", "default")
        super().__init__(**{**kwargs, "seq_ordering": parse_joint_ordering(ordering, interleave_gumbel_scale)})
        self._seq_ordering = ordering

    def _join(
        self,
        datasets: Mapping[str, DatasetConfig],
        entries: Sequence[KeySource] | None,
        data_dims: Mapping[str, Any] | None = None,
        data_dtypes: Mapping[str, str] | None = None,
    ) -> dict[str, Owned]:
        """Open the sub-datasets, and return them by name, for copies.

        Args:
            datasets: Their configs, in the order of the joint corpus.
            entries: Where each data key comes from; `None`: all of them have the same ones.
            data_dims: See `CombinedDataset`.
            data_dtypes: See `CombinedDataset`.

        Raises:
            ConfigError: A config is wrong, one does not know its corpus, or a data key has two layouts.
        """
        opened = open_datasets(datasets, self, self.random_seed_offset)
        check_indexed(opened, self.name)
        sources = same_keys(opened) if entries is None else entries
        self.layout = layout = make_layout(opened, sources, data_dims or {}, data_dtypes or {})
        self.data_keys, self.labels = layout.data_keys, dict(layout.labels)
        self.num_outputs = {key: spec.num_outputs for key, spec in layout.specs.items() if spec is not None}
        self.num_inputs = self.num_outputs.get("data", (0, 0))[0]
        self.members = [MetaPart(name, dataset, layout.keys[name]) for name, dataset in opened.items()]
        return {name: Owned(dataset) for name, dataset in opened.items()}

    def _check_not_sharded(self) -> None:
        """Refuse sub-datasets that are shards, so that two levels would divide the data."""
        for part in self.members:
            if part.dataset.num_shards > 1:
                raise ConfigError(
                    f"two levels would shard: the sub-dataset {part.name!r} is shard {part.dataset.shard_index} of "
                    f"{part.dataset.num_shards} already",
                    fix="give _num_shards and _shard_index to the whole, and only to it",
                )

    def _change_recipe(self, **changes: Any) -> None:
        if "seq_ordering" in changes:
            changes["seq_ordering"] = parse_joint_ordering(changes["seq_ordering"], self._gumbel_scale)
        super()._change_recipe(**changes)

    # --- the joint corpus ---

    @property
    def corpus(self) -> JointCorpus:
        """The corpora of the parts, one after the other."""
        return self._join_once(lambda: JointCorpus([part.corpus for part in self.members]))

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
        if not np.array_equal(offered, self._offered):  # type: ignore[arg-type]  # None is equal to None alone
            self._planner.invalidate()
            self._offered = offered
        sizes = tuple(self._num_offered(part, len(order)) for part, order in zip(self.members, orders, strict=True))
        policy = JointPolicy(self._recipe.policy_for_epoch(epoch), sizes, self._offered, may_repeat)
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
            self._offered = self._counted_full = None

    def supports_seq_order_sorting(self) -> bool:
        """Whether all parts know what they sort by, or a file tells it."""
        known = all(part.dataset.supports_seq_order_sorting() for part in self.members)
        return known or self.seq_order_seq_lens_file is not None

    # --- reading ---

    def _new_reader(self) -> Reader:
        sides, offsets = list(map(PartReader, self.members)), list(map(self._epoch_offset, self.members))
        return JointReader(self.name, self.corpus, self.layout, sides, offsets, self.partition_epoch)

    def have_get_corpus_seq(self) -> bool:
        """Whether all parts have it."""
        return all(part.dataset.have_get_corpus_seq() for part in self.members)

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the joint corpus as it is stored, whatever the current order."""
        corpus = self.corpus
        (corpus_idx,) = check_indices([corpus_seq_idx], len(corpus), f"dataset {self.name!r}")
        number, own_idx = corpus.locate(int(corpus_idx))
        part = self.members[number]
        seq = part.dataset.get_corpus_seq(own_idx)
        features = self.layout.filled({key: seq.features[own] for key, own in part.keys.items()})
        return DatasetSeq(int(corpus_idx), features, seq_tag=seq.seq_tag, corpus_idx=int(corpus_idx))

    def _layout_of(self, key: str) -> DataSpec:
        self._check_key(key)
        spec = self.layout.specs[key]
        if spec is not None:
            return spec
        part = next(part for part in self.members if key in part.keys)
        own, dataset = part.keys[key], part.dataset
        return DataSpec(dataset.get_data_dtype(own), tuple(dataset.get_data_shape(own)), dataset.is_data_sparse(own))


class CombinedDataset(JointDataset):
    """Several datasets with different sequences, such as those of several tasks or corpora.

    Each sequence is of one sub-dataset; the data keys that this has not are arrays without frames. By default, the
    sub-datasets come one after the other, sorted by name, each in its own order (its `seq_ordering`, sub-epochs,
    repeats); any other ordering is laid over that. Beside those of every dataset there are `random_dataset` (a dataset
    is drawn each time, the order inside is kept), `interleave` (all of them are equally far at any time) and `reversed`
    (the last dataset first).

    Args:
        datasets: Name -> config of a sub-dataset. Only those are opened that `data_map` names.
        data_map: (sub-dataset, its data key) -> data key; or a list of [sub-dataset, its data key, data key].
        sampling_sizes: How many sequences of each sub-dataset a full epoch has: a number for all, or by sub-dataset.
            Full epoch E takes those at positions (E - 1) * size to E * size (exclusive, modulo its number of sequences)
            of the sub-dataset's order in E. If that is the same in each epoch, E goes on where E - 1 has stopped; a
            shuffled sub-dataset has another order each time, so that some sequences come again before others came at
            all. `MixDataset` goes on in one pass.
        data_dims: Data key -> (dim, ndim): what must be found. Says also which number of classes holds for a data key
            that sub-datasets have with different ones.
        data_dtypes: Data key -> dtype, likewise; only logged if something else is found.
        window: Only 1.
        interleave_gumbel_scale: For `interleave`: noise, see `Interleave`.
        **kwargs: See `Dataset`. `partition_epoch`, `repeat_epoch`, filters and shards divide the joint order.

    Raises:
        ConfigError: An option is wrong, names a sub-dataset or data key that does not exist, a data key has two
            layouts, or a sub-dataset does not know its corpus.
    """

    def __init__(
        self,
        datasets: Mapping[str, DatasetConfig],
        data_map: Mapping[tuple[str, str], str] | Sequence[Sequence[str]],
        sampling_sizes: int | Mapping[str, int] | None = None,
        data_dims: Mapping[str, tuple[int, int]] | None = None,
        data_dtypes: Mapping[str, str] | None = None,
        window: int = 1,
        interleave_gumbel_scale: GumbelScale = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(interleave_gumbel_scale=interleave_gumbel_scale, window=window, **kwargs)
        check_configs(datasets)
        entries = parse_data_map(data_map, datasets)
        names = sorted({entry.part for entry in entries})
        self.sampling_sizes = _checked_sizes(sampling_sizes, names)
        owned = self._join({name: datasets[name] for name in names}, entries, data_dims, data_dtypes)
        self._check_not_sharded()
        if type(self).__init__ is CombinedDataset.__init__:  # as in HDFDataset: a copy may be made in another folder
            given = {
                "datasets": owned,
                "data_map": [list(entry) for entry in entries],
                "sampling_sizes": self.sampling_sizes,
                "data_dims": data_dims,
                "data_dtypes": data_dtypes,
                "interleave_gumbel_scale": interleave_gumbel_scale,
            }
            self._ctor_args = ((), {**kwargs, **given})


class ConcatDataset(JointDataset):
    """Several datasets with the same data keys, one after the other, each in its own order.

    Any ordering can be laid over it, as in `CombinedDataset`.

    Args:
        datasets: Configs of the sub-datasets.
        **kwargs: See `Dataset`; `partition_epoch`, `repeat_epoch`, filters and shards divide the joint order.

    Raises:
        ConfigError: An option is wrong, the sub-datasets have not the same data keys and layout, or one does not know
            its corpus.
    """

    def __init__(self, datasets: Sequence[DatasetConfig], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(datasets, list | tuple) or not datasets:
            raise ConfigError(
                f"datasets must be a list of configs, got {datasets!r}",
                fix='write [{"class": "HDFDataset", ...}, ...]',
            )
        check_no_cycle(datasets)
        owned = self._join({str(number): config for number, config in enumerate(datasets)}, None)
        self._check_not_sharded()
        if type(self).__init__ is ConcatDataset.__init__:
            self._ctor_args = ((), {**kwargs, "datasets": list(owned.values())})


def _checked_sizes(sampling_sizes: Any, names: Sequence[str]) -> dict[str, int] | None:
    """Return sub-dataset -> number of sequences."""
    if sampling_sizes is None:
        return None
    given = dict(sampling_sizes) if isinstance(sampling_sizes, Mapping) else dict.fromkeys(names, sampling_sizes)
    check_names("sampling_sizes", given, "sub-dataset", names)
    for name in names:
        if name not in given:
            fix = "give one for each, or one number"
            raise ConfigError(f"sampling_sizes has no size for the sub-dataset {name!r}", fix=fix)
    sizes = {name: check_count(f"sampling_sizes[{name!r}]", given[name]) for name in names}
    if not any(sizes.values()):
        raise ConfigError(f"sampling_sizes takes no sequence at all: {sampling_sizes!r}", fix="give one a size")
    return sizes


def _is_whole(order: Order, num_seqs: int) -> bool:
    """Tell whether an order is 0, 1, ... to the end of the corpus."""
    if len(order) != num_seqs or not isinstance(order, RangeOrder):
        return False
    return num_seqs == 0 or (order[0] == 0 and order[num_seqs - 1] == num_seqs - 1)
