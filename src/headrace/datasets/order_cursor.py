"""Looking up one position after another in an order that is read by blocks."""

from __future__ import annotations

from headrace.order import Order, RangeOrder

from .base import Dataset

_BLOCK = 4096  # positions decoded at a time: a look-up in a lazy order alone costs as much as hundreds in a block


class OrderCursor:
    """An order with cheap access to neighbouring positions.

    Args:
        order: Not changed.
        first: The place of its first position: more than 0 if only a part of an epoch is here.
    """

    def __init__(self, order: Order | None = None, first: int = 0) -> None:
        self.order: Order = RangeOrder(range(0)) if order is None else order
        self.first = first
        self._start = first
        self._block: list[int] = []

    def __len__(self) -> int:
        """Return the place behind the last position."""
        return self.first + len(self.order)

    def __getitem__(self, seq_idx: int) -> int:
        """Return the corpus index at a position.

        Raises:
            IndexError: The position is outside the order.
        """
        offset = seq_idx - self._start
        if not 0 <= offset < len(self._block):
            position, size = seq_idx - self.first, len(self.order)
            if not 0 <= position < size:
                raise IndexError(f"sequence {seq_idx} is outside an epoch of {size}")
            self._start, offset = seq_idx, 0
            self._block = self.order.block(position, min(position + _BLOCK, size)).tolist()
        return self._block[offset]


def outside_of_epoch(error: IndexError, dataset: Dataset, cursor: OrderCursor) -> IndexError:
    """Return the error of a cursor with the dataset and the epoch that it is about."""
    hint = "" if len(cursor) else "; has init_seq_order(epoch=...) been called?"
    return IndexError(f"{error} (dataset {dataset.name!r}, epoch {int(dataset.epoch) or None}{hint})")
