"""Datasets that delegate to another dataset.

`InnerCorpus` passes on the questions about tags, order and what is supported, `InnerAnswers` those about the layout as
well. `DelegatingDataset` is the base of those whose inside is chosen when they are built: what works on any dataset
(chunks, batches, iterators) stays here; everything about sequences, their order and their layout is the inner one's.
The order's options are shared, so that to set one here sets it there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError
from headrace.order import Order, OrderReport

from .base import Dataset
from .checks import remark_once
from .corpus import Corpus
from .reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest
from .seq import DatasetSeq


class InnerCorpus(Dataset):
    """Passes on the questions about the corpus, its order and what is supported. A sub-class defines `inner`."""

    @property
    @abstractmethod
    def inner(self) -> Dataset:
        """The dataset that answers."""

    def get_parts(self) -> Sequence[Dataset]:
        """Return the inner dataset."""
        return (self.inner,)

    # --- the options that make the order are those of the inner dataset ---

    def _follow_order(self) -> None:
        """Take them over."""
        self._recipe, self._seq_ordering = self.inner.order_recipe, self.inner.seq_ordering

    def _change_recipe(self, **changes: Any) -> None:
        inner = self.inner
        if "seq_ordering" in changes:
            inner.seq_ordering = changes.pop("seq_ordering")
        if changes:
            inner._change_recipe(**changes)
        self._follow_order()

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make the inner dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        self.inner.set_sharding(num_shards, shard_index)
        self._follow_order()

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what the inner dataset knows."""
        return self.inner.get_corpus(epoch)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        return self.inner.get_epoch_order(epoch, given, counts=counts)

    def order_text(self, epoch: int) -> str:
        """Return the text of the inner dataset."""
        return self.inner.order_text(epoch)

    def draws_text(self) -> str:
        """Return nothing: only the inner dataset draws."""
        return ""

    @property
    def supports_jumps(self) -> bool:
        """Whether the inner dataset supports it."""
        return self.inner.supports_jumps

    def supports_seq_order_sorting(self) -> bool:
        """Whether the inner dataset supports it."""
        return self.inner.supports_seq_order_sorting()

    def supports_sharding(self) -> bool:
        """Whether the inner dataset supports it."""
        return self.inner.supports_sharding()

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, as the inner dataset does."""
        return self.inner.get_all_tags()

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus, as the inner dataset does."""
        return self.inner.get_total_num_seqs(fast=fast)


class InnerAnswers(InnerCorpus):
    """Passes on the questions about the layout as well."""

    def sort_lengths_in(self, epoch: int | None) -> NDArray[Any]:
        """Ask the inner dataset, which has the options."""
        return self.inner.sort_lengths_in(epoch)

    def get_data_keys(self) -> list[str]:
        """Return the data keys."""
        return self.inner.get_data_keys()

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data"."""
        return self.inner.get_target_list()

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        return self.inner.get_data_dim(key)

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        return self.inner.get_data_dtype(key)

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        return self.inner.is_data_sparse(key)

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame."""
        return self.inner.get_data_shape(key)


OUTER_OPTIONS = (
    "name",
    "context_window",
    "chunking",
    "min_chunk_size",
    "chunking_variance",
    "estimated_num_seqs",
)  # what does not say an order
_INHERITED = ("random_seed_offset", "_num_shards", "_shard_index")


class DelegatingDataset(InnerAnswers):
    """A dataset read through another one. A sub-class defines `inner`."""

    def _follow(self) -> None:
        """Take over what the inner dataset says of itself."""
        inner = self.inner
        self._follow_order()
        self.num_inputs, self.num_outputs = inner.num_inputs, inner.num_outputs
        self.labels = dict(inner.labels)
        self.unique_seq_tags = inner.unique_seq_tags
        self.seq_list_filter_file = inner.seq_list_filter_file
        self.seq_order_seq_lens_file = inner.seq_order_seq_lens_file
        self.shuffle_frames_of_nseqs = inner.shuffle_frames_of_nseqs

    def initialize(self) -> None:
        """Get ready to read; a layout that is not known yet is learnt from the first sequence."""
        self.init_seq_order()

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self.inner.start_given(epoch, GivenOrder.of(seq_list, seq_order))
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences."""
        super().init_seq_order(wanted.epoch)
        return self.inner.start_part(wanted)

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        return self.inner.count_occurrences()

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        return self.inner.get_current_seq_order()

    @property
    def order_report(self) -> OrderReport | None:
        """What the recipe leaves out or repeats in the current full epoch."""
        return self.inner.order_report

    # --- reading ---

    def _new_reader(self) -> Reader:
        return self.inner.make_reader()

    def load_seqs(self, start: int, end: int) -> None:
        """Get sequences start..end (exclusive; may exceed the epoch) ready."""
        self.inner.load_seqs(start, end)

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`."""
        return self.inner.get_data(seq_idx, key)

    def get_data_slice(self, seq_idx: int, key: str, start_frame: int, end_frame: int) -> NDArray[Any]:
        """Return frames start..end (exclusive) of one data key."""
        return self.inner.get_data_slice(seq_idx, key, start_frame, end_frame)

    def get_seq(self, seq_idx: int) -> DatasetSeq:
        """Return one sequence with all of its data keys."""
        return self.inner.get_seq(seq_idx)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames."""
        return self.inner.get_seq_length(seq_idx)

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return the length that sequences are sorted by."""
        return self.inner.get_estimated_seq_length(seq_idx)

    def get_num_timesteps(self) -> int | NumbersDict:
        """Return data key -> number of frames of the current epoch."""
        return self.inner.get_num_timesteps()

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        return self.inner.get_tag(seq_idx)

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, before any filter."""
        return self.inner.get_corpus_tags()

    def have_corpus_seq_idx(self) -> bool:
        """Whether `get_corpus_seq_idx` works."""
        return self.inner.have_corpus_seq_idx()

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self.inner.get_corpus_seq_idx(seq_idx)

    def have_get_corpus_seq(self) -> bool:
        """Whether `get_corpus_seq` works."""
        return self.inner.have_get_corpus_seq()

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus."""
        return self.inner.get_corpus_seq(corpus_seq_idx)

    # --- how much there is, layout ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch."""
        return self.inner.num_seqs

    @property
    def estimated_num_seqs(self) -> int | None:
        """`num_seqs` if known, else the number that this dataset was given, else the inner one's."""
        known = super().estimated_num_seqs
        return self.inner.estimated_num_seqs if known is None else known

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position."""
        return self.inner.is_less_than_num_seqs(seq_idx)

    def get_complete_frac(self, sorted_seq_idx: int, *, allow_only_lr_suitable: bool = False) -> float | None:
        """Return how much of the epoch is done after a sequence."""
        return self.inner.get_complete_frac(sorted_seq_idx, allow_only_lr_suitable=allow_only_lr_suitable)


def outer_options(options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the options that the outer dataset itself takes; a window is refused.

    Raises:
        ConfigError: `window` is more than 1.
    """
    if options.get("window", 1) not in (0, 1):
        raise ConfigError(f"{owner} does not support window={options['window']}", fix="give window to the sub-datasets")
    return {name: value for name, value in options.items() if name in OUTER_OPTIONS}


def inherited_options(options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the options of a wrapper that are defaults for what it wraps; others are logged, once: they do nothing.

    Args:
        options: Options of the wrapper.
        owner: Its class, and its name.
    """
    for name, value in options.items():
        if name not in (*OUTER_OPTIONS, *_INHERITED, "window") and value:
            remark = f"{name}={value!r} of {owner} has no effect: the order is that of the dataset inside"
            remark_once(remark)
    return {name: value for name, value in options.items() if name in _INHERITED and value is not None}
