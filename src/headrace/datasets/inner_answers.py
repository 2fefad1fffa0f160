"""What a dataset read through another one is asked most: what that one would answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from .base import Dataset


class InnerAnswers(Dataset):
    """Passes on the questions about layout, tags and what is supported. A sub-class defines `inner`."""

    @property
    @abstractmethod
    def inner(self) -> Dataset:
        """The dataset that answers."""

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
