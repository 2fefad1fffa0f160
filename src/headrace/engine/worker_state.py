"""What the supervisor knows of each worker, and who gets the next ticket."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class WorkerState:
    """One worker, as the supervisor sees it.

    Attributes:
        unanswered: Its tickets without an answer, ascending.
        next_item: Stream mode: which item the next ticket asks for.
        num_items: Stream mode: how many items there are, known once the iterator has ended.
        last_failed: Whether its last answer was an error.
        quiet_since: When it last showed a sign of life, on the clock of waiting.
        warned: Whether its silence since then has been warned about.
    """

    __slots__ = ("last_failed", "next_item", "num_items", "quiet_since", "unanswered", "warned")

    def __init__(self) -> None:
        self.unanswered: deque[int] = deque()
        self.next_item = 0
        self.num_items: int | None = None
        self.last_failed = False
        self.quiet_since = 0.0
        self.warned = False

    def show_life(self, now: float) -> None:
        """Take note of a sign of life."""
        self.quiet_since = now
        self.warned = False


def least_busy_worker(workers: Sequence[WorkerState], limit: int, ticket: int) -> int | None:
    """Choose a worker for a task: the one with the fewest tickets, if that is below the limit.

    Among equals it is worker t mod W, or the next one after it: workers that are equally fast take turns.
    """
    num_workers = len(workers)
    fewest, chosen = limit, None
    for offset in range(num_workers):
        worker_idx = (ticket + offset) % num_workers
        if len(workers[worker_idx].unanswered) < fewest:
            fewest, chosen = len(workers[worker_idx].unanswered), worker_idx
    return chosen


def turn_of(workers: Sequence[WorkerState], limit: int, ticket: int) -> int | None:
    """Choose worker t mod W for a task, as soon as it has fewer tickets than the limit."""
    worker_idx = ticket % len(workers)
    return worker_idx if len(workers[worker_idx].unanswered) < limit else None


def lowest_stream_ticket(workers: Sequence[WorkerState], limit: int) -> int | None:
    """Choose the lowest ticket whose worker has neither ended nor as many tickets as the limit.

    So the ticket that the consumer waits for is always asked for: as long as it is not, its worker has room (all
    tickets below it have been handed over), and the one handed over last has made room for one more in all.
    """
    num_workers = len(workers)
    tickets = [
        worker.next_item * num_workers + worker_idx
        for worker_idx, worker in enumerate(workers)
        if worker.num_items is None and len(worker.unanswered) < limit
    ]
    return min(tickets, default=None)
