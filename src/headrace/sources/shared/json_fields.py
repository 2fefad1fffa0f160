"""Values of JSON as arrays: numbers, lists of them to any depth, and texts as UTF-8 bytes.

JSON knows one kind of number. So a scan of all values says what a field is: whole numbers are int32, or int64 or uint64
where one needs it. With a fraction anywhere, it is float32; or float64, where float32 would be infinite, or would
change a number of 2**24 or more, which has no room for its last digits there (from 2**53 on, neither has float64). Who
wants another dtype says so by an option. Fractions may be rounded; a whole number is read as it was written, or
refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .data_types import extremes, learn_spec
from .fields import Field

_EXACT_SINGLE, _EXACT_DOUBLE = 2**24, 2**53  # to these, every whole number is itself in float32 and float64
_TEXT = DataSpec("uint8", sparse=True, dim=256, is_text=True)


class JsonField(Field):
    """A field in its natural form: a number has no time, a list has, a text is bytes (uint8, 256 classes).

    Args:
        name: Name of the field.
        dtype: Dtype of the arrays, in place of what the scan says.
        dim: Number of classes, for whole numbers and lists of them; else it is not known (`None`).
    """

    must_see_all = True

    def __init__(self, name: str, dtype: str | None = None, dim: int | None = None) -> None:
        self.name = name
        self._dtype = None if dtype is None else _number_dtype(dtype, name)
        self._dim = dim
        self._spec: DataSpec | None = None
        self._is_text: bool | None = None
        self._ndim: int | None = None
        self._frame_shape: tuple[int, ...] | None = None
        self._has_empty = False  # whether there was an empty list
        self._kinds: set[str] = set()
        self._low = self._high = 0
        self._is_wide = False  # whether numbers need float64, if any of them is a fraction
        self._beyond_double: int | None = None  # a whole number that float64 changes

    @property
    def identity(self) -> list[Any]:
        """Its kind and name, and what the user said of its layout."""
        dtype = None if self._dtype is None else self._dtype.name
        return [type(self).__name__, self.name, dtype, self._dim]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays; known after the scan."""
        assert self._spec is not None
        return self._spec

    def scan(self, value: Any, where: str) -> int:
        """Learn from one value; return the length of its array."""
        if isinstance(value, str):
            if self._is_text is not True:
                self._note_kind(True, where)
            return len(value) if value.isascii() else len(_utf8(value, where))
        array = _array_of(value, self.name, where)
        self._note_kind(False, where)
        self._note_shape(array, where)
        if array.size:
            self._kinds.add(array.dtype.kind)
            if array.dtype.kind in "iu":
                low, high = extremes(array)
                self._low, self._high = min(self._low, low), max(self._high, high)
                if max(-low, high) > _EXACT_SINGLE:
                    self._is_wide = True
                    changed = _changed_by(array, np.dtype(np.float64))
                    self._beyond_double = changed if self._beyond_double is None else self._beyond_double
            elif array.dtype.kind == "f" and not self._is_wide:
                self._is_wide = not _fits(array, np.dtype(np.float32)) or _loses_digits(array, value)
            self._check_values(array, value, where)
        return len(array) if array.ndim else 1

    def _note_kind(self, is_text: bool, where: str) -> None:
        if self._is_text is None:
            self._is_text = is_text
            if is_text and (self._dtype is not None or self._dim is not None):
                raise SourceError(
                    f"the field {self.name!r} has a text, but numbers are expected",
                    where=where,
                    fix="leave out its dtype and dim, if it is a text",
                )
        elif self._is_text != is_text:
            raise SourceError(
                f"the field {self.name!r} has texts and numbers",
                where=where,
                fix="write all of its values as texts, or all as numbers",
            )

    def _note_shape(self, array: NDArray[Any], where: str) -> None:
        """Check that an array has the axes and the frame shape of those before it; an empty list fits everywhere."""
        is_empty = array.shape == (0,)
        self._has_empty |= is_empty
        if self._ndim is None and is_empty:
            return  # of how many axes is not known yet, but one at least
        expected = self._ndim if self._ndim is not None else max(array.ndim, int(self._has_empty))
        if array.ndim != expected and not (is_empty and expected):
            raise SourceError(
                f"the field {self.name!r} has {array.ndim} axes here, and {expected} elsewhere",
                where=where,
                fix="nest all lists to the same depth",
            )
        self._ndim = expected
        if not is_empty and array.ndim:
            frame_shape = array.shape[1:]
            if self._frame_shape is None:
                self._frame_shape = frame_shape
            elif frame_shape != self._frame_shape:
                raise SourceError(
                    f"a frame of {self.name!r} has the shape {frame_shape} here, and {self._frame_shape} elsewhere",
                    where=where,
                    fix="make inner lists equally long",
                )

    def _check_values(self, array: NDArray[Any], value: Any, where: str) -> None:
        """Check the values against a dtype and a number of classes that were given."""
        dtype, dim = self._dtype, self._dim
        if dtype is not None and (not _fits(array, dtype) or _changes_an_integer(array, value, dtype)):
            raise SourceError(
                f"the field {self.name!r} has values that do not fit {dtype}, as {_example(array)}",
                where=where,
                fix="give another dtype",
            )
        if dim is not None and array.dtype.kind in "iu":
            low, high = extremes(array)
            if low < 0 or high >= dim:
                wrong = low if low < 0 else high
                raise SourceError(f"the field {self.name!r} has {wrong}, not a class 0..{dim - 1}", where=where)
        if dim is not None and array.dtype.kind == "f":
            raise SourceError(f"the field {self.name!r} has fractions, not classes", where=where, fix="leave dim out")

    def end_scan(self) -> None:
        """Settle the layout, which depends on all values."""
        if self._is_text:
            self._spec = _TEXT
            return
        if self._dtype is not None:
            dtype = self._dtype
        elif "f" in self._kinds or not self._kinds:
            self._refuse_beyond_double("fractions")
            dtype = np.dtype(np.float64 if self._is_wide else np.float32)
        elif self._kinds == {"b"}:
            dtype = np.dtype(np.bool_)
        else:
            dtype = next(
                np.dtype(name)
                for name in ("int32", "int64", "uint64", "float64")
                if name == "float64" or (np.iinfo(name).min <= self._low and self._high <= np.iinfo(name).max)
            )
            if dtype.kind == "f":
                self._refuse_beyond_double("negative numbers")
        has_time = self._ndim != 0
        shape = self._frame_shape or ()
        self._spec = learn_spec(dtype, shape, has_time=has_time, num_classes=self._dim)

    def _refuse_beyond_double(self, others: str) -> None:
        if self._beyond_double is not None:
            number = self._beyond_double
            raise SourceError(
                f"the field {self.name!r} has {others}, and the whole number {number}: no dtype holds both",
                fix="write such numbers as texts, or into a field of their own",
            )

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the layout that a scan of the same values found."""
        self._spec = spec

    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """Return the array of one value, `dtype[T, ...]`, or a scalar array."""
        if isinstance(value, str):
            return np.frombuffer(_utf8(value, where), np.uint8).copy()
        spec = self.spec
        array = _array_of(value, self.name, where)
        if array.shape == (0,):
            return np.zeros((0, *(size or 0 for size in spec.shape)), spec.dtype)
        if array.ndim != spec.ndim or not _fits(array, np.dtype(spec.dtype)):
            raise SourceError(
                f"the field {self.name!r} is {array.dtype} with {array.ndim} axes, not {spec.dtype} with {spec.ndim}",
                where=where,
                fix="the file changed: open the corpus again",
            )
        return array.astype(spec.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        dtype = None if self._dtype is None else self._dtype.name
        return JsonField, (self.name, dtype, self._dim)


def _array_of(value: Any, name: str, where: str) -> NDArray[Any]:
    """Return numbers as an array; `SourceError` for anything else."""
    array: NDArray[Any] = np.array(None)
    if isinstance(value, bool | int | float | list):
        try:
            array = np.array(value)
        except (ValueError, OverflowError):  # inner lists of different lengths
            array = np.array(None)
        if array.dtype.kind == "f" and array.size and np.abs(array).max() >= _EXACT_DOUBLE:
            array = _wide_integers(value, array, name, where)
        if array.dtype.kind in "biuf":
            return array
    text = repr(value)
    if array.dtype == object and array.size and all(type(number) is int for number in array.flat):
        raise SourceError(
            f"the field {name!r} has {text[:60]}, which 64 bits do not hold",
            where=where,
            fix="write such numbers as texts",
        )
    raise SourceError(
        f"the field {name!r} has {text[:60]}{'...' if len(text) > 60 else ''}, which is no number, text, or list of "
        "numbers",
        where=where,
        fix="make inner lists equally long, fill in what is null, or leave the field out: fields=",
    )


def _wide_integers(value: Any, array: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    """Return whole numbers as uint64: NumPy makes fractions of them if some need 64 bits and some do not."""
    exact = np.array(value, object)
    if all(type(number) is int for number in exact.flat):
        try:
            return exact.astype(np.uint64)
        except OverflowError:  # there are negative ones, too, or larger ones
            return exact
    for number in exact.flat:
        if type(number) is int and int(float(number)) != number:
            raise SourceError(
                f"the field {name!r} has fractions, and the whole number {number}: no dtype holds both",
                where=where,
                fix="write such numbers as texts, or into a field of their own",
            )
    return array


def _loses_digits(array: NDArray[Any], value: Any) -> bool:
    """Tell whether float32 would change numbers so large that their last whole digit is lost, and float64 would not."""
    size = np.abs(array)
    large = array[(size >= _EXACT_SINGLE) & (size < _EXACT_DOUBLE)]
    return bool((large.astype(np.float32) != large).any()) or _has_large_integer(array, value)


def _changes_an_integer(array: NDArray[Any], value: Any, dtype: np.dtype[Any]) -> bool:
    """Tell whether there is a whole number, written as one, among fractions that a dtype of these changes."""
    if array.dtype.kind != "f" or np.abs(array).max() <= 2 ** (np.finfo(dtype).nmant + 1):
        return False
    whole = [number for number in np.array(value, object).flat if type(number) is int]
    return any(_changed_by(np.array([number]), dtype) is not None for number in whole)


def _has_large_integer(array: NDArray[Any], value: Any) -> bool:
    """Tell whether there is a whole number, written as one, among fractions that needs float64 at least."""
    if not array.size or np.abs(array).max() < _EXACT_DOUBLE:
        return False
    return any(type(number) is int and abs(number) >= _EXACT_DOUBLE for number in np.array(value, object).flat)


def _changed_by(array: NDArray[Any], dtype: np.dtype[Any]) -> int | None:
    """Return a whole number that is another one in a dtype of fractions; `None` if there is none."""
    limit = 2 ** (np.finfo(dtype).nmant + 1)
    large = array[(array > limit) | (array < -limit)] if array.dtype.kind == "i" else array[array > limit]
    with np.errstate(over="ignore"):
        stored = large.astype(dtype)
    for number, as_stored in zip(large.tolist(), stored.tolist(), strict=True):
        if not math.isfinite(as_stored) or int(as_stored) != number:
            return int(number)
    return None


def _example(array: NDArray[Any]) -> Any:
    """Return the number of the largest size, for an error."""
    return max(array.reshape(-1).tolist(), key=abs)


def _fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype holds these values; fractions may be rounded, integers not."""
    if dtype.kind == "b" or array.dtype.kind == "b":
        return dtype.kind != "b" or array.dtype.kind == "b"
    if array.dtype.kind in "iu":
        if dtype.kind == "f":
            return _changed_by(array, dtype) is None
        if array.dtype == dtype or not array.size:
            return True
        (least, largest), (low, high) = _limits(dtype), extremes(array)
        return least <= low and high <= largest
    with np.errstate(over="ignore"):
        return dtype.kind == "f" and bool(np.isfinite(array.astype(dtype)).all())


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest integer of a dtype."""
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _number_dtype(dtype: Any, name: str) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"the dtype of {name!r} is {dtype!r}", fix='for example "float32"') from error
    if found.kind not in "biuf":
        raise ConfigError(f"the dtype of {name!r} is {found}, not one of numbers", fix='for example "float32"')
    return found


def _utf8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"a text is not valid Unicode: {error.reason}", where=where, fix="correct it") from error
