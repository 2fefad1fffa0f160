"""Prefetching in a thread, and pinning the memory of tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...core.base import IterPipe, read
from ...core.checks import check_positive
from ...core.registry import functional_pipe
from .read_ahead import ReadAheadPipe


@functional_pipe("prefetch")
class Prefetcher(ReadAheadPipe):
    """Read the source in a thread, some items ahead. An error of the source is raised after the items before it.

    The thread lives as long as the iteration. It shares Python's GIL with the consumer, so it helps where the source
    waits for files or networks, or computes in NumPy.

    Args:
        source_datapipe: The source.
        buffer_size: How many items to read ahead.

    Raises:
        ConfigError: `buffer_size` is less than 1.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(3)).prefetch(buffer_size=2))
        [0, 1, 2]
    """

    maps_each = True

    def __init__(self, source_datapipe: IterPipe[Any], buffer_size: int = 10) -> None:
        self.source_datapipe = source_datapipe
        self.buffer_size = check_positive("buffer_size", buffer_size)

    def __iter__(self) -> Iterator[Any]:
        yield from self._give_ahead(iter(()) if self._has_ended else read(self.source_datapipe), self.buffer_size)


_NUM_AHEAD = 2


def pin_memory_fn(data: Any, device: Any = None) -> Any:
    """Pin the memory of all tensors in an item: in lists, tuples, named tuples, dicts, objects with `pin_memory`.

    Args:
        data: The item. Everything else in it is left as it is.
        device: The GPU; `None`: the current one.

    Examples:
        >>> from headrace.pipes.utils import pin_memory_fn
        >>> pin_memory_fn({"label": 1})  # there are no tensors
        {'label': 1}
    """
    if hasattr(data, "pin_memory"):
        is_tensor = hasattr(data, "element_size")
        return data.pin_memory(device) if is_tensor and device is not None else data.pin_memory()
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, Mapping):
        pinned = {key: pin_memory_fn(value, device) for key, value in data.items()}
        return pinned if type(data) is dict else type(data)(pinned)  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(pin_memory_fn(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(pin_memory_fn(value, device) for value in data)
    return data


@functional_pipe("pin_memory")
class PinMemory(ReadAheadPipe):
    """Pin the memory of the tensors of each item, in a thread that is two items ahead.

    Args:
        source_datapipe: The source.
        device: The GPU; `None`: the current one.
        pin_memory_fn: Gets the item and the device, and returns the pinned item.

    Raises:
        RuntimeError: torch was not imported, or there is no GPU.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> def batches_of(dataset):  # for a training on a GPU
        ...     return IterableWrapper(dataset).batch(2).collate().pin_memory()
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        device: Any = None,
        pin_memory_fn: Callable[[Any, Any], Any] = pin_memory_fn,
    ) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            raise RuntimeError(
                "``pin_memory`` can only be used when CUDA is available"
                + (": import torch first" if torch is None else "; leave it out where there is no GPU")
            )
        self.source_datapipe = source_datapipe
        self.device = torch.cuda.current_device() if device is None else device
        self.pin_memory_fn = pin_memory_fn

    def is_replicable(self) -> bool:
        """Return that it runs in the main process only."""
        return False

    def _pin(self, item: Any) -> Any:
        return self.pin_memory_fn(item, self.device)

    def __iter__(self) -> Iterator[Any]:
        yield from self._give_ahead(map(self._pin, () if self._has_ended else read(self.source_datapipe)), _NUM_AHEAD)
