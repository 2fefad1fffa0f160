"""The iterator over the batches of one epoch on one rank: joins the plan to the workers.

Invariants: the position of the consumer moves when a batch is handed over and never when one is prefetched; it is the
same on all ranks after as many steps. All runs in the consumer's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Delivered
from headrace.errors import HeadraceError, TransformError
from headrace.ranks import Ranks

from .batch import Batch, Made, Packing, is_made
from .steps import Agreement, Plan, Step
from .work import Task

_logger = logging.getLogger("headrace.loading")
_TEXTS = None, 0  # the layout of a data key that has no arrays


class LoaderPosition(NamedTuple):
    """The position of a consumer.

    Attributes:
        epoch: The epoch.
        position: Batches of it that all ranks have done.
        window: The window of the next batch, and the number of its first batch.
    """

    epoch: int
    position: int = 0
    window: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class Consumer:
    """Who takes the batches of a loader.

    Attributes:
        position: Where it is.
    """

    position: LoaderPosition


@dataclass(slots=True)
class Arrived:
    """A batch that has come, as a run of the engine gives it.

    Attributes:
        step: Which it is.
        seq_idx: Positions of its members in the order of the epoch, `int64[n]`.
        corpus_idx: Their corpus indices, `int64[n]`.
        chunk_starts: First frame of each, `int64[n]`; None if all are whole.
        value: What `pack_made` returned, or what the user's collate returned.
    """

    step: Step
    seq_idx: NDArray[np.int64]
    corpus_idx: NDArray[np.int64]
    chunk_starts: NDArray[np.int64] | None
    value: Any


class Arrivals(Protocol):
    """What is known in the trainer of the batches of one run.

    Attributes:
        next_ticket: The ticket that comes next, if none is left out.
    """

    next_ticket: int

    def take(self, delivered: Delivered) -> Arrived | None:
        """Return what came; None stands for the end of the epoch.

        Raises:
            BaseException: What was delivered stands for an error.
        """

    def num_skipped(self, delivered: Delivered | None) -> int:
        """Return how many batches were left out just before this one (None: before the end), and give them up."""


class PlannedArrivals:
    """Batches that were planned before they are made.

    Attributes:
        asked: What is known of them, without their values, from the next ticket on.
    """

    def __init__(self) -> None:
        self.asked: deque[Arrived] = deque()
        self.next_ticket = 0

    def tasks(self, plan: Plan, steps: Iterator[Step]) -> Iterator[Task]:
        """Return the tasks of the steps, each of which is remembered when it is asked for."""
        return _tasks(plan, steps, self.asked)

    def take(self, delivered: Delivered) -> Arrived:
        """Return the batch of a ticket."""
        arrived = self.asked.popleft()
        self.next_ticket = delivered.ticket + 1
        arrived.value = delivered.value
        return arrived

    def num_skipped(self, delivered: Delivered | None) -> int:
        """Return how many tickets were left out."""
        num = len(self.asked) if delivered is None else delivered.ticket - self.next_ticket
        for _ in range(num):
            self.asked.popleft()
        self.next_ticket += num
        return num


class CloseableRun(Protocol):
    """What was begun: an iterator over what workers give."""

    def __next__(self) -> Delivered: ...

    def close(self) -> None:
        """Give up what is under way; harmless at any time."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that has begun: batches are on their way, and none was handed over yet.

    Attributes:
        position: Where it begins.
        ranks: For which rank.
        run: Of the workers.
        arrivals: What its tickets are.
        agreement: By which the ranks find out how many steps they have; None: they know.
        equal_steps_of: Which rank this is of those that must have equally many steps; None: it need not.
    """

    position: LoaderPosition
    ranks: Ranks
    run: CloseableRun
    arrivals: Arrivals
    agreement: Agreement | None
    equal_steps_of: str | None


class BatchIterator(Iterator[Any]):
    """The batches of the rest of an epoch. Not thread-safe.

    It has no effect on anything before it is asked for its first batch: only then the epoch is used up, and another
    iterator of the same loader is over. Batches may be on their way before, which no one can see.

    Args:
        start: Returns what is iterated over, when the first batch is asked for.
        consumer: Gets each new position.
        on_event: Called with this iterator when it has its first batch, or none, and when it is at its end.
        data_key: Of the batches.
        begun: What `start` may return, if nothing has happened in between.
    """

    def __init__(
        self,
        start: Callable[[BatchIterator], Begun],
        consumer: Consumer,
        on_event: Callable[[BatchIterator], None],
        data_key: str | None,
        begun: Begun | None,
    ) -> None:
        self.is_over = False
        self.has_delivered = False
        self.begun = begun
        self._active: Begun | None = None  # what it iterates over, from its first batch to its end
        self._superseded: str | None = None
        self._start, self._consumer, self._on_event = start, consumer, on_event
        self._data_key = data_key
        self._layout: dict[str, tuple[Any, int]] | None = None

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the epoch.
            HeadraceError: Another iteration has begun, or the loader was closed; or a batch was left out on one of
                several ranks.
            BaseException: What user code raised.
        """
        begun = self._activate() if self._active is None else self._active
        try:
            delivered = next(begun.run, None)
        except BaseException:
            self.is_over, self._active = True, None
            raise
        arrived, arrivals = None, begun.arrivals
        try:
            is_gap = delivered is None or delivered.ticket != arrivals.next_ticket
            if is_gap and arrivals.num_skipped(delivered):
                self._check_gap(begun)
            if delivered is not None:
                arrived = arrivals.take(delivered)
            if begun.agreement is not None and not self._is_agreed(begun, arrived, begun.agreement):
                arrived = None
            if arrived is not None:
                value = arrived.value
                if is_made(value):
                    value = self._batch(begun, arrived, value)
        except BaseException:
            self.close()
            raise
        if arrived is None:
            self.close()
            self._consumer.position = LoaderPosition(begun.position.epoch + 1)
            self._on_event(self)
            raise StopIteration
        step = arrived.step
        self._consumer.position = LoaderPosition(begun.position.epoch, step.position, step.window)
        if not self.has_delivered:
            self._on_event(self)
            self.has_delivered = True
        return value

    def _activate(self) -> Begun:
        """Return what it iterates over, when its first batch is asked for.

        Raises:
            StopIteration: It is over.
            HeadraceError: It is over, and not by itself.
        """
        if self._superseded is not None:
            where = None if self.begun is None else f"epoch {self.begun.position.epoch}"
            raise HeadraceError(f"this iterator is over, because {self._superseded}", where=where)
        if self.is_over:
            raise StopIteration
        self.begun = self._active = self._start(self)
        return self.begun

    def _is_agreed(self, begun: Begun, arrived: Arrived | None, agreement: Agreement) -> bool:
        """Tell whether all ranks have the step that comes next; ask them, if that is due."""
        num_left = 0 if arrived is None else arrived.step.num_left
        if not agreement.goes_on(num_left):
            if num_left:
                _logger.info(
                    "epoch %d ends, as other ranks have no more steps; this one leaves out %d or more",
                    begun.position.epoch,
                    num_left,
                )
            return False
        if arrived is None:
            raise HeadraceError(
                "this rank has no batch that it could repeat, and the others have more steps",
                where=f"epoch {begun.position.epoch}, {begun.equal_steps_of}",
                fix='give each rank a share that is not empty, or remainder="drop"',
            )
        agreement.take_step()
        return True

    def close(self) -> None:
        """Give up what is under way; the workers stay. Harmless at any time."""
        self.is_over, self._active = True, None
        if self.begun is not None:
            self.begun.run.close()

    def give_up_begun(self) -> Begun | None:
        """Return what has begun for this iterator, which was not asked for a batch yet, and has to begin by itself."""
        begun, self.begun = self.begun, None
        return begun

    def supersede(self, reason: str) -> None:
        """Close it for a reason that the consumer did not give: it raises from now on, and never seems complete."""
        if not self.is_over:
            self._superseded = reason
            self.close()

    def _check_gap(self, begun: Begun) -> None:
        """Refuse that batches were left out because of errors, where ranks have equal steps."""
        if begun.equal_steps_of is not None:
            raise HeadraceError(
                "a batch was left out because of an error, so this rank would have one step less than the others",
                where=f"epoch {begun.position.epoch}, {begun.equal_steps_of}",
                fix="mend what fails (the quarantine file names it); single sequences are skipped without harm",
            )

    def _batch(self, begun: Begun, arrived: Arrived, made: Made) -> Batch:
        step, seq_idx, corpus_idx, starts = arrived.step, arrived.seq_idx, arrived.corpus_idx, arrived.chunk_starts
        _, tags, kept, arrays, lengths, packing = made
        epoch = begun.position.epoch
        self._check_layout(epoch, step.number, arrays)
        if kept is None:  # a batch that is kept keeps no plan: it has arrays of its own
            seq_idx, corpus_idx = seq_idx.copy(), corpus_idx.copy()
            starts = None if starts is None else starts.copy()
        else:
            seq_idx, corpus_idx = seq_idx[kept], corpus_idx[kept]
            starts = None if starts is None else starts[kept]
        batch = Batch(
            arrays,
            lengths,
            [],
            seq_idx,
            corpus_idx,
            epoch,
            step.number,
            step.step,
            step.is_repeat,
            starts,
            None if packing is None else Packing(*packing),
            self._data_key if self._data_key in lengths else next(iter(lengths), None),
        )
        batch.take_tags(tags)
        return batch

    def _check_layout(self, epoch: int, number: int, arrays: dict[str, Any]) -> None:
        """Refuse a data key whose dtype or axes change in mid-epoch, and keys that come and go."""
        known = self._layout
        if known is not None and len(known) == len(arrays):
            for key, value in arrays.items():
                if known.get(key) != ((value.dtype, value.ndim) if isinstance(value, np.ndarray) else _TEXTS):
                    break
            else:
                return
        layout = {
            key: (value.dtype, value.ndim) if isinstance(value, np.ndarray) else _TEXTS for key, value in arrays.items()
        }
        if known is None:
            self._layout = layout
            return
        key = next(key for key in (*layout, *known) if layout.get(key) != known.get(key))
        before, now = (_layout_text(one.get(key)) for one in (known, layout))
        raise TransformError(
            f"the data key {key!r} changes in mid-epoch: {before} before, and {now} now",
            where=f"batch {number} of epoch {epoch}",
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


def _tasks(plan: Plan, steps: Iterator[Step], asked: deque[Arrived]) -> Iterator[Task]:
    """Yield the tasks of the steps, and remember them. A function, so that a dropped iterator is no garbage cycle."""
    for step in steps:
        task, seq_idx = plan.task(step.number)
        corpus_idx = task.indices if task.seqs is None else np.full(len(seq_idx), -1)
        asked.append(Arrived(step, seq_idx, corpus_idx, task.chunk_starts, None))
        yield task


def _layout_text(layout: tuple[Any, int] | None) -> str:
    if layout is None:
        return "not there"
    return "texts or objects" if layout[0] is None else f"{layout[0]} with {layout[1]} axes"
