"""What a reading service is: it takes a graph of pipes and returns a pipe that gives its items, from wherever.

And what all of ours do to such a pipe: pause it, put a prefetcher behind it, end its threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.errors import InternalError
from headrace.pipes import IterPipe
from headrace.pipes.core.registry import find_function
from headrace.pipes.graph import list_pipes
from headrace.pipes.graph.seeds import SeedGenerator

ResetFn: TypeAlias = Callable[[Any], Any]
"""Called with a graph when an epoch begins; returns the graph."""


@dataclass(frozen=True)
class WorkerInfo:
    """Who a worker is, as `worker_init_fn` and `worker_reset_fn` are told.

    Attributes:
        num_workers: How many there are.
        worker_id: 0 .. num_workers - 1.
    """

    num_workers: int
    worker_id: int


class ReadingServiceInterface(ABC):
    """The base class of reading services.

    `DataLoader2` works with a copy, made before `initialize`. A service may also have `_pause(pause_fn=None)`,
    `_resume(resume_fn=None)` and `_limit(num_batches, limit_fn=None)`.
    """

    @abstractmethod
    def initialize(self, datapipe: Any) -> Any:
        """Take over a graph, before its first iteration; return what is to be iterated over in its place."""

    def finalize(self) -> None:  # noqa: B027 - optional
        """End what `initialize` began. May be called more than once."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Get ready for an epoch.

        Args:
            seed_generator: The randomness of this epoch.
            iter_reset_fn: What a service before this one wants done to graphs elsewhere, in workers.

        Returns:
            What the caller is to do to the pipe that `initialize` returned.
        """
        del seed_generator, iter_reset_fn
        return None

    def finalize_iteration(self) -> None:  # noqa: B027 - optional
        """Take note of the end of an epoch."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # of one that was never made
            self.finalize()


class PausableEnd:
    """What a service can do with the pipe in this process that ends its graph: pause, resume, and apply a limit."""

    _end: Any

    def _pause(self, pause_fn: ResetFn | None = None) -> None:
        """Have nothing be made ahead in this process; workers stop by themselves when they are far enough ahead."""
        for pipe in reversed(list_pipes(self._end)):  # readers first: they may be waiting for an item of their source
            _call(pipe, "pause")
        if pause_fn is not None:
            pause_fn(self._end)

    def _resume(self, resume_fn: ResetFn | None = None) -> None:
        """Undo `_pause`."""
        for pipe in list_pipes(self._end):
            _call(pipe, "resume")
        if resume_fn is not None:
            resume_fn(self._end)

    def _limit(self, num_batches: int | None, limit_fn: Callable[[Any, int | None], Any] | None = None) -> None:
        """Apply what a service before this one asks for; the limit itself is the iterator's."""
        if limit_fn is not None:
            limit_fn(self._end, num_batches)


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service with a state of its own, beside where the iteration is."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Return the state."""

    @abstractmethod
    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Take over a graph with a state: in place of `initialize`."""


def _call(pipe: Any, method: str) -> None:
    function = getattr(type(pipe), method, None)
    if callable(function):
        function(pipe)


def prefetched(datapipe: Any, count: int) -> Any:
    """Return a pipe that reads another up to `count` items ahead, in a thread; the same pipe if it is 0."""
    return appended("prefetch", datapipe, count) if count > 0 else datapipe


def appended(name: str, datapipe: Any, *arguments: Any) -> Any:
    """Return an operation of ours, by its functional name, over any pipe.

    Raises:
        InternalError: There is none of this name.
    """
    operation = find_function(IterPipe, name)
    if operation is None:
        raise InternalError(f"there is no operation {name!r}")
    return operation(datapipe, *arguments)


def shut_down(datapipe: Any) -> None:
    """End the threads of all pipes of a graph that have any, from the end to the sources."""
    for pipe in reversed([] if datapipe is None else list_pipes(datapipe)):
        _call(pipe, "shutdown")
