"""One column of one piece of a table as NumPy arrays: all values in a row, and where those of each table row begin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError

from ..shared.source import column_view
from .schema import CellType, import_arrow


class Cells:
    """The values of one column in one piece of a table.

    Args:
        array: The Arrow array, which was validated: no offset leads out of its buffers.
        layout: Its layout, which is not a recording.
        nulls_are_empty: Whether a null list or text has no items, and a null float is a NaN.
        name: The column, for messages.
        where: The piece, for messages.

    Attributes:
        num_rows: How many.
        is_null: Which rows are null, `bool[rows]`.
        values: `dtype[items, ...]`, all of them; `dtype[rows, ...]` if all axes have a fixed size.
        lengths: Size of the first axis of each row, `int64[rows]`; 1 without axes.
        sizes: Axis below the first one -> its least and largest size.
    """

    def __init__(self, array: Any, layout: CellType, *, nulls_are_empty: bool, name: str, where: str) -> None:
        pa = import_arrow()
        self.num_rows, self.name, self.where = len(array), name, where
        self._levels: list[Any] = []  # of each axis its size, or where each list begins, `int64[n + 1]`
        self._refused: list[tuple[int, NDArray[np.bool_]]] = []  # axis, and which of its lists or values are null
        is_text, is_float = layout.leaf in ("text", "bytes"), layout.leaf.startswith("float")
        if is_text:
            array = array.cast(pa.large_binary())  # the data are not copied
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        self.is_null = _nulls_of(array)
        while hasattr(array.type, "value_field"):
            is_fixed = pa.types.is_fixed_size_list(array.type)
            self._note_nulls(array, may_be=nulls_are_empty and not self._levels and not is_fixed)
            if is_fixed:
                size = array.type.list_size
                self._levels.append(size)
                array = array.values.slice(array.offset * size, len(array) * size)
            else:
                lengths = array.value_lengths().fill_null(0).to_numpy()
                self._levels.append(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]))
                array = array.flatten()
        self._note_nulls(array, may_be=nulls_are_empty and (is_text or is_float))
        if is_text:
            starts, self.values = (np.frombuffer(buffer or b"", np.uint8) for buffer in array.buffers()[1:])
            self._levels.append(starts.view(np.int64)[array.offset : array.offset + len(array) + 1])
        else:
            filled = (
                array if is_float or not array.null_count else array.fill_null(0 if layout.leaf != "bool" else False)
            )
            self.values = filled.to_numpy(zero_copy_only=False)
        self._place_rows(layout)

    def _note_nulls(self, array: Any, *, may_be: bool) -> None:
        if array.null_count and not may_be:
            self._refused.append((len(self._levels), _nulls_of(array)))

    def _place_rows(self, layout: CellType) -> None:
        self.sizes: dict[int, tuple[int, int]] = {}
        self._inner: list[Any] = []
        self._edges: tuple[memoryview[int], memoryview[int]] | None = None
        if layout.leaf not in ("text", "bytes") and None not in layout.axes:
            self.values = self.values.reshape(self.num_rows, *layout.axes)
            self.lengths = np.full(self.num_rows, layout.axes[0] if layout.axes else 1, np.int64)
            return
        outer, *inner = self._levels
        edges = np.arange(self.num_rows + 1, dtype=np.int64) * outer if isinstance(outer, int) else outer
        starts, stops = edges[:-1], edges[1:]
        if self.is_null.any():  # what nulls refer to may be anything
            stops = np.where(self.is_null, starts, stops)
        self._edges, self.lengths = (column_view(starts), column_view(stops)), stops - starts
        for axis, level in enumerate(inner, start=1):
            sizes = np.full(1, level) if isinstance(level, int) else np.diff(level)
            if len(sizes):
                self.sizes[axis] = int(sizes.min()), int(sizes.max())
            least, most = self.sizes.get(axis, (0, 0))
            self._inner.append(least if least == most else level)
        if self._inner and all(isinstance(level, int) for level in self._inner):
            self.values, self._inner = self.values.reshape(int(edges[-1]), *self._inner), []

    def num_bytes(self, *, is_view: bool) -> int:
        """Return the size in memory, if the values are views of a file, or else."""
        offsets: int = sum(level.nbytes for level in self._levels if not isinstance(level, int))
        return offsets + (0 if is_view and self.values.dtype.kind != "b" else self.values.nbytes)  # bools are packed

    def view(self, row: int) -> NDArray[Any]:
        """Return the value of one row, `dtype[...]`, as a view that must not be written to.

        Raises:
            SourceError: Its lists have different lengths.
        """
        if self._edges is None:
            return self.values[row, ...]
        first, last = self._edges[0][row], self._edges[1][row]
        if not self._inner:
            return self.values[first:last]
        shape = [last - first]
        for level in self._inner:
            if isinstance(level, int):
                shape.append(level)
                first, last = first * level, last * level
                continue
            sizes = np.diff(level[first : last + 1])
            if (sizes != sizes[:1]).any():
                raise self._wrong(row, "has lists of different lengths in it, which make no array")
            shape.append(int(sizes[0]) if len(sizes) else 0)
            first, last = int(level[first]), int(level[last])
        return self.values[first:last].reshape(shape)

    def text(self, row: int) -> str:
        """Return a text.

        Raises:
            SourceError: It is not UTF-8.
        """
        try:
            return self.view(row).tobytes().decode()
        except UnicodeDecodeError as error:
            raise self._wrong(row, f"has a value that is not UTF-8: {error}") from error

    def check(self) -> None:
        """Refuse a row that makes no array.

        Raises:
            SourceError: There is one; it is named.
        """
        for axis, nulls in self._refused:
            row = int(nulls.argmax())
            for level in reversed(self._levels[:axis]):
                row = row // level if isinstance(level, int) else int(np.searchsorted(level, row, "right")) - 1
            raise self._wrong(row, "has a null in it" if axis else "is null")
        for row in range(self.num_rows if self._inner else 0):
            self.view(row)

    def _wrong(self, row: int, what: str) -> SourceError:
        fix = "correct or filter the rows" + (', or give nulls="empty"' if "null" in what else "")
        return SourceError(f"the column {self.name!r} {what}", where=f"{self.where}, row {row}", fix=fix)


def _nulls_of(array: Any) -> NDArray[np.bool_]:
    """Return which items are null, `bool[n]`."""
    return np.asarray(array.is_null()) if array.null_count else np.zeros(len(array), np.bool_)
