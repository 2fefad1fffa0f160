"""Numbers by data key, with an optional default for all other keys.

Lengths, chunk sizes, budgets and context frames are all "one number for each data key"; `NumbersDict` does arithmetic
on them. Invariant: a key that is not listed has the default, or no value if there is no default.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence
from numbers import Real
from typing import Any, Self, TypeAlias, cast

import numpy as np

from headrace.errors import ConfigError

Number: TypeAlias = int | float
_Numbers: TypeAlias = dict[str, Number]
_BinaryOp: TypeAlias = Callable[[Any, Any], Any]


class NumbersDict:
    """Data key -> number, plus an optional default that stands for every other key.

    `NumbersDict(5)` is 5 for every key; `NumbersDict({"data": 5})` has no default, so another key is a `KeyError`;
    `NumbersDict({"data": 5}, broadcast_value=1)` has both. It behaves like RETURNN's class of this name.

    In `a + b`, `a - b`, `a * b`, `a / b`, `a // b` a side without a value for a key counts as the neutral element: 0
    for sums, 1 for products. The other operand may be a number or a dict. A number counts for the keys of the other
    side, and for its default if it has one, but does not create a default: `NumbersDict({"data": 5}) + 1` is
    `NumbersDict({"data": 6})`. On the left, a number works for `+`, `-` and `*` only. `a += b` changes `a` itself.

    `a == b` compares the keys of both sides, each with its default where it has one; a key that only one side knows
    makes them unequal; the defaults are compared only if both sides have one. So `NumbersDict(3) == NumbersDict()`:
    no key contradicts. It is mutable (`a["data"] = 3`), not hashable, and cannot be iterated, because it is not clear
    whether the default belongs.

    Args:
        auto_convert: A number, a mapping, a `NumbersDict` (copied), or `None` for nothing.
        numbers_dict: Data key -> number; not together with `auto_convert`.
        broadcast_value: The default; not together with `auto_convert`, unless that is a mapping.

    Raises:
        ConfigError: A value is not a number.

    Examples:
        >>> import headrace as hr
        >>> frames = hr.NumbersDict({"data": 120, "classes": 30})
        >>> (frames + {"data": 80}).dict
        {'data': 200, 'classes': 30}
        >>> frames.max_value()
        120
    """

    __slots__ = ("_default", "_numbers")
    _numbers: _Numbers
    _default: Number | None
    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(
        self,
        auto_convert: NumbersDict | Mapping[str, Number] | Number | None = None,
        numbers_dict: Mapping[str, Number] | None = None,
        broadcast_value: Number | None = None,
    ) -> None:
        if isinstance(auto_convert, NumbersDict | Real) and (numbers_dict, broadcast_value) != (None, None):
            raise ConfigError("NumbersDict got a value and a default", fix="give numbers_dict= and broadcast_value=")
        if auto_convert is not None and numbers_dict is not None:
            raise ConfigError("NumbersDict got its numbers twice", fix="give auto_convert or numbers_dict=")
        numbers: Mapping[str, Number] = {}
        default = broadcast_value
        if isinstance(auto_convert, NumbersDict):
            numbers, default = auto_convert._numbers, auto_convert._default
        elif isinstance(auto_convert, Mapping):
            numbers = auto_convert
        elif auto_convert is not None:
            default = auto_convert
        elif numbers_dict is not None:
            numbers = numbers_dict
        self._numbers = {key: _checked(value, key) for key, value in numbers.items()} if numbers else {}
        self._default = None if default is None else _checked(default, None)

    def copy(self) -> NumbersDict:
        """Return an independent copy."""
        return NumbersDict(self)

    def __repr__(self) -> str:
        if self._default is None:
            return f"NumbersDict({self._numbers!r})" if self._numbers else "NumbersDict()"
        if not self._numbers:
            return f"NumbersDict({self._default!r})"
        return f"NumbersDict(numbers_dict={self._numbers!r}, broadcast_value={self._default!r})"

    # --- as a mapping ---

    def __getitem__(self, key: str) -> Number:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Number) -> None:
        self._numbers[key] = _checked(value, key)

    def __delitem__(self, key: str) -> None:
        del self._numbers[key]

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a listed key and return its number, or the given default for one that is not listed."""
        return self._numbers.pop(key, *default)

    def has_value_for(self, key: str) -> bool:
        """Tell whether a key has a number, the default included."""
        return self._default is not None or key in self._numbers

    def __contains__(self, key: object) -> bool:
        """Tell whether the key is listed; the default does not count."""
        return key in self._numbers

    def get(self, key: str, default: Number | None = None) -> Number | None:
        """Return the number of a key, else the default of this object, else the default given here."""
        value = self._numbers.get(key, self._default)
        return default if value is None else value

    def keys(self) -> KeysView[str]:
        """Return the listed keys."""
        return self._numbers.keys()

    def items(self) -> ItemsView[str, Number]:
        """Return the listed keys with their numbers."""
        return self._numbers.items()

    def values(self) -> list[Number]:
        """Return the listed numbers, then the default if there is one."""
        return [*self._numbers.values(), *([] if self._default is None else [self._default])]

    def has_values(self) -> bool:
        """Tell whether there is any number, the default included."""
        return bool(self._numbers) or self._default is not None

    def __iter__(self) -> Iterator[str]:
        raise TypeError(
            "a NumbersDict cannot be iterated, and max(x) or min(x) would compare its keys: "
            "use .keys(), .items(), .values(), .max_value(), NumbersDict.max([...])"
        )

    def __bool__(self) -> bool:
        """Tell whether any number is not zero, the default included."""
        return bool(self._default) or any(self._numbers.values())

    # --- over all keys ---

    def max_value(self) -> Number:
        """Return the largest number, the default included; `ValueError` if there is none."""
        return max(self.values())

    def min_value(self) -> Number:
        """Return the smallest number, the default included; `ValueError` if there is none."""
        return min(self.values())

    @staticmethod
    def max(items: Iterable[NumbersDict | Mapping[str, Number] | Number]) -> NumbersDict:
        """Return the largest number of each key.

        A side without a value for a key does not count there; a plain number does as in sums, see the class.
        """
        return _fold(list(items), max)

    @staticmethod
    def min(items: Iterable[NumbersDict | Mapping[str, Number] | Number]) -> NumbersDict:
        """Return the smallest number of each key, as `max` does the largest."""
        return _fold(list(items), min)

    @staticmethod
    def constant_like(const_number: Number, numbers_dict: NumbersDict) -> NumbersDict:
        """Return the same number for each key of another object, and as its default if that has one."""
        default = None if numbers_dict._default is None else const_number
        return NumbersDict(numbers_dict=dict.fromkeys(numbers_dict.keys(), const_number), broadcast_value=default)

    def copy_like(self, numbers_dict: NumbersDict) -> NumbersDict:
        """Return our numbers for the keys of another object, without the keys that we do not know.

        The default is kept if the other object has one too.
        """
        pairs = ((key, self.get(key)) for key in numbers_dict.keys())  # noqa: SIM118 - it cannot be iterated
        numbers = {key: value for key, value in pairs if value is not None}
        return NumbersDict(
            numbers_dict=numbers, broadcast_value=None if numbers_dict._default is None else self._default
        )

    @staticmethod
    def keys_union(*number_dicts: NumbersDict) -> list[str]:
        """Return the listed keys of all, each once, in the order of first occurrence."""
        return list(dict.fromkeys(key for numbers in number_dicts for key in numbers.keys()))  # noqa: SIM118

    def any_compare(
        self, other: NumbersDict | Mapping[str, Number] | Number, cmp: Callable[[Number, Number], bool]
    ) -> bool:
        """Tell whether `cmp(ours, theirs)` holds for one of our keys, or for the two defaults.

        A key that the other side does not list is compared with its default; without one the key does not count.
        """
        other = NumbersDict(other)
        theirs = ((value, other.get(key)) for key, value in self._numbers.items())
        pairs = [*theirs, *([] if self._default is None else [(self._default, other._default)])]
        return any(right is not None and cmp(left, right) for left, right in pairs)

    # --- arithmetic ---

    def __eq__(self, other: object) -> bool:
        return NotImplemented if _operands(self, other) is None else all(self.elem_eq(other).values())

    def __add__(self, other: object) -> NumbersDict:
        return _combine(self, other, operator.add, 0)

    def __radd__(self, other: object) -> NumbersDict:
        return _combine(other, self, operator.add, 0)

    def __sub__(self, other: object) -> NumbersDict:
        return _combine(self, other, operator.sub, 0)

    def __rsub__(self, other: object) -> NumbersDict:
        return _combine(other, self, operator.sub, 0)

    def __mul__(self, other: object) -> NumbersDict:
        return _combine(self, other, operator.mul, 1)

    def __rmul__(self, other: object) -> NumbersDict:
        return _combine(other, self, operator.mul, 1)

    def __truediv__(self, other: object) -> NumbersDict:
        return _combine(self, other, operator.truediv, 1)

    def __floordiv__(self, other: object) -> NumbersDict:
        return _combine(self, other, operator.floordiv, 1)

    def __iadd__(self, other: object) -> Self:
        return self._become(self + other)

    def __isub__(self, other: object) -> Self:
        return self._become(self - other)

    def __imul__(self, other: object) -> Self:
        return self._become(self * other)

    def __itruediv__(self, other: object) -> Self:
        return self._become(self / other)

    def __ifloordiv__(self, other: object) -> Self:
        return self._become(self // other)

    def _become(self, result: NumbersDict) -> Self:
        self._numbers.clear()  # the dict stays the same object: a caller may hold `dict`
        self._numbers.update(result._numbers)
        self._default = result._default
        return self

    def __neg__(self) -> NumbersDict:
        return self.unary_op(operator.neg)

    def unary_op(self, op: Callable[[Any], Any]) -> NumbersDict:
        """Return `op` of each number, the default included."""
        return _made(
            {key: op(value) for key, value in self.items()}, None if self._default is None else op(self._default)
        )

    def elem_eq(self, other: object, result_with_default: bool = True) -> NumbersDict:
        """Compare by key.

        Args:
            other: A `NumbersDict`, a dict or a number.
            result_with_default: Whether the defaults are compared, too, if both sides have one.

        Returns:
            Data key -> whether the numbers are equal, `None` where a side has none; and the same of the defaults.
        """
        sides = _operands(self, other)
        if sides is None:
            raise TypeError(f"a NumbersDict is compared with numbers, not with {other!r}")
        first, second = sides
        equal: _BinaryOp = lambda left, right: None if left is None or right is None else left == right  # noqa: E731
        numbers = {key: equal(first.get(key), second.get(key)) for key in NumbersDict.keys_union(first, second)}
        return _made(numbers, equal(first._default, second._default) if result_with_default else None)

    # --- by the names of RETURNN's class ---

    @property
    def keys_set(self) -> set[str]:
        """The listed keys."""
        return set(self._numbers)

    @property
    def broadcast_value(self) -> Number | None:
        """The default for keys that are not listed."""
        return self._default

    @property
    def value(self) -> Number | None:
        """The default for keys that are not listed, the same as `broadcast_value`; can be set."""
        return self._default

    @value.setter
    def value(self, default: Number | None) -> None:
        self._default = None if default is None else _checked(default, None)

    @property
    def dict(self) -> _Numbers:
        """The listed keys with their numbers: the object's own, not a copy."""
        return self._numbers


def _checked(value: object, key: str | None) -> Number:
    """Return a value if it is a number; a bool is more likely a mistake than a 1."""
    if type(value) is int or type(value) is float:  # nearly always, and much faster than to ask an abstract class
        return value
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        where = "as the default" if key is None else f"under the key {key!r}"
        raise ConfigError(
            f"NumbersDict holds numbers, not {value!r} ({type(value).__name__})",
            where=where,
            fix='give one number for all keys, or a dict such as {"data": 50}',
        )
    return cast("Number", value)


def _operands(left: object, right: object) -> tuple[NumbersDict, NumbersDict] | None:
    """Return both sides of an operator as `NumbersDict`s, or `None` if one cannot be converted."""
    if isinstance(right, NumbersDict) and not isinstance(left, NumbersDict):
        first = _operand(left, right)
        return None if first is None else (first, right)
    first = left if isinstance(left, NumbersDict) else _operand(left, None)
    second = None if first is None else _operand(right, first)
    return None if first is None or second is None else (first, second)


def _operand(side: object, other: NumbersDict | None) -> NumbersDict | None:
    """Return one side of an operator: a number counts only for the keys that the other side lists."""
    if isinstance(side, NumbersDict):
        return side
    if isinstance(side, Mapping):
        return NumbersDict(side)
    if isinstance(side, Real) and not isinstance(side, bool | np.bool_):
        number = cast("Number", side)
        return NumbersDict(number) if other is None else NumbersDict.constant_like(number, other)
    return None


def _made(numbers: _Numbers, default: Any) -> NumbersDict:
    """Return the result of an operator, whose values need not be numbers (comparisons)."""
    result = NumbersDict()
    result._numbers, result._default = numbers, default
    return result


def _combine(left: object, right: object, op: _BinaryOp, neutral: int | None) -> NumbersDict:
    """Apply a binary operator key by key and to the defaults; without a neutral element, to the values that exist."""
    sides = _operands(left, right)
    if sides is None:
        return NotImplemented  # type: ignore[no-any-return]  # Python then raises its TypeError
    first, second = sides
    numbers = {
        key: _join(first.get(key), second.get(key), op, neutral) for key in NumbersDict.keys_union(first, second)
    }
    return _made(numbers, _join(first._default, second._default, op, neutral))


def _join(left: Any, right: Any, op: _BinaryOp, neutral: int | None) -> Any:
    """Apply a binary operator to two numbers, of which each may be missing."""
    if left is None and right is None:
        return None
    if neutral is None and (left is None or right is None):
        return right if left is None else left
    return op(neutral if left is None else left, neutral if right is None else right)


def _fold(items: Sequence[NumbersDict | Mapping[str, Number] | Number], choose: _BinaryOp) -> NumbersDict:
    """Choose one number for each key, and one default; from the end, since numbers count for what they are met with."""
    if not items:
        raise ConfigError("NumbersDict.max and .min need at least one item")
    result: NumbersDict | Mapping[str, Number] | Number = items[-1]
    for item in reversed(items[:-1]):
        result = _combine(item, result, choose, None)
    if result is NotImplemented:
        raise TypeError(f"NumbersDict.max and .min take numbers, dicts and NumbersDicts, not {items!r}")
    return NumbersDict(result)
