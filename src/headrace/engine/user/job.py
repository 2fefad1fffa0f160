"""`Job`: the user's functions that workers run, sent to each worker once.

Invariant: a job is immutable, and says nothing about how many workers there are or where they live.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.rng import derive_seed

from .worker_info import RunsIn, WorkerInfo


class Mode(enum.Enum):
    """Whether work can be indexed.

    `TASK`: the function maps the payload of a ticket to its result, and can do so again.
    `STREAM`: the function maps the payload of a run to an iterator, one in each worker; ticket t is item t // W of the
    iterator of worker t % W.
    """

    TASK = "task"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Job:
    """The functions that every worker runs.

    Attributes:
        setup: Called once in each worker, and again when it is restarted; returns the function that does the work:
            payload -> result in task mode, payload -> iterator in stream mode.
        worker_init: Called before `setup`: the user's hook.
        seed: Where the workers' own seeds come from.
        preload: Modules that each worker imports, and that may be imported once for all of them, before they are
            forked: they must start no thread. Empty: a few known ones, as far as the job refers to them.

    Examples:
        >>> from headrace.engine import Engine, Job
        >>> def setup(info):
        ...     return lambda number: number * 10
        >>> with Engine(Job(setup, seed=1), num_workers=0) as engine:
        ...     [delivered.value for delivered in engine.run(range(2))]
        [0, 10]
    """

    setup: Callable[[WorkerInfo], Callable[[Any], Any]]
    worker_init: Callable[[WorkerInfo], None] | None = None
    seed: int = 0
    preload: tuple[str, ...] = ()

    def info_of(
        self,
        worker_idx: int,
        num_workers: int,
        executor: str,
        *,
        runs_in: RunsIn = "thread",
        handed: tuple[int, ...] = (),
    ) -> WorkerInfo:
        """Describe one worker of this job."""
        seed = derive_seed(self.seed, "worker", corpus_idx=worker_idx, bits=63)
        return WorkerInfo(worker_idx, num_workers, executor, seed, runs_in, handed)
