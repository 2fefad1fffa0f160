"""One pass over the batches of a sampler: from drawing them to delivering the results, in order.

A batch is a ticket. Several in one ticket would have to be drawn before the training asks for them, see `ahead.py`.

Invariants: each batch that was drawn is delivered once, or raised once, or skipped once, in the order of the sampler,
    whatever happens to workers and runs of the engine; a batch counts as consumed when it is delivered, and a raised
    one when the next one is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.engine import Delivered, Engine, Run
from headrace.engine.user.failure import Failure
from headrace.errors import CacheError, HeadraceError, takes_note

from .ahead import Ahead, Inline
from .draws import DrawnBatch
from .work import SKIPPED, Ticket


@dataclass(frozen=True)
class PassKey:
    """The key of the randomness of a pass, and the numbers of its batches among those of all ranks.

    Attributes:
        epoch: Epoch of the sampler.
        key: See `Ticket`.
        offset: Key number of batch 0 of this pass.
        world_size: Of the sampler: batches of all ranks that come between two of this one.
    """

    epoch: int
    key: int | None
    offset: int
    world_size: int


@dataclass(slots=True)
class Mark:
    """The position of the training. Changes in place.

    Attributes:
        num: Batches of the pass that were consumed.
        digest: Digest of these batches.
        state: The sampler's after `state_num` batches with the digest `state_digest`; None: from the start.
    """

    num: int = 0
    digest: int = 0
    state: Any = None
    state_num: int = 0
    state_digest: int = 0


class _Here(NamedTuple):
    """The result of a batch: its value, or why it has none: a failure with its worker, or `SKIPPED`."""

    drawn: DrawnBatch
    value: Any
    why: Any = None


class Pass:
    """The iterator of one pass; not thread-safe.

    Args:
        engine: The engine that makes the batches.
        source: Draws from the sampler.
        key: Key of the randomness.
        mark: Moved with each batch.
    """

    def __init__(self, engine: Engine, source: Ahead | Inline, key: PassKey, mark: Mark) -> None:
        self.is_over = False
        self.is_complete = False
        self.source = source
        self._engine, self._key, self._mark = engine, key, mark
        self._run: Run | None = None
        self._next_ticket = 0
        self._first_number = self._next_number = mark.num
        self._asked: deque[DrawnBatch] = deque()  # in flight
        self._again: deque[DrawnBatch] = deque()  # of a run that failed, to be requested again
        self._here: deque[_Here] = deque()

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of it was delivered, raised or skipped so far, not even its end."""
        return self._next_number == self._first_number and not self.is_over

    def start(self) -> None:
        """Start the workers."""
        self._run, self._next_ticket = None, 0
        self._run = self._engine.run(_tickets(self._key, self.source, self._again, self._asked))

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
            BaseException: What the dataset or the sampler raised, at its position; or what ended the workers.
        """
        here, mark = self._here, self._mark
        while True:
            if not here:
                self._fetch()
            drawn, value, why = here[0]
            del here[0]  # no call from here on to the return, so that an interrupt hardly comes in between
            if drawn.number < self._next_number:  # an interrupt came before it was noted, and it was made again
                continue
            self._next_number = drawn.number + 1
            if why is None:
                mark.num, mark.digest = drawn.number + 1, drawn.digest
                if drawn.state is not None:
                    mark.state, mark.state_num, mark.state_digest = drawn.state, drawn.number + 1, drawn.digest
                return value
            if why != SKIPPED:
                raise _raisable(why, drawn)
            self._check_gap(drawn)

    def close(self) -> None:
        """Cancel the tickets in flight; the workers stay."""
        self.is_over = True
        run, self._run = self._run, None
        if run is not None:
            run.close()
        self._here.clear()

    def _fetch(self) -> None:
        """Wait for the next ticket.

        Raises:
            StopIteration: There is none.
        """
        while not self._here:
            if self.is_over:
                raise StopIteration
            self.source.advance(self._next_number)
            if self._run is None:
                self.start()
            assert self._run is not None
            try:
                delivered = next(self._run, None)
                if delivered is not None:
                    self._leave_out(delivered.ticket - self._next_ticket)
                    self._take_in(delivered)
                else:
                    self._leave_out(len(self._asked))
            except BaseException as error:  # noqa: BLE001 - raised again
                self._break_off(error)
            else:
                if delivered is None and not self._here:
                    self._end()

    def _take_in(self, delivered: Delivered) -> None:
        """Take the results of a ticket; safe to be interrupted and repeated with the same ticket."""
        value, why = delivered.value
        if why is not None and why != SKIPPED:
            why = why, delivered.worker_idx
        self._here.append(_Here(self._asked[0], value, why))
        self._next_ticket += 1
        self._asked.popleft()

    def _leave_out(self, num: int) -> None:
        """Account for tickets that the engine skipped."""
        for _ in range(num):
            self._here.append(_Here(self._asked[0], None, SKIPPED))
            self._next_ticket += 1
            self._asked.popleft()

    def _break_off(self, error: BaseException) -> None:
        """Prepare to continue after a failed run of the engine, and raise its error.

        What fails outside of the dataset, in packing a result for example, fails its batch. Other failures are not the
        fault of a batch, and what is in flight is done again at the next request.
        """
        undone = list(self._asked)
        self._run = None
        self._asked.clear()
        if undone and _is_of_ticket(error, self._next_ticket):
            drawn = undone.pop(0)
            self._next_number = drawn.number + 1
            takes_note(error, f"headrace: batch {drawn.number} of epoch {self._key.epoch}")
        self._again.extendleft(reversed(undone))
        raise error

    def _end(self) -> None:
        """Note the end of the pass, and raise the sampler's error if there is one."""
        self.is_over = True
        end = self.source.end
        if end is None or end.error is None:
            self.is_complete = True
            return
        error = end.error
        takes_note(error, f"headrace: raised by the sampler, at batch {end.number} of epoch {self._key.epoch}")
        raise error

    def _check_gap(self, drawn: DrawnBatch) -> None:
        """Raise if a batch is skipped where ranks must have equal steps."""
        if self._key.world_size > 1:
            self.close()
            raise HeadraceError(
                "a batch was skipped because of an error, so this rank would have one step less than the others",
                where=f"batch {drawn.number} of epoch {self._key.epoch}",
                fix="fix what fails (the quarantine file names it), or skip single cuts in the dataset",
            )


def _tickets(
    key: PassKey, source: Ahead | Inline, again: deque[DrawnBatch], asked: deque[DrawnBatch]
) -> Iterator[Ticket]:
    """Yield the payloads of a run, and record each. A function, so that a dropped pass is not a garbage cycle."""
    while True:
        if not again:
            taken = source.take()
            if taken.is_end:
                return
            again.append(taken)
        drawn = again[0]
        asked.append(drawn)
        again.popleft()
        number = drawn.number
        yield Ticket(key.epoch, key.key, number, key.offset + number * key.world_size, drawn.content)


def _is_of_ticket(error: BaseException, ticket: int) -> bool:
    """Tell whether the engine attributes an error to this ticket. A lack of memory is the consumer's fault."""
    if not isinstance(error, Exception) or isinstance(error, CacheError):
        return False
    notes = getattr(error, "__notes__", [])
    return any(note.startswith("headrace: ") and f"ticket {ticket}, worker" in note for note in notes)


def _raisable(failed: tuple[bytes | Failure, int], drawn: DrawnBatch) -> BaseException:
    failure, worker_idx = failed
    found = Failure.from_bytes(failure) if isinstance(failure, bytes) else failure
    return found.raisable(drawn.number, worker_idx)
