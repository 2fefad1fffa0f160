"""Values of JSON as arrays: numbers, lists of them to any depth, and texts as UTF-8 bytes.

JSON knows one kind of number. So all values say together what a field is: whole numbers are int32, or int64 or uint64
where one needs it. With a fraction anywhere, it is float32; or float64, where float32 would be infinite, or would
change a number of 2**24 or more, which has no room for its last digits there. Who wants another dtype says so by an
option. Fractions may be rounded; a whole number is read as it was written, or refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .codec import Facts
from .data_types import check_classes, extremes, learn_spec
from .fields import Field

_WIDTHS = (2**24, 2**31 - 1, 2**53, 2**63 - 1, 2**64)  # the largest whole numbers of float32, int32, float64, int64
_TEXT = DataSpec("uint8", sparse=True, dim=256, is_text=True)
_TEXT_FACT, _EMPTY_FACT = "texts", "an empty list"


class JsonField(Field):
    """A field in its natural form: a number has no time, a list has, a text is bytes (uint8, 256 classes).

    Args:
        name: Name of the field.
        dtype: Dtype of the arrays, in place of what the values say.
        dim: Number of classes, for whole numbers and lists of them; else it is not known (`None`).
    """

    def __init__(self, name: str, dtype: str | None = None, dim: int | None = None) -> None:
        self.name, self._dim = name, dim
        self._dtype = None if dtype is None else _number_dtype(dtype, name)
        self._spec: DataSpec | None = None

    @property
    def identity(self) -> list[Any]:
        """Its kind and name, and what the user said of its layout."""
        return [*super().identity, None if self._dtype is None else self._dtype.name, self._dim]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays, once it is known."""
        assert self._spec is not None
        return self._spec

    def note(self, value: Any, where: str, facts: Facts) -> int:
        """Note what one value is; return the length of its array."""
        if isinstance(value, str):
            if self._dtype is not None or self._dim is not None:
                what = f"the field {self.name!r} has a text, but numbers are expected"
                raise SourceError(what, where=where, fix="leave out its dtype and dim, if it is a text")
            facts.setdefault(_TEXT_FACT, where)
            return len(value) if value.isascii() else len(_utf8(value, where))
        array = self._array_of(value, where)
        if array.shape == (0,):
            facts.setdefault(_EMPTY_FACT, where)
            return 0
        if self._dtype is not None:
            self._refuse_lossy(array, self._dtype, where)
        if self._dim is not None:
            if array.dtype.kind not in "iu":
                what = f"the field {self.name!r} has fractions, not classes"
                raise SourceError(what, where=where, fix="leave dim out")
            classes = DataSpec("int64", sparse=True, dim=self._dim)
            check_classes(array, classes, f"{where}, field {self.name!r}" if where else where)
        facts.setdefault((array.shape[1:] if array.ndim else None, *_width_of(array)), where)
        return len(array) if array.ndim else 1

    def conclude(self, facts: Facts) -> None:
        """Take the layout that all values fit."""
        first = next(iter(facts), _EMPTY_FACT)
        shaped = {fact: where for fact, where in facts.items() if fact not in (_TEXT_FACT, _EMPTY_FACT)}
        if _TEXT_FACT in facts:
            if len(facts) > 1:
                others = [fact for fact in facts if fact != _TEXT_FACT]
                raise self._differs(facts, _TEXT_FACT, others[0], "has texts and numbers: write all as texts, or none")
            self._spec = _TEXT
            return
        shapes = {fact[0]: fact for fact in shaped}
        if len(shapes) > 1 or (None in shapes and _EMPTY_FACT in facts):
            one, other = [*shapes.values(), _EMPTY_FACT][:2]
            raise self._differs(facts, one, other, "has arrays of different shapes, but for time")
        shape = next(iter(shapes), ())
        dtype = self._dtype or self._common_dtype(facts, shaped)
        has_time = shape is not None and (bool(shaped) or first == _EMPTY_FACT)
        self._spec = learn_spec(dtype, shape or (), has_time=has_time, num_classes=self._dim)

    def _common_dtype(self, facts: Facts, shaped: Facts) -> np.dtype[Any]:
        """Return the least dtype that holds all values."""
        by_kind = {kind: fact for fact in sorted(shaped, key=lambda fact: fact[2]) for kind in fact[1]}
        widths = {kind: fact[2] for kind, fact in by_kind.items()}
        name = "float32"
        if "b" in widths and len(by_kind) > 1:
            other = next(fact for kind, fact in by_kind.items() if kind != "b")
            raise self._differs(facts, by_kind["b"], other, "has truth values and numbers")
        if "b" in widths:
            name = "bool"
        elif "f" in widths:
            if widths.get("i", 0) > 2:
                raise self._differs(facts, by_kind["f"], by_kind["i"], "has fractions, and so large whole numbers")
            name = "float64" if max(widths["f"], widths.get("i", 0)) > 0 else "float32"
        elif "i" in widths:
            if widths["i"] == 4 and "-" in widths:
                what = "has negative numbers, and whole numbers of 64 bits"
                raise self._differs(facts, by_kind["-"], by_kind["i"], what)
            name = ("int32", "int32", "int64", "int64", "uint64")[widths["i"]]
        return np.dtype(name)

    def _differs(self, facts: Facts, one: Any, other: Any, what: str) -> SourceError:
        """Return the error for two values that do not fit together."""
        first, second = sorted((one, other), key=[*facts].index)
        pair = " and ".join(_fact_text(fact) for fact in dict.fromkeys((first, second)))
        what = f"the field {self.name!r} {what} ({pair}): no dtype holds both, and no shape"
        return SourceError(
            what,
            where=f"{facts[second]}, compared with {facts[first]}",
            fix="correct it, or write such values as texts, or leave the field out: fields=",
        )

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
        if array.ndim != spec.ndim or (array.dtype.kind == "f" and spec.dtype[:5] != "float"):
            what = f"the field {self.name!r} is {array.dtype} with {array.ndim} axes, not {spec.dtype} with {spec.ndim}"
            raise SourceError(what, where=where, fix="the file changed: open the corpus again")
        return array.astype(spec.dtype)  # which holds it: `note` looked at all numbers

    def _refuse_lossy(self, array: NDArray[Any], dtype: np.dtype[Any], where: str) -> None:
        """Refuse numbers that a dtype does not hold; fractions may be rounded."""
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)
        kind, width = _width_of(array)
        if dtype.kind != "f":
            fits = kind != "f" and (dtype.kind != "b" or kind == "b") and bool((cast == array).all())
        elif kind == "f":
            fits = bool(np.isfinite(cast).all()) and width <= (0 if dtype.itemsize <= 4 else 2)
        else:  # Python compares whole numbers with fractions exactly
            fits = kind != "b" and cast.reshape(-1).tolist() == array.reshape(-1).tolist()
        if not fits:
            largest = max(array.reshape(-1).tolist(), key=abs)
            what = f"the field {self.name!r} has values that do not fit {dtype}, as {largest}"
            raise SourceError(what, where=where, fix="give another dtype")

    def _array_of(self, value: Any, where: str) -> NDArray[Any]:
        """Return numbers as an array; `SourceError` for anything else, or for whole numbers that no array holds."""
        array: NDArray[Any] = np.array(None)
        if isinstance(value, bool | int | float | list):
            try:
                array = np.array(value)
                if array.dtype.kind in "fO" and array.size and np.max(np.abs(array)) >= _WIDTHS[2]:
                    exact = np.array(value, object)  # NumPy makes fractions of what needs 64 bits, and of what does not
                    wide = [number for number in exact.flat if type(number) is int and abs(number) > _WIDTHS[2]]
                    if all(type(number) is int for number in exact.flat):
                        array = exact.astype(np.uint64)
                    elif wide:
                        array = exact
            except (ValueError, OverflowError, TypeError):  # inner lists of different lengths, or larger numbers
                array = np.array(None)
        if array.dtype.kind in "biuf":
            return array
        text = repr(value)
        raise SourceError(
            f"the field {self.name!r} has {text[:60]}{'...' if len(text) > 60 else ''}, which is no number, text, or "
            "list of numbers that one dtype of 64 bits holds",
            where=where,
            fix="make inner lists equally long, fill in what is null, or leave the field out: fields=",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        dtype = None if self._dtype is None else self._dtype.name
        return JsonField, (self.name, dtype, self._dim)


def _width_of(array: NDArray[Any]) -> tuple[str, int]:
    """Return the kind of numbers ("b", "i", "i-" with negative ones, "f"), and how wide a dtype must be at least."""
    kind = array.dtype.kind
    if kind == "b":
        return "b", 0
    if kind == "f":
        size = np.abs(array)
        with np.errstate(over="ignore"):
            single = array.astype(np.float32)
        large = (size >= _WIDTHS[0]) & (size < _WIDTHS[2])
        return "f", 2 if not np.isfinite(single).all() or (single[large] != array[large]).any() else 0
    low, high = extremes(array)
    largest = max(high, -low - 1)
    return "i-" if low < 0 else "i", next(width for width, most in enumerate(_WIDTHS) if largest <= most)


def _fact_text(fact: Any) -> str:
    if isinstance(fact, str):
        return fact
    shape, kind, width = fact
    name = {"b": "bool", "f": "float32" if width == 0 else "float64"}.get(
        kind, ("int32", "int32", "int64", "int64", "uint64")[width]
    )
    return name if shape is None else f"{name}{[None, *shape]}".replace("None", "T")


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
