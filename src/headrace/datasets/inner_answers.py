"""What a dataset read through another one is asked most: what that one would answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from headrace.specs import DataSpec

from .base import Dataset
from .corpus_facts import LengthsOf


class InnerAnswers(Dataset):
    """Passes on the questions about layout, tags and what is supported. A sub-class defines `inner`."""

    @property
    @abstractmethod
    def inner(self) -> Dataset:
        """The dataset that answers."""

    def inner_datasets(self) -> Sequence[Dataset]:
        """Return the inner dataset."""
        return (self.inner,)

    def knows_order(self) -> bool:
        """Whether the inner dataset does."""
        return self.inner.knows_order()

    def corpus_size(self) -> int | None:
        """Return the size of the corpus of the inner dataset."""
        return self.inner.corpus_size()

    def num_filtered(self) -> tuple[int, int] | None:
        """Return what filters of the inner dataset leave out."""
        return self.inner.num_filtered()

    def known_specs(self) -> dict[str, DataSpec]:
        """Return what the inner dataset knows."""
        return self.inner.known_specs()

    def corpus_lengths(self, key: str, *, may_cost: bool) -> LengthsOf | None:
        """Return the lengths that the inner dataset knows."""
        return self.inner.corpus_lengths(key, may_cost=may_cost)

    def has_fixed_lengths(self) -> bool:
        """Whether the inner dataset has."""
        return self.inner.has_fixed_lengths()

    def covers_lengths(self, key: str) -> bool:
        """Whether `data_text` of the inner dataset tells them."""
        return self.inner.covers_lengths(key)

    def data_text(self) -> str:
        """Return the text of the inner dataset."""
        return self.inner.data_text()

    def order_text(self, epoch: int) -> str:
        """Return the text of the inner dataset."""
        return self.inner.order_text(epoch)

    def draws_text(self) -> str:
        """Return nothing: the inner dataset draws."""
        return ""

    @property
    def supports_jumps(self) -> bool:
        """Whether the inner dataset does."""
        return self.inner.supports_jumps

    @property
    def knows_dtypes(self) -> bool:
        """Whether the inner dataset does."""
        return self.inner.knows_dtypes

    def supports_seq_order_sorting(self) -> bool:
        """Whether the inner dataset does."""
        return self.inner.supports_seq_order_sorting()

    def supports_sharding(self) -> bool:
        """Whether the inner dataset does."""
        return self.inner.supports_sharding()

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, as the inner dataset does."""
        return self.inner.get_all_tags()

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus, as the inner dataset does."""
        return self.inner.get_total_num_seqs(fast=fast)

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
