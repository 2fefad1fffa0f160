"""Pipes made of what Python has: an iterable, a sequence, a mapping."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from .base import IterPipe, MapPipe, State

_NEVER_CHANGE = frozenset({int, float, complex, bool, str, bytes, type(None), range, frozenset})


class IterableWrapper(IterPipe[Any]):
    """The items of an iterable.

    Args:
        iterable: A list, a range, anything with `iter`. What can be iterated over only once, such as a generator, gives
            one epoch.
        deepcopy: Hand out deep copies, so that nobody downstream changes the original. Items of a list or tuple are
            copied one by one, when they are due; other iterables at once, at the start of an epoch.
    """

    def __init__(self, iterable: Iterable[Any], deepcopy: bool = True) -> None:
        self.iterable = iterable
        self.deepcopy = deepcopy
        self._position = 0

    def reset(self) -> None:
        self._position = 0

    def __iter__(self) -> Iterator[Any]:
        start = self._position
        if isinstance(self.iterable, range):
            items: Iterable[Any] = self.iterable[start:]
        elif type(self.iterable) in (list, tuple):
            rest = self.iterable[start:]  # type: ignore[index]
            items = map(_copy_item, rest) if self.deepcopy else rest
        else:
            items = islice(iter(_copy_all(self.iterable) if self.deepcopy else self.iterable), start, None)
        for self._position, item in enumerate(items, start + 1):
            yield item

    def state(self) -> State:
        return {"position": self._position}

    def restore(self, state: State) -> None:
        self._position = state["position"]

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # TypeError: what is expected of us too


class SequenceWrapper(MapPipe[Any]):
    """The items of a sequence or mapping, by index or key.

    Args:
        sequence: A list, a dict, anything with `[]`.
        deepcopy: Keep a deep copy, so that changes of the original do not show.
    """

    def __init__(self, sequence: Sequence[Any] | Mapping[Any, Any], deepcopy: bool = True) -> None:
        self.sequence: Any = _copy_all(sequence) if deepcopy else sequence

    def __getitem__(self, index: Any) -> Any:
        return self.sequence[index]

    def __len__(self) -> int:
        return len(self.sequence)


def _copy_item(item: Any) -> Any:
    return item if type(item) in _NEVER_CHANGE else _copy_all(item)


def _copy_all(thing: Any) -> Any:
    try:
        return copy.deepcopy(thing)
    except TypeError:
        warnings.warn(
            f"a {type(thing).__name__} can not be deepcopied: whoever changes an item changes the original. "
            "With deepcopy=False there is no attempt.",
            stacklevel=2,
        )
        return thing
