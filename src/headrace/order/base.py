"""What an order is: an immutable sequence of corpus indices that need not be in memory.

Every policy returns an `Order`. A slice of an order is an order again and costs O(1), so one full-epoch order serves
all of its sub-epochs. Invariant: `order.block(a, b)` equals `[order[a], ..., order[b - 1]]`.
"""

from __future__ import annotations

import builtins
import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

_BLOCK = 65_536  # indices per block when an order is walked through: large enough to hide NumPy's overhead, 512 KiB


class Order(Sequence[int]):
    """An immutable sequence of corpus indices. Like any sequence it has `index`, `count`, `in` and `reversed`.

    Attributes:
        may_repeat: Whether a corpus index can come more than once; False is a promise.

    Examples:
        >>> from headrace.order import ArrayOrder
        >>> order = ArrayOrder([2, 0, 1])
        >>> order[0], list(order[1:]), order.index(1)
        (2, [0, 1], 2)
    """

    may_repeat: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of positions."""

    @abstractmethod
    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the corpus indices of positions `start <= p < stop` as `int64[n]`, O(stop - start).

        Both bounds must lie in 0..len(self). The result may be a view: do not write to it. One large block is much
        faster than many small ones.
        """

    @abstractmethod
    def slice(self, start: int, stop: int) -> Order:
        """Return positions `start <= p < stop` as an order, O(1)."""

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: builtins.slice) -> Order: ...
    def __getitem__(self, position: int | builtins.slice) -> int | Order:
        """Return the corpus index at a position, or the order of a slice; negative positions count from the end."""
        size = len(self)
        if isinstance(position, builtins.slice):
            start, stop, step = position.indices(size)
            if step == 1:
                return self.slice(start, max(start, stop))
            return ArrayOrder(self.block(0, size)[position], may_repeat=self.may_repeat)
        if position < 0:
            position += size
        if not 0 <= position < size:
            raise IndexError(f"position {position} is outside an order of {size}")
        return int(self.block(position, position + 1)[0])

    def __iter__(self) -> Iterator[int]:
        """Walk through the order, a block at a time."""
        for start in range(0, len(self), _BLOCK):
            yield from self.block(start, min(start + _BLOCK, len(self))).tolist()

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of numbers, such as a list."""
        if not isinstance(other, Sequence | np.ndarray):
            return NotImplemented
        return len(self) == len(other) and bool(np.array_equal(self.block(0, len(self)), np.asarray(other)))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all positions as one array, O(len(self)) memory."""
        array = self.block(0, len(self))
        return array if dtype is None and not copy else np.array(array, dtype=dtype)

    def to_indices(self) -> range | NDArray[np.int64]:
        """Return the corpus indices as Python and NumPy have them: a `range`, else an `int64[n]` of the caller's own.

        O(len(self)) memory, unless it is a range.
        """
        return np.array(self.block(0, len(self)))


class ComputedOrder(Order):
    """Base of the orders whose corpus indices are computed: a slice is the same order at other positions.

    Args:
        positions: The positions of the whole order that it has.
    """

    def __init__(self, positions: range) -> None:
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def slice(self, start: int, stop: int) -> Self:
        """Return positions start..stop as an order."""
        part = copy.copy(self)
        part._positions = self._positions[start:stop]
        return part

    def _positions_in(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions start..stop of this order as those of the whole, `int64[n]`."""
        part = self._positions[start:stop]
        return np.arange(part.start, part.stop, part.step, dtype=np.int64)


class RangeOrder(ComputedOrder):
    """Corpus indices first, first + step, ...: no memory."""

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`."""
        return self._positions_in(start, stop)

    def to_indices(self) -> range:
        """Return the range."""
        return self._positions


class ArrayOrder(Order):
    """Corpus indices held in an array.

    Args:
        indices: `int[n]`; kept without a copy if it is `int64` already, and never written to.
        may_repeat: False if the caller knows that no index comes twice.

    Examples:
        >>> from headrace.order import ArrayOrder
        >>> list(ArrayOrder([2, 0, 2]))
        [2, 0, 2]
    """

    def __init__(self, indices: NDArray[Any], *, may_repeat: bool = True) -> None:
        self._indices = np.asarray(indices, dtype=np.int64)
        self.may_repeat = may_repeat

    def __len__(self) -> int:
        return len(self._indices)

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`, a read-only view."""
        view = self._indices[start:stop]
        view.flags.writeable = False
        return view

    def slice(self, start: int, stop: int) -> ArrayOrder:
        """Return positions start..stop as an order."""
        return ArrayOrder(self._indices[start:stop], may_repeat=self.may_repeat)


class RepeatedOrder(ComputedOrder):
    """Another order several times in a row, not shuffled again: no memory of its own.

    Args:
        order: What is repeated.
        times: How often, at least 1.
    """

    def __init__(self, order: Order, times: int) -> None:
        super().__init__(range(len(order) * times))
        self._order = order
        self.may_repeat = order.may_repeat or times > 1

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`."""
        size, parts = len(self._order), [np.empty(0, np.int64)]
        positions = self._positions[start:stop]
        position = positions.start
        while position < positions.stop:
            first = position % size
            last = min(size, first + positions.stop - position)
            parts.append(self._order.block(first, last))
            position += last - first
        return np.concatenate(parts)


def occurrences(order: Order) -> NDArray[np.int64]:
    """Return, for each position, how often its corpus index came before in this order, as read-only `int64[n]`.

    With it, randomness can be keyed by (corpus index, occurrence) where an order repeats sequences. O(1) for an order
    that promises not to repeat, else O(n log n).
    """
    size = len(order)
    if not order.may_repeat or size == 0:
        return np.broadcast_to(np.int64(0), (size,))
    indices = order.block(0, size)
    by_index = np.argsort(indices, kind="stable")
    in_run = np.arange(size)
    is_first = np.ones(size, bool)
    is_first[1:] = np.diff(indices[by_index]) != 0
    in_run -= np.maximum.accumulate(np.where(is_first, in_run, 0))
    counts = np.empty(size, np.int64)
    counts[by_index] = in_run
    counts.flags.writeable = False
    return counts
