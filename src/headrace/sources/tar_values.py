"""Members of archives that hold a whole number: a class index, or a number of any meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .manifest_fields import Field


class NumberField(Field):
    """A whole number: `int64[1]`, or as class index `int32[1]`.

    Args:
        name: Of the field.
        is_class: Whether values are class indices, whose number of classes is the largest and one.
    """

    def __init__(self, name: str, *, is_class: bool) -> None:
        self.name = name
        self._is_class = is_class
        self._smallest: int | None = None
        self._largest = 0
        self._spec: DataSpec | None = None

    @property
    def identity(self) -> list[Any]:
        """Its kind and name."""
        return [type(self).__name__, self.name, self._is_class]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        if self._spec is None:
            raise ConfigError(f"there is no value of {self.name!r}, and so no layout", fix="leave out the data key")
        return self._spec

    def scan(self, value: Any, where: str) -> int:
        """Take note of one number; return the length of its array."""
        self._smallest = value if self._smallest is None else min(self._smallest, value)
        self._largest = max(self._largest, value)
        return len(self._array_of(value, where))

    def _array_of(self, value: int, where: str) -> NDArray[Any]:
        dtype: np.dtype[Any] = np.dtype(np.int32 if self._is_class else np.int64)
        if not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise SourceError(
                f"{self.name!r} has {value}, beyond {8 * dtype.itemsize} bits",
                where=where,
                fix="store such numbers as .npy, or as text",
            )
        return np.array([value], dtype)

    def end_scan(self) -> None:
        """Choose the layout."""
        if self._is_class:
            dim = self._largest + 1 if self._smallest is not None and self._smallest >= 0 else None
            self._spec = DataSpec("int32", sparse=True, dim=dim)
        elif self._smallest is not None:
            self._spec = DataSpec("int64", sparse=True)

    def adopt(self, spec: DataSpec) -> None:
        """Take the layout that a scan of the same values found."""
        self._spec = spec

    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """Return the array of one number."""
        return self._array_of(value, where)
