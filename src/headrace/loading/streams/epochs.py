"""Begins epochs of streams: decides which process reads a stream, and which make its batches.

If there is a transform or collate, one additional worker reads for all others; if there is none, one worker does
everything; a stream that has workers of its own is read by the trainer, as are all streams without workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from headrace.batching import PlanCounts
from headrace.engine import Engine, EngineOptions, Raising, where_runs
from headrace.errors import ConfigError
from headrace.ranks import Ranks

from ..epochs import Epochs, Recipe
from ..iterate import CloseableRun, LoaderPosition
from ..plan import NoLengthError, Progress
from ..steps import Arrivals, EpochRun, PlannedArrivals, checked_steps
from ..work import CarriedTask
from .input import StreamSubject
from .marks import WindowMarks
from .plan import StreamPlan
from .runs import CarriedRun, StreamArrivals
from .work import CarriedWork, Carrying, StreamWork


class StreamStarter(Protocol):
    """Decides which process reads a stream, and which make its batches."""

    is_resizable: bool
    """Whether workers may come and go: none of them reads it."""

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines whose workers read it and make its batches; the last one makes them."""

    def who_works(self, num_workers: int) -> str:
        """Return which processes do what, as text.

        Args:
            num_workers: How many were asked for.
        """

    def begin(self, run: EpochRun, on_progress: Callable[[Progress], None]) -> tuple[CloseableRun, Arrivals]:
        """Begin; a wrong position is reported with the first batch."""

    def close(self) -> None:
        """End the workers."""


class ReadAndMade:
    """One worker, or the trainer, reads and plans the stream, and makes the batches."""

    is_resizable = False

    def __init__(self, subject: StreamSubject, recipe: Recipe) -> None:
        num_workers = min(recipe.options.num_workers, 1)
        self.engines = (recipe.open_engine(StreamWork(subject, recipe.plan, recipe.work), num_workers=num_workers),)
        self._name = subject.name

    def who_works(self, num_workers: int) -> str:
        """Return that one worker does everything, as text."""
        return f"1 of {num_workers}, as nothing is done to what it reads" if num_workers > 1 else str(num_workers)

    def begin(self, run: EpochRun, on_progress: Callable[[Progress], None]) -> tuple[CloseableRun, Arrivals]:
        """Begin a pass over the stream."""
        return self.engines[0].run_stream(run), StreamArrivals(on_progress, WindowMarks(self._name, run.epoch))

    def close(self) -> None:
        """End the worker."""
        self.engines[0].close()


class ReadForAll:
    """One more worker reads and plans the stream for all the others, which make the batches.

    It may be as far ahead of them as all of them together are of the consumer.
    """

    is_resizable = False

    def __init__(self, subject: StreamSubject, recipe: Recipe) -> None:
        options = recipe.options
        self._name = subject.name
        executor = options.limited_executor(options.num_workers + 1)
        ahead = options.engine_options or EngineOptions()
        reader = recipe.open_engine(
            StreamWork(subject, recipe.plan, Carrying()),
            num_workers=1,
            executor=executor if isinstance(executor, str) else executor.another(),
            max_bytes=None,
            engine_options=replace(
                ahead,
                on_error=Raising(),  # what is read is not skipped
                tickets_per_worker=ahead.min_tickets * options.num_workers,
                look_ahead=None,
            ),
        )
        makers = recipe.open_engine(CarriedWork(recipe.work), executor=executor, max_bytes=None)
        makers.report.workers += reader.report.workers
        self.engines = reader, makers

    def who_works(self, num_workers: int) -> str:
        """Count the reader as well."""
        return f"{num_workers}, and one that reads for them"

    def begin(self, run: EpochRun, on_progress: Callable[[Progress], None]) -> tuple[CloseableRun, Arrivals]:
        """Begin a pass over the stream; the other workers begin when the first batch is waited for."""
        reader, makers = self.engines
        read = StreamArrivals(on_progress, WindowMarks(self._name, run.epoch))
        carried = CarriedRun(reader.run_stream(run), makers, read)
        return carried, carried.arrivals

    def close(self) -> None:
        """End the workers."""
        for engine in self.engines:
            engine.close()


class ReadByTrainer:
    """The trainer reads and plans the stream, which has workers of its own; sequences are carried to the loader's."""

    is_resizable = True

    def __init__(self, subject: StreamSubject, recipe: Recipe) -> None:
        self._subject, self._recipe = subject, recipe
        self.engines = (recipe.open_engine(recipe.work),)

    def who_works(self, num_workers: int) -> str:
        """Return how many workers make batches, as text."""
        return str(num_workers)

    def begin(self, run: EpochRun, on_progress: Callable[[Progress], None]) -> tuple[CloseableRun, Arrivals]:
        """Begin a pass over the stream here."""
        recipe, arrivals = self._recipe, PlannedArrivals()
        plan = StreamPlan(self._subject, recipe.plan, run.epoch, run.window)
        tasks = arrivals.tasks(plan, checked_steps(run, plan))
        return self.engines[0].run(_with_progress(tasks, plan, on_progress)), arrivals

    def close(self) -> None:
        """End the workers."""
        self.engines[0].close()


def _with_progress(
    tasks: Iterator[CarriedTask], plan: StreamPlan, on_progress: Callable[[Progress], None]
) -> Iterator[CarriedTask]:
    for task in tasks:
        on_progress(plan.progress)
        yield task
    on_progress(plan.progress)


def _open_starter(subject: StreamSubject, recipe: Recipe) -> StreamStarter:
    """Decide who reads a stream."""
    options = recipe.options
    if options.num_workers and subject.has_workers:
        return ReadByTrainer(subject, recipe)
    is_plain = options.transform is None and options.collate is None  # carrying costs as much as laying out
    is_shared = options.num_workers > 1 and not is_plain and where_runs(options.executor) != "caller"
    return ReadForAll(subject, recipe) if is_shared else ReadAndMade(subject, recipe)


class StreamEpochs(Epochs):
    """Epochs of a stream, whose order is not known before it is read."""

    def __init__(self, subject: StreamSubject, recipe: Recipe) -> None:
        super().__init__(subject, recipe)
        self._starter = _open_starter(subject, recipe)
        self.engine = self._starter.engines[-1]
        self._epoch = 0
        self._progress = Progress()

    @property
    def who_works(self) -> str:
        """How many workers there are, and which process reads."""
        return self._starter.who_works(self._recipe.options.num_workers)

    def resize(self, num_workers: int) -> None:
        """Change the number of workers, if the trainer reads the stream.

        Raises:
            ConfigError: Workers read it.
        """
        if self._recipe.options.num_workers and not self._starter.is_resizable:
            raise ConfigError(
                f"resize({num_workers}): one worker reads this stream and distributes it to a fixed number of others",
                where=self._subject.name,
                fix="close this loader and make another one with the new number: load_state_dict continues exactly",
            )
        super().resize(num_workers)

    def start(self) -> None:
        """Start the workers, also the one that reads."""
        for engine in self._starter.engines:
            engine.start()

    def close(self) -> None:
        """End all workers."""
        self._starter.close()

    def begin(self, position: LoaderPosition, ranks: Ranks) -> tuple[CloseableRun, Arrivals]:
        """Begin; a wrong position is reported with the first batch."""
        self._epoch, self._progress = position.epoch, Progress()
        return self._starter.begin(self._run_at(position, ranks), self._take_progress)

    def _take_progress(self, progress: Progress) -> None:
        if progress.num_planned >= self._progress.num_planned:  # one worker may be behind another
            self._progress = progress

    def num_steps(self, epoch: int, position: int, ranks: Ranks) -> int:
        """Return `steps_per_epoch`.

        Raises:
            NoLengthError: `steps_per_epoch` was not given.
        """
        del epoch
        options = self._recipe.options
        if options.steps_per_epoch is None:
            raise NoLengthError("the number of steps of a stream is not known", fix="give steps_per_epoch=")
        return max(options.steps_per_epoch - position // ranks.world_size, 0)

    def count(self, epoch: int, ranks: Ranks) -> PlanCounts:
        """Not known."""
        del ranks
        raise NoLengthError(
            f"what epoch {epoch} of a stream holds is not known before it was read", fix="see explain()"
        )

    def is_empty(self) -> bool:
        """Tell whether the reader has reported no sequences."""
        return self._progress.counts.seqs == 0

    def progress(self) -> tuple[int, Progress]:
        """Return what the reader has reported."""
        return self._epoch, self._progress
