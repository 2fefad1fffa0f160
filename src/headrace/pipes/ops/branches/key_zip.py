"""Joining the items of two pipes by a key."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import ConfigError

from ...core.base import IterPipe, MapPipe, State, is_iter_pipe, is_map_pipe, read
from ...core.checks import check_positive, check_takes
from ...core.registry import functional_pipe
from ...core.skeletons import OneForOne, SameLength
from ...core.streams import close_streams


@functional_pipe("zip_with_iter")
class IterKeyZipper(SameLength[Any]):
    """Join each item with the item of another pipe that has the same key.

    The other pipe is read as far as needed; its items that have not been joined yet wait in a buffer.

    Args:
        source_datapipe: The source, which decides the order.
        ref_datapipe: The other pipe, whose keys must be unique.
        key_fn: Returns the key of an item of the source.
        ref_key_fn: Returns the key of an item of the other pipe; `None`: `key_fn`.
        keep_key: Yield (key, joined item) instead of the joined item.
        buffer_size: How many items of the other pipe the buffer holds; when it is full, the oldest is dropped, with a
            warning. `None`: no limit.
        merge_fn: Joins an item of the source and one of the other pipe; `None`: into a tuple.

    Raises:
        ConfigError: A function or number is wrong, or two items of the other pipe have the same key (while iterating).
        TypeError: The other is not a pipe.
        BufferError: The other pipe has no item for a key, or dropped it (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> sounds, texts = IterableWrapper([("a", 0.5), ("b", 0.7)]), IterableWrapper([("b", "two"), ("a", "one")])
        >>> list(sounds.zip_with_iter(texts, key_fn=lambda pair: pair[0]))
        [(('a', 0.5), ('a', 'one')), (('b', 0.7), ('b', 'two'))]
    """

    _not_shipped = ("_buffer",)

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        ref_datapipe: IterPipe[Any],
        key_fn: Callable[[Any], Any],
        ref_key_fn: Callable[[Any], Any] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        if not is_iter_pipe(ref_datapipe):
            raise TypeError(f"ref_datapipe must be a IterDataPipe, but its type is {type(ref_datapipe)} instead.")
        check_takes(key_fn, 1)
        check_takes(key_fn if ref_key_fn is None else ref_key_fn, 1)
        if merge_fn is not None:
            check_takes(merge_fn, 2)
        self.source_datapipe = source_datapipe
        self.ref_datapipe = ref_datapipe
        self.key_fn = key_fn
        self.ref_key_fn = ref_key_fn
        self.keep_key = keep_key
        self.buffer_size = None if buffer_size is None else check_positive("buffer_size", buffer_size)
        self.merge_fn = merge_fn
        self.reset()

    def reset(self) -> None:
        self._buffer: dict[Any, Any] = {}
        self._has_ref_ended = False

    def __iter__(self) -> Iterator[Any]:
        buffer, key_of, merge = self._buffer, self.key_fn, self.merge_fn
        reference = iter(()) if self._has_ref_ended else read(self.ref_datapipe)
        for item in read(self.source_datapipe):
            key = key_of(item)
            if key not in buffer:
                self._read_until(key, reference)
            other = buffer.pop(key)
            joined = (item, other) if merge is None else merge(item, other)
            yield (key, joined) if self.keep_key else joined
        close_streams(list(buffer.values()))
        buffer.clear()

    def _read_until(self, key: Any, reference: Iterator[Any]) -> None:
        buffer, key_of = self._buffer, self.ref_key_fn or self.key_fn
        for item in reference:
            ref_key = key_of(item)
            if ref_key in buffer:
                raise ConfigError(f"Duplicate key is found in reference DataPipe: {ref_key!r}")
            buffer[ref_key] = item
            if ref_key == key:
                return
            if self.buffer_size is not None and len(buffer) > self.buffer_size:
                warnings.warn(
                    "Buffer reaches the upper limit, so reference key-data pair begins to be removed from buffer in "
                    "FIFO order. Please consider increase buffer size.",
                    stacklevel=4,
                )
                close_streams(buffer.pop(next(iter(buffer))))
        self._has_ref_ended = True
        raise BufferError(
            f"No matching key can be found from reference DataPipe for the data {key!r}. "
            "Please consider increasing the buffer size."
        )

    def state(self) -> State:
        return {"buffer": [list(pair) for pair in self._buffer.items()], "has_ref_ended": self._has_ref_ended}

    def restore(self, state: State) -> None:
        self._buffer = dict(state["buffer"])
        self._has_ref_ended = state["has_ref_ended"]


@functional_pipe("zip_with_map")
class MapKeyZipper(OneForOne[Any], source="source_iterdatapipe"):
    """Join each item with the item of a map-style pipe for its key.

    Args:
        source_iterdatapipe: The source.
        map_datapipe: The map-style pipe.
        key_fn: Returns the key of an item.
        merge_fn: Joins the two items; `None`: into a tuple.
        keep_key: Yield (key, joined item) instead of the joined item.

    Raises:
        TypeError: The other is not a map-style pipe.
        KeyError: It has no item for a key (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes.map import SequenceWrapper
        >>> ids, names = IterableWrapper([2, 1]), SequenceWrapper({1: "one", 2: "two"})
        >>> list(ids.zip_with_map(names, key_fn=lambda number: number))
        [(2, 'two'), (1, 'one')]
    """

    def __init__(
        self,
        source_iterdatapipe: IterPipe[Any],
        map_datapipe: MapPipe[Any],
        key_fn: Callable[[Any], Any],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> None:
        if not is_map_pipe(map_datapipe):
            raise TypeError(f"map_datapipe must be a MapDataPipe, but its type is {type(map_datapipe)} instead.")
        check_takes(key_fn, 1)
        if merge_fn is not None:
            check_takes(merge_fn, 2)
        self.source_iterdatapipe = source_iterdatapipe
        self.map_datapipe = map_datapipe
        self.key_fn = key_fn
        self.merge_fn = merge_fn
        self.keep_key = keep_key

    def __iter__(self) -> Iterator[Any]:
        for item in read(self.source_iterdatapipe):
            key = self.key_fn(item)
            try:
                other = self.map_datapipe[key]
            except (KeyError, IndexError):
                raise KeyError(
                    f"key_fn maps {item} to {key}, which is not a valid key in the given MapDataPipe."
                ) from None
            joined = (item, other) if self.merge_fn is None else self.merge_fn(item, other)
            yield (key, joined) if self.keep_key else joined
