"""The trainer's side of workers: the runs in flight, and the blocks that are made of their results.

`RunsAhead` says how large the next run is, how many there may be, and which sequence ended a worker. The policy of
grouping is the engine's `GroupSize`: a run is what a worker reads within some milliseconds, within a limit of bytes.
The time and size of each run are noted, and kept over the epochs. Runs are cut when they are sent, and the stream does
not depend on them. One sequence that is much slower than those around it holds back those before it in its run: no more
than are mostly read within `GROUP_SECONDS`.

Invariants: blocks come in the order of what is read, each sequence once, but for those that were skipped; an error
concerns the sequence after its block, and all before it are delivered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace.engine import Delivered, Engine, Run
from headrace.engine.group_size import GroupSize
from headrace.errors import WorkerDiedError

from ..reading.reader import ReadRequest
from .blockwise import NO_SEQS, FailedSeqs, Parts, ReadBlock, SeqBlock, Values, pass_failed
from .runs import RunLimits, RunResult, run_of

# Before a worker while little is known of them; and at least, where bytes limit how many sequences are ahead.
MIN_RUNS = 4
_UNMEASURED = 2  # sequences in a run while nothing is known of them
NumberedTicket = tuple[int, int, Any]
"""The number of the first sequence of a run, how many it has at most, and the ticket."""


class RunsAhead:
    """The runs of one pass that were sent and are not here yet.

    Args:
        size: What is known of the sequences.
        num_seqs: Sequences that a worker may be ahead.
        num_workers: Returns how many there are now, at least 1.
        max_bytes: Limit on the bytes of the sequences that a worker is ahead, as far as known; `None`: no limit.
        end: Number after the last sequence, if it is known.

    Attributes:
        end: Number after the last sequence; `None` as long as it is not known.
    """

    def __init__(
        self,
        size: GroupSize,
        num_seqs: int,
        num_workers: Callable[[], int],
        max_bytes: int | None = None,
        end: int | None = None,
    ) -> None:
        self._size, self._num_seqs, self._max_bytes = size, num_seqs, max_bytes
        self.num_workers = num_workers
        self._sent: deque[tuple[int, int, int]] = deque()  # ticket, number of the first sequence, how many
        self._num_tickets = 0
        self._has_arrived = False
        self.end = end
        self._num_open = 0  # sequences
        self._seq_bytes = 0.0

    def choose(self) -> int:
        """Return how many sequences the next run should have at most."""
        return self._size.choose() if self._size.is_measured else _UNMEASURED

    def send(self, number: int, num_seqs: int) -> None:
        """Note that the next ticket is a run from this number on."""
        self._sent.append((self._num_tickets, number, num_seqs))
        self._num_tickets += 1
        self._num_open += num_seqs

    def take(self, ticket: int) -> tuple[int, int]:
        """Note that a run has arrived; return where it begins and how long it is. Those before it were skipped."""
        while True:
            found, number, num_seqs = self._sent.popleft()
            self._num_open -= num_seqs
            if found == ticket:
                self._has_arrived = True
                return number, num_seqs

    def note(self, num_seqs: int, seconds: float, seq_bytes: float) -> None:
        """Note the time that reading some sequences took, and the bytes of one."""
        self._size.note(num_seqs, seconds, seq_bytes)
        self._seq_bytes = seq_bytes

    def sent(self, tickets: Iterable[NumberedTicket]) -> Iterator[Any]:
        """Yield tickets, and note them."""
        for number, num_seqs, ticket in tickets:
            self.send(number, num_seqs)
            yield ticket

    def max_open(self) -> int:
        """Return how many runs may be in flight now, see `Engine.run`.

        Few until the first one is here if the end is not known: all that lie beyond it would be sent for nothing.
        """
        if self.end is None and not self._has_arrived:
            return min(self._max_open(), self.min_open())
        return self._max_open()

    def _max_open(self) -> int:
        num_runs, num_seqs, num_workers = len(self._sent), self._num_seqs, self.num_workers()
        if self._max_bytes is not None:
            num_seqs = min(num_seqs, int(self._max_bytes / max(self._seq_bytes, 1.0)))
        room = (num_seqs * num_workers - self._num_open) // self.choose()
        if self._size.is_growing:  # small ones that were sent stay small
            room = min(room, self.min_open() - num_runs)
        return max(num_runs + room, 1 if self._max_bytes is None else self.min_open())

    def min_open(self) -> int:
        """Return how many runs keep all workers at work, while little is known of them."""
        return MIN_RUNS * self.num_workers()

    def number_of(self, error: WorkerDiedError) -> int | None:
        """Return the number of the sequence at which a worker ended, or of the first of its run; `None` if unknown."""
        for ticket, number, num_seqs in self._sent:
            if ticket == error.ticket:
                return number + min(error.item_number or 0, num_seqs - 1)
        return None


def cut_order(limits: RunLimits, wanted: ReadRequest, first: int, ahead: RunsAhead) -> Iterator[NumberedTicket]:
    """Yield the runs of a request from a number on, for workers that do `OrderedWork`."""
    order = wanted.order if ahead.end is None else wanted.order.slice(0, ahead.end)
    for number, indices in limits.cut(order, first, max(ahead.num_workers(), 1), ahead.choose):
        yield number, len(indices), run_of(wanted, number, indices)


def blocks_ahead(
    engine: Engine,
    cut: Callable[[int, RunsAhead], Iterable[NumberedTicket]],
    first: int,
    begin: Callable[[], RunsAhead],
    *,
    group: int = 1,
    hear: Callable[[Delivered], tuple[RunResult, int | None]] | None = None,
) -> Iterator[ReadBlock]:
    """Have workers read ahead from now on; return what they read, in order.

    A death that is fatal is an error of the sequence at which the worker was, as far as that is known, else of the
    first of its run: what lies before it and is not here yet is requested again.

    Args:
        engine: The workers.
        cut: Returns the tickets from a number on, up to `RunsAhead.end`, which may come to be known meanwhile.
        first: Where to begin, a multiple of `group`.
        begin: Returns the state of a new pass.
        group: Sequences that must stay together.
        hear: Returns the run that a value tells of, and the end as far as it is known; by default the value is the run,
            and the end was known before.

    Raises:
        BaseException: What happened in a worker or to it, and is of no sequence.
    """

    def start(first: int, end: int | None = None) -> tuple[RunsAhead, Run]:
        ahead = begin()
        if end is not None:
            ahead.end = end
        return ahead, engine.run(ahead.sent(cut(first, ahead)), max_open=ahead.max_open)

    def read(ahead: RunsAhead, run: Run, first: int) -> Iterator[ReadBlock]:
        death: tuple[int, WorkerDiedError] | None = None
        while True:
            try:
                delivered = next(run, None)
            except WorkerDiedError as error:
                found = ahead.number_of(error)
                at = -1 if found is None else found - found % group
                if not first < at or (ahead.end is not None and ahead.end <= at):
                    raise
                death = at, error
                ahead, run = start(first, at)
                continue
            if delivered is None:
                if death is not None:
                    yield ReadBlock(NO_SEQS, death[1], death[0])
                return
            number, num_seqs = ahead.take(delivered.ticket)
            (parts, failed, seconds, seq_bytes), end = (delivered.value, None) if hear is None else hear(delivered)
            parts, error_behind, num_read = pass_failed(run, delivered, parts, failed)
            is_last = error_behind is not None or (end is not None and end <= number + num_seqs)
            if is_last:
                run.close()
            else:
                if end is not None and death is None:
                    ahead.end = end
                ahead.note(num_seqs, seconds, seq_bytes)
                run.prefetch()
            first = number + num_seqs
            yield ReadBlock(parts, error_behind, number, [place for place in _places(failed) if place < num_read])
            if is_last:
                return

    return read(*start(first), first)


def _places(failed: FailedSeqs) -> list[int]:
    return [before + number for number, (before, _) in enumerate(failed)]


_Turn = tuple[int, int]  # position in the shard, worker: sequences come in this order


def shard_blocks(run: Run, num_workers: int) -> Iterator[ReadBlock]:
    """Yield what workers that do `DedicatedWork` read, in turns.

    Sequence k of the epoch is number k // W of the shard of worker k mod W, as in RETURNN, except that shards that have
    ended, and sequences that were skipped, are passed over. All workers cut their shards at the same positions: the
    runs with the same number, a round, make one block.

    Args:
        run: A run whose numbers of sequences were taken.
        num_workers: How many there are, at least 1.

    Raises:
        BaseException: What happened in a worker or to it, before anything of a round is here.
    """
    held: Delivered | None = None  # of the next round
    while True:
        read: list[tuple[Parts, list[_Turn]]] = []
        errors: list[tuple[_Turn, BaseException]] = []
        number, worker_idx = None, -1
        while worker_idx < num_workers - 1:
            try:
                delivered = held or next(run, None)
            except Exception as error:
                if not read:
                    raise
                errors.append(((0, worker_idx + 1), error))
                break
            held = None
            if delivered is None:
                break
            if number not in (None, delivered.ticket // num_workers):
                held = delivered
                break
            number, worker_idx = divmod(delivered.ticket, num_workers)
            result: RunResult = delivered.value
            parts, error_behind, num_read = pass_failed(run, delivered, result[0], result[1])
            if error_behind is not None:
                errors.append(((num_read, worker_idx), error_behind))
            places = [before for before, _ in result[1]]
            read.append((parts, [(at + bisect_right(places, at), worker_idx) for at in range(len(parts[0]))]))
        if not read:
            return
        run.prefetch()
        stop, first_error = min(errors, key=lambda told: told[0]) if errors else (None, None)
        yield ReadBlock(_in_turns(read, stop), first_error)
        if errors:
            return


def _in_turns(read: Sequence[tuple[Parts, list[_Turn]]], stop: _Turn | None) -> Parts:
    """Return sequences of several runs as one, in the order of their turns, up to a turn."""
    if len(read) == 1 and stop is None:
        return read[0][0]
    places = sorted(
        (turn, number, offset)
        for number, (_, turns) in enumerate(read)
        for offset, turn in enumerate(turns)
        if stop is None or turn < stop
    )

    def taken(columns: Sequence[Sequence[Any] | None]) -> list[Any]:
        return [None if (column := columns[number]) is None else column[offset] for _, number, offset in places]

    blocks = [SeqBlock(*parts) for parts, _ in read]
    fracs = [block.complete_fracs for block in blocks]
    indices = [block.corpus_indices for block in blocks]
    values: dict[str, Values] = {
        key: taken([block.arrays[key] if key in block.keys else None for block in blocks])
        for key in dict.fromkeys(key for block in blocks for key in block.keys)
    }
    return (
        taken([block.tags for block in blocks]),
        None if all(told is None for told in indices) else taken(indices),
        None if all(told is None for told in fracs) else taken(fracs),
        (values, {}),
    )
