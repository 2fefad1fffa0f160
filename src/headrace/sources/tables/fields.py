"""How the columns of a table become data keys, one class for each way.

`NumberField` takes numbers and bytes as they are: all rows of a piece at once, which takes some 10 ns a row where a
codec takes microseconds. `TextField` and `RecordingField` give values to a codec. The type of the column and the user
choose. Each says in a scan of the corpus how long its arrays are, and then gives the array of one row.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import resolve_inside
from headrace.specs import DataSpec

from ..audio.codec import RecordingCodec
from ..images import ImageCodec
from ..shared.codec import Codec
from ..shared.data_types import check_classes, learn_spec
from .cells import Cells
from .schema import Column

Rows = NDArray[np.int64] | None


class TableField(ABC):
    """How one column becomes one data key.

    Attributes:
        data_key: The data key.
        column: The column.
        parts: Fields of the column that are read; "" is the column itself.
        is_plain: Whether an array is a view of what is stored.
        must_see_all: Whether one process has to scan all rows, see `Codec`.
    """

    is_plain = False
    must_see_all = False
    parts: tuple[str, ...] = ("",)

    def __init__(self, data_key: str, column: Column) -> None:
        self.data_key, self.column = data_key, column

    @property
    @abstractmethod
    def identity(self) -> list[Any]:
        """JSON data that names the column and all that changes what an index says of it."""

    @property
    def labels(self) -> Sequence[str] | None:
        """Class labels, after the scan."""
        return None

    @property
    def guesses_labels(self) -> bool:
        """Whether values are taken for labels without having been declared so, see `Codec`."""
        return False

    @property
    def is_slow(self) -> bool:
        """Whether it has a vocabulary, see `Codec`."""
        return False

    @abstractmethod
    def scan(self, cells: Sequence[Cells], rows: Rows) -> NDArray[np.int64]:
        """Learn from all rows of a piece, or some; return the length of each, `int64[n]`."""

    @property
    @abstractmethod
    def scanned(self) -> Any:
        """What the scan has found so far, see `Codec`."""

    @abstractmethod
    def join(self, scanned: Any) -> None:
        """Take what the scan of other rows has found, see `Codec`."""

    @abstractmethod
    def end_scan(self) -> DataSpec:
        """Return the layout of the arrays, which may depend on all rows."""

    @property
    def facts(self) -> Any:
        """JSON data that the scan has found, for `settle`."""
        return None

    @abstractmethod
    def settle(self, spec: DataSpec, labels: Sequence[str] | None, facts: Any) -> None:
        """Take what a scan has found."""

    def declare(self, spec: DataSpec) -> None:  # noqa: B027 - most have nothing to do with it
        """Take a layout in place of the one that was found, which it refines."""

    @abstractmethod
    def view(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Return the array of one row; it may be a view of what is stored."""


class NumberField(TableField):
    """Numbers, lists of numbers, or the bytes of texts, as they are stored.

    Args:
        data_key: The data key.
        column: The column.
        declared: Layout that our writer stored; used where it fits.
        labels: Class labels, if declared.
        num_classes: Number of classes, if declared.
    """

    is_plain = True

    def __init__(
        self,
        data_key: str,
        column: Column,
        declared: DataSpec | None = None,
        labels: Sequence[str] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(data_key, column)
        assert column.layout is not None
        self.layout = column.layout
        self._declared, self._labels = declared, labels
        self._num_classes = num_classes if labels is None else len(labels)
        self._sizes: dict[int, tuple[int, int]] = {}
        self._is_checked = num_classes is not None or (labels is not None and declared is None)
        self._spec: DataSpec | None = None

    @property
    def identity(self) -> list[Any]:
        """The column, its type, and the classes."""
        return ["numbers", self.column.name, self.column.arrow_type, self._num_classes, list(self._labels or [])]

    @property
    def labels(self) -> Sequence[str] | None:
        """Class labels, if declared."""
        return self._labels

    def scan(self, cells: Sequence[Cells], rows: Rows) -> NDArray[np.int64]:
        """Learn the sizes of axes, and refuse rows that make no array."""
        (own,) = cells
        wrong = own.first_wrong(rows)
        if wrong is not None:
            raise self._error(own, wrong)
        lengths = own.lengths() if rows is None else own.lengths()[rows]
        for axis, (least, largest) in own.sizes.items():
            self._note_size(axis, least, largest)
        if own.starts is not None and len(lengths):
            self._note_size(0, int(lengths.min()), int(lengths.max()))
        if self._is_checked and own.values.ndim == 1 and own.starts is None:
            values = own.values if rows is None else own.values[rows]
            outside = np.flatnonzero((values < 0) | (values >= (self._num_classes or 0)))
            if len(outside):
                row = int(outside[0]) if rows is None else int(rows[outside[0]])
                self._check_classes(own.values[row : row + 1], f"{own.where}, row {row}")
        return lengths

    def _note_size(self, axis: int, least: int, largest: int) -> None:
        before = self._sizes.get(axis, (least, largest))
        self._sizes[axis] = min(before[0], least), max(before[1], largest)

    @property
    def scanned(self) -> dict[int, tuple[int, int]]:
        """Axis -> the least and the largest size of it."""
        return self._sizes

    def join(self, scanned: dict[int, tuple[int, int]]) -> None:
        """Take sizes that were found elsewhere."""
        for axis, (least, largest) in scanned.items():
            self._note_size(axis, least, largest)

    def end_scan(self) -> DataSpec:
        """Return the layout: an axis that has one size in all rows is of that size, unless it is time."""
        axes = list(self._axes)
        for axis in range(len(axes)):
            if axis not in self._sizes:
                continue
            least, largest = self._sizes[axis]
            said = axes[axis]
            if said is not None and (least, largest) != (said, said):
                raise SourceError(
                    f"axis {axis} of the column {self.column.name!r} has {least} to {largest} items, not {said}",
                    fix="correct the data, or their shape in the schema",
                )
            if axis and least == largest:
                axes[axis] = least
        self._spec = self._spec_of(axes)
        return self._spec

    @property
    def _axes(self) -> tuple[int | None, ...]:
        if self.layout.leaf in ("text", "bytes"):
            return (None,)
        return self.column.shape or self.layout.axes

    def _spec_of(self, axes: list[int | None]) -> DataSpec:
        if self.layout.leaf in ("text", "bytes"):
            return self._of_declared(DataSpec("uint8", sparse=True, dim=256, is_text=True))
        has_time = axes[:1] == [None]
        shape = tuple(axes[1:] if has_time else axes)
        spec = self._of_declared(learn_spec(np.dtype(self.layout.leaf), shape, has_time=has_time))
        if self._num_classes is not None and self._declared is None:
            spec = replace(spec, sparse=True, dim=self._num_classes)
        return spec

    def _of_declared(self, found: DataSpec) -> DataSpec:
        """Return what the writer was told, if the values can be that."""
        said = self._declared
        if said is None or (said.dtype, said.ndim) != (found.dtype, found.ndim):
            return found
        axes = zip(_axes_of(said), _axes_of(found), strict=True)
        return said if all(None in (ours, own) or ours == own for ours, own in axes) else found

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, facts: Any) -> None:  # noqa: ARG002
        """Take the layout."""
        self._spec, self._labels = spec, labels

    def declare(self, spec: DataSpec) -> None:
        """Take a layout; its classes are checked from now on."""
        self._spec = spec
        if spec.sparse and spec.dim is not None:
            self._num_classes, self._is_checked = spec.dim, True

    def view(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Return a view of the value of one row."""
        (own,) = cells
        if own.wrong and own.complaint(row) is not None:
            raise self._error(own, row)
        assert self._spec is not None
        array = own.view(row)
        if self._spec.has_time and not len(array):  # its other axes are not known from it
            array = array.reshape(0, *(size or 0 for size in self._spec.shape))
        if self._is_checked:
            self._check_classes(array, own.where)
        return array

    def _check_classes(self, array: NDArray[Any], where: str) -> None:
        spec = DataSpec("int64", sparse=True, dim=self._num_classes or 0)
        check_classes(array, spec, f"{where}, column {self.column.name!r}")

    def _error(self, cells: Cells, row: int) -> SourceError:
        what = cells.complaint(row)
        fix = "correct or filter the rows" + ("" if "lists" in str(what) else ', or give nulls="empty"')
        return SourceError(f"the column {self.column.name!r} {what}", where=f"{cells.where}, row {row}", fix=fix)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sizes": {}}


def _axes_of(spec: DataSpec) -> list[int | None]:
    return [*([None] if spec.has_time else []), *spec.shape]


class ValueField(TableField):
    """Values that a codec makes arrays of, one by one. Sub-classes say what the value of a row is.

    Args:
        data_key: The data key.
        column: The column.
        codec: The codec.
    """

    def __init__(self, data_key: str, column: Column, codec: Codec) -> None:
        super().__init__(data_key, column)
        self.codec, self.must_see_all = codec, codec.must_see_all

    @abstractmethod
    def _value(self, cells: Sequence[Cells], row: int, where: str) -> Any:
        """Return what the codec gets of a row; `where` names the row."""

    @property
    def labels(self) -> Sequence[str] | None:
        """Those of the codec."""
        return self.codec.labels

    @property
    def guesses_labels(self) -> bool:
        """That of the codec."""
        return self.codec.guesses_labels

    @property
    def is_slow(self) -> bool:
        """That of the codec."""
        return self.codec.is_slow

    @property
    def facts(self) -> Any:
        """What the codec has learnt besides."""
        return self.codec.learnt

    def scan(self, cells: Sequence[Cells], rows: Rows) -> NDArray[np.int64]:
        """Let the codec see all rows of a piece, or some; return the length of each, `int64[n]`."""
        lengths = []
        for row in range(cells[0].num_rows) if rows is None else rows.tolist():
            at_row = f"{cells[0].where}, row {row}"
            lengths.append(self.codec.scan(self._value(cells, row, at_row), at_row))
        return np.array(lengths, np.int64)

    @property
    def scanned(self) -> Any:
        """What the codec has found."""
        return self.codec.scanned

    def join(self, scanned: Any) -> None:
        """Let the codec take what others have found."""
        self.codec.join(scanned)

    def end_scan(self) -> DataSpec:
        """Return the layout of the arrays."""
        self.codec.end_scan()
        return self.codec.spec

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, facts: Any) -> None:
        """Let the codec take what it found."""
        self.codec.settle(spec, labels, facts)

    def view(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Return the array of one row."""
        at_row = f"{cells[0].where}, row {row}"
        return self.codec.encode(self._value(cells, row, at_row), at_row)


class TextField(ValueField):
    """A text, encoded as a field of a manifest."""

    @property
    def identity(self) -> list[Any]:
        """That of the field."""
        return ["text", *self.codec.identity]

    def _value(self, cells: Sequence[Cells], row: int, where: str) -> str:
        return text_of(cells[0], row, self.column.name, where)


def text_of(cells: Cells, row: int, name: str, where: str) -> str:
    """Return the text of one row.

    Raises:
        SourceError: It is null, or no UTF-8.
    """
    complaint = cells.complaint(row)
    if complaint is not None:
        raise SourceError(
            f"the column {name!r} {complaint}",
            where=where,
            fix='filter the rows, or give nulls="empty"',
        )
    try:
        return cells.view(row).tobytes().decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"the column {name!r} has a value that is not UTF-8: {error}", where=where, fix="correct the row"
        ) from error


@dataclass(frozen=True, slots=True)
class FilePaths:
    """Which files the paths in a column may name, where a row has no bytes.

    Attributes:
        root: Folder that they are relative to, and must not lead out of; `None`: there is none.
        may_be_absolute: Whether, without a root, absolute paths are read as they are: those of a dataset that the
            user's own program has made or loaded, whose library would open them, too.
    """

    root: str | None = None
    may_be_absolute: bool = False

    def resolve(self, name: str, column: str, where: str) -> str:
        """Return the path of a file that a row names.

        Raises:
            SourceError: It may not be read.
        """
        if self.root is not None:
            return str(resolve_inside(self.root, name))
        if self.may_be_absolute and os.path.isabs(name):
            return name
        raise SourceError(
            f"the column {column!r} has no bytes, only the path {name!r}",
            where=where,
            fix='give the source root=, the folder that the paths are in (root="/": anywhere on this machine); or '
            "store the bytes in the table",
        )


class FileField(ValueField):
    """Files in a structure of their bytes and their path, as Hugging Face stores them; or a column of bytes.

    Args:
        data_key: The data key.
        column: The column.
        codec: The codec; it gets bytes or a path.
        paths: Which files may be read where a row has no bytes.
    """

    def __init__(self, data_key: str, column: Column, codec: Codec, paths: FilePaths) -> None:
        super().__init__(data_key, column, codec)
        self._paths = paths
        self.parts = ("",) if column.layout is not None and column.layout.leaf == "bytes" else ("bytes", "path")

    def _value(self, cells: Sequence[Cells], row: int, where: str) -> bytes | str:
        """Return the bytes of a file, or where they are."""
        data = cells[0]
        if not _is_null(data, row):
            return data.view(row).tobytes()
        if len(cells) == 1 or _is_null(cells[1], row):
            raise SourceError(f"the column {self.column.name!r} is null", where=where, fix="correct or filter the rows")
        return self._paths.resolve(text_of(cells[1], row, self.column.name, where), self.column.name, where)


class ImageField(FileField):
    """Images: `uint8[H, W, C]`.

    Args:
        data_key: The data key.
        column: The column.
        options: `mode` and `size`, see `ImageCodec`. Without `mode`, that of the column's feature counts.
        paths: See `FileField`.
    """

    def __init__(self, data_key: str, column: Column, options: Mapping[str, Any], paths: FilePaths) -> None:
        options = options if column.mode is None else {"mode": column.mode, **options}
        super().__init__(data_key, column, ImageCodec.parse(f"images of the column {column.name!r}", options), paths)

    @property
    def identity(self) -> list[Any]:
        """The column and the options."""
        return ["image", self.column.name, *self.codec.identity, self._paths.root]


class RecordingField(FileField):
    """Audio in a structure of its bytes and its path, as Hugging Face stores it: `float32[T, 1]`, or features.

    Args:
        data_key: The data key.
        column: The column.
        options: `features`, `sample_rate` and `channel`, as `AudioSource` takes them.
        paths: See `FileField`.
    """

    codec: RecordingCodec

    def __init__(self, data_key: str, column: Column, options: Mapping[str, Any], paths: FilePaths) -> None:
        features, sample_rate = options.get("features", "raw"), options.get("sample_rate") or column.sample_rate
        super().__init__(data_key, column, RecordingCodec(features, sample_rate, options.get("channel")), paths)
        self._has_axis = True

    @property
    def identity(self) -> list[Any]:
        """The column and the options."""
        return ["recording", self.column.name, *self.codec.identity, self.codec.channel, self._paths.root]

    @property
    def gives_samples(self) -> bool:
        """Whether it gives samples, and no features."""
        return self.codec.features is None

    def declare(self, spec: DataSpec) -> None:
        """Take `float32[T]` or `float32[T, 1]` for samples."""
        self._has_axis = bool(spec.shape)

    def view(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Decode one recording, `float32[T, D]`."""
        array = super().view(cells, row)
        return array if self._has_axis else array[:, 0]


def _is_null(cells: Cells, row: int) -> bool:
    return any(mask[row] for mask, _ in cells.wrong)
