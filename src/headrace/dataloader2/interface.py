"""The interface of reading services: they take a graph of pipes, and return a pipe that gives its items.

Also what Headrace's services share: pausing such a pipe, prefetching from it, ending its threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import TransformError
from headrace.pipes.graph import is_pipe, list_pipes
from headrace.pipes.graph.seeds import SeedGenerator
from headrace.pipes.ops.buffers.prefetch import Prefetcher

ResetFn: TypeAlias = Callable[[Any], Any]
"""Called with a graph when an epoch begins; returns the graph."""


@dataclass(frozen=True)
class WorkerInfo:
    """The identity of a worker, for `worker_init_fn` and `worker_reset_fn`.

    Attributes:
        num_workers: How many workers there are.
        worker_id: The number of this one, 0 .. num_workers - 1.

    Examples:
        >>> from headrace.dataloader2 import MultiProcessingReadingService, WorkerInfo
        >>> def prepare(pipe, info: WorkerInfo):
        ...     print(f"worker {info.worker_id} of {info.num_workers}")
        ...     return pipe
        >>> service = MultiProcessingReadingService(num_workers=2, worker_init_fn=prepare)
    """

    num_workers: int
    worker_id: int


class Processes(NamedTuple):
    """The processes that share the items of an epoch, which services tell by a method `_processes`.

    Attributes:
        num_ranks: How many ranks there are.
        num_workers: How many workers each has; 0: the graph runs in the process that requests the items.
        run_user_code: Whether functions of the user may change the graph in each worker.
    """

    num_ranks: int = 1
    num_workers: int = 0
    run_user_code: bool = False


class ReadingServiceInterface(ABC):
    """The base class of reading services.

    `DataLoader2` works with a copy, made before `initialize`. A service may also have `_pause(pause_fn=None)`,
    `_resume(resume_fn=None)` and `_limit(num_batches, limit_fn=None)`.

    Examples:
        >>> from headrace.dataloader2 import DataLoader2, ReadingServiceInterface
        >>> from headrace.pipes.iter import IterableWrapper
        >>> class Batching(ReadingServiceInterface):
        ...     def initialize(self, datapipe):
        ...         return datapipe.batch(2)
        >>> with DataLoader2(IterableWrapper(range(3)), reading_service=Batching()) as loader:
        ...     list(loader)
        [[0, 1], [2]]
    """

    @abstractmethod
    def initialize(self, datapipe: Any) -> Any:
        """Take over a graph before its first iteration; return the pipe to iterate over instead."""

    def finalize(self) -> None:  # noqa: B027 - optional
        """End what `initialize` started. May be called more than once."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Prepare an epoch.

        Args:
            seed_generator: The randomness of this epoch.
            iter_reset_fn: Function of an outer service to apply to graphs elsewhere, in workers.

        Returns:
            The function that the caller applies to the pipe that `initialize` returned.
        """
        del seed_generator, iter_reset_fn
        return None

    def finalize_iteration(self) -> None:  # noqa: B027 - optional
        """Called at the end of an epoch."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # never initialized
            self.finalize()


class PausableEnd:
    """Pauses and resumes the last pipe of a service's graph, which runs in this process."""

    _end: Any

    def _pause(self, pause_fn: ResetFn | None = None) -> None:
        """Stop prefetching in this process; workers stop by themselves when they are far enough ahead."""
        for pipe in reversed(list_pipes(self._end)):  # readers first: they may be waiting for an item of a source
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
        """Call the function of an outer service; the iterator itself counts the items."""
        if limit_fn is not None:
            limit_fn(self._end, num_batches)


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service with a state of its own, besides the position of the iteration.

    Examples:
        >>> from headrace.dataloader2 import CheckpointableReadingServiceInterface
        >>> class Counting(CheckpointableReadingServiceInterface):
        ...     num_started = 0
        ...
        ...     def initialize(self, datapipe):
        ...         self.num_started += 1
        ...         return datapipe
        ...
        ...     def checkpoint(self):
        ...         return str(self.num_started).encode()
        ...
        ...     def restore(self, datapipe, serialized_state):
        ...         self.num_started = int(serialized_state)
        ...         return datapipe
    """

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Return the state."""

    @abstractmethod
    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Take over a graph with a state, instead of `initialize`."""


def _call(pipe: Any, method: str) -> None:
    function = getattr(type(pipe), method, None)
    if callable(function):
        function(pipe)


def checked_pipe(pipe: Any, option: str) -> Any:
    """Return the result of a user's function, which must be a pipe.

    Raises:
        TransformError: It is not a pipe.
    """
    if not is_pipe(pipe):
        raise TransformError(f"{option} must return a pipe, but returned {pipe!r}", fix="end it with `return datapipe`")
    return pipe


def prefetched(datapipe: Any, count: int) -> Any:
    """Return a pipe that reads another up to `count` items ahead in a thread; the pipe itself if `count` is 0."""
    return Prefetcher(datapipe, count) if count > 0 else datapipe


def shut_down(datapipe: Any) -> None:
    """End the threads of all pipes of a graph that have any, from the end to the sources."""
    for pipe in reversed([] if datapipe is None else list_pipes(datapipe)):
        _call(pipe, "shutdown")
