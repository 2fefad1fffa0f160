"""A cache that keeps an object as long as it is used elsewhere."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakObjects(Generic[T]):
    """A set of objects that does not keep them, and that forgets one without Python code.

    A `weakref.WeakSet` forgets by a Python function, which runs wherever the last reference goes: what a handler of
    signals raises meanwhile would be lost.
    """

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[T]] = {}  # by id

    def add(self, obj: T) -> None:
        """Remember an object."""
        self._refs[id(obj)] = weakref.ref(obj, partial(self._refs.pop, id(obj)))  # called with the reference, too

    def living(self) -> list[T]:
        """Return those that live."""
        return [obj for find in list(self._refs.values()) if (obj := find()) is not None]
