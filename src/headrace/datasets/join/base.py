"""What datasets over the corpora of others have in common: one index of tags, and one order of its corpus indices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.index import CorpusIndex
from headrace.order import Order

from ..base import Dataset
from ..corpus import Corpus, num_left_out
from ..parts import MetaPart
from ..reader import OrderCursor, outside_of_epoch

_TAG_BLOCK = 256  # tags decoded at a time: alone, each takes ten times as long


class IndexedCorpus(Protocol):
    """Anything with an index."""

    def __len__(self) -> int: ...

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of corpus indices."""

    @property
    def index(self) -> CorpusIndex:
        """The tags by corpus index."""


class OverCorpora(Dataset):
    """A dataset whose sequences are those of an index. A sub-class defines `corpus` and `_kept`."""

    _cursor: OrderCursor
    _tag_start: int
    _tag_block: list[str]

    @property
    @abstractmethod
    def corpus(self) -> IndexedCorpus:
        """The sequences."""

    @abstractmethod
    def _kept(self) -> NDArray[np.bool_] | None:
        """Return `bool[N]`: what filters keep; `None` without any."""

    def _set_cursor(self, order: Order, first: int = 0) -> None:
        """Take an order, whose first position has the place `first`."""
        self._cursor = OrderCursor(order, first)
        self._tag_start, self._tag_block = 0, []

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, before any filter."""
        return self.corpus.index.tags

    def _first_of_tag(self) -> NDArray[np.int64]:
        return self.corpus.index.tag_groups()

    def _keep_mask(self) -> NDArray[np.bool_]:
        if self._keep is None:
            self._keep = super()._keep_mask()
        return self._keep

    def _corpus_idx(self, seq_idx: int) -> int:
        try:
            return self._cursor[seq_idx]
        except IndexError as error:
            raise outside_of_epoch(error, self, self._cursor) from None

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch."""
        return len(self._cursor)

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        offset = seq_idx - self._tag_start
        if not 0 <= offset < len(self._tag_block):
            self._corpus_idx(seq_idx)  # outside of the epoch: said by an error
            place, order = seq_idx - self._cursor.first, self._cursor.order
            indices = order.block(place, min(place + _TAG_BLOCK, len(order)))
            self._tag_start, offset, self._tag_block = seq_idx, 0, self.corpus.tags_of(indices)
        return self._tag_block[offset]

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, without those that a filter drops; they may live on disk."""
        kept, tags = self._kept(), self.corpus.index.tags
        return tags if kept is None else tags.take(np.flatnonzero(kept))

    def get_total_num_seqs(self, *, fast: bool = False) -> int:  # noqa: ARG002 (fast but for joins and filters)
        """Return the number of sequences of the whole corpus, without those that a filter drops."""
        kept = self._kept()
        return len(self.corpus) if kept is None else int(np.count_nonzero(kept))

    @property
    @abstractmethod
    def _made_of(self) -> Sequence[MetaPart]:
        """The parts."""

    @abstractmethod
    def _sort_lengths(self) -> NDArray[Any]:
        """Return `int[N]`: what sequences are sorted by."""

    @abstractmethod
    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""

    def _corpus_over(self, parts: Sequence[tuple[MetaPart, Corpus]], **own: Any) -> Corpus:
        """Return what is known of the corpora of the parts as one.

        Args:
            parts: All of them, with what is known of each.
            **own: What the class itself has to say of it.
        """
        return Corpus(
            knows_order=self._knows_order,
            size=lambda: len(self.corpus),
            is_indexed=True,
            index=lambda: self.corpus.index,
            tags_of=lambda indices: self.corpus.tags_of(indices),
            covers_lengths=lambda key: all(
                corpus.covers_lengths(part.keys[key]) for part, corpus in parts if key in part.keys
            ),
            has_fixed_lengths=all(corpus.has_fixed_lengths for _, corpus in parts),
            may_change_lengths=any(corpus.may_change_lengths for _, corpus in parts),
            sort_lengths=self._sort_lengths,
            kept=self._kept,
            num_filtered=lambda: num_left_out(self._kept()),
            draws_by_occurrence=any(corpus.draws_by_occurrence for _, corpus in parts),
            **own,
        )

    def get_parts(self) -> Sequence[Dataset]:
        """Return the datasets of the parts."""
        return [part.dataset for part in self._made_of]

    @property
    def supports_jumps(self) -> bool:
        """Whether all parts do."""
        return all(inner.supports_jumps for inner in self.get_parts())

    def draws_text(self) -> str:
        """Return nothing: the parts draw."""
        return ""

    def have_corpus_seq_idx(self) -> bool:
        """Yes."""
        return True

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the place in the corpus of a sequence of the current order."""
        return self._corpus_idx(seq_idx)
