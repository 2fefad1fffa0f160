"""The iterator over the batches of one epoch on one rank: joins the plan to the workers.

Invariants: where the consumer is, `place`, moves when a batch is handed over and never when one is prefetched; it is
the same on all ranks after as many steps. All runs in the consumer's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Engine, Run
from headrace.errors import HeadraceError, TransformError
from headrace.ranks import Ranks

from .batch import Batch, Packing
from .plan import EpochPlan, Step, plan_steps
from .stream import StreamPlan
from .work import MadeBatch, Task


@dataclass(frozen=True, slots=True)
class Place:
    """Where a consumer is.

    Attributes:
        epoch: In which epoch.
        position: Batches of it that all ranks are done with.
        window: The window of the next batch, and the number of its first batch.
    """

    epoch: int
    position: int = 0
    window: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A batch that workers were asked for; of the places only what the batch will tell."""

    step: Step
    task: Task
    places: NDArray[np.int64]


class BatchIterator(Iterator[Any]):
    """The batches of the rest of an epoch. Not thread-safe.

    Args:
        engine: Whose current run this becomes.
        plan: Of the epoch.
        place: Where to begin.
        ranks: Which batches are ours.
        remainder: See `DataLoader`.
        on_place: Called with each new place of the consumer.
        data_key: Of the batches.
        max_steps: Steps of a whole epoch that every rank has to have; None: as many as there are.
    """

    def __init__(
        self,
        engine: Engine,
        plan: EpochPlan | StreamPlan,
        place: Place,
        *,
        ranks: Ranks,
        remainder: str,
        on_place: Callable[[Place], None],
        data_key: str | None,
        max_steps: int | None = None,
    ) -> None:
        self.plan = plan
        self.is_over = False
        self._superseded: str | None = None
        self._ranks = ranks
        self._on_place = on_place
        self._data_key = data_key
        self._asked: deque[_Asked] = deque()
        self._next_ticket = 0
        self._layout: dict[str, tuple[Any, int]] | None = None
        self._steps = plan_steps(plan, ranks.rank, ranks.world_size, place.position, remainder)
        if max_steps is not None:
            self._steps = _exactly(self._steps, max_steps, place.position // ranks.world_size, plan)
        self._run: Run = engine.run(_tasks(plan, self._steps, self._asked))

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the epoch.
            HeadraceError: Another iteration has begun, or the loader was closed; or a batch was left out on one of
                several ranks.
            BaseException: What user code raised.
        """
        if self._superseded is not None:
            raise HeadraceError(f"this iterator is over, because {self._superseded}", where=f"epoch {self.plan.epoch}")
        if self.is_over:
            raise StopIteration
        try:
            delivered = next(self._run)
        except StopIteration:
            self._check_gap(self._next_ticket + len(self._asked))
            self.is_over = True
            self._on_place(Place(self.plan.epoch + 1))
            raise
        except BaseException:
            self.is_over = True
            raise
        try:
            self._check_gap(delivered.ticket)
            asked = self._asked.popleft()
            self._next_ticket += 1
            value = self._batch(asked, delivered.value) if isinstance(delivered.value, MadeBatch) else delivered.value
        except BaseException:
            self.close()
            raise
        self._on_place(Place(self.plan.epoch, asked.step.position, asked.step.window))
        return value

    def close(self) -> None:
        """Give up what is under way; the workers stay. Harmless at any time."""
        self.is_over = True
        self._run.close()

    def supersede(self, reason: str) -> None:
        """Close it for a reason that the consumer did not give: it raises from now on, and never seems complete."""
        if not self.is_over:
            self._superseded = reason
            self.close()

    def _check_gap(self, ticket: int) -> None:
        """Pass over batches that were left out because of errors."""
        while self._next_ticket < ticket:
            asked = self._asked.popleft()
            self._next_ticket += 1
            if self._ranks.world_size > 1:
                self.close()
                raise HeadraceError(
                    f"batch {asked.step.number} was left out because of an error, so rank {self._ranks.rank} would "
                    "have one step less than the others",
                    where=f"epoch {self.plan.epoch}, rank {self._ranks.rank} of {self._ranks.world_size}",
                    fix="mend what fails (the quarantine file names it); single sequences are skipped without harm",
                )

    def _batch(self, asked: _Asked, made: MadeBatch) -> Batch:
        self._check_layout(asked.step.number, made)
        task, places, indices = asked.task, asked.places, asked.task.indices
        starts = task.chunk_starts
        if made.kept is not None:
            places, indices = places[made.kept], indices[made.kept]
            starts = None if starts is None else starts[made.kept]
        data_key = self._data_key if self._data_key in made.lengths else next(iter(made.lengths), None)
        return Batch(
            made.arrays,
            made.lengths,
            made.tags,
            places,
            indices if task.seqs is None else np.full(len(indices), -1),
            task.epoch,
            asked.step.number,
            asked.step.step,
            asked.step.is_repeat,
            starts,
            None if made.packing is None else Packing(*made.packing),
            data_key,
        )

    def _check_layout(self, number: int, made: MadeBatch) -> None:
        """Refuse a data key whose dtype or axes change in mid-epoch, and keys that come and go."""
        layout = {
            key: (value.dtype, value.ndim) if isinstance(value, np.ndarray) else (None, 0)
            for key, value in made.arrays.items()
        }
        if self._layout is None:
            self._layout = layout
        if layout == self._layout:
            return
        key = next(key for key in (*layout, *self._layout) if layout.get(key) != self._layout.get(key))
        before, now = (_layout_text(one.get(key)) for one in (self._layout, layout))
        raise TransformError(
            f"the data key {key!r} changes in mid-epoch: {before} before, and {now} now",
            where=f"batch {number} of epoch {self.plan.epoch}",
            fix="let the transform return the same keys, dtypes and axes for all sequences",
        )


class LoaderEpoch:
    """One epoch of a loader: iterating over it gives its batches, from the loaded position on if there is one.

    Args:
        epoch: Its number.
        begin: Begins an epoch.
        num_steps: Returns the number of steps of an epoch.
    """

    def __init__(self, epoch: int, begin: Callable[[int], BatchIterator], num_steps: Callable[[int], int]) -> None:
        self.epoch = epoch
        self._begin, self._num_steps = begin, num_steps

    def __iter__(self) -> BatchIterator:
        return self._begin(self.epoch)

    def __len__(self) -> int:
        """Return the number of steps of the whole epoch, see `DataLoader.num_steps`."""
        return self._num_steps(self.epoch)

    def __repr__(self) -> str:
        return f"<LoaderEpoch {self.epoch}>"


def _exactly(steps: Iterator[Step], max_steps: int, first: int, plan: EpochPlan | StreamPlan) -> Iterator[Step]:
    """Yield the steps of an epoch of a given length.

    Raises:
        HeadraceError: There are fewer.
    """
    for num_done in range(first, max_steps):
        step = next(steps, None)
        if step is None:
            raise HeadraceError(
                f"epoch {plan.epoch} ended after {num_done} of steps_per_epoch={max_steps} steps on this rank",
                fix="lower steps_per_epoch, or give ranks equal shares of the data",
            )
        yield step


def _tasks(plan: EpochPlan | StreamPlan, steps: Iterator[Step], asked: deque[_Asked]) -> Iterator[Task]:
    """Yield the tasks of the steps, and remember them. A function, so that a dropped iterator is no garbage cycle."""
    for step in steps:
        task, places = plan.task(step.number)
        asked.append(_Asked(step, task, places))
        yield task


def _layout_text(layout: tuple[Any, int] | None) -> str:
    if layout is None:
        return "not there"
    return "texts or objects" if layout[0] is None else f"{layout[0]} with {layout[1]} axes"
