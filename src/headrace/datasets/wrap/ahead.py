"""Tracks the runs in flight: how large the next one is, how many there may be, and which sequence ended a worker.

The policy of grouping is the engine's `GroupSize`: a run is what a worker reads within some milliseconds, within a
limit of bytes. The time and size of each run are noted, and kept over the epochs. Runs are cut when they are sent, and
the stream does not depend on them. One sequence that is much slower than those around it holds back those before it in
its run: no more than are mostly read within `GROUP_SECONDS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.engine.group_size import GroupSize
from headrace.errors import WorkerDiedError

# Before a worker while little is known of them; and at least, where bytes limit how many sequences are ahead.
MIN_RUNS = 4
_UNMEASURED = 2  # sequences in a run while nothing is known of them


class RunsAhead:
    """The runs of one pass that were sent and are not here yet.

    Args:
        size: What is known of the sequences.
        num_seqs: Sequences that a worker may be ahead.
        num_workers: Returns how many there are now, at least 1.
        max_bytes: Limit on the bytes of the sequences that a worker is ahead, as far as known; `None`: no limit.

    Attributes:
        has_arrived: Whether any of them is here.
    """

    def __init__(
        self, size: GroupSize, num_seqs: int, num_workers: Callable[[], int], max_bytes: int | None = None
    ) -> None:
        self._size, self._num_seqs, self._max_bytes = size, num_seqs, max_bytes
        self._num_workers = num_workers
        self._sent: deque[tuple[int, int, int]] = deque()  # ticket, number of the first sequence, how many
        self._num_tickets = 0
        self.has_arrived = False
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
                self.has_arrived = True
                return number, num_seqs

    def note(self, num_seqs: int, seconds: float, seq_bytes: float) -> None:
        """Note the time that reading some sequences took, and the bytes of one."""
        self._size.note(num_seqs, seconds, seq_bytes)
        self._seq_bytes = seq_bytes

    def max_open(self) -> int:
        """Return how many runs may be in flight now, see `Engine.run`."""
        num_runs, num_seqs, num_workers = len(self._sent), self._num_seqs, self._num_workers()
        if self._max_bytes is not None:
            num_seqs = min(num_seqs, int(self._max_bytes / max(self._seq_bytes, 1.0)))
        room = (num_seqs * num_workers - self._num_open) // self.choose()
        if self._size.is_growing:  # small ones that were sent stay small
            room = min(room, self.min_open() - num_runs)
        return max(num_runs + room, 1 if self._max_bytes is None else self.min_open())

    def min_open(self) -> int:
        """Return how many runs keep all workers at work, while little is known of them."""
        return MIN_RUNS * self._num_workers()

    def number_of(self, error: WorkerDiedError) -> int | None:
        """Return the number of the sequence at which a worker ended, or of the first of its run; `None` if unknown."""
        for ticket, number, num_seqs in self._sent:
            if ticket == error.ticket:
                return number + min(error.item_number or 0, num_seqs - 1)
        return None
