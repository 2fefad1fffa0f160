"""How plain items become a batch: each part of their structure is stacked, on an axis more.

Large arrays are copied to their rows of the batch when they come, while the processor has them at hand; so the user's
code gets the memory of one for the next, and what is in shared memory is written once. Small ones are kept as they are
until all are here; so it is seen in the first batch whether the dataset fills the same memory again for a later item,
and if it does, items are copied.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import TransformError
from headrace.specs import is_plain_tensor

from .layout import Allocate
from .reuse import ReuseCheck

_MIN_ROW_BYTES = 1 << 14  # of an array that is copied when it comes; it costs 1 us, and small ones together cost less
_NUMBERS = {int, float, complex, bool}
_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


class _StackedRows:
    """The rows of one part of the structure of the items, of which the first ones are filled."""

    __slots__ = ("array", "num")

    def __init__(self, first: NDArray[Any], num_items: int, allocate: Allocate) -> None:
        self.array, self.num = allocate("", (num_items, *first.shape), first.dtype), 0

    def take(self, value: Any) -> Any:
        """Copy an array to the next row and return that, if it goes there; else return the value."""
        array, num = self.array, self.num
        if type(value) is not np.ndarray or value.dtype != array.dtype or value.shape != array.shape[1:]:
            return value
        array[num] = value
        self.num = num + 1
        return array[num]


class ItemStack:
    """Collects the items of a batch, and stacks them.

    Args:
        num_items: How many there are at most.
        allocate: Called as `allocate("", shape, dtype)` for each array of the batch; None: they are only collected.

    Attributes:
        items: Those that were added; large arrays are views of their rows.
    """

    def __init__(self, num_items: int, allocate: Allocate | None) -> None:
        self.items: list[Any] = []
        self._num_items, self._allocate = num_items, allocate
        self._rows: Any = None  # `_StackedRows`, or a dict of them by the numbers of the parts of a tuple

    def add(self, item: Any) -> None:
        """Take the next item. Look it up for each: the first one decides how the others are taken, mostly by a list."""
        items, self._rows = self.items, self._open(item)
        add = items.append if self._rows is None else partial(_add_to_rows, items, self._rows)
        self.add = add  # type: ignore[method-assign, assignment]  # it holds no stack: one that is dropped is no garbage cycle
        add(item)

    def stacked(self) -> Any:
        """Return the batch in the structure of the items: tuples of arrays become a tuple of arrays with one more axis.

        Numbers become arrays, texts and all else a list; torch tensors are stacked as tensors.

        Raises:
            TransformError: Arrays have different shapes.
        """
        assert self._allocate is not None
        return _stacked(self.items, self._allocate, self._rows)

    def _open(self, item: Any) -> Any:
        """Make rows for the large arrays of an item; None if there are none."""
        if self._allocate is None:
            return None
        if type(item) is np.ndarray:
            is_large = item.nbytes >= _MIN_ROW_BYTES and item.dtype.isnative and not item.dtype.hasobject
            return _StackedRows(item, self._num_items, self._allocate) if is_large else None
        if type(item) is not tuple:
            return None
        opened = {number: self._open(part) for number, part in enumerate(item) if type(part) is np.ndarray}
        return {number: rows for number, rows in opened.items() if rows is not None} or None


class CopyingItemStack(ItemStack):
    """Collects items of a dataset that fills the same memory again for a later one, or may do so: as copies.

    Args:
        num_items: As above.
        allocate: As above.
        reuse: Makes the copies.
    """

    def __init__(self, num_items: int, allocate: Allocate | None, reuse: ReuseCheck) -> None:
        super().__init__(num_items, allocate)
        self._reuse = reuse

    def add(self, item: Any) -> None:
        """Copy the next item."""
        item = self._reuse.keep(item)
        if not self.items:
            self._rows = self._open(item)
        _add_to_rows(self.items, self._rows, item)


def _add_to_rows(items: list[Any], rows: Any, item: Any) -> None:
    if type(rows) is _StackedRows:
        item = rows.take(item)
    elif rows is not None and type(item) is tuple:
        item = tuple([rows[number].take(part) if number in rows else part for number, part in enumerate(item)])
    items.append(item)


def _stacked(items: list[Any], allocate: Allocate, rows: Any) -> Any:
    num, first = len(items), items[0]
    if type(rows) is _StackedRows:
        if rows.num == num:  # all of them are there
            return rows.array if num == len(rows.array) else rows.array[:num]
        rows = None
    if isinstance(first, Mapping):
        return {key: _stacked([item[key] for item in items], allocate, None) for key in first}
    if isinstance(first, tuple | list):
        columns = enumerate(zip(*items, strict=True))
        parts = [_stacked(list(column), allocate, rows and rows.get(number)) for number, column in columns]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    kinds = set(map(type, items))
    if kinds == {np.ndarray} and first.ndim and len(set(map(_shape, items))) == len(set(map(_dtype, items))) == 1:
        return _stacked_arrays(items, allocate)
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(first, torch.Tensor)
    if not is_tensor and not isinstance(first, np.ndarray | np.number | np.bool_ | int | float | complex):
        return items
    if not kinds <= _NUMBERS:
        _check_shapes(items)
    return stack_tensors(torch, items, allocate) if is_tensor else np.asarray(items)


def _stacked_arrays(arrays: list[NDArray[Any]], allocate: Allocate) -> NDArray[Any]:
    """Stack arrays of one shape and dtype."""
    num, first = len(arrays), arrays[0]
    if first.dtype.hasobject or not first.dtype.isnative:  # NumPy says what comes out
        return np.asarray(arrays)
    out = allocate("", (num, *first.shape), first.dtype)
    if num == 1:
        out[0] = first
    else:
        np.concatenate(arrays, out=out.reshape(num * len(first), *first.shape[1:]), casting="no")
    return out


def stack_tensors(torch: Any, tensors: list[Any], allocate: Allocate) -> Any:
    """Stack tensors, in an array of ours if they are plain values of a dtype that NumPy has."""
    first = tensors[0]
    if (
        set(map(type, tensors)) == {torch.Tensor}
        and is_plain_tensor(first)
        and len({one.dtype for one in tensors}) == 1
    ):
        try:
            out = allocate("", (len(tensors), *first.shape), first.numpy().dtype)
            return torch.stack(tensors, out=torch.from_numpy(out))
        except (TypeError, RuntimeError):  # bfloat16; or one needs a gradient, or is conjugated when it is read
            pass
    return torch.stack(tensors)


def _check_shapes(items: list[Any]) -> None:
    """Refuse arrays of different shapes.

    Raises:
        TransformError: There are some.
    """
    shapes = sorted({tuple(np.shape(item)) for item in items})
    if len(shapes) > 1:
        raise TransformError(
            f"the items of a batch have different shapes: {shapes[0]} and {shapes[-1]}",
            fix='let items be dicts, such as {"data": array}: these are padded; or give collate=',
        )
