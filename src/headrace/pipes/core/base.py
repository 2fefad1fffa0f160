"""What a pipe is: an object that gives items, made of other pipes that are its attributes.

Invariants every pipe keeps, and the rest of this room relies on:

* A pipe's sources are attributes (or in lists, tuples, sets and dicts that are attributes), so that a graph can be read
  and rewired without running it.
* A pipe has one valid iterator. A new one, for the user or for a pipe that reads it, invalidates the one before, which
  raises when it is used: a part of the items is never taken for all.
* Pipes read their sources by `read`, which costs about 2 ns an item.
* `__iter__` is written as a generator that begins at the position in the attributes. `reset` sets them to the start of
  an epoch and is called before every iteration, unless `restore` was called since the last one. At each `yield` the
  attributes hold the position after the item being yielded: so `state` only needs to return them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain, count
from types import GeneratorType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from .methods import IterMethods, MapMethods
from .naming import looks_like_pipe, name_raiser, show_call
from .registry import advice_on, find_function, list_functions
from .torch_classes import find_torch_class, torch_hook

T_co = TypeVar("T_co", covariant=True)

State = dict[str, Any]
Begin = Callable[[Any], Iterator[Any]]


class Pipe:
    """Base of both kinds of pipes."""

    _not_shipped: ClassVar[tuple[str, ...]] = ()  # attributes left out of copies, which then have the class's value
    keeps_items: ClassVar[bool] = False  # whether it reads its sources once, and gives the same items in all epochs
    is_fed_elsewhere: ClassVar[bool] = False  # whether its items are made by pipes in another process
    maps_each: ClassVar[bool] = False  # whether each item is made of one item of its source, whatever its position

    def note_seeds(self, seeds: tuple[int, ...]) -> None:
        """Receive the seeds of the random pipes upstream that decide which items this pipe keeps.

        Items kept under other seeds are dropped, so that the kept items follow from the seeds.
        """

    def note_seed_of_globals(self, seed: int) -> None:
        """Receive the seed for Python's, NumPy's and torch's global generators while this pipe reads what it keeps."""

    def __bool__(self) -> bool:
        return True  # whether it has items or not, and whether or not its length is known

    def __repr__(self) -> str:
        return show_call(self, looks_like_pipe)

    def __getattr__(self, name: str) -> Any:
        function = None if name.startswith("_") else find_function(type(self), name)
        if function is None:
            advice = advice_on(name)
            hint = "" if advice is None else f"; torchdata's was not ported, use {advice}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)
        return functools.partial(function, self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *list_functions(type(self))})

    def __getstate__(self) -> Any:
        left_out = {*_OF_ITERATION, *self._not_shipped}
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        hook = torch_hook("getstate_hook")
        return state if hook is None else hook(state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        hook = torch_hook("reduce_ex_hook")
        if hook is not None:
            with suppress(NotImplementedError):  # torch's way to report that it has visited this pipe
                return hook(self)
        return super().__reduce_ex__(protocol)


_OF_ITERATION = ("_raw", "_reading", "_started", "_is_restored", "_restored")
_numbers = count(1)


class Restored(Protocol):
    """A restored graph in which not all pipes have continued yet.

    Attributes:
        ended: The pipes that have ended for their reader, by `id`.
    """

    ended: set[int]

    def take_end(self, source: IterPipe[Any]) -> bool:
        """Tell whether the saved iteration had read this source to its end; True only for the first call."""

    def forget(self, pipe: IterPipe[Any]) -> None:
        """Record that a pipe, and so everything upstream of it, restarts from its beginning."""


def _no_iteration() -> None:
    return None


class IterPipe(Pipe, IterMethods, Generic[T_co]):
    """A pipe that is read from its start to its end.

    A subclass needs `__iter__`, written as a generator; `reset` if it keeps a position; `state` and `restore` if it is
    to resume without being read again from its start; `__len__` if it knows its length.
    """

    _raw: Callable[[], Any] = staticmethod(_no_iteration)  # returns the generator of the current iteration, or None
    _reading = 0  # the number of that iteration: iterators of earlier ones are invalid
    _started = 0  # the number of the last iteration that was not stopped; 0: none. Readers start before their sources
    _is_restored = False  # whether the next iteration begins at the position in the attributes, without `reset`
    _restored: Restored | None = None  # what it was restored with, until it or a reader of it restarts
    _begin: ClassVar[Begin]  # the `__iter__` of the class

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own: Any = cls.__iter__
        if not hasattr(own, "begin"):
            cls.__iter__ = _guard(own)  # type: ignore[method-assign]
        cls._begin = cls.__iter__.begin  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[T_co]:
        """Return an iterator over the items of one epoch; iterators from before are invalid from now on."""
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def reset(self) -> None:
        """Go to the start of an epoch; called before each iteration."""

    def state(self) -> State | None:
        """Return the position of the iteration as plain data; `None` if it is unknown. Sources are not included."""
        return None

    def restore(self, state: State) -> None:
        """Set the position from a state: the next iteration begins there. Sources are restored first."""
        if state:  # a pipe without a position needs nothing
            raise NotImplementedError(f"{type(self).__name__} has no restore")

    def _forget_position(self) -> None:
        """Have the next iteration begin at the start, whatever was restored."""
        self._is_restored, self._restored = False, None

    @property
    def is_under_way(self) -> bool:
        """Whether an iteration is in progress or restored, so that the attributes hold its position."""
        raw = self._raw()
        return self._is_restored or (raw is not None and raw.gi_frame is not None)

    def hold(self) -> AbstractContextManager[None]:
        """Return a context manager during which no thread of this pipe reads ahead, so that a state can be taken."""
        return nullcontext()

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")

    def __add__(self, other: IterPipe[Any]) -> IterPipe[Any]:
        return self.concat(other) if is_iter_pipe(other) else NotImplemented


class MapPipe(Pipe, MapMethods, Generic[T_co]):
    """A pipe whose items have keys: `0..len-1` unless said otherwise.

    Examples:
        >>> from headrace.pipes import MapPipe
        >>> class Squares(MapPipe):
        ...     def __getitem__(self, index):
        ...         return index**2
        ...
        ...     def __len__(self):
        ...         return 4
        >>> Squares().map(lambda square: -square)[3]
        -9
    """

    def __getitem__(self, index: Any) -> T_co:
        """Return one item."""
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")

    def draws_when_loaded(self) -> dict[int, dict[str, Any]]:
        """Return, by `id` of the pipes upstream, the states of their generators when this pipe loaded its items.

        For a pipe that reads iterable ones once and keeps their items; empty for others.
        """
        return {}

    def forget_other_draws(self) -> None:
        """Drop the loaded items if the generators of the pipes upstream had other states when they were loaded."""

    def __add__(self, other: MapPipe[Any]) -> MapPipe[Any]:
        return self.concat(other) if is_map_pipe(other) else NotImplemented


def is_pipe(thing: Any) -> bool:
    """Tell whether something is a pipe of either kind, Headrace's or torch's."""
    return issubclass(type(thing), pipe_classes())


def is_iter_pipe(thing: Any) -> bool:
    """Tell whether something is a pipe that is read from its start to its end, Headrace's or torch's.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.dataloader2 import graph as graphs
        >>> graphs.is_iter_pipe(IterableWrapper("ab")), graphs.is_iter_pipe("ab")
        (True, False)
    """
    return issubclass(type(thing), (IterPipe, find_torch_class("IterDataPipe") or IterPipe))


def is_map_pipe(thing: Any) -> bool:
    """Tell whether something is a pipe whose items have keys, Headrace's or torch's.

    Examples:
        >>> from headrace.dataloader2 import graph as graphs
        >>> from headrace.pipes.map import SequenceWrapper
        >>> graphs.is_map_pipe(SequenceWrapper("ab"))
        True
    """
    return issubclass(type(thing), (MapPipe, find_torch_class("MapDataPipe") or MapPipe))


def pipe_classes() -> tuple[type, ...]:
    """Return the classes of which every pipe is an instance: Headrace's, and torch's if torch is loaded."""
    torch_classes = (find_torch_class("IterDataPipe"), find_torch_class("MapDataPipe"))
    return (IterPipe, MapPipe, *(cls for cls in torch_classes if cls is not None))


class PipeIterator(Iterator[T_co]):
    """The user's iterator over a pipe. Attributes that it lacks are the pipe's."""

    __slots__ = ("_number", "_pipe", "_raw")

    def __init__(self, pipe: IterPipe[T_co], raw: Iterator[T_co], number: int) -> None:
        self._pipe, self._raw, self._number = pipe, raw, number

    def __next__(self) -> T_co:
        if self._pipe._reading != self._number:
            raise RuntimeError(_invalidated(self._pipe))
        try:
            return next(self._raw)
        except StopIteration:
            raise
        except Exception as error:
            name_raiser(error)
            raise

    def __getattr__(self, name: str) -> Any:
        if name in self.__slots__:  # not set yet: looked up by copy and pickle
            raise AttributeError(name)
        return getattr(self._pipe, name)


def read(source: Any) -> Iterator[Any]:
    """Start to read a source, for a pipe that is made of it.

    If another reader begins to read the source meanwhile, the first one gets a RuntimeError instead of the end.

    Args:
        source: A pipe, or anything else that can be iterated over (torch's pipes too).

    Raises:
        RuntimeError: The source is busy: another thread, or a function that the source itself called, is reading it.
    """
    if not isinstance(source, IterPipe):
        return iter(source)
    if source._restored is not None and source._restored.take_end(source):
        source._started = next(_numbers)
        return iter(())
    raw = _restart(source)
    return chain(raw, _check_end(source, source._reading))


def stop(pipe: Any) -> None:
    """End the current iteration over a pipe, if there is one; its iterators are invalid from now on.

    Args:
        pipe: One of our iterable pipes; with anything else nothing is done.

    Raises:
        RuntimeError: The pipe is busy: another thread, or a function that it called itself, is reading it.
    """
    if not isinstance(pipe, IterPipe):
        return
    raw = pipe._raw()
    if raw is not None and raw.gi_running:
        raise RuntimeError(f"{pipe!r} is being read at this moment, by another thread or by a function that it called")
    pipe._reading = next(_numbers)
    pipe._started = 0
    pipe._raw = _no_iteration
    if raw is not None:
        raw.close()


def mark_restored(pipe: IterPipe[Any], restored: Restored | None, *, is_under_way: bool) -> None:
    """Note what a pipe was restored with, and whether its attributes hold a position in the middle."""
    pipe._is_restored, pipe._restored = is_under_way, restored


def restored_with(pipe: IterPipe[Any]) -> Restored | None:
    """Return the restored graph that a pipe belongs to; `None` if it or a reader of it was restarted since."""
    return pipe._restored


def forget_position(pipe: IterPipe[Any]) -> None:
    """Make the next iteration begin at the start, whatever was restored."""
    pipe._forget_position()


def decides_when_to_begin(pipe: Any) -> bool:
    """Tell whether a pipe serves several readers at once, so that a restart of one reader does not restart it."""
    return isinstance(pipe, IterPipe) and type(pipe).is_under_way is not IterPipe.is_under_way


def is_started_by(source: IterPipe[Any], reader: IterPipe[Any]) -> bool:
    """Tell whether a source was started during the current iteration of a reader, and not stopped since."""
    return 0 < reader._started < source._started


def _guard(own: Begin) -> Begin:
    """Return the `__iter__` of a pipe class whose author wrote `own`."""

    @functools.wraps(own)
    def __iter__(pipe: IterPipe[Any]) -> Iterator[Any]:
        if type(pipe).__iter__ is not __iter__:
            return own(pipe)  # called by `super().__iter__()`: a part of another class's iteration
        raw = _restart(pipe)
        return PipeIterator(pipe, raw, pipe._reading)

    __iter__.begin = own  # type: ignore[attr-defined]
    return __iter__


def _restart(pipe: IterPipe[T_co]) -> Iterator[T_co]:
    stop(pipe)
    if not pipe._is_restored:
        if pipe._restored is not None:
            pipe._restored.forget(pipe)
        pipe.reset()
    pipe._is_restored = False
    pipe._started = pipe._reading
    raw = pipe._begin()
    if not isinstance(raw, GeneratorType):
        raw = _generate(raw)
    pipe._raw = weakref.ref(raw)  # weak: a reader that is dropped closes what it read
    return raw


def _generate(iterator: Iterator[T_co]) -> Generator[T_co, None, None]:
    """Turn an iterator, perhaps the pipe itself with a `__next__`, into a generator."""
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


def _check_end(pipe: IterPipe[Any], number: int) -> Iterator[Any]:
    """Yield nothing, but raise instead of ending an iteration that was cut off."""
    if pipe._reading != number:
        raise RuntimeError(_invalidated(pipe))
    yield from ()


def _invalidated(pipe: IterPipe[Any]) -> str:
    return (
        "This iterator has been invalidated because another iterator has been created from the same pipe: "
        f"{pipe!r}. There is one iterator per pipe at a time; for several readers use .fork(n)."
    )
