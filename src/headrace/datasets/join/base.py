"""What datasets over the corpora of others have in common: one index of tags, and one order of its corpus indices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.index import CorpusIndex
from headrace.order import Order

from ..base import Dataset
from ..corpus import Corpus, num_left_out
from ..digests import digest_array
from ..ordered import OrderedDataset
from ..parts import MetaPart

_TAG_BLOCK = 256  # tags decoded at a time: alone, each takes ten times as long


class IndexedCorpus(Protocol):
    """Anything with an index."""

    def __len__(self) -> int: ...

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of corpus indices."""

    @property
    def index(self) -> CorpusIndex:
        """The tags by corpus index."""


class OverCorpora(OrderedDataset):
    """A dataset whose sequences are those of other datasets. A sub-class defines `corpus`."""

    _tag_start = 0
    _tag_block: Sequence[str] = ()

    @property
    @abstractmethod
    def corpus(self) -> IndexedCorpus:
        """The sequences."""

    @property
    def _corpus_index(self) -> CorpusIndex:
        return self.corpus.index

    def _num_stored(self) -> int:
        return len(self.corpus)

    @abstractmethod
    def _sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:
        """Return `int[N]`: what sequences are sorted by in an epoch; `None`: in the current one."""

    def _order_details(self, epoch: int) -> list[str]:
        """Return also the lengths that are sorted by, where the digests of the parts do not cover them."""
        details, has_file = super()._order_details(epoch), self.seq_order_seq_lens_file is not None
        if has_file or not self._recipe.policy_for_epoch(epoch).needs_lengths or self.get_corpus().has_fixed_lengths:
            return details
        return [*details, f"sorted by lengths {digest_array(self._sort_lengths(epoch))}"]

    def _take_order(self, order: Order, first: int = 0, **options: Any) -> None:
        super()._take_order(order, first, **options)
        self._tag_start, self._tag_block = 0, ()

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        offset = seq_idx - self._tag_start
        if not 0 <= offset < len(self._tag_block):
            self._corpus_idx(seq_idx)  # outside of the epoch: said by an error
            cursor, order = seq_idx - self._cursor.first, self._cursor.order
            indices = order.block(cursor, min(cursor + _TAG_BLOCK, len(order)))
            self._tag_start, offset, self._tag_block = seq_idx, 0, self.corpus.tags_of(indices)
        return self._tag_block[offset]

    @property
    @abstractmethod
    def _made_of(self) -> Sequence[MetaPart]:
        """The parts."""

    def _corpus_over(self, parts: Sequence[tuple[MetaPart, Corpus]], epoch: int | None, **own: Any) -> Corpus:
        """Return what is known of the corpora of the parts as one.

        Args:
            parts: All of them, with what is known of each.
            epoch: In which, see `Dataset.get_corpus`.
            **own: What the class itself has to say of it.
        """
        return Corpus(
            knows_order=self._knows_order,
            size=lambda: len(self.corpus),
            is_indexed=True,
            index=lambda: self.corpus.index,
            tags_of=lambda indices: self.corpus.tags_of(indices),
            has_fixed_lengths=all(corpus.has_fixed_lengths for _, corpus in parts),
            may_change_lengths=any(corpus.may_change_lengths for _, corpus in parts),
            sort_lengths=partial(self._sort_lengths, epoch),
            kept=self._kept,
            num_filtered=lambda: num_left_out(self._kept(), [corpus for _, corpus in parts]),
            draws_by_occurrence=any(corpus.draws_by_occurrence for _, corpus in parts),
            encodes_texts=any(corpus.encodes_texts for _, corpus in parts),
            **own,
        )

    def get_parts(self) -> Sequence[Dataset]:
        """Return the datasets of the parts."""
        return [part.dataset for part in self._made_of]

    @property
    def supports_jumps(self) -> bool:
        """Whether all parts support it."""
        return all(inner.supports_jumps for inner in self.get_parts())

    def draws_text(self) -> str:
        """Return nothing: only the parts draw."""
        return ""
