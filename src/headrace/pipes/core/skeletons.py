"""Base classes of operations, for their position, length and random numbers.

A user's class may derive from these, or write `reset`, `state`, `restore` and `__len__` itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Any, ClassVar, Self

from .base import IterPipe, State, T_co, read
from .draws import Draws


class Positioned(IterPipe[T_co]):
    """A pipe whose position is held in some of its attributes. If in none, the position of its source is enough.

    Attributes:
        _position_names: The names of those attributes, without their underscore. Their values at the start of an epoch
            are attributes of the class. A state holds copies of them.
    """

    _position_names: ClassVar[tuple[str, ...]] = ()

    def reset(self) -> None:
        for name in self._position_names:  # not by `vars`, which makes each later assignment a third slower
            setattr(self, f"_{name}", getattr(type(self), f"_{name}"))

    def state(self) -> State:
        return {name: copy(getattr(self, f"_{name}")) for name in self._position_names}

    def restore(self, state: State) -> None:
        for name in self._position_names:
            setattr(self, f"_{name}", copy(state[name]))


class SameLength(IterPipe[T_co]):
    """A pipe with as many items as its source.

    A class says `source="datapipe"` where its source is not called `source_datapipe`.
    """

    _source_name: ClassVar[str] = "source_datapipe"

    def __init_subclass__(cls, source: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if source is not None:
            cls._source_name = source

    def __len__(self) -> int:
        return len(getattr(self, self._source_name))


class ToldLength(IterPipe[T_co]):
    """A pipe that cannot know its length, but can be given one.

    Attributes:
        length: What `len` returns; -1: unknown.
    """

    length = -1

    def __len__(self) -> int:
        return super().__len__() if self.length == -1 else self.length


class OneForOne(SameLength[T_co], Positioned[T_co]):
    """A pipe that gives one item for each item of its source."""

    maps_each = True


class RandomPipe(Positioned[T_co]):
    """A pipe whose items depend on random numbers, different ones in each epoch."""

    _draws: Draws

    def set_seed(self, seed: int) -> Self:
        """Set the seed of the random numbers of the next epochs."""
        self._draws.set_seed(seed)
        return self

    def reset(self) -> None:
        super().reset()
        self._draws.begin_epoch()

    def state(self) -> State:
        return {"draws": self._draws.state(), **super().state()}

    def restore(self, state: State) -> None:
        self._draws.restore(state["draws"])
        super().restore(state)


class ShufflingPipe(RandomPipe[T_co]):
    """A random pipe whose shuffling can be turned off."""

    _enabled = True

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Turn shuffling on or, with False, off."""
        self._enabled = shuffle
        return self


class ExpandingPipe(Positioned[T_co]):
    """A pipe that makes several items of each item of its source, one after another.

    Its position is the item of the source, or what is needed to get it again, and how many items were made of it.
    """

    _source_name: ClassVar[str] = "source_datapipe"
    _num_given = 0

    @abstractmethod
    def _open(self, item: Any) -> Iterator[Any]:
        """Set the position to an item of the source; return the items that are made of it."""

    @abstractmethod
    def _reopen(self) -> Iterator[Any]:
        """Return all items that are made of the item that the position is in."""

    def __iter__(self) -> Iterator[Any]:
        if self._num_given:
            parts = self._reopen()
            for self._num_given, part in enumerate(islice(parts, self._num_given, None), self._num_given + 1):
                yield part
            del parts  # it may hold an open file
        for parts in map(self._open, read(getattr(self, self._source_name))):
            for self._num_given, part in enumerate(parts, 1):
                yield part
            del parts


class PendingPipe(IterPipe[T_co]):
    """A pipe that makes several items at once and yields them one by one. A state holds those not yielded yet."""

    _pending_name: ClassVar[str] = "pending"  # in a state
    _pending: Sequence[Any] = ()
    _num_given = 0

    def reset(self) -> None:
        self._pending, self._num_given = (), 0

    @abstractmethod
    def _groups(self) -> Iterator[Sequence[Any]]:
        """Yield groups of items, from the current position of the source."""

    def __iter__(self) -> Iterator[Any]:
        for self._num_given, item in enumerate(self._pending, 1):
            yield item
        for self._pending in self._groups():
            for self._num_given, item in enumerate(self._pending, 1):
                yield item
        self._pending = ()

    def state(self) -> State:
        return {self._pending_name: list(self._pending[self._num_given :])}

    def restore(self, state: State) -> None:
        self._pending, self._num_given = state[self._pending_name], 0
