"""One source, several readers: what `fork`, `demux` and `unzip` have in common.

The readers (`ChildPipe`) read one `Splitter`, which reads the source and keeps, in a buffer for each reader, what one
has caused to be read and another has not yet taken. Together they go through *rounds*: a round is one epoch of the
source. A reader that begins a second time begins a new round for all.

Invariants: items are read from the source by one reader at a time, so that readers may be in several threads (the lock
of the round protects the source, and is never held while an item is given out). An item that was read is dealt to all
readers or to none: one that cannot be dealt (too many items wait, a function raised) is kept, and is the first to be
dealt when another reader asks. A reader that has left, or that nobody can read any more because it was thrown away, has
no buffer. The source is closed when all readers have left; if it raised, no other reader takes that for its end.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

from headrace.errors import ConfigError, ResumeError, check_count

from ...core.base import IterPipe, State, read

_END: Any = object()


class _Round:
    """What belongs to one epoch of the source."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.source: Iterator[Any] | None = None
        self.failure: str | None = None  # what the source raised; as text, because a traceback keeps all alive


class Splitter(IterPipe[Any]):
    """Reads a source for several readers.

    Args:
        datapipe: The source.
        num_instances: How many readers.
        buffer_size: How many items may wait for the others; -1: as many as come.
    """

    _not_shipped = ("_children", "_round")
    _round: _Round | None = None
    _has_ended: bool
    _undealt: list[Any]  # the item that was read and could not be dealt, if there is one

    def __init__(self, datapipe: IterPipe[Any], num_instances: int, buffer_size: int) -> None:
        if num_instances < 1:
            raise ConfigError(f"Expected `num_instances` larger than 0, but {num_instances} is found")
        self.datapipe = datapipe
        self.num_instances = num_instances
        self.buffer_size = check_count("buffer_size", buffer_size, minimum=-1)
        if buffer_size < 0:
            warnings.warn(
                f"Unlimited buffer size is set for `{type(self).__name__}`: "
                "a reader that falls behind may use up all memory",
                stacklevel=4,
            )
        self._children: dict[int, weakref.ref[ChildPipe]] = {}
        self._clear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._children = {}
        self._clear()  # what waits for readers stays with the original

    @abstractmethod
    def _deal(self, item: Any, reader: int) -> None:
        """Put an item into all buffers that it is for, or into none and raise. `reader` is the one who asks for it."""

    def child_length(self, reader: int) -> int:
        """Return how many items a reader gets: all get as many, unless they are dealt out."""
        del reader
        return len(self.datapipe)

    def adopt(self, child: ChildPipe) -> None:
        """Note a reader, also one that came by copy or pickle."""
        self._children[child.instance_id] = weakref.ref(child)
        self._find_open()

    def begin(self, reader: int) -> _Round:
        """Let a reader begin: in the round that is under way if it was not in it yet. Returns the round."""
        if self._round is None or self._has_begun[reader]:
            if any(
                child.is_under_way for number in self._children if number != reader and (child := self._child(number))
            ):
                warnings.warn(
                    "Some child DataPipes are not exhausted when __iter__ is called. We are resetting the buffer and "
                    "each child DataPipe will read from the start again.",
                    stacklevel=5,
                )
            if self._restored is not None:
                self._restored.forget(self)
            self._clear()
            self._round = _Round()
        self._has_begun[reader] = True
        return self._round

    def rejoin(self, reader: int) -> _Round:
        """Return the round in which a reader that was restored goes on.

        Raises:
            ResumeError: It is in none.
        """
        if self._round is None or not self._has_begun[reader] or self._has_left[reader]:
            raise ResumeError(f"the state has reader {reader} of {self!r} in the middle of a round that it is not in")
        return self._round

    def leave(self, reader: int, left: _Round) -> None:
        """Note that a reader wants no more. Called by the garbage collector too: takes no lock."""
        if left is self._round:
            self._has_left[reader] = True
            self._find_open()
            if not self._open:
                left.source = None

    def pull(self, reader: int, current: _Round) -> bool:
        """Read until there is an item for a reader, or its round is over; False at the end of the source."""
        buffer = self._buffers[reader]
        with current.lock:
            if self._round is not current:  # somebody has begun anew meanwhile, in another thread
                return True
            if self._has_ended or buffer:  # by another thread meanwhile
                return bool(buffer)
            if current.failure is not None:
                raise RuntimeError(f"the source of {self!r} has raised when another reader asked: {current.failure}")
            if current.source is None:
                current.source = read(self.datapipe)
            source, undealt = current.source, self._undealt
            while not buffer:
                if not undealt:
                    undealt.append(self._read_next(source, current))
                if self._round is not current:
                    return True
                if undealt[0] is _END:
                    undealt.clear()
                    self._has_ended = True
                    current.source = None
                    return False
                self._deal(undealt[0], reader)
                undealt.clear()
            return True

    @staticmethod
    def _read_next(source: Iterator[Any], current: _Round) -> Any:
        """Return the next item of the source, or `_END`."""
        try:
            return next(source, _END)
        except BaseException as error:
            current.failure = f"{type(error).__name__}: {error}"
            raise

    def _check_ahead(self, reader: int) -> None:
        """Check that no other reader has so many items before it that this one may not go on.

        Raises:
            BufferError: One has.
        """
        for other in self._open:
            waiting = len(self._buffers[other])
            if other != reader and waiting >= self.buffer_size and self._is_crowded(waiting):
                raise BufferError(
                    f"{type(self).__name__} buffer overflow, buffer size {self.buffer_size} is insufficient: "
                    f"child {other} has that many items to read before child {reader} may go on"
                )

    def _forget_position(self) -> None:
        super()._forget_position()
        self._clear()
        self._round = None

    def _clear(self) -> None:
        self._buffers: list[deque[Any]] = [deque() for _ in range(self.num_instances)]
        self._has_begun = [False] * self.num_instances
        self._has_left = [False] * self.num_instances
        self._has_ended = False
        self._undealt = []
        self._find_open()

    def _find_open(self) -> None:
        """Find the readers who get items; drop what waits for the others."""
        self._open = [number for number in range(self.num_instances) if self._is_waited_for(number)]
        for number, buffer in enumerate(self._buffers):
            if number not in self._open:
                buffer.clear()

    def _is_crowded(self, waiting: int) -> bool:
        """Tell whether so many items are too many, and nobody is gone whose items could be dropped."""
        if not 0 <= self.buffer_size <= waiting:
            return False
        num_open = len(self._open)
        self._find_open()
        return len(self._open) == num_open

    def _child(self, reader: int) -> ChildPipe | None:
        reference = self._children.get(reader)
        return None if reference is None else reference()

    def _is_waited_for(self, reader: int) -> bool:
        return not self._has_left[reader] and self._child(reader) is not None

    @property
    def is_under_way(self) -> bool:
        if self._round is None:
            return False
        return any(begun and not left for begun, left in zip(self._has_begun, self._has_left, strict=True))

    def state(self) -> State:
        return {
            "buffers": [list(buffer) for buffer in self._buffers],
            "has_begun": list(self._has_begun),
            "has_left": list(self._has_left),
            "has_ended": self._has_ended,
            "undealt": list(self._undealt),
        }

    def restore(self, state: State) -> None:
        buffers = [deque(items) for items in state["buffers"]]
        begun, left, undealt = list(state["has_begun"]), list(state["has_left"]), list(state["undealt"])
        if not len(buffers) == len(begun) == len(left) == self.num_instances or len(undealt) > 1:
            raise ResumeError(f"the state is of {len(buffers)} readers, and {self!r} has {self.num_instances}")
        self._buffers, self._has_begun, self._has_left = buffers, begun, left
        self._has_ended, self._undealt = state["has_ended"], undealt
        self._find_open()
        self._round = _Round()


class ChildPipe(IterPipe[Any]):
    """One reader of a `Splitter`.

    Args:
        main_datapipe: The splitter.
        instance_id: Which of its readers.
    """

    _not_shipped = ("_current",)
    _current: _Round | None = None  # the round that it has begun in

    def __init__(self, main_datapipe: Splitter, instance_id: int) -> None:
        self.main_datapipe = main_datapipe
        self.instance_id = instance_id
        main_datapipe.adopt(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.main_datapipe.adopt(self)

    def reset(self) -> None:
        self._current = self.main_datapipe.begin(self.instance_id)

    def __iter__(self) -> Iterator[Any]:
        main, reader, current = self.main_datapipe, self.instance_id, self._current
        assert current is not None
        buffer = main._buffers[reader]
        try:
            while True:
                if main._round is not current:
                    raise RuntimeError(
                        "This iterator has been invalidated, because a new iterator has been created from one of the "
                        f"ChildDataPipes of {main!r}: it begins at the start for all of them."
                    )
                if buffer:
                    yield buffer.popleft()
                elif not main.pull(reader, current):
                    return
        finally:
            main.leave(reader, current)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._current = self.main_datapipe.rejoin(self.instance_id)

    def __len__(self) -> int:
        return self.main_datapipe.child_length(self.instance_id)


def children_of(main: Splitter, readers: range | list[int] | None = None) -> list[Any]:
    """Return the readers of a splitter."""
    return [ChildPipe(main, reader) for reader in (range(main.num_instances) if readers is None else readers)]
