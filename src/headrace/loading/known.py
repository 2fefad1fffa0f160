"""What a loader can know of a dataset without reading it, whatever class the dataset is: layout, lengths, digests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.base import Dataset
from headrace.datasets.cached import CachedDataset
from headrace.datasets.concat_seqs import ConcatSeqsDataset
from headrace.datasets.corpus_facts import facts_of
from headrace.datasets.delegating import DelegatingDataset
from headrace.datasets.generating import GeneratingDataset
from headrace.datasets.joint import JointDataset
from headrace.datasets.joint_source import JointLengths
from headrace.datasets.meta import MetaDataset
from headrace.datasets.multi_epoch import MultiEpochDataset
from headrace.datasets.multi_proc import MultiProcDataset
from headrace.datasets.postprocessing import PostprocessingDataset
from headrace.datasets.variable import VariableDataset
from headrace.order import OrderRecipe, full_epoch_of
from headrace.sources import SORT_LENGTHS, MapSource
from headrace.specs import DataSpec

from .state import digest_array

LengthsOf = Callable[[NDArray[np.int64]], NDArray[Any]]
_MAX_EPOCHS_TOLD = 64  # of those that are one epoch: their recipes differ only where a function gives the order


def knows_order(dataset: Dataset) -> bool:
    """Tell whether a dataset says which sequences an epoch has, in which order, before it is read."""
    if isinstance(dataset, MultiProcDataset):
        return dataset.sharding_method == "seq_order" and knows_order(dataset.inner)
    if isinstance(dataset, DelegatingDataset):
        return knows_order(dataset.inner)
    try:
        dataset.get_current_seq_order()
    except NotImplementedError:
        return False
    total = dataset._corpus_num_seqs if isinstance(dataset, GeneratingDataset) else 0
    return not math.isinf(total)


def specs_of(dataset: Dataset) -> dict[str, DataSpec]:
    """Return what is known of the layout of the data keys; nothing of those that show it when they are read."""
    if isinstance(dataset, CachedDataset):
        return dict(dataset.source.specs)
    if isinstance(dataset, MultiProcDataset | DelegatingDataset | MultiEpochDataset):
        return specs_of(dataset.inner)
    if isinstance(dataset, JointDataset):
        return {key: spec for key, spec in dataset.layout.specs.items() if spec is not None}
    if isinstance(dataset, PostprocessingDataset):
        return dataset.specs
    if isinstance(dataset, MetaDataset):
        specs = {}
        for key in dataset.get_data_keys():
            part = dataset._part(key)
            own = specs_of(part.dataset)
            if part.keys[key] in own:
                specs[key] = own[part.keys[key]]
        return specs
    return {}


def lengths_column(dataset: Dataset, key: str, *, may_cost: bool) -> LengthsOf | None:
    """Return the lengths of a data key by corpus index, None if they are not known without reading.

    Args:
        dataset: Started with an epoch.
        key: The data key.
        may_cost: Whether to generate sequences, or to ask a user's object, in order to learn them.
    """
    if key not in dataset.get_data_keys():
        dataset.get_data_dtype(key)  # raises, with the keys that there are
    if isinstance(dataset, PostprocessingDataset):
        return lengths_column(dataset.inner, key, may_cost=may_cost) if dataset.keeps_lengths_of(key) else None
    if isinstance(dataset, CachedDataset):
        if isinstance(dataset.source, MapSource) and not may_cost:
            return None
        index = dataset.source.index
        if not index.has_lengths(key) and isinstance(dataset.source, MapSource) and index.has_lengths(SORT_LENGTHS):
            key = SORT_LENGTHS
        return index.lengths(key).__getitem__ if index.has_lengths(key) else None
    if isinstance(dataset, DelegatingDataset):
        return lengths_column(dataset.inner, key, may_cost=may_cost)
    if isinstance(dataset, MultiEpochDataset) and not isinstance(dataset.inner, GeneratingDataset):
        return lengths_column(dataset.inner, key, may_cost=may_cost)
    if isinstance(dataset, JointDataset):
        return _joint_lengths(dataset, key, may_cost=may_cost)
    if isinstance(dataset, MetaDataset):
        part, corpus = dataset._part(key), dataset.corpus
        inner = lengths_column(part.dataset, part.keys[key], may_cost=may_cost)
        return None if inner is None else lambda indices: inner(corpus.places(part.name, indices))
    if isinstance(dataset, GeneratingDataset) and key == dataset.get_data_keys()[0] and may_cost:
        facts = facts_of(dataset)
        return None if facts is None else facts.sort_lengths().__getitem__  # now: they differ from epoch to epoch
    return None


def _joint_lengths(dataset: JointDataset, key: str, *, may_cost: bool) -> LengthsOf | None:
    """Return the lengths of a data key over several corpora: those of sequences that lack it are zero."""
    columns = {}
    for number, part in enumerate(dataset.parts):
        if key in part.keys:
            column = lengths_column(part.dataset, part.keys[key], may_cost=may_cost)
            if column is None:
                return None
            columns[number] = column
    return JointLengths(dataset.corpus, columns, dataset.layout.empty_length(key)).__getitem__


def lengths_are_indexed(dataset: Dataset, key: str) -> bool:
    """Tell whether the lengths of a data key are part of what `digest_of` is a digest of."""
    if isinstance(dataset, MetaDataset):
        part = dataset._part(key)
        return lengths_are_indexed(part.dataset, part.keys[key])
    if isinstance(dataset, PostprocessingDataset):
        return dataset.keeps_lengths_of(key) and lengths_are_indexed(dataset.inner, key)
    return isinstance(dataset, CachedDataset)


def digest_of(dataset: Dataset) -> str:
    """Return a digest of the tags and lengths of a corpus; of its name, where it tells neither."""
    if isinstance(dataset, MetaDataset):
        parts = {part.name: part for part in dataset._parts.values()}
        texts = [f"{name} {sorted(part.keys.items())} {digest_of(part.dataset)}" for name, part in parts.items()]
        if dataset._lists is not None:  # they say which sequences belong together
            texts += [f"list of {name} {tags.digest}" for name, tags in dataset._lists.items()]
        return xxhash.xxh3_128_hexdigest(" | ".join([dataset.corpus.index.digest, *sorted(texts)]).encode())
    if isinstance(dataset, MultiEpochDataset | MultiProcDataset):
        return digest_of(dataset.inner)
    if isinstance(dataset, DelegatingDataset) and dataset.has_one_corpus:
        return digest_of(dataset.inner)
    if isinstance(dataset, PostprocessingDataset) and dataset.is_indexed:
        return digest_of(dataset.inner)
    if isinstance(dataset, JointDataset):
        texts = [f"{part.name} {sorted(part.keys.items())} {digest_of(part.dataset)}" for part in dataset.parts]
        return xxhash.xxh3_128_hexdigest(" | ".join(["joint", *texts]).encode())
    facts = facts_of(dataset)
    if facts is not None:
        return facts.index.digest
    digest = xxhash.xxh3_128(type(dataset).__name__.encode())
    try:
        for tag in dataset.get_all_tags():
            digest.update(tag.encode("utf-8", "surrogatepass") + b"\0")
    except NotImplementedError:
        pass
    return digest.hexdigest()


def order_text(dataset: Dataset, epoch: int) -> str:
    """Return a text of all that decides the order of an epoch, and what datasets themselves draw in it.

    Equal texts, equal orders of equal corpora.
    """
    if isinstance(dataset, VariableDataset):
        chosen = dataset.dataset_of(epoch)
        return f"{digest_of(chosen)}; {order_text(chosen, epoch)}"
    if isinstance(dataset, MultiProcDataset | DelegatingDataset):
        return order_text(dataset.inner, epoch)
    if isinstance(dataset, MultiEpochDataset):
        epochs = dataset.inner_epochs(epoch)[:_MAX_EPOCHS_TOLD]
        texts = dict.fromkeys(order_text(dataset.inner, number) for number in epochs)
        return f"{dataset.multi_epoch} epochs, {'; '.join(texts)}; draws {draw_text(dataset.inner)}"
    draws = (
        f"; draws {drawn}" if (drawn := draw_text(dataset)) and isinstance(dataset, MetaDataset | JointDataset) else ""
    )
    if isinstance(dataset, PostprocessingDataset):
        return f"{order_text(dataset.inner, epoch)}; draws {drawn}"
    if isinstance(dataset, MetaDataset) and dataset._control is not None:
        return f"{dataset._control.name}: {order_text(dataset._control.dataset, epoch)}{draws}"
    parts = [recipe_text(dataset._recipe, epoch) + draws, f"unique {dataset.unique_seq_tags}"]
    if dataset._wanted_tags is not None:
        parts.append(f"kept {digest_array(dataset._keep_mask())}")
    if dataset.seq_order_seq_lens_file is not None:
        parts.append(f"sorted by {digest_array(np.ascontiguousarray(dataset._lengths_of_file()))}")
    if isinstance(dataset, CachedDataset) and dataset.sorts_by_column:
        parts.append(f"sorted by {digest_array(np.ascontiguousarray(dataset._sort_lengths()))}")
    if isinstance(dataset, MetaDataset) and dataset.seq_lens_file is not None:
        parts.append(f"sorted by {digest_array(np.ascontiguousarray(dataset._sort_lengths()))}")
    if isinstance(dataset, JointDataset):
        number = full_epoch_of(epoch, dataset.partition_epoch) + 1
        parts += [f"of {part.name}: {order_text(part.dataset, number)}" for part in dataset.parts]
        if dataset.sampling_sizes is not None:
            parts.append(f"sizes {sorted(dataset.sampling_sizes.items())}")
    if isinstance(dataset, CachedDataset) and dataset._has_own_order():
        parts.append(f"own order {digest_array(np.asarray(dataset._order_of_epoch(epoch)))}")
    return "; ".join(parts)


def draw_text(dataset: Dataset) -> str:
    """Return the seeds of all that a dataset, or a part of it, draws for the content of sequences; or nothing."""
    if isinstance(dataset, MetaDataset):
        drawn = {name: draw_text(part.dataset) for name, part in sorted(dataset._parts.items())}
        return ", ".join(f"{name}: {text}" for name, text in drawn.items() if text)
    if isinstance(dataset, JointDataset):
        drawn = {part.name: draw_text(part.dataset) for part in dataset.parts}
        return ", ".join(f"{name}: {text}" for name, text in drawn.items() if text)
    if isinstance(dataset, MultiProcDataset | DelegatingDataset | MultiEpochDataset):
        return draw_text(dataset.inner)
    if isinstance(dataset, PostprocessingDataset):
        return f"{draw_text(dataset.inner)} function: {dataset.draws_text}"
    if isinstance(dataset, ConcatSeqsDataset) and (inner := draw_text(dataset.inner)):
        return f"{inner}; {dataset.fixed_random_seed} {dataset.random_seed_offset or 0}"
    if isinstance(dataset, CachedDataset) and not dataset._transform_wants_rng:
        return ""
    return f"{dataset.fixed_random_seed} {dataset.random_seed_offset or 0}"


def recipe_text(recipe: OrderRecipe, epoch: int) -> str:
    """Return the options of an order as a text."""
    return (
        f"{recipe.policy_for_epoch(epoch)}; sub-epochs {recipe.num_sub_epochs}, repeats {recipe.num_repeats}, "
        f"shards {recipe.num_shards}; seeds {recipe.fixed_random_seed} {recipe.random_seed_offset or 0}"
    )
