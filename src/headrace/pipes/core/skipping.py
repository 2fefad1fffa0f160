"""Which items of a pipe are needed to continue at a later item without making all items before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import TransformError

_END = object()


@dataclass(frozen=True)
class WantedItems:
    """All items of an iteration from one of them on, and some of those before it.

    Attributes:
        start: The number of the item from which on all are wanted.
        note_item: Called for each item that is made and dropped, so that the worker does not seem stalled.
        before: The numbers of the wanted items before `start`, ascending.
        group: The size of groups of items that belong together (those of a batch); the last group may be short.
    """

    start: int
    note_item: Callable[[], object]
    before: Sequence[int] = ()
    group: int = 1

    def choose(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the wanted ones of all items.

        Raises:
            TransformError: The items end before `start`.
        """
        number = 0
        for wanted in self.before:
            number += self._drop(items, wanted - number)
            if number < wanted or (item := next(items, _END)) is _END:
                if number > wanted - wanted % self.group:
                    return  # the last group is short
                raise TransformError(
                    f"the pipes had given more than {wanted} items before, and only {number} when they were read again",
                    fix="make sure that the pipes give the same items again for the same seeds",
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
