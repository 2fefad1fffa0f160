"""Batches as torch tensors, a loader where torch expects one, and copies to a GPU that run ahead.

Tensors of the CPU lie over the same memory as the arrays of the batch, which stays as it is while any of them lives.
Invariants: what `state_dict` says is where the consumer is, however far copies run ahead; memory that a copy reads from
is held until the event behind the copy has happened, and memory that a copy wrote to is known to the stream that reads
it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace.loading import Batch, DataLoader, Packing, Place
from headrace.order.policy import check_count

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ConfigError("headrace.adapters.torch needs PyTorch", fix="pip install 'headrace[torch]'") from error


def as_tensors(value: Any) -> Any:
    """Return a batch with tensors in place of arrays, over the same memory; nothing is copied.

    The arrays, the lengths and the packing of a `Batch` become tensors; so do arrays in dicts, lists and tuples, for
    those who have a `collate` of their own. Arrays of a dtype that torch does not know stay as they are.
    """
    return _map_leaves(value, _as_tensor)


def _as_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufc":
        return leaf
    if not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))
    if not leaf.flags.writeable:
        leaf = leaf.copy()  # torch has no tensors that cannot be written
    try:
        return torch.from_numpy(leaf)
    except TypeError:  # such as float128
        return leaf


def _map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value of the same structure whose arrays and tensors went through a function."""
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
        return {key: _map_leaves(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_leaves(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_map_leaves(item, function) for item in value)
    return function(value)


class TorchLoader(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """A loader where torch expects one: iterable, with a length, `state_dict` and `load_state_dict`.

    It yields batches of tensors, is a `torch.utils.data.IterableDataset`, and has the protocol of torchdata's
    `StatefulDataLoader`. The workers are those of the loader: if it must be wrapped in torch's own `DataLoader`, give
    that `batch_size=None, num_workers=0, collate_fn=lambda batch: batch` (its own collate leaves a plain dict).

    Args:
        loader: What to read.
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__()
        if not isinstance(loader, DataLoader):
            raise ConfigError(f"a TorchLoader reads a headrace.DataLoader, got {type(loader).__name__}")
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch.

        Raises:
            HeadraceError: In a worker of torch's `DataLoader`, each of which would read all batches.
        """
        if get_worker_info() is not None:
            raise HeadraceError(
                "a loader is read in a worker of torch's DataLoader: each of its workers would read all batches",
                fix="give torch's DataLoader num_workers=0, and headrace's as many as you like",
            )
        return map(as_tensors, iter(self.loader))

    def __len__(self) -> int:
        """Return the number of steps of an epoch on this rank."""
        return len(self.loader)

    def __bool__(self) -> bool:
        """Return True: whether there is a loader is not a question about its length."""
        return True

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is, see `DataLoader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, see `DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """End the workers."""
        self.loader.close()


class Event(Protocol):
    """A point in a stream, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Tell whether all work before it is done."""

    def synchronize(self) -> None:
        """Wait until all work before it is done."""


class Copier(Protocol):
    """What a device does for a `DeviceLoader`."""

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Begin to copy a tensor; return the new one, and what must live until the copy is done."""

    def record(self) -> Event:
        """Return the point behind all copies that were begun."""

    def hand_over(self, event: Event, tensors: list[torch.Tensor]) -> None:
        """Let what the consumer does from now on with the copies wait for the event, without waiting here."""


class CudaCopier:
    """Copies on a stream of its own, from page-locked memory.

    A batch is copied into page-locked memory first, which torch keeps and reuses: only from there can a copy run beside
    the computation.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Begin a copy."""
        pinned = tensor.pin_memory()
        with torch.cuda.stream(self._stream):
            return pinned.to(self._device, non_blocking=True), pinned

    def record(self) -> Event:
        """Record an event."""
        return self._stream.record_event()  # type: ignore[no-any-return, unused-ignore]

    def hand_over(self, event: Event, tensors: list[torch.Tensor]) -> None:
        """Let the consumer's stream wait, and torch's allocator know that this stream uses the memory."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)


@dataclasses.dataclass(slots=True)
class _Sent:
    """A batch whose copies were begun, with where the consumer is once it has it."""

    value: Any
    tensors: list[torch.Tensor]
    sources: list[Any]
    event: Event
    place: Place


class DeviceLoader(TorchLoader):
    """Batches on a device, copied while the consumer works on those before.

    Args:
        loader: What to read.
        copier: Of the device; None delivers tensors of the CPU, over the workers' memory.
        depth: How many batches are on the device that the consumer has not asked for yet.
    """

    def __init__(self, loader: DataLoader, copier: Copier | None, depth: int = 2) -> None:
        super().__init__(loader)
        self._copier = copier
        self._depth = check_count("to_device", "depth", depth, minimum=1)
        self._place: Place | None = None  # of the consumer, while copies run ahead of it

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch."""
        batches = super().__iter__()
        if self._copier is None:
            return batches
        self._place = self.loader.place
        return self._run(batches, self._copier)

    def _run(self, batches: Iterator[Any], copier: Copier) -> Iterator[Any]:
        ahead: deque[_Sent] = deque()
        busy: deque[tuple[Event, list[Any]]] = deque()  # memory that copies may still be read from
        error: Exception | None = None
        try:
            while True:
                try:
                    while error is None and len(ahead) < self._depth:
                        ahead.append(_send(next(batches), copier, self.loader))
                except Exception as caught:  # noqa: BLE001 - raised below, when its place in the stream has come
                    error = caught
                while busy and busy[0][0].query():
                    busy.popleft()
                if not ahead:
                    break
                sent = ahead.popleft()
                busy.append((sent.event, sent.sources))
                copier.hand_over(sent.event, sent.tensors)
                self._place, values = sent.place, [sent.value]
                del sent
                yield values.pop()  # the consumer alone decides how long it lives
        finally:
            for event in (*(entry[0] for entry in busy), *(sent.event for sent in ahead)):
                event.synchronize()
        if isinstance(error, StopIteration):
            self._place = None
        elif error is not None:
            raise error

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is, whatever was copied ahead."""
        return self.loader.state_dict() if self._place is None else self.loader.state_at(self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, see `DataLoader.load_state_dict`."""
        super().load_state_dict(state)
        self._place = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        super().set_epoch(epoch)
        if not self.loader.is_iterating:
            self._place = None


def _send(batch: Any, copier: Copier, loader: DataLoader) -> _Sent:
    tensors: list[torch.Tensor] = []
    sources: list[Any] = []

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        copied, source = copier.copy(leaf)
        tensors.append(copied)
        sources.append(source)
        return copied

    value = _map_leaves(batch, copy)
    return _Sent(value, tensors, sources, copier.record(), loader.place)


def to_device(loader: DataLoader, device: torch.device | str, depth: int = 2) -> DeviceLoader:
    """Return the loader with its batches on a device.

    On a GPU they are copied on a stream of their own, `depth` batches ahead of the consumer. On the CPU they are
    tensors over the workers' memory, and nothing is copied.

    Args:
        loader: What to read.
        device: Such as "cuda", "cuda:1" or "cpu".
        depth: How many batches are on the device before they are asked for; each takes memory there.

    Raises:
        ConfigError: The device cannot be copied to.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return DeviceLoader(loader, None, depth)
    if device.type != "cuda" or not torch.cuda.is_available():
        raise ConfigError(f"batches cannot be copied to the device {str(device)!r}", fix='give "cpu", or a CUDA device')
    return DeviceLoader(loader, CudaCopier(device), depth)
