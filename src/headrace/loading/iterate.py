"""Iterates over the batches of one epoch on one rank, and tracks which of a loader's iterators is the current one.

Invariants: the position of the consumer moves when a batch is handed over and never when one is prefetched; it is the
same on all ranks after as many steps. All runs in the consumer's thread.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from headrace.engine import Delivered
from headrace.engine.memory.lease import MemoryWatcher
from headrace.errors import HeadraceError
from headrace.ranks import Ranks

from .batch import Batch, EpochLayout, Made, Packing, is_made
from .steps import Agreement, Arrivals, Arrived

_logger = logging.getLogger("headrace.loading")


class LoaderPosition(msgspec.Struct, frozen=True):
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
    """The code that iterates over a loader.

    Attributes:
        position: Where it is.
    """

    position: LoaderPosition


class CloseableRun(Protocol):
    """A started run: an iterator over the results of workers."""

    def __next__(self) -> Delivered: ...

    def close(self) -> None:
        """Discard batches in preparation. May be called at any time."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A started run of which no batch was delivered yet.

    Attributes:
        position: Where it begins.
        ranks: The rank that it is for.
        run: The run of the workers.
        arrivals: Maps its tickets to batches.
        agreement: How the ranks agree on the number of steps; None: they know it.
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
        data_key: Data key of the batches.
        begun: What `start` may return, if nothing has happened in between.

    Examples:
        >>> import headrace as hr
        >>> seqs = [{"data": [1.0, 2.0]}, {"data": [3.0]}]
        >>> with hr.DataLoader(seqs, batch_size=1) as loader:
        ...     batches = iter(loader)
        ...     print(next(batches)["data"].tolist())
        [[1.0, 2.0]]
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
        self._layout = EpochLayout()

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
        """Return the run to iterate over, when the first batch is requested.

        Raises:
            StopIteration: The iterator is exhausted or closed.
            HeadraceError: It was superseded.
        """
        if self._superseded is not None:
            where = None if self.begun is None else f"epoch {self.begun.position.epoch}"
            raise HeadraceError(
                f"this iterator has ended, because {self._superseded}",
                where=where,
                fix="finish the first loop before the next one begins, or make a loader for each",
            )
        if self.is_over:
            raise StopIteration
        self.begun = self._active = self._start(self)
        return self.begun

    def _is_agreed(self, begun: Begun, arrived: Arrived | None, agreement: Agreement) -> bool:
        """Tell whether all ranks take the next step; ask them where it is time."""
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
                "this rank has no batch to repeat, and other ranks have more steps",
                where=f"epoch {begun.position.epoch}, {begun.equal_steps_of}",
                fix='give each rank a share that is not empty, or remainder="drop"',
            )
        agreement.take_step()
        return True

    def close(self) -> None:
        """Discard batches in preparation; the workers stay. May be called at any time."""
        self.is_over, self._active = True, None
        if self.begun is not None:
            self.begun.run.close()

    def give_up_begun(self) -> Begun | None:
        """Hand over the run that was started for this iterator and has delivered nothing; it will start another one."""
        begun, self.begun = self.begun, None
        return begun

    def supersede(self, reason: str) -> None:
        """Close it from outside: from now on it raises an error with this reason, rather than seeming exhausted."""
        if not self.is_over:
            self._superseded = reason
            self.close()

    def _check_gap(self, begun: Begun) -> None:
        """Raise if batches were skipped because of errors although ranks must have equal steps."""
        if begun.equal_steps_of is not None:
            raise HeadraceError(
                "a batch was left out because of an error, so this rank would have one step less than the others",
                where=f"epoch {begun.position.epoch}, {begun.equal_steps_of}",
                fix="fix the cause (the quarantine file names it); skipping single sequences of a batch is allowed",
            )

    def _batch(self, begun: Begun, arrived: Arrived, made: Made) -> Batch:
        step, seq_idx, corpus_idx, starts = arrived.step, arrived.seq_idx, arrived.corpus_idx, arrived.chunk_starts
        _, tags, kept, arrays, lengths, packing = made
        epoch = begun.position.epoch
        self._layout.check(epoch, step.number, arrays)
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


class Iterations:
    """The iterators of one loader: one at a time delivers batches; for a new one, workers may have begun already.

    Invariant: an iterator that was asked for no batch has no effect on where the loader is.

    Args:
        begin_run: Begins a run at a position.
        settle_ranks: Returns which rank this is of how many, for good.
        on_event: Called with an iterator when it has its first batch, or none, and when it is at its end.
        watch_memory: Tells a watcher of the memory that batches come in.
        data_key: Data key of the batches.

    Attributes:
        consumer: Where the consumer is.
        left: Where the last epoch was left before its end; `None`: none was, so that all batches came.
    """

    left: LoaderPosition | None = None

    def __init__(
        self,
        begin_run: Callable[[LoaderPosition], Begun],
        settle_ranks: Callable[[], Ranks],
        on_event: Callable[[BatchIterator], None],
        watch_memory: Callable[[MemoryWatcher | None], None],
        data_key: str | None,
    ) -> None:
        self.consumer = Consumer(LoaderPosition(1))
        self._begin_run, self._settle_ranks, self._on_event = begin_run, settle_ranks, on_event
        self._watch_memory, self._data_key = watch_memory, data_key
        self._epoch = 1  # the next one to be iterated over
        self._resumed: LoaderPosition | None = None
        self._current: weakref.ref[BatchIterator] | None = None  # the last that was asked for a batch
        self._waiting: weakref.ref[BatchIterator] | None = None  # for which a run has begun, and that was not asked yet
        self._is_watched_next = False  # whether the watcher of memory is that of the next iteration
        self._is_closed = False

    def begin(self, epoch: int | None) -> BatchIterator:
        """Return an iterator over an epoch; None: the one that is next when its first batch is requested.

        Raises:
            HeadraceError: The loader is closed.
        """
        self._check_open()
        begun = None
        if self.live() is None:
            position = self._position_of(epoch)
            if epoch is not None and self.consumer.position.epoch != epoch:
                self._note_left(epoch)
                self.consumer.position = position
            waiting = self._take_waiting()
            begun = waiting if waiting is not None and waiting.position == position else self._begin_run(position)
        start = partial(self._start, epoch, self._is_watched_next)
        iterator = BatchIterator(start, self.consumer, self._note, self._data_key, begun)
        self._is_watched_next = False
        if begun is not None:
            self._waiting = weakref.ref(iterator)
        return iterator

    def _start(self, epoch: int | None, is_watched: bool, iterator: BatchIterator) -> Begun:
        """Return the run of an iterator whose first batch is requested; all other iterators end."""
        self._check_open()
        position, ranks = self._position_of(epoch), self._settle_ranks()
        self._note_left(position.epoch)
        live = self.live()
        if live is not None:
            live.supersede("another iteration over the same loader has begun")
        begun = iterator.give_up_begun()
        if begun is None or begun.position != position or begun.ranks != ranks:
            self._take_waiting()
            begun = self._begin_run(position)
        if not is_watched:
            self._watch_memory(None)
        self._waiting, self._current = None, weakref.ref(iterator)
        return begun

    def _note_left(self, next_epoch: int) -> None:
        """Note that the consumer goes on with another epoch than the one that it is in the middle of."""
        position = self.consumer.position
        if position.position and position.epoch != next_epoch:
            if self.left is None:
                what = "epoch %d was left before batch %d: the rest of it does not come (logged once; see set_epoch)"
                _logger.info(what, position.epoch, position.position)
            self.left = position

    def _check_open(self) -> None:
        if self._is_closed:
            raise HeadraceError("this loader is closed", fix="make a new one")

    def _position_of(self, epoch: int | None) -> LoaderPosition:
        number = self._epoch if epoch is None else epoch
        resumed = self._resumed
        return LoaderPosition(number) if resumed is None or resumed.epoch != number else resumed

    def _take_waiting(self) -> Begun | None:
        """Return the run that was started for an iterator that has delivered nothing; that will start another."""
        waiting = None if self._waiting is None else self._waiting()
        self._waiting = None
        return None if waiting is None or waiting.is_over else waiting.give_up_begun()

    def _note(self, iterator: BatchIterator) -> None:
        """Note that an iterator has delivered its first batch, or is exhausted."""
        assert iterator.begun is not None
        if not iterator.has_delivered:
            self._epoch, self._resumed = iterator.begun.position.epoch + 1, None
        self._on_event(iterator)

    def live(self) -> BatchIterator | None:
        """Return the iterator that has delivered a batch and is not exhausted, if there is one."""
        iterator = None if self._current is None else self._current()
        return None if iterator is None or iterator.is_over else iterator

    def first_epoch(self, wanted: int | None) -> int:
        """Return the first epoch to iterate over: the wanted one, or the next; after `resume` always the saved one."""
        return self._epoch if wanted is None or self._resumed is not None else wanted

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; a loaded position in another epoch is discarded, with a warning."""
        self._epoch = epoch
        if self._resumed is not None and self._resumed.epoch != epoch:
            _logger.warning(
                "set_epoch(%d) gives up the loaded position: batch %d of epoch %d",
                epoch,
                self._resumed.position,
                self._resumed.epoch,
            )
            self._resumed = None
        if self.live() is None:
            self.consumer.position = self._resumed or LoaderPosition(epoch)

    def resume(self, position: LoaderPosition) -> None:
        """Let the next iteration begin at a position. No iterator is live."""
        self._resumed = self.consumer.position = position
        self._epoch = position.epoch

    def watch_next(self, watcher: MemoryWatcher | None) -> None:
        """Tell a watcher about the memory of batches, until the end of the next iteration."""
        self._watch_memory(watcher)
        self._is_watched_next = watcher is not None

    def close(self) -> None:
        """End all iterators, and refuse to begin others."""
        self._is_closed = True
        for found in (self._current, self._waiting):
            iterator = None if found is None else found()
            if iterator is not None:
                iterator.supersede("its loader was closed")


class LoaderEpoch:
    """One epoch of a loader: iterates over its batches, from the loaded position on if there is one.

    Args:
        epoch: The epoch number.
        begin: Begins an epoch.
        num_steps: Returns the number of steps of an epoch.

    Examples:
        >>> import headrace as hr
        >>> seqs = [{"data": [1.0, 2.0]}, {"data": [3.0]}]
        >>> with hr.DataLoader(seqs, batch_size=1) as loader:
        ...     for epoch in loader.epochs(last=2):
        ...         print(epoch, len(epoch), [batch["data"].tolist() for batch in epoch])
        <LoaderEpoch 1> 2 [[[1.0, 2.0]], [[3.0]]]
        <LoaderEpoch 2> 2 [[[1.0, 2.0]], [[3.0]]]
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
