"""Shared by the adapters of all frameworks: applying a function to the arrays of a batch, and sending batches ahead.

Batches are sent to a device while the consumer works on earlier ones. Invariants: `state_dict` is the position of the
consumer, however far ahead batches were sent; memory that a batch is sent from is held until the event after the
transfer is over. No framework is known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.loading import Batch, DataLoader, LoaderPosition


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value of the same structure with a function applied to its leaves.

    Args:
        value: A `Batch`, of which the arrays, the lengths and the packing are leaves; or the result of a `collate`:
            dicts, lists, tuples and their contents.
        function: Gets each leaf, an array or anything else, and returns its replacement.
    """
    if isinstance(value, Batch):
        return value.map_arrays(function)
    if isinstance(value, Mapping):
        return {key: map_leaves(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(map_leaves(item, function) for item in value)
    return function(value)


def numeric_array(leaf: Any) -> NDArray[Any] | None:
    """Return a leaf as an array in native byte order; None if it is not an array of numbers or booleans."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufc":
        return None
    return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))


class Event(Protocol):
    """A point in the work of a device, like `torch.cuda.Event`."""

    def query(self) -> bool:
        """Tell whether all work before it is done."""

    def synchronize(self) -> None:
        """Wait until all work before it is done."""


@dataclass(slots=True)
class Sent:
    """A batch on its way to a device.

    Attributes:
        value: The batch for the consumer.
        parts: Its arrays or tensors on the device.
        sources: Objects that must live until the event is over.
        event: The event after the last transfer of the batch.
    """

    value: Any
    parts: list[Any]
    sources: list[Any]
    event: Event


class Sender(Protocol):
    """Sends batches to a device."""

    def send(self, batch: Any) -> Sent:
        """Start to send a batch."""

    def hand_over(self, sent: Sent) -> None:
        """Make later work of the consumer wait for the batch on the device, without waiting here."""


class RunAhead:
    """Sends the batches of a loader ahead, and tracks the position of its consumer. Not thread-safe.

    Args:
        loader: The loader of the batches.
        depth: How many batches are sent ahead of the consumer.
        name: Name of the function that the user called, for errors.

    Raises:
        ConfigError: `depth` is not a number of at least 1.
    """

    def __init__(self, loader: DataLoader, depth: int, name: str) -> None:
        self._loader = loader
        self._depth = check_count(f"{name}: depth", depth, minimum=1)
        self._position: LoaderPosition | None = None  # of the consumer, while batches are ahead of it

    def run(self, begin: Callable[[], Iterator[Any]], sender: Sender) -> Iterator[Any]:
        """Yield the batches of an iterator, sent ahead."""
        return self._run(begin(), sender)

    def _run(self, batches: Iterator[Any], sender: Sender) -> Iterator[Any]:
        ahead: deque[tuple[Sent, LoaderPosition]] = deque()
        busy: deque[tuple[Event, list[Any]]] = deque()  # sources of batches whose transfer may not be over
        error: Exception | None = None
        if self._position is None:
            self._position = self._loader.position
        try:
            while True:
                try:
                    while error is None and len(ahead) < self._depth:
                        ahead.append((sender.send(next(batches)), self._loader.position))
                except Exception as caught:  # noqa: BLE001 - raised below, at its position in the stream
                    error = caught
                while busy and busy[0][0].query():
                    busy.popleft()
                if not ahead:
                    break
                sent, self._position = ahead.popleft()
                busy.append((sent.event, sent.sources))
                sender.hand_over(sent)
                values = [sent.value]
                del sent
                yield values.pop()  # so that only the consumer holds the batch
        finally:
            for event in (*(entry[0] for entry in busy), *(sent.event for sent, _ in ahead)):
                event.synchronize()
        if isinstance(error, StopIteration):
            self._position = None
        elif error is not None:
            raise error

    @property
    def position(self) -> LoaderPosition:
        """The position of the consumer."""
        return self._loader.position if self._position is None else self._position

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the consumer, whatever was sent ahead."""
        return self._loader.state_dict() if self._position is None else self._loader.state_at(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, see `DataLoader.load_state_dict`."""
        self._loader.load_state_dict(state)
        self._position = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._loader.set_epoch(epoch)
        if not self._loader.is_iterating:
            self._position = None


class LoaderOver:
    """Base of the loaders around a `DataLoader`: delegates its methods.

    Args:
        loader: The loader to read.
        name: Name of the function or class that the user called, for errors.

    Raises:
        ConfigError: It is not a `DataLoader`.
    """

    def __init__(self, loader: DataLoader, name: str) -> None:
        if not isinstance(loader, DataLoader):
            raise ConfigError(f"{name} reads a headrace.DataLoader, got {type(loader).__name__}")
        self.loader = loader
        self._tracker: DataLoader | RunAhead = loader  # the one that knows the position of the consumer

    def __len__(self) -> int:
        """Return the number of steps of an epoch on this rank."""
        return len(self.loader)

    def __bool__(self) -> bool:
        """Return True: a loader is true whatever its length."""
        return True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._tracker.set_epoch(epoch)

    @property
    def position(self) -> LoaderPosition:
        """The position of the consumer, whatever was sent ahead."""
        return self._tracker.position

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the consumer, whatever was sent ahead; see `DataLoader.state_dict`."""
        return self._tracker.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, see `DataLoader.load_state_dict`."""
        self._tracker.load_state_dict(state)

    def close(self) -> None:
        """End the workers."""
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
