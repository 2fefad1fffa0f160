"""What the adapters of all frameworks share: the arrays inside a batch, and batches on their way to a device.

Batches are sent ahead, while the consumer works on those before. Invariants: what `state_dict` says is where the
consumer is, however far ahead batches were sent; memory that a batch is sent from is held until the event behind the
sending has happened. No framework is known here.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from headrace.errors import ConfigError, check_count
from headrace.loading import Batch, DataLoader, LoaderPosition, Packing


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value of the same structure whose leaves went through a function.

    Args:
        value: A `Batch`, of which the arrays, the lengths and the packing are leaves; or what a `collate` made: dicts,
            lists, tuples and what is in them.
        function: Gets each leaf, an array or anything else, and returns what comes in its place.
    """
    if isinstance(value, Batch):
        packing = value.packing
        if packing is not None:
            packing = Packing(*(function(getattr(packing, field.name)) for field in dataclasses.fields(packing)))
        return dataclasses.replace(
            value,
            arrays={key: function(array) for key, array in value.arrays.items()},
            lengths={key: function(array) for key, array in value.lengths.items()},
            packing=packing,
        )
    if isinstance(value, Mapping):
        return {key: map_leaves(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(map_leaves(item, function) for item in value)
    return function(value)


class Event(Protocol):
    """A point in the work of a device, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Tell whether all work before it is done."""

    def synchronize(self) -> None:
        """Wait until all work before it is done."""


@dataclass(slots=True)
class Sent:
    """A batch on its way.

    Attributes:
        value: What the consumer gets.
        parts: Those pieces of it that are on the device.
        sources: What must live until the event has happened.
        event: Behind the last of its pieces.
    """

    value: Any
    parts: list[Any]
    sources: list[Any]
    event: Event


class Sender(Protocol):
    """What a device does for batches."""

    def send(self, batch: Any) -> Sent:
        """Begin to send a batch."""

    def hand_over(self, sent: Sent) -> None:
        """Let what the consumer does from now on with the batch wait for it to be there, without waiting here."""


class RunAhead:
    """Sends the batches of a loader ahead, and knows where its consumer is. Not thread-safe.

    Args:
        loader: Where the batches come from.
        depth: How many batches are sent that the consumer has not asked for yet.
        name: Of the function that the user called, for errors.

    Raises:
        ConfigError: `depth` is not a number of at least 1.
    """

    def __init__(self, loader: DataLoader, depth: int, name: str) -> None:
        self._loader = loader
        self._depth = check_count(f"{name}: depth", depth, minimum=1)
        self._place: LoaderPosition | None = None  # of the consumer, while batches are ahead of it

    def run(self, begin: Callable[[], Iterator[Any]], sender: Sender) -> Iterator[Any]:
        """Return the batches of an iterator, each once it was handed over."""
        return self._run(begin(), sender)

    def _run(self, batches: Iterator[Any], sender: Sender) -> Iterator[Any]:
        ahead: deque[tuple[Sent, LoaderPosition]] = deque()
        busy: deque[tuple[Event, list[Any]]] = deque()  # memory that may still be read from
        error: Exception | None = None
        if self._place is None:
            self._place = self._loader.place
        try:
            while True:
                try:
                    while error is None and len(ahead) < self._depth:
                        ahead.append((sender.send(next(batches)), self._loader.place))
                except Exception as caught:  # noqa: BLE001 - raised below, when its place in the stream has come
                    error = caught
                while busy and busy[0][0].query():
                    busy.popleft()
                if not ahead:
                    break
                sent, self._place = ahead.popleft()
                busy.append((sent.event, sent.sources))
                sender.hand_over(sent)
                values = [sent.value]
                del sent
                yield values.pop()  # the consumer alone decides how long it lives
        finally:
            for event in (*(entry[0] for entry in busy), *(sent.event for sent, _ in ahead)):
                event.synchronize()
        if isinstance(error, StopIteration):
            self._place = None
        elif error is not None:
            raise error

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is, whatever was sent ahead."""
        return self._loader.state_dict() if self._place is None else self._loader.state_at(self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, see `DataLoader.load_state_dict`."""
        self._loader.load_state_dict(state)
        self._place = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self._loader.set_epoch(epoch)
        if not self._loader.is_iterating:
            self._place = None


class LoaderOver:
    """A loader over a `DataLoader`: what both answer alike.

    Args:
        loader: What to read.
        name: Of what the user called, for errors.

    Raises:
        ConfigError: It is no `DataLoader`.
    """

    def __init__(self, loader: DataLoader, name: str) -> None:
        if not isinstance(loader, DataLoader):
            raise ConfigError(f"{name} reads a headrace.DataLoader, got {type(loader).__name__}")
        self.loader = loader
        self._told_by: DataLoader | RunAhead = loader  # who knows where the consumer is

    def __len__(self) -> int:
        """Return the number of steps of an epoch on this rank."""
        return len(self.loader)

    def __bool__(self) -> bool:
        """Return True: whether there is a loader is not a question about its length."""
        return True

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self._told_by.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is, whatever was sent ahead; see `DataLoader.state_dict`."""
        return self._told_by.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, see `DataLoader.load_state_dict`."""
        self._told_by.load_state_dict(state)

    def close(self) -> None:
        """End the workers."""
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
