"""Numbers by data key, with an optional default for all other keys.

Lengths, chunk sizes, budgets and context frames are all "one number for each data key"; `NumbersDict` does arithmetic
on them. Invariant: a key that is not listed has the default, or no value if there is no default.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping
from numbers import Real
from typing import Any, TypeAlias, cast

import numpy as np

from headrace.errors import ConfigError

Number: TypeAlias = int | float
_BinaryOp: TypeAlias = Callable[[Any, Any], Any]


class NumbersDict:
    """Data key -> number, plus an optional default that stands for every other key.

    `NumbersDict(5)` is 5 for every key; `NumbersDict({"data": 5})` has no default, so another key is a `KeyError`;
    `NumbersDict({"data": 5}, broadcast_value=1)` has both. It has the documented behaviour of RETURNN's class of this
    name.

    In `a + b`, `a - b`, `a * b`, `a / b`, `a // b` a side without a value for a key counts as the neutral element: 0
    for sums, 1 for products. The other operand may be a number or a dict. A number on the left works for `+`, `-` and
    `*` only.

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
    """

    __slots__ = ("_default", "_numbers")
    _numbers: dict[str, Number]
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
        self._numbers = {key: _checked(value, key) for key, value in numbers.items()}
        self._default = None if default is None else _checked(default, None)

    @property
    def broadcast_value(self) -> Number | None:
        """The default for keys that are not listed."""
        return self._default

    def copy(self) -> NumbersDict:
        """Return an independent copy."""
        return NumbersDict(self)

    def __repr__(self) -> str:
        if self._default is None:
            return f"NumbersDict({self._numbers!r})" if self._numbers else "NumbersDict()"
        if not self._numbers:
            return f"NumbersDict({self._default!r})"
        return f"NumbersDict({self._numbers!r}, broadcast_value={self._default!r})"

    # --- as a mapping ---

    def __getitem__(self, key: str) -> Number:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Number) -> None:
        self._numbers[key] = _checked(value, key)

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
        return any(bool(value) for value in self.values())

    # --- over all keys ---

    def max_value(self) -> Number:
        """Return the largest number, the default included; `ValueError` if there is none."""
        return max(self.values())

    def min_value(self) -> Number:
        """Return the smallest number, the default included; `ValueError` if there is none."""
        return min(self.values())

    @staticmethod
    def max(items: Iterable[NumbersDict | Mapping[str, Number] | Number]) -> NumbersDict:
        """Return the largest number of each key; a side without a value for a key does not count there."""
        return _fold(items, max)

    @staticmethod
    def min(items: Iterable[NumbersDict | Mapping[str, Number] | Number]) -> NumbersDict:
        """Return the smallest number of each key; a side without a value for a key does not count there."""
        return _fold(items, min)

    @staticmethod
    def constant_like(const_number: Number, numbers_dict: NumbersDict) -> NumbersDict:
        """Return the same number for each key of another object, and as its default if that has one."""
        default = None if numbers_dict._default is None else const_number
        return NumbersDict(numbers_dict=dict.fromkeys(numbers_dict.keys(), const_number), broadcast_value=default)

    def copy_like(self, numbers_dict: NumbersDict) -> NumbersDict:
        """Return our numbers for the keys of another object, without the keys that we do not know.

        The default is kept if the other object has one too.
        """
        wanted = ((key, self.get(key)) for key in numbers_dict.keys())  # noqa: SIM118 - it cannot be iterated
        numbers = {key: value for key, value in wanted if value is not None}
        return NumbersDict(
            numbers_dict=numbers, broadcast_value=None if numbers_dict._default is None else self._default
        )

    @staticmethod
    def keys_union(*number_dicts: NumbersDict) -> list[str]:
        """Return the listed keys of all, each once, in the order in which they are first met."""
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
        right = _operand(other)
        if right is None:
            return NotImplemented
        both_default = self._default is not None and right._default is not None
        if both_default and self._default != right._default:
            return False
        for key in NumbersDict.keys_union(self, right):
            ours, theirs = self.get(key), right.get(key)
            if ours is None or theirs is None or ours != theirs:
                return False
        return True

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

    def __neg__(self) -> NumbersDict:
        default = None if self._default is None else -self._default
        return NumbersDict(numbers_dict={key: -n for key, n in self.items()}, broadcast_value=default)


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


def _operand(other: object) -> NumbersDict | None:
    """Return the other side of an operator as a `NumbersDict`, or `None` if it is nothing of that kind."""
    if isinstance(other, NumbersDict):
        return other
    if isinstance(other, Mapping) or (isinstance(other, Real) and not isinstance(other, bool | np.bool_)):
        return NumbersDict(cast("Number", other))
    return None


def _combine(left: object, right: object, op: _BinaryOp, neutral: int) -> NumbersDict:
    """Apply a binary operator key by key and to the defaults."""
    first, second = _operand(left), _operand(right)
    if first is None or second is None:
        return NotImplemented  # type: ignore[no-any-return]  # Python then raises its TypeError
    numbers = {
        key: op(first.get(key, neutral), second.get(key, neutral)) for key in NumbersDict.keys_union(first, second)
    }
    return NumbersDict(numbers_dict=numbers, broadcast_value=_join(first._default, second._default, op, neutral))


def _join(left: Number | None, right: Number | None, op: _BinaryOp, neutral: int) -> Number | None:
    """Apply a binary operator to two defaults, of which each may be missing."""
    if left is None and right is None:
        return None
    result: Number = op(neutral if left is None else left, neutral if right is None else right)
    return result


def _fold(items: Iterable[NumbersDict | Mapping[str, Number] | Number], choose: Callable[..., Number]) -> NumbersDict:
    """Choose one number for each key, and one default."""
    sides = [NumbersDict(item) for item in items]
    if not sides:
        raise ConfigError("NumbersDict.max and .min need at least one item")
    numbers: dict[str, Number] = {}
    for key in NumbersDict.keys_union(*sides):
        numbers[key] = choose(value for side in sides if (value := side.get(key)) is not None)
    defaults = [side._default for side in sides if side._default is not None]
    return NumbersDict(numbers_dict=numbers, broadcast_value=choose(defaults) if defaults else None)
