"""`SequentialReadingService`: applies several reading services to a graph, one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.errors import ConfigError, ResumeError
from headrace.pipes.graph.seeds import SeedGenerator

from ..interface import CheckpointableReadingServiceInterface, Processes, ReadingServiceInterface, ResetFn


class SequentialReadingService(CheckpointableReadingServiceInterface):
    """Applies each service to the result of the one before, for example ranks and then workers.

    Args:
        *reading_services: At least one, in the order in which they take the graph over.

    Raises:
        ConfigError: There is none, or one is not a reading service.

    Examples:
        >>> import headrace as hr
        >>> def make_service(num_workers):  # ranks first, then the workers of each
        ...     return hr.SequentialReadingService(
        ...         hr.DistributedReadingService(), hr.MultiProcessingReadingService(num_workers=num_workers)
        ...     )
        >>> service = make_service(num_workers=2)
    """

    def __init__(self, *reading_services: ReadingServiceInterface) -> None:
        self.reading_services: list[ReadingServiceInterface] = []
        if not reading_services:
            raise ConfigError("SequentialReadingService needs at least one reading service")
        for service in reading_services:
            if not isinstance(service, ReadingServiceInterface):
                raise ConfigError(f"{service!r} is not a reading service")
        self.reading_services = list(reading_services)

    def initialize(self, datapipe: Any) -> Any:
        """Let each service take the graph over."""
        for service in self.reading_services:
            datapipe = service.initialize(datapipe)
        return datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Let each service prepare an epoch, with the function of the one before."""
        chained = iter_reset_fn
        for service in self.reading_services:
            chained = service.initialize_iteration(seed_generator, chained)
        return chained

    def finalize_iteration(self) -> None:
        """Tell the services of the end of an epoch, the last one first."""
        for service in reversed(self.reading_services):
            service.finalize_iteration()

    def finalize(self) -> None:
        """End the services, the last one first; all of them, even if one fails."""
        error: Exception | None = None
        for service in reversed(self.reading_services):
            try:
                service.finalize()
            except Exception as failure:  # noqa: BLE001 - raised after the others were ended
                error = error or failure
        if error is not None:
            raise error

    def checkpoint(self) -> bytes:
        """Return the states of the services that have one."""
        states: list[bytes] = []
        for service in self.reading_services:
            if isinstance(service, CheckpointableReadingServiceInterface):
                states.append(service.checkpoint())
            else:
                warnings.warn(f"{type(service).__name__} has no state of its own to save", stacklevel=2)
                states.append(b"")
        return msgspec.msgpack.encode(states)

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Let each service take the graph over with its state.

        Raises:
            ResumeError: The state is of another number of services.
        """
        states = msgspec.msgpack.decode(serialized_state, type=list[bytes])
        if len(states) != len(self.reading_services):
            raise ResumeError(
                f"the state was saved with {len(states)} reading services, and there are {len(self.reading_services)}"
            )
        for service, state in zip(self.reading_services, states, strict=True):
            if isinstance(service, CheckpointableReadingServiceInterface):
                datapipe = service.restore(datapipe, state)
            else:
                warnings.warn(f"{type(service).__name__} has no state of its own to restore", stacklevel=2)
                datapipe = service.initialize(datapipe)
        return datapipe

    def _processes(self) -> Processes:
        each = [processes() for processes in self._offered("_processes")]
        num_ranks, num_workers, run_user_code = zip(Processes(), *each, strict=True)
        return Processes(max(num_ranks), max(num_workers), any(run_user_code))

    def _interrupt(self) -> None:
        for interrupt in self._offered("_interrupt"):
            interrupt()

    def _pause(self, pause_fn: ResetFn | None = None) -> None:
        for pause in self._offered("_pause"):
            pause_fn = pause(pause_fn)

    def _resume(self, resume_fn: ResetFn | None = None) -> None:
        for resume in self._offered("_resume"):
            resume_fn = resume(resume_fn)

    def _limit(self, num_batches: int | None, limit_fn: Callable[[Any, int | None], Any] | None = None) -> None:
        for limit in self._offered("_limit"):
            limit_fn = limit(num_batches, limit_fn)

    def _offered(self, method: str) -> Iterator[Callable[..., Any]]:
        """Yield a method that services may have, of those that have it."""
        for service in self.reading_services:
            if (offered := getattr(service, method, None)) is not None:
                yield offered
