"""The work of workers for a stream: one worker reads and plans it, for any number of workers.

If there is a transform or a collate, what was read is carried through the trainer to the other workers, which make the
batches. Otherwise the worker that reads the sequences lays them out: to carry them costs as much. So each sequence is
read once in an epoch, and the batches are the same for any number of workers. Without workers the trainer reads, when
it waits for a batch. If the reader dies, another one begins where the run began. Who reads is decided in `epochs.py`.
Invariants: step s of a run is item s of the reader's iterator; the run ends with one `StreamEnd` or one `StreamBroken`,
whatever becomes of single batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Failure, WorkerInfo
from headrace.engine.user.ship import ship_payload, unship
from headrace.errors import ConfigError, takes_note

from ..plan import PlanRecipe, Progress
from ..steps import EpochRun, Step, checked_steps
from ..work import BatchWork, CarriedTask
from .input import StreamSubject
from .plan import StreamPlan

_WHY_CARRIED = (
    "headrace: one worker reads the stream, and its sequences are sent to others, which transform them: let them be "
    "data (arrays, numbers, texts), or give num_workers=1, which reads and transforms in one worker"
)


@dataclass(slots=True)
class MadeStep:
    """One step, made, or ready to be carried to the worker that makes it.

    Attributes:
        step: Which.
        seq_idx: Positions of its members in the stream, `int64[n]`.
        chunk_starts: First frame of each, `int64[n]`; None if all are whole.
        value: What `BatchWork` made, or the parcel of the task.
        progress: So far.
        marks: Marks of the windows that were read since the step before, see `StreamPlan.take_marks`.
    """

    step: Step
    seq_idx: NDArray[np.int64]
    chunk_starts: NDArray[np.int64] | None
    value: Any
    progress: Progress
    marks: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Marks the end of the stream.

    Attributes:
        progress: At the end.
        marks: As those of a step.
        num_windows: How many windows there are in the epoch.
    """

    progress: Progress
    marks: list[tuple[int, int]]
    num_windows: int


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The stream cannot be read further. Not an error of one ticket, which a policy might skip.

    Attributes:
        failure: A `Failure`, encoded where it goes to another process.
    """

    failure: Failure | bytes

    def raisable(self, ticket: int, worker_idx: int) -> BaseException:
        """Return the exception to raise at the consumer."""
        failure = Failure.from_bytes(self.failure) if isinstance(self.failure, bytes) else self.failure
        return failure.raisable(ticket, worker_idx)


@dataclass(frozen=True)
class StreamWork:
    """Opens the stream in the worker that reads it; returns the function run -> iterator over the steps.

    Attributes:
        subject: The stream.
        recipe: How its sequences form batches.
        work: What is done to a batch there.
    """

    subject: StreamSubject
    recipe: PlanRecipe
    work: BatchWork | Carrying

    def __call__(self, info: WorkerInfo) -> Callable[[EpochRun], Iterator[Any]]:
        """Get ready in a worker."""
        subject = self.subject.for_worker(info)
        is_process, make = info.runs_in == "process", self.work(info)

        def begin(run: EpochRun) -> Iterator[Any]:
            if subject.num_shards != run.num_shards:
                raise ConfigError(
                    f"{subject.name} has {run.num_shards} shards in the trainer, and {subject.num_shards} in a worker",
                    where=f"worker {info.worker_idx}, epoch {run.epoch}",
                    fix="start the distributed training before loader.start()",
                )
            plan = StreamPlan(
                subject,
                self.recipe,
                run.epoch,
                run.window,
                is_marked=info.runs_in != "caller",
                keeps_globals=not is_process,
            )
            return _StreamSteps(run, plan, make, is_process=is_process)

        return begin


@dataclass(frozen=True)
class Carrying:
    """Opens what carries the sequences of a batch through the trainer to others, in the worker that reads."""

    def __call__(self, info: WorkerInfo) -> Callable[[CarriedTask], Any]:
        """Get ready in the worker."""
        return ship_payload if info.runs_in == "process" else _pass_on


@dataclass(frozen=True)
class CarriedWork:
    """Opens what makes the batches of a stream that another worker reads; returns the function parcel -> batch.

    Attributes:
        work: What is done to a batch.
    """

    work: BatchWork

    def __call__(self, info: WorkerInfo) -> Callable[[Any], Any]:
        """Get ready in a worker."""
        make = self.work(info)

        def make_carried(parcel: CarriedTask | bytes) -> Any:
            return make(unship(parcel) if isinstance(parcel, bytes) else parcel)

        return make_carried


class _StreamSteps(Iterator[Any]):
    """Iterates over steps. Not a generator, so that it can go on after a batch that fails."""

    def __init__(
        self, run: EpochRun, plan: StreamPlan, make: Callable[[CarriedTask], Any], *, is_process: bool
    ) -> None:
        self._plan, self._make, self._is_process = plan, make, is_process
        self._is_carried = make is ship_payload
        self._steps = checked_steps(run, plan)
        self._is_over = False

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        plan = self._plan
        try:
            step = next(self._steps, None)
            found = None if step is None else plan.task(step.number)
        except Exception as error:  # noqa: BLE001 - what reads the stream is user code: it goes on as a Failure
            self._is_over = True
            failure = Failure.of(error)
            return StreamBroken(failure.to_bytes() if self._is_process else failure)
        if step is None or found is None:
            self._is_over = True
            return StreamEnd(plan.progress, plan.take_marks(), plan.num_windows)
        task, seq_idx = found
        try:
            value = self._make(task.carried())  # may raise; the marks then go with the next step
        except ConfigError as error:
            if self._is_carried:
                takes_note(error, _WHY_CARRIED)
            raise
        return MadeStep(step, seq_idx, task.chunk_starts, value, plan.progress, plan.take_marks())


def _pass_on(task: CarriedTask) -> CarriedTask:
    return task
