"""One source, several readers: what `fork`, `demux` and `unzip` have in common.

The readers (`ChildPipe`) read one `Splitter`, which reads the source and has a buffer for each reader, with the items
that were read for other readers and that this one has not taken yet. Together they go through *rounds*: a round is one
epoch of the source. A reader that begins a second time begins a new round for all.

Invariants: the source is read by one reader at a time, so that readers may be in several threads (the lock of the round
protects the source, and is never held while an item is yielded). An item that was read is dealt to all readers or to
none: one that cannot be dealt (a buffer is full, a function raised) is kept, and is the first to be dealt when a reader
asks again. A reader that has left, or was garbage collected, has no buffer. The source is closed when all readers have
left; if it raised an error, other readers get an error too, not an end.
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
    """One epoch of the source: its iterator, the lock that protects it, and its error."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.source: Iterator[Any] | None = None
        self.failure: str | None = None  # what the source raised; as text, because a traceback keeps frames alive


class Splitter(IterPipe[Any]):
    """Reads a source for several readers.

    Args:
        datapipe: The source.
        num_instances: How many readers there are.
        buffer_size: How many items a buffer may hold; -1: no limit.
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
        self._clear()  # buffers are not copied

    @abstractmethod
    def _deal(self, item: Any, reader: int) -> None:
        """Put an item into all buffers that it is for, or into none and raise. `reader` is the one that requests it."""

    def child_length(self, reader: int) -> int:
        """Return how many items a reader gets: all of them, unless a subclass says otherwise."""
        del reader
        return len(self.datapipe)

    def adopt(self, child: ChildPipe) -> None:
        """Register a reader, also one that was copied or unpickled."""
        self._children[child.instance_id] = weakref.ref(child)
        self._find_open()

    def begin(self, reader: int) -> _Round:
        """Begin for a reader: in the current round if the reader was not in it yet, else in a new one. Return it."""
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
        """Return the round in which a restored reader continues.

        Raises:
            ResumeError: The state is inconsistent: the reader is in no round.
        """
        if self._round is None or not self._has_begun[reader] or self._has_left[reader]:
            raise ResumeError(f"the state has reader {reader} of {self!r} in the middle of a round that it is not in")
        return self._round

    def leave(self, reader: int, left: _Round) -> None:
        """Record that a reader reads no more. Takes no lock, because the garbage collector may call it."""
        if left is self._round:
            self._has_left[reader] = True
            self._find_open()
            if not self._open:
                left.source = None

    def pull(self, reader: int, current: _Round) -> bool:
        """Read until there is an item for a reader, or its round is over; False at the end of the source."""
        buffer = self._buffers[reader]
        with current.lock:
            if self._round is not current:  # another thread has begun a new round meanwhile
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
        """Check that no other reader's buffer is full.

        Raises:
            BufferError: One is.
        """
        for other in self._open:
            waiting = len(self._buffers[other])
            if other != reader and waiting >= self.buffer_size and self._is_crowded(waiting):
                raise BufferError(
                    f"{type(self).__name__} buffer overflow, buffer size {self.buffer_size} is insufficient: "
                    f"child {other} must read some of its items before child {reader} can continue"
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
        """Find the readers that still get items; empty the buffers of the others."""
        self._open = [number for number in range(self.num_instances) if self._is_waited_for(number)]
        for number, buffer in enumerate(self._buffers):
            if number not in self._open:
                buffer.clear()

    def _is_crowded(self, waiting: int) -> bool:
        """Tell whether a buffer with `waiting` items is full, and no reader has gone whose items can be dropped."""
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
        instance_id: The number of the reader.
    """

    _not_shipped = ("_current",)
    _current: _Round | None = None  # the round that its iteration belongs to

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
