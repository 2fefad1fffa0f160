"""What datasets over the corpora of others have in common: one index of tags, and one order of its corpus indices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from headrace.index import CorpusIndex
from headrace.order import Order

from ..base import Dataset
from ..corpus import CorpusFacts, num_left_out
from ..ordered import OrderedDataset
from ..parts import MetaPart
from ..wrap.multi_proc import MultiProcDataset

_TAG_BLOCK = 256  # tags decoded at a time: alone, each takes ten times as long


class IndexedCorpus(Protocol):
    """Anything with an index."""

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
        return len(self.corpus.index)

    def _take_order(self, order: Order, first: int = 0, **options: Any) -> None:
        super()._take_order(order, first, **options)
        self._tag_start, self._tag_block = 0, ()

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        offset = seq_idx - self._tag_start
        if not 0 <= offset < len(self._tag_block):
            self._corpus_idx(seq_idx)  # outside of the epoch: said by an error
            place, order = seq_idx - self._cursor.first, self._cursor.order
            indices = order.block(place, min(place + _TAG_BLOCK, len(order)))
            self._tag_start, offset, self._tag_block = seq_idx, 0, self.corpus.index.tags.take(indices)
        return self._tag_block[offset]

    @property
    @abstractmethod
    def _made_of(self) -> Sequence[MetaPart]:
        """The parts."""

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


def sort_lengths_of(dataset: Dataset, facts: CorpusFacts) -> NDArray[Any]:
    """Return what a dataset sorts by, from its file of lengths if it has one."""
    while isinstance(dataset, MultiProcDataset):
        dataset = dataset.inner
    return facts.sort_lengths() if dataset.seq_order_seq_lens_file is None else dataset._lengths_of_file()
