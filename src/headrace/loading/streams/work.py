"""How the batches of a stream are made: each worker reads the stream for itself, and makes every W-th batch of a rank.

So nothing goes through the trainer, the batches are the same for any number of workers, and what is expensive about a
sequence (its transform, padding, a collate) is shared out; reading is not: it is done once in each worker. Without
workers the trainer reads, when it waits for a batch. A worker that died begins anew where the run began. A stream with
workers of its own is read by the trainer, and what it has read is carried to the workers of the loader, see
`epochs.py`.
Invariants of the first way: step s of a run is made by worker s mod W, as item s // W of its iterator; the run ends
with one `StreamEnd` or one `StreamBroken`, whatever becomes of single batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Failure, WorkerInfo
from headrace.errors import ConfigError

from ..plan import PlanRecipe
from ..steps import EpochRun, Step, checked_steps
from ..work import BatchWork, Task
from .input import StreamSubject
from .plan import Progress, StreamPlan


@dataclass(slots=True)
class MadeStep:
    """One step, made.

    Attributes:
        step: Which.
        seq_idx: Positions of its members in the stream, `int64[n]`.
        chunk_starts: First frame of each, `int64[n]`; None if all are whole.
        value: What `BatchWork` made.
        progress: So far.
        marks: Of the windows that this worker has read since its last step, see `marks.py`.
    """

    step: Step
    seq_idx: NDArray[np.int64]
    chunk_starts: NDArray[np.int64] | None
    value: Any
    progress: Progress
    marks: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Stands for the step behind the last one.

    Attributes:
        progress: At the end.
        marks: As those of a step.
        num_windows: How many windows this worker has found in the epoch.
    """

    progress: Progress
    marks: list[tuple[int, int]]
    num_windows: int


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The stream cannot be read on. It is no error of a ticket: a policy that skips these must not skip the rest.

    Attributes:
        failure: A `Failure`, encoded where it goes to another process.
    """

    failure: Failure | bytes

    def raisable(self, ticket: int, worker_idx: int) -> BaseException:
        """Return what the consumer gets."""
        failure = Failure.from_bytes(self.failure) if isinstance(self.failure, bytes) else self.failure
        return failure.raisable(ticket, worker_idx)


@dataclass(frozen=True)
class StreamWork:
    """Opens the stream in a worker; returns the function run -> iterator over this worker's steps.

    Attributes:
        subject: The stream.
        recipe: How its sequences form batches.
        work: What is done to a batch.
    """

    subject: StreamSubject
    recipe: PlanRecipe
    work: BatchWork

    def __call__(self, info: WorkerInfo) -> Callable[[EpochRun], Iterator[Any]]:
        """Get ready in a worker."""
        subject, make = self.subject.for_worker(info), self.work(info)

        def begin(run: EpochRun) -> Iterator[Any]:
            if subject.num_shards != run.num_shards:
                raise ConfigError(
                    f"{subject.name} has {run.num_shards} shards in the trainer, and {subject.num_shards} in a worker",
                    where=f"worker {info.worker_idx}, epoch {run.epoch}",
                    fix="start the distributed training before loader.start()",
                )
            is_marked = info.num_workers > 1
            plan = StreamPlan(
                subject,
                self.recipe,
                run.epoch,
                run.window,
                is_marked=is_marked,
                keeps_globals=info.runs_in != "process",
            )
            return _Steps(run, plan, make, info)

        return begin


class _Steps(Iterator[Any]):
    """Not a generator: a batch that cannot be made is an error of its own, and the next one follows."""

    def __init__(self, run: EpochRun, plan: StreamPlan, make: Callable[[Task], Any], info: WorkerInfo) -> None:
        self._plan, self._make, self._info = plan, make, info
        self._steps = checked_steps(run, plan)
        self._num_steps = 0
        self._is_over = False

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            found = self._next_own()
        except Exception as error:  # noqa: BLE001 - what reads the stream is user code: it goes on as a Failure
            self._is_over = True
            failure = Failure.of(error)
            return StreamBroken(failure.to_bytes() if self._info.runs_in == "process" else failure)
        if found is None:
            self._is_over = True
            if self._num_steps % self._info.num_workers == self._info.worker_idx:
                return StreamEnd(self._plan.progress, self._plan.take_marks(), self._plan.num_windows)
            raise StopIteration
        step, task, seq_idx = found
        value = self._make(task)  # may raise; the marks then go with the next step
        return MadeStep(step, seq_idx, task.chunk_starts, value, self._plan.progress, self._plan.take_marks())

    def _next_own(self) -> tuple[Step, Task, NDArray[np.int64]] | None:
        for step in self._steps:
            self._num_steps += 1
            if (self._num_steps - 1) % self._info.num_workers == self._info.worker_idx:
                return step, *self._plan.task(step.number)
            if not step.is_repeat:
                self._plan.pass_over(step.number)
        return None
