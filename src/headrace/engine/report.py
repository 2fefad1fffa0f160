"""Statistics of an engine: where time was spent, and counts of events, summed over all of its runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class WorkerReport:
    """Statistics of one worker.

    Attributes:
        num_tickets: How many tickets it answered, also such as were given up later.
        num_restarts: How often it was restarted.
        seconds_loaded: Time in user code.
        seconds_transport: Time to put values where the consumer sees them.
        seconds_awaited: Time in which the consumer could not go on because it waited for this one.
        num_bytes: Bytes of results in memory between processes.

    Examples:
        >>> from headrace.engine import Engine, Job
        >>> def setup(info):
        ...     return lambda number: number * 10
        >>> with Engine(Job(setup), num_workers=0) as engine:
        ...     values = [delivered.value for delivered in engine.run(range(3))]
        >>> [worker.num_tickets for worker in engine.report.workers]
        [3]
    """

    num_tickets: int = 0
    num_restarts: int = 0
    seconds_loaded: float = 0.0
    seconds_transport: float = 0.0
    seconds_awaited: float = 0.0
    num_bytes: int = 0


@dataclass(slots=True)
class EngineReport:
    """Statistics of an engine.

    Attributes:
        num_delivered: Values handed to the consumer.
        num_skipped: Tickets, or items of tickets, that were left out.
        num_lost: Values that were made and then given up, because the consumer left early.
        seconds_waited: Time in which the consumer could not go on for want of a value.
        seconds_taken: Time to turn what came into values, in the consumer's thread.
        seconds_consumer: Time the consumer spent on its own between two values.
        workers: One entry for each worker, also for those that are gone.

    Examples:
        >>> from headrace.engine import Engine, Job
        >>> def setup(info):
        ...     return lambda number: number * 10
        >>> with Engine(Job(setup), num_workers=0) as engine:
        ...     values = [delivered.value for delivered in engine.run(range(3))]
        >>> engine.report.num_delivered, engine.report.num_skipped
        (3, 0)
    """

    num_delivered: int = 0
    num_skipped: int = 0
    num_lost: int = 0
    seconds_waited: float = 0.0
    seconds_taken: float = 0.0
    seconds_consumer: float = 0.0
    workers: list[WorkerReport] = field(default_factory=list)

    @property
    def seconds_loaded(self) -> float:
        """Time in user code, over all workers."""
        return sum(worker.seconds_loaded for worker in self.workers)

    @property
    def seconds_transport(self) -> float:
        """Time to move values, over all workers and the consumer."""
        return self.seconds_taken + sum(worker.seconds_transport for worker in self.workers)

    @property
    def num_restarts(self) -> int:
        """How often a worker was restarted."""
        return sum(worker.num_restarts for worker in self.workers)

    def expect(self, worker_idx: int) -> None:
        """Make sure that there is an entry for a worker, and for all before it."""
        while len(self.workers) <= worker_idx:
            self.workers.append(WorkerReport())
