"""Which items of a pipe are wanted, where an iteration goes on at a later item without making those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import TransformError

_END = object()


@dataclass(frozen=True)
class Wanted:
    """Some of the first items of an iteration, and all from one of them on.

    Attributes:
        start: The first of those that are all wanted.
        note_item: Called for each item that is made and not wanted: a sign of life.
        before: The numbers of those before the start that are wanted too, in ascending order.
    """

    start: int
    note_item: Callable[[], object]
    before: Sequence[int] = ()

    def choose(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return those of all items that are wanted.

        Raises:
            TransformError: One before the start has not come (while iterating).
        """
        number = 0
        for wanted in self.before:
            number += self._drop(items, wanted - number)
            if number < wanted or (item := next(items, _END)) is _END:
                raise TransformError(
                    f"the pipes had given more than {wanted} items before, and only {number} when they were read again",
                    fix="a pipe that shall be resumed gives the same items for the same seeds",
                )
            number += 1
            yield item
            del item  # else it would be held until the next one comes
        self._drop(items, self.start - number)
        yield from items

    def _drop(self, items: Iterator[Any], count: int) -> int:
        """Drop the next items; return how many there were."""
        for number in range(count):
            if next(items, _END) is _END:
                return number
            self.note_item()
        return count
