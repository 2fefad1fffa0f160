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
from ..corpus import CorpusFacts, num_left_out
from ..parts import MetaPart
from ..reader import OrderCursor, outside_of_epoch

_TAG_BLOCK = 256  # tags decoded at a time: alone, each takes ten times as long


class IndexedCorpus(Protocol):
    """Anything with an index."""

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
            self._tag_start, offset, self._tag_block = seq_idx, 0, self.corpus.index.tags.take(indices)
        return self._tag_block[offset]

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, without those that a filter drops; they may live on disk."""
        kept, tags = self._kept(), self.corpus.index.tags
        return tags if kept is None else tags.take(np.flatnonzero(kept))

    def get_total_num_seqs(self, *, fast: bool = False) -> int:  # noqa: ARG002 (fast but for joins and filters)
        """Return the number of sequences of the whole corpus, without those that a filter drops."""
        kept = self._kept()
        return len(self.corpus.index) if kept is None else int(np.count_nonzero(kept))

    @property
    @abstractmethod
    def _made_of(self) -> Sequence[MetaPart]:
        """The parts."""

    @abstractmethod
    def _sort_lengths(self) -> NDArray[Any]:
        """Return `int[N]`: what sequences are sorted by."""

    @abstractmethod
    def _count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""

    def _draws_by_occurrence(self) -> bool:
        facts = [part.facts for part in self._made_of]
        return any(known is not None and known.draws_by_occurrence for known in facts)

    def corpus_facts(self) -> CorpusFacts:
        """Return what is known of the corpora as one."""
        return CorpusFacts(
            index=self.corpus.index,
            sort_lengths=self._sort_lengths,
            kept=self._kept,
            draws_by_occurrence=self._draws_by_occurrence(),
            occurrences=self._count_occurrences,
            has_fixed_lengths=self._has_fixed_lengths(),
        )

    def num_filtered(self) -> tuple[int, int] | None:
        """Count what filters drop of the corpora as one; without any the corpora are not joined."""
        filters = [self._wanted_tags, *(inner.num_filtered() for inner in self.get_parts())]
        kept = None if all(found is None for found in filters) else self._kept()
        return None if kept is None else num_left_out(kept)

    def get_parts(self) -> Sequence[Dataset]:
        """Return the datasets of the parts."""
        return [part.dataset for part in self._made_of]

    @property
    def supports_jumps(self) -> bool:
        """Whether all parts do."""
        return all(inner.supports_jumps for inner in self.get_parts())

    def _has_fixed_lengths(self) -> bool:
        """Whether all parts say so of theirs."""
        facts = [part.facts for part in self._made_of]
        return all(known is not None and known.has_fixed_lengths for known in facts)

    def covers_lengths(self, key: str) -> bool:
        """Whether the texts of all parts with the data key do."""
        with_key = [part for part in self._made_of if key in part.keys]
        return all(part.dataset.covers_lengths(part.keys[key]) for part in with_key)

    def draws_text(self) -> str:
        """Return nothing: the parts draw."""
        return ""

    def have_corpus_seq_idx(self) -> bool:
        """Yes."""
        return True

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the place in the corpus of a sequence of the current order."""
        return self._corpus_idx(seq_idx)
