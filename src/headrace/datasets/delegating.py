"""Datasets that delegate to another dataset.

`InnerCorpus` passes on the questions about tags, order and what is supported, `InnerAnswers` those about the layout as
well. The order's options are shared, so that to set one here sets it there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from headrace.errors import ConfigError

from .base import Dataset
from .checks import remark_once
from .corpus import Corpus
from .reading.reader import CountedOrder, GivenOrder


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
