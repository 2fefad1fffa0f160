"""Where each place of a joint order is in the order of its part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order import Order

from .joint_corpus import JointCorpus

_BLOCK = 4096  # places worked out at a time
_FEW_PARTS = 16  # of so many, each is looked for by itself, which takes no memory


class PartPlaces:
    """Splits a joint order among its parts, in blocks, so that little is kept for each sequence.

    Args:
        corpus: Says whose a joint corpus index is.
        order: Joint corpus indices.
    """

    def __init__(self, corpus: JointCorpus, order: Order) -> None:
        self._corpus, self._order = corpus, order
        self._before: NDArray[np.int64] | None = None  # int64[blocks, K]: sequences of each part before each block
        self._by_part: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None  # places, and where those of each begin
        self._start = -1
        self._owners: list[int] = []
        self._ranks: list[int] = []

    def at(self, place: int) -> tuple[int, int]:
        """Return the part whose turn it is at a place, and the place there; a place after the other is cheap."""
        offset = place - self._start
        if self._start < 0 or not 0 <= offset < len(self._owners):
            self._start = place - place % _BLOCK
            self._decode(self._start)
            offset = place - self._start
        return self._owners[offset], self._ranks[offset]

    def _decode(self, start: int) -> None:
        if self._before is None:
            self._before = self._count()
        owners = self._owners_at(start)
        ranks = np.empty(len(owners), np.int64)
        before = self._before[start // _BLOCK]
        for part in np.unique(owners).tolist():
            own = np.flatnonzero(owners == part)
            ranks[own] = np.arange(before[part], before[part] + len(own))
        self._owners, self._ranks = owners.tolist(), ranks.tolist()

    def _owners_at(self, start: int) -> NDArray[np.int64]:
        return self._corpus.owners_of(self._order.block(start, min(start + _BLOCK, len(self._order))))

    def _count(self) -> NDArray[np.int64]:
        """Count what each part has in each block. O(n) once."""
        num_parts = len(self._corpus.indices)
        counts = [np.zeros(num_parts, np.int64)]
        starts = range(0, max(len(self._order) - _BLOCK, 0), _BLOCK)
        counts += [np.bincount(self._owners_at(start), minlength=num_parts) for start in starts]
        return np.cumsum(counts, axis=0)

    def of_part(self, part: int) -> NDArray[np.intp]:
        """Return the places of a part, `int[n]`, ascending. O(length of the order); of many parts once for all."""
        indices, starts = self._order.block(0, len(self._order)), self._corpus.starts
        if len(starts) <= _FEW_PARTS:
            return np.flatnonzero((indices >= starts[part]) & (indices < starts[part + 1]))
        if self._by_part is None:
            owners = self._corpus.owners_of(indices)
            by_part = np.argsort(owners, kind="stable")
            self._by_part = by_part, np.searchsorted(owners[by_part], np.arange(len(starts)))
        by_part, bounds = self._by_part
        return by_part[bounds[part] : bounds[part + 1]]
