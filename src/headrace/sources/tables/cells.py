"""One column of one piece of a table, as NumPy arrays: where the value of each row is, without decoding any.

`cells_of` turns an Arrow array into `Cells`: views of its buffers, whatever its type. Whether rows are null or ragged
is worked out for all of them at once. Invariant: a view is never outside of the buffers, whatever offsets a damaged
file has: Arrow checks all of them, and what views and dictionaries point at, before any is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError

from ..shared.source import column_view
from .schema import Layout, import_arrow, is_any_list, is_list_view

_Level = int | NDArray[Any]  # the size of all lists of an axis, or where each starts: `int[n + 1]`
_NULL = "is null"
_INNER_NULL = "has a null in it"
_RAGGED = "has lists of different lengths in it, which make no array"


@dataclass(slots=True)
class Cells:
    """The values of one column in one piece of a table.

    Attributes:
        num_rows: How many.
        values: `dtype[items, ...]`: all of them, one after the other, or one for each row where `starts` is None.
        starts: First item of each row, `int[num_rows]`; None if all axes have a fixed size.
        stops: End of each row.
        inner: The axes below the first one that differ from row to row, and all below these: a size, or `int[n + 1]`,
            where each list starts; empty if `values` has all axes.
        wrong: What is wrong with rows, as (which, `bool[num_rows]`; text).
        sizes: Axis -> least and largest size of it in any row, for those of variable size below the first one.
        where: The piece, for messages.
    """

    num_rows: int
    values: NDArray[Any]
    starts: NDArray[Any] | None = None
    stops: NDArray[Any] | None = None
    inner: tuple[int | NDArray[Any], ...] = ()
    wrong: list[tuple[NDArray[np.bool_], str]] = field(default_factory=list)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    where: str = ""
    _edges: tuple[memoryview[int], memoryview[int]] | None = None  # `starts` and `stops`, for one row at a time

    @property
    def num_bytes(self) -> int:
        """Size of the buffers, about."""
        offsets = [axis for axis in (self.starts, *self.inner) if isinstance(axis, np.ndarray)]
        return self.values.nbytes + sum(array.nbytes for array in offsets)

    def lengths(self) -> NDArray[np.int64]:
        """Return the size of the first axis of each row, `int64[num_rows]`."""
        if self.starts is None or self.stops is None:
            size = self.values.shape[1] if self.values.ndim > 1 else 1
            return np.full(self.num_rows, size, np.int64)
        lengths: NDArray[np.int64] = self.stops.astype(np.int64) - self.starts
        return lengths

    def view(self, row: int) -> NDArray[Any]:
        """Return the value of one row, `dtype[...]`, as a view that must not be written to.

        A row that is wrong gives something; `check` it before.
        """
        if self.starts is None or self.stops is None:
            return self.values[row, ...]
        if self._edges is None:
            self._edges = column_view(self.starts), column_view(self.stops)
        first, last = self._edges[0][row], self._edges[1][row]
        if not self.inner:
            return self.values[first:last]
        shape = [last - first]
        for axis in self.inner:
            if isinstance(axis, int):
                size, first, last = axis, first * axis, last * axis
            else:
                size = int(axis[first + 1] - axis[first]) if last > first else 0
                first, last = int(axis[first]), int(axis[last])
            shape.append(size)
        return self.values[first:last].reshape(shape)

    def is_null(self, row: int) -> bool:
        """Tell whether a text, or bytes, are null."""
        return any(mask[row] for mask, _ in self.wrong)

    def check(self, row: int, column: str) -> None:
        """Refuse a row that makes no array.

        Raises:
            SourceError: See above.
        """
        what = next((text for mask, text in self.wrong if mask[row]), None)
        if what is not None:
            fix = "correct or filter the rows" + ("" if what == _RAGGED else ', or give nulls="empty"')
            raise SourceError(f"the column {column!r} {what}", where=f"{self.where}, row {row}", fix=fix)

    def first_wrong(self, rows: NDArray[np.int64] | None) -> int | None:
        """Return the first row that is wrong, of all, or of some."""
        found = np.flatnonzero(np.any([mask if rows is None else mask[rows] for mask, _ in self.wrong], axis=0))
        return None if not len(found) else int(found[0] if rows is None else rows[found[0]])


def cells_of(array: Any, layout: Layout, *, nulls_are_empty: bool, where: str) -> Cells:
    """Return the values of an Arrow array as views of its buffers; what is packed, such as bools, is unpacked.

    Args:
        array: Its type has this layout, which is not a recording.
        layout: The layout.
        nulls_are_empty: Whether a null list or text has no items, and a null float is a NaN.
        where: Location, for error messages.

    Raises:
        SourceError: The array is damaged.
    """
    pa = import_arrow()
    array = getattr(array, "storage", array)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):  # whose UTF-8 is looked at when read
        array = array.view(pa.binary() if pa.types.is_string(array.type) else pa.large_binary())
    try:
        array.validate(full=True)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
    except pa.ArrowException as error:
        what = f"the table is damaged: {error}"
        raise SourceError(what, where=where, fix="write or download the file again") from error
    is_text = layout.leaf in ("text", "bytes")
    axes: tuple[int | None, ...] = (None,) if is_text else layout.axes
    child, levels, masks = array, list[_Level](), list[NDArray[np.bool_] | None]()
    while not isinstance(child, np.ndarray) and (is_text or is_any_list(child.type)):
        masks.append(_null_mask(child))
        level, child = _open_list(pa, child)
        levels.append(level)
    values, mask = (child, None) if is_text else _leaf(child, np.dtype(layout.leaf), nulls_are_empty)
    masks.append(mask)
    num_rows = len(array)
    if None not in axes:
        text = _INNER_NULL if axes else _NULL
        wrong = [(np.any(mask.reshape(num_rows, -1), axis=1), text) for mask in masks if mask is not None]
        return Cells(num_rows, values.reshape(num_rows, *axes), wrong=wrong)
    edges = np.arange(num_rows + 1, dtype=np.int64) * levels[0] if isinstance(levels[0], int) else levels[0]
    cells = Cells(num_rows, values, edges[:-1], edges[1:])
    if masks[0] is not None:  # the items that null rows refer to may be anything
        cells.stops = np.where(masks[0], edges[:-1], edges[1:])
        if not nulls_are_empty:
            cells.wrong.append((masks[0], _NULL))
    for depth, mask in enumerate(masks[1:], 1):
        if mask is not None:
            cells.wrong.append((_any_within(mask, *_ranges_below(cells, levels[1:depth])), _INNER_NULL))
    _settle_inner(cells, levels[1:])
    return cells


def _open_list(pa: Any, array: Any) -> tuple[_Level, Any]:
    """Return the size of a fixed-size list, or where each list starts and ends; and the items: of texts, bytes."""
    types = pa.types
    if types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return size, array.values.slice(array.offset * size, len(array) * size)
    if is_list_view(array.type):  # a copy, as the items may lie anywhere
        sizes = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]), array.flatten()
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        array = array.cast(pa.large_string() if types.is_string_view(array.type) else pa.large_binary())
    is_large = types.is_large_list(array.type) or types.is_large_string(array.type) or types.is_large_binary(array.type)
    buffers = array.buffers()
    offsets = _numbers_in(buffers[1], np.dtype(np.int64 if is_large else np.int32), array.offset, len(array) + 1)
    if not is_any_list(array.type):
        data = buffers[2]
        return offsets, np.frombuffer(data if data is not None and data.size else b"", np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first if first else offsets, array.values.slice(first, last - first)


def _leaf(array: Any, dtype: np.dtype[Any], nulls_are_empty: bool) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return numbers, and which of them are null and must not be."""
    mask = _null_mask(array)
    if dtype.kind == "b":
        packed = array.fill_null(False) if mask is not None else array
        return packed.to_numpy(zero_copy_only=False), mask
    values = _numbers_in(array.buffers()[1], dtype, array.offset, len(array))
    if mask is not None and nulls_are_empty and dtype.kind == "f":
        return np.where(mask, dtype.type(np.nan), values), None
    return values, mask


def _settle_inner(cells: Cells, levels: list[_Level]) -> None:
    """Take down the axes below the first one; if none differs, the values get them as their own."""
    inner: list[_Level] = []
    for axis, level in enumerate(levels, start=1):
        inner.append(level)
        sizes = np.zeros(0, np.int64) if isinstance(level, int) else np.diff(level)
        if not len(sizes):
            continue
        cells.sizes[axis] = int(sizes.min()), int(sizes.max())
        if cells.sizes[axis][0] == cells.sizes[axis][1]:
            inner[-1] = int(sizes[0])
            continue
        first, last = _ranges_below(cells, levels[: axis - 1])
        changes = np.append(sizes[1:] != sizes[:-1], False)
        cells.wrong.append((_any_within(changes, first, np.maximum(last - 1, first)), _RAGGED))
    sizes_of_axes = [axis for axis in inner if isinstance(axis, int)]
    if len(sizes_of_axes) < len(inner):
        cells.inner = tuple(inner)
    elif cells.stops is not None:
        # Items after the last row (under a null) are left out: all that is here is whole.
        items = int(cells.stops.max(initial=0))
        cells.values = cells.values[: items * math.prod(sizes_of_axes)].reshape(items, *sizes_of_axes)


def _any_within(mask: NDArray[np.bool_], first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether any item from `first` to before `last` is in a mask, `bool[num_rows]`."""
    counts = np.concatenate([[0], np.cumsum(mask)])
    found: NDArray[np.bool_] = counts[last] > counts[first]
    return found


def _ranges_below(cells: Cells, levels: list[_Level]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first and end of the items of each row, `len(levels)` levels below its first axis, `int64[num_rows]`."""
    assert cells.starts is not None
    assert cells.stops is not None
    first, last = cells.starts.astype(np.int64), cells.stops.astype(np.int64)
    for level in levels:
        first, last = (first * level, last * level) if isinstance(level, int) else (level[first], level[last])
    return first, last


def _null_mask(array: Any) -> NDArray[np.bool_] | None:
    """Return which items are null, `bool[n]`; None if none is."""
    if not array.null_count:
        return None
    mask: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _numbers_in(buffer: Any, dtype: np.dtype[Any], start: int, num_items: int) -> NDArray[Any]:
    """Return numbers of a buffer, which was checked to have as many (`validate`), as a view."""
    if buffer is None or not buffer.size:
        return np.zeros(num_items, dtype)  # of no rows: not even the offset after the last one is there
    return np.frombuffer(buffer, dtype, num_items, start * dtype.itemsize)
