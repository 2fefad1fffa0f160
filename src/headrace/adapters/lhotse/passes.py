"""One pass over the batches of a sampler: from drawing them to delivering the results, in order.

Small batches share a ticket: as tickets of their own, which the engine carries in bursts, batches of 1 KiB cost the
trainer 80 us of processor time each; together, 3.

Invariants: each batch that was drawn is delivered once, or raised once, or skipped once, in the order of the sampler,
    whatever happens to workers and runs of the engine; a batch counts as consumed when it is delivered, and a raised
    one when the next one is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from headrace.engine import Delivered, Engine, Run
from headrace.engine.group_size import MAX_ITEMS, GroupSize
from headrace.engine.user.failure import Failure
from headrace.errors import CacheError, HeadraceError, InternalError, takes_note

from .ahead import Ahead, Inline
from .draws import Drawn
from .work import Ticket

_TICKET_BYTES = 4 << 20  # of batches that share one


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
    """The position of the training. Changes in place.

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

    def move(self, drawn: list[Drawn]) -> None:
        """Note that these batches were delivered, at least one; harmless if they were noted already."""
        self.num, self.digest = drawn[-1].number + 1, drawn[-1].digest
        last = next((one for one in reversed(drawn) if one.state is not None), None)
        if last is not None:
            self.state, self.state_num, self.state_digest = last.state, last.number + 1, last.digest


class Ready:
    """Values that are here, of batches that follow one another.

    What was given is what is no longer among those left: so each is noted by taking it, in one step, and nothing else
    is done for one of them.

    Args:
        drawn: The batches.
        values: Their values; the list is not the caller's any more.

    Attributes:
        drawn: See above.
        values: Gives them, and lets go of each: a single step of Python, which no signal can interrupt.
    """

    __slots__ = ("_left", "drawn", "values")

    def __init__(self, drawn: list[Drawn], values: list[Any]) -> None:
        values.reverse()
        self.drawn, self._left = drawn, values
        self.values = map(list.pop, repeat(values, len(values)))

    @property
    def num_given(self) -> int:
        """How many of the values were given."""
        return len(self.drawn) - len(self._left)

    def after(self, number: int) -> Ready:
        """Return what there is from this number on; before any value was given."""
        num_less = min(number - self.drawn[0].number, len(self.drawn))
        return self if num_less <= 0 else Ready(self.drawn[num_less:], self._left[::-1][num_less:])


class _Missing(NamedTuple):
    """A batch, in a list, that has no value: why, or `_SKIPPED`."""

    drawn: list[Drawn]
    why: Any


_SKIPPED = object()
_NOTHING = Ready([], [])


class Pass:
    """The iterator of one pass; not thread-safe.

    Args:
        engine: The engine that makes the batches.
        source: Draws from the sampler.
        key: Key of the randomness.
        mark: Moved with each batch.
        groups: Whether small batches share a ticket.

    Attributes:
        current: What is given now; of its `values` the caller may take the next one instead of asking for it.
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
        self._here: deque[Ready | _Missing] = deque()
        self.current = _NOTHING

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of it was delivered, raised or skipped so far, not even its end."""
        return self._next_number == self._first_number and not (self.current.num_given or self.is_over)

    def settle(self) -> None:
        """Have the mark where the training is; harmless at any time."""
        current = self.current
        given = current.drawn[: current.num_given]
        if given:
            self._mark.move(given)
            self._next_number = given[-1].number + 1

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
            for value in self.current.values:
                return value
            self.settle()
            self.current = _NOTHING
            if not here:
                self._fetch()
            found, next_number = here[0], self._next_number
            drawn = found.drawn
            if drawn[0].number > next_number:
                raise InternalError(f"batch {next_number} was lost", where=f"epoch {self._key.epoch}")
            if drawn[-1].number < next_number:  # an interrupt came between two lines, and it was made again
                here.popleft()
            elif isinstance(found, Ready):
                self.current = found.after(next_number)
                here.popleft()
            else:
                self._next_number += 1
                here.popleft()
                if found.why is not _SKIPPED:
                    raise _raisable(found.why, drawn[0])
                self._check_gap(drawn[0])

    def close(self) -> None:
        """Cancel the tickets in flight; the workers stay."""
        self.settle()
        self.is_over = True
        run, self._run = self._run, None
        if run is not None:
            run.close()
        self._here.clear()
        self.current = _NOTHING

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
        num, start = len(values), 0
        for position, failure in failed.items() if failed else ():  # in their order
            if start < position:
                self._here.append(Ready(ticket[start:position], values[start:position]))
            why = _SKIPPED if failure is None else (failure, delivered.worker_idx)
            self._here.append(_Missing(ticket[position : position + 1], why))
            start = position + 1
        if start < num:
            self._here.append(Ready(ticket[start:], values[start:] if start else values))
        self._next_ticket += 1
        self._asked.popleft()
        self._sizes.note(num, seconds, item_bytes)

    def _leave_out(self, num: int) -> None:
        """Account for tickets that the engine skipped as a whole."""
        for _ in range(num):
            self._here.extend([_Missing([drawn], _SKIPPED) for drawn in self._asked[0]])
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


def _tickets(
    key: PassKey, source: Ahead | Inline, sizes: GroupSize, again: deque[list[Drawn]], asked: deque[list[Drawn]]
) -> Iterator[Ticket]:
    """Yield the payloads of a run, and record each. A function, so that a dropped pass is not a garbage cycle."""
    while True:
        if not again:
            taken = source.take(sizes.choose())
            if taken[-1].is_end:
                taken = taken[:-1]
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
