"""The iterator over one epoch of a `DataLoader2`, or over parts of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from headrace.errors import check_count

from .error import PauseIteration
from .interface import ReadingServiceInterface

T_co = TypeVar("T_co", covariant=True)


class IteratedLoader(Protocol[T_co]):
    """The methods of the loader that the iterator needs.

    Attributes:
        valid_iterator_id: The number of the one valid iterator; None: there is none.
        reading_service: The service that runs the graph; None: it runs here.
    """

    valid_iterator_id: int | None
    reading_service: ReadingServiceInterface | None

    def next_item(self) -> T_co:
        """Return the next item of the epoch; StopIteration at its end."""

    def finalize_iteration(self) -> None:
        """Tell the reading service that the iteration has ended."""

    def call_service(self, method: str, *arguments: Any) -> bool:
        """Call an optional method of the reading service; return False if it has no such method."""

    def pipe_attribute(self, name: str) -> Any:
        """Return an attribute of the pipe that is iterated over; AttributeError if there is none."""


class DataLoader2Iterator(Iterator[T_co]):
    """The iterator of a loader. Attributes that it lacks are those of the pipe that is iterated over.

    Args:
        dataloader: Its loader.
        iterator_id: Its number.

    Examples:
        >>> from headrace.dataloader2 import DataLoader2
        >>> from headrace.pipes.iter import IterableWrapper
        >>> with DataLoader2(IterableWrapper(range(4))) as loader:
        ...     batches = iter(loader)
        ...     batches.limit(2)
        ...     print(list(batches))
        ...     batches.resume()
        ...     print(list(batches))
        [0, 1]
        [2, 3]
    """

    def __init__(self, dataloader: IteratedLoader[T_co], iterator_id: int) -> None:
        self.dataloader = dataloader
        self.iterator_id = iterator_id
        self.limit_counter: int | None = None
        self.limit_threshold: int | None = None
        self._is_paused = False

    def __next__(self) -> T_co:
        """Return the next item.

        Raises:
            StopIteration: At the end of the epoch; as `PauseIteration` at the limit.
            RuntimeError: Another iterator was made, or the loader was shut down.
        """
        loader = self.dataloader
        if self.iterator_id != loader.valid_iterator_id:
            loader.finalize_iteration()
            raise RuntimeError(
                "This iterator has been invalidated because another iterator has been created "
                f"from the same DataLoader2: {loader}"
            )
        if self.limit_threshold is None or self.limit_counter is None:
            return loader.next_item()
        if not self._is_paused and self.limit_counter >= self.limit_threshold:
            self._pause()
        if self._is_paused:
            raise PauseIteration("DataLoader2 is paused: `resume()` continues")
        item = loader.next_item()
        self.limit_counter += 1
        return item

    def limit(self, num_batches: int | None) -> None:
        """Pause after a number of further items: the loop ends, and `resume` continues after them.

        The limit applies again after each `resume`.

        Args:
            num_batches: The number, counted from now; None: no limit.

        Raises:
            ConfigError: The number is negative.
        """
        self.limit_threshold = None if num_batches is None else check_count("num_batches", num_batches)
        self.limit_counter = None if num_batches is None else 0
        if num_batches is None and self._is_paused:
            self.resume()
        self.dataloader.call_service("_limit", num_batches)

    def resume(self) -> None:
        """Continue after the limit was reached; warns if it was not."""
        if not self._is_paused:
            warnings.warn("`resume` was called, but the DataLoader2 is not paused", stacklevel=2)
            return
        self._is_paused = False
        if self.limit_counter is not None:
            self.limit_counter = 0
        self.dataloader.call_service("_resume")

    def _pause(self) -> None:
        self._is_paused = True
        if not self.dataloader.call_service("_pause") and self.dataloader.reading_service is not None:
            name = type(self.dataloader.reading_service).__name__
            warnings.warn(f"{name} doesn't support `pause`", stacklevel=4)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataloader":
            raise AttributeError(name)
        return self.dataloader.pipe_attribute(name)
