"""Values of which nobody said what they are: numbers, lists of numbers, or text; a first look at all of them tells."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .manifest_fields import Field

_TEXT, _WHOLE, _REAL = "text", "whole numbers", "numbers"


class AnyField(Field):
    """Text as its UTF-8 bytes, `uint8[T]`; whole numbers as `int64[T]`, others as `float64[T]`; one number is T = 1.

    Args:
        name: Of the field.
        is_class: Whether values are class indices: `int32[T]`, whose number of classes is the largest and one.
    """

    def __init__(self, name: str, *, is_class: bool = False) -> None:
        self.name = name
        self._is_class = is_class
        self._kind: str | None = None
        self._smallest = self._largest = 0
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
        """Take note of the kind of one value; return the length of its array."""
        if isinstance(value, str) and not self._is_class:
            self._merge(_TEXT, where)
            return len(value.encode())
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if type(number) is int or isinstance(number, bool):
                self._merge(_WHOLE, where)
                self._smallest, self._largest = min(self._smallest, number), max(self._largest, number)
            elif isinstance(number, float) and not self._is_class:
                self._merge(_REAL, where)
            else:
                raise SourceError(
                    f"{self.name!r} has {str(value)[:60]!r}, which is no text, number or list of numbers",
                    where=where,
                    fix="name a field that is in every sequence and has such a value; larger arrays are best as .npy",
                )
        limit = 2**31 if self._is_class else 2**63
        if not -limit <= self._smallest <= self._largest < limit:
            raise SourceError(
                f"{self.name!r} has {str(value)[:60]!r}, beyond {limit.bit_length()} bits",
                where=where,
                fix="store such numbers as .npy, or as text",
            )
        return len(numbers)

    def _merge(self, kind: str, where: str) -> None:
        if self._kind in (None, kind) or (self._kind, kind) == (_WHOLE, _REAL):
            self._kind = kind
        elif (self._kind, kind) != (_REAL, _WHOLE):
            raise SourceError(
                f"{self.name!r} has {kind} here, and {self._kind} before",
                where=where,
                fix="correct the value, or read another field",
            )

    def end_scan(self) -> None:
        """Choose the layout."""
        if self._kind == _TEXT:
            self._spec = DataSpec("uint8", sparse=True, dim=256)
        elif self._kind == _REAL:
            self._spec = DataSpec("float64", dim=1)
        elif self._is_class:
            dim = self._largest + 1 if self._kind and self._smallest >= 0 else None
            self._spec = DataSpec("int32", sparse=True, dim=dim)
        elif self._kind == _WHOLE:
            self._spec = DataSpec("int64", sparse=True)

    def settle_spec(self, spec: DataSpec) -> None:
        """Take the layout that a scan of the same values found."""
        self._spec = spec

    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """Return the array of one value."""
        dtype = np.dtype(self.spec.dtype)
        if isinstance(value, str) != (dtype == np.uint8):
            raise SourceError(f"{self.name!r} has {str(value)[:60]!r}, which it had not when indexed", where=where)
        if isinstance(value, str):
            return np.frombuffer(value.encode(), np.uint8).copy()
        return np.array(value if isinstance(value, list) else [value], dtype)
