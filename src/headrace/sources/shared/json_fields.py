"""Values of JSON as arrays: numbers, lists of them to any depth, and texts as UTF-8 bytes.

JSON knows one kind of number. So all values say together what a field is: each has the dtypes that hold it, and the
first of int32, int64, uint64, float32 and float64 that holds all is taken. Fractions may be rounded, if no digit before
the point is lost; a whole number is read as it was written, or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .codec import Facts, Field
from .data_types import check_classes, extremes, learn_spec

_TEXT = DataSpec("uint8", sparse=True, dim=256, is_text=True)
_DTYPES = ("bool", "int32", "int64", "uint64", "float32", "float64")  # in the order of preference
_TEXT_FACT = (), ("text",)  # of all texts
_EMPTY = "of no shape"  # of empty lists, which may be of any but that of a number
_LARGEST = 2**53  # up to here float64 has all whole numbers


class JsonField(Field):
    """A field in its natural form: a number has no time, a list has, a text is bytes (uint8, 256 classes).

    Args:
        name: Name of the field.
        dtype: Dtype of the arrays, in place of what the values say.
        dim: Number of classes, for whole numbers and lists of them; else it is not known (`None`).
    """

    def __init__(self, name: str, dtype: str | None = None, dim: int | None = None) -> None:
        if dim is not None and (type(dim) is not int or dim < 1):
            raise ConfigError(f"dim is {dim!r}, not a number of classes", where=f"field {name!r}")
        self.name, self._dim, self._spec = name, dim, _TEXT
        try:
            self._dtype = None if dtype is None else np.dtype(dtype).name
        except TypeError:
            self._dtype = ""
        if self._dtype not in (None, *_LIMITS):
            raise ConfigError(f"the dtype of {name!r} is {dtype!r}, not one of numbers", fix='for example "float32"')

    @property
    def identity(self) -> list[Any]:
        """Its kind and name, and what the user said of its layout."""
        return [*super().identity, self._dtype, self._dim]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays, once it is known."""
        return self._spec

    def note(self, value: Any, where: str, facts: Facts) -> int:
        """Note the shape of one value and the dtypes that hold it; return the length of its array."""
        if isinstance(value, str):
            if self._dtype is not None or self._dim is not None:
                what = f"the field {self.name!r} has a text, but numbers are expected"
                raise SourceError(what, where=where, fix="leave out its dtype and dim, if it is a text")
            facts.setdefault(_TEXT_FACT, where)
            return len(value) if value.isascii() else len(_utf8(value, where))
        array = self._array_of(value, where)
        if array.shape == (0,):
            facts.setdefault((_EMPTY, _DTYPES if self._dtype is None else (self._dtype,)), where)
            return 0
        if self._dim is not None:
            if array.dtype.kind not in "iu":
                what = f"the field {self.name!r} has {value!r:.60}, which is no class"
                raise SourceError(what, where=where, fix="leave dim out")
            check_classes(array, DataSpec("int64", sparse=True, dim=self._dim), f"{where}, field {self.name!r}")
        fits = _that_hold(array, _DTYPES if self._dtype is None else (self._dtype,))
        if not fits:
            largest = max(array.reshape(-1).tolist(), key=abs)
            what = f"the field {self.name!r} has values that do not fit {self._dtype or 'one dtype'}, as {largest}"
            raise SourceError(what, where=where, fix="give another dtype, or write such values as texts")
        facts.setdefault((array.shape[1:] if array.ndim else None, fits), where)
        return len(array) if array.ndim else 1

    def conclude(self, facts: Facts) -> None:
        """Take the layout that all values fit."""
        shape, fits = next(iter(facts), (_EMPTY, _DTYPES))
        for (other, also), where in facts.items():
            shapes = {shape, other} if None in (shape, other) else {shape, other} - {_EMPTY} or {_EMPTY}
            common = tuple(name for name in fits if name in also)
            if len(shapes) > 1 or not common:
                pair = " and ".join(_layout_text(fact) for fact in ((shape, fits), (other, also)))
                raise SourceError(
                    f"the field {self.name!r} has {pair}: no dtype holds both, or they have different shapes",
                    where=f"{where}, compared with {next(iter(facts.values()))} and what follows it",
                    fix="correct it, or write such values as texts, or leave the field out: fields=",
                )
            (shape,), fits = shapes, common
        if fits[0] == "text":
            self._spec = _TEXT
            return
        dtype = np.dtype(self._dtype or ("float32" if shape == _EMPTY else fits[0]))
        axes: Any = () if shape in (None, _EMPTY) else shape
        self._spec = learn_spec(dtype, axes, has_time=shape is not None, num_classes=self._dim)

    def settle(self, spec: DataSpec, labels: Any, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the layout that was concluded from the same values."""
        self._spec = spec

    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """Return the array of one value, `dtype[T, ...]`, or a scalar array."""
        if isinstance(value, str):
            return np.frombuffer(_utf8(value, where), np.uint8).copy()
        spec, array = self.spec, self._array_of(value, where)
        if array.shape == (0,):
            return np.zeros((0, *(size or 0 for size in spec.shape)), spec.dtype)
        if array.ndim != spec.ndim or (array.dtype.kind == "f" and not spec.dtype.startswith("float")):
            what = f"the field {self.name!r} is {array.dtype} with {array.ndim} axes, not {spec.dtype} with {spec.ndim}"
            raise SourceError(what, where=where, fix="the file changed: open the corpus again")
        return array.astype(spec.dtype)  # which holds it: `note` looked at all numbers

    def _array_of(self, value: Any, where: str) -> NDArray[Any]:
        """Return numbers as an array; `SourceError` for anything else."""
        if isinstance(value, bool | int | float | list):
            try:
                array = np.array(value)
                if array.dtype.kind in "fO" and array.size and np.max(np.abs(array)) >= _LARGEST:
                    # NumPy makes fractions of what needs 64 bits
                    exact = np.array(value, object)
                    array = exact if any(type(one) is int and abs(one) > _LARGEST for one in exact.flat) else array
            except (ValueError, OverflowError, TypeError):  # inner lists of different lengths, or no numbers
                array = np.array("")
            if array.dtype.kind in "biufO":
                return array
        raise SourceError(
            f"the field {self.name!r} has {value!r:.60}, which is no number, text, or list of numbers",
            where=where,
            fix="make inner lists equally long, fill in what is null, or leave the field out: fields=",
        )


class IndexField(JsonField):
    """Class indices that are stored as numbers: one a sequence, `int32[]`, or lists of them, `int32[T]`."""

    def __init__(self, name: str, num_classes: int) -> None:
        super().__init__(name, "int32", num_classes)


def _limits(dtype: str) -> tuple[int, int]:
    """Return the least and the largest of the whole numbers of which a dtype has all."""
    kind = np.dtype(dtype).kind
    if kind == "f":
        most = 2 ** (np.finfo(dtype).nmant + 1)
        return -most, most
    return (np.iinfo(dtype).min, np.iinfo(dtype).max) if kind != "b" else (1, 0)


_LIMITS = {dtype: _limits(dtype) for dtype in (*_DTYPES, "int8", "uint8", "int16", "uint16", "uint32", "float16")}


def _that_hold(array: NDArray[Any], dtypes: Sequence[str]) -> tuple[str, ...]:
    """Return which dtypes hold all numbers: whole ones exactly, fractions to the last digit before the point."""
    kind = array.dtype.kind
    if kind == "b" and "bool" in dtypes:
        return ("bool",)
    if kind == "f":
        return tuple(name for name in dtypes if name.startswith("float") and _keeps_digits(array, name))
    if kind == "O" and not all(type(number) is int for number in array.flat):  # some are beyond all fractions
        return ()
    low, high = extremes(array)
    return tuple(name for name in dtypes if _LIMITS[name][0] <= low and high <= _LIMITS[name][1])


def _keeps_digits(array: NDArray[Any], dtype: str) -> bool:
    size = np.abs(array)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    large = (size >= _LIMITS[dtype][1]) & (size < _LARGEST)
    return bool(np.isfinite(cast).all() and (cast[large] == array[large]).all())


def _layout_text(fact: Any) -> str:
    shape, fits = fact
    axes = "" if shape is None else "[T]" if shape == _EMPTY else str([None, *shape]).replace("None", "T")
    return f"{fits[0]}{axes}"


def _utf8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"a text is not valid Unicode: {error.reason}", where=where, fix="correct it") from error
