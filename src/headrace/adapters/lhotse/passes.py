"""One pass over the batches of a sampler: from drawing them to delivering the results, in order.

Invariants: each batch that was drawn is delivered once, or raised once, or skipped once, in the order of the sampler,
    whatever happens to workers and runs of the engine; a batch counts as consumed when it is delivered, and a raised
    one when the next one is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.engine import Delivered, Engine, Run
from headrace.engine.group_size import MAX_ITEMS, GroupSize
from headrace.engine.user.failure import Failure
from headrace.errors import CacheError, HeadraceError, InternalError, takes_note

from .draws import Ahead, Drawn, Inline
from .work import Ticket

# Bytes of batches that share a ticket. As tickets of their own, which the engine carries in bursts, batches of 1 KiB
# cost the trainer 80 us of processor time each; together, 4.
_TICKET_BYTES = 4 << 20


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


class Mark:
    """The position of the training. Changes in place, once a batch.

    Attributes:
        num: Batches of the pass that were consumed.
        digest: Digest of these batches.
        state: The sampler's after `state_num` batches with the digest `state_digest`; None: from the start.
    """

    __slots__ = ("digest", "num", "state", "state_digest", "state_num")

    def __init__(self, num: int = 0, digest: int = 0) -> None:
        self.num, self.digest = num, digest
        self.state: Any = None
        self.state_num, self.state_digest = num, digest

    def move(self, drawn: Drawn) -> None:
        """Note that a batch was delivered."""
        self.num, self.digest = drawn.number + 1, drawn.digest
        if drawn.state is not None:
            self.state, self.state_num, self.state_digest = drawn.state, self.num, self.digest


class Pass:
    """The iterator of one pass; not thread-safe.

    Args:
        engine: The engine that makes the batches.
        source: Draws from the sampler.
        key: Key of the randomness.
        mark: Moved with each batch.
        groups: Whether small batches share a ticket.
    """

    def __init__(self, engine: Engine, source: Ahead | Inline, key: PassKey, mark: Mark, *, groups: bool) -> None:
        self.is_over = False
        self.is_complete = False
        self.source = source
        self._engine, self._key, self._mark = engine, key, mark
        self._sizes = GroupSize(max_bytes=_TICKET_BYTES, max_items=MAX_ITEMS if groups else 1)
        self._run: Run | None = None
        self._next_ticket = 0
        self._first_number = self._next_number = mark.num
        self._asked: deque[list[Drawn]] = deque()  # tickets in flight
        self._again: deque[list[Drawn]] = deque()  # tickets of a run that failed, to be requested again
        self._here: deque[tuple[Drawn, Any, Any]] = deque()  # delivered, with failures

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of it was delivered, raised or skipped so far, not even its end."""
        return self._next_number == self._first_number and not self.is_over

    def start(self) -> None:
        """Start the workers."""
        self._run, self._next_ticket = None, 0
        self._run = self._engine.run(_tickets(self._key, self.source, self._sizes, self._again, self._asked))

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
            BaseException: What the dataset or the sampler raised, at its position; or what ended the workers.
        """
        here = self._here
        while True:
            if not here:
                self._fetch()
            drawn, value, failure = here[0]
            if drawn.number < self._next_number:  # an interrupt came between two lines, and it was made again
                here.popleft()
                continue
            if drawn.number > self._next_number:
                raise InternalError(f"batch {self._next_number} was lost", where=f"epoch {self._key.epoch}")
            if failure is None:
                self._mark.move(drawn)
            self._next_number += 1
            here.popleft()
            if failure is None:
                return value
            if failure is not _SKIPPED:
                raise _raisable(failure, drawn)
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
            except BaseException as error:  # noqa: BLE001 - raised again, unless the batches are made again one by one
                self._break_off(error)
            else:
                if delivered is None and not self._here:
                    self._end()

    def _take_in(self, delivered: Delivered) -> None:
        """Take the results of a ticket; safe to be interrupted and repeated with the same ticket."""
        ticket = self._asked[0]
        values, failed, seconds, item_bytes = delivered.value
        if failed is None:
            self._here.extend([(drawn, value, None) for drawn, value in zip(ticket, values, strict=True)])
        else:
            for position, (drawn, value) in enumerate(zip(ticket, values, strict=True)):
                failure = failed.get(position)
                is_skipped = position in failed and failure is None
                self._here.append(
                    (drawn, value, _SKIPPED if is_skipped else failure and (failure, delivered.worker_idx))
                )
        self._next_ticket += 1
        self._asked.popleft()
        self._sizes.note(len(values), seconds, item_bytes)

    def _leave_out(self, num: int) -> None:
        """Account for tickets that the engine skipped as a whole."""
        for _ in range(num):
            self._here.extend([(drawn, None, _SKIPPED) for drawn in self._asked[0]])
            self._next_ticket += 1
            self._asked.popleft()

    def _break_off(self, error: BaseException) -> None:
        """Prepare to continue after a failed run of the engine, and raise its error.

        What fails outside of the dataset, in packing a result for example, fails a whole ticket. If that held several
        batches, nothing is raised: they are made again one by one, so that the error comes at its own position. Other
        failures are not the fault of a batch, and the tickets in flight are done again at the next request.
        """
        is_of_ticket = _is_of_ticket(error, self._next_ticket)
        self._run = None
        undone = list(self._asked)
        self._asked.clear()
        is_retry = False
        if undone and is_of_ticket:
            if len(undone[0]) > 1:
                is_retry = True
                undone = [[drawn] for ticket in undone for drawn in ticket]
            else:
                drawn = undone.pop(0)[0]
                self._next_number = drawn.number + 1
                takes_note(error, f"headrace: batch {drawn.number} of epoch {self._key.epoch}")
        self._again.extendleft(reversed(undone))
        if not is_retry:
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

    def _check_gap(self, drawn: Drawn) -> None:
        """Raise if a batch is skipped where ranks must have equal steps."""
        if self._key.world_size > 1:
            self.close()
            raise HeadraceError(
                "a batch was skipped because of an error, so this rank would have one step less than the others",
                where=f"batch {drawn.number} of epoch {self._key.epoch}",
                fix="fix what fails (the quarantine file names it), or skip single cuts in the dataset",
            )


_SKIPPED = object()


def _tickets(
    key: PassKey, source: Ahead | Inline, sizes: GroupSize, again: deque[list[Drawn]], asked: deque[list[Drawn]]
) -> Iterator[Ticket]:
    """Yield the payloads of a run, and record each. A function, so that a dropped pass is not a garbage cycle."""
    while True:
        if not again:
            taken = [one for one in source.take(sizes.choose()) if not one.is_end]
            if not taken:
                return
            again.append(taken)
        drawn = again[0]
        asked.append(drawn)
        again.popleft()
        first = drawn[0].number
        offset = key.offset + first * key.world_size
        yield Ticket(key.epoch, key.key, first, offset, key.world_size, [one.content for one in drawn])


def _is_of_ticket(error: BaseException, ticket: int) -> bool:
    """Tell whether the engine attributes an error to this ticket. A lack of memory is the consumer's fault."""
    if not isinstance(error, Exception) or isinstance(error, CacheError):
        return False
    notes = getattr(error, "__notes__", [])
    return any(note.startswith("headrace: ") and f"ticket {ticket}, worker" in note for note in notes)


def _raisable(failed: tuple[bytes | Failure, int], drawn: Drawn) -> BaseException:
    failure, worker_idx = failed
    found = Failure.from_bytes(failure) if isinstance(failure, bytes) else failure
    return found.raisable(drawn.number, worker_idx)
