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


def plan_tasks(workers: Sequence[WorkerState], limit: int, first: int, num: int, *, in_turns: bool) -> list[int]:
    """Choose the workers of the next tasks: fewer than `num` of them, if no worker may have more.

    Ticket t goes to the worker with the fewest, among equals to worker t mod W, or the next one after it: workers that
    are equally fast take turns.

    Args:
        workers: Of whom none may be given more tickets than `limit`.
        limit: See `workers`.
        first: The first ticket.
        num: How many there are at most.
        in_turns: Whether ticket t goes to worker t mod W only.
    """
    num_workers = len(workers)
    loads = [len(worker.unanswered) for worker in workers]
    fewest = min(loads)
    num_with_fewest = loads.count(fewest)
    chosen: list[int] = []
    for ticket in range(first, first + num):
        worker_idx = ticket % num_workers
        if loads[worker_idx] > fewest and not in_turns:
            after = worker_idx + 1
            worker_idx = loads.index(fewest, after) if fewest in loads[after:] else loads.index(fewest)
        load = loads[worker_idx]
        if load >= limit:
            break
        loads[worker_idx] = load + 1
        chosen.append(worker_idx)
        if load == fewest:
            num_with_fewest -= 1
            if num_with_fewest == 0:
                fewest = min(loads)
                num_with_fewest = loads.count(fewest)
    return chosen


def plan_items(workers: Sequence[WorkerState], limit: int, num: int) -> list[int]:
    """Choose the next tickets of streams: the lowest whose workers have neither ended nor as many as the limit.

    So the ticket that the consumer waits for is always asked for: as long as it is not, its worker has room (all
    tickets below it have been handed over), and the one handed over last has made room for one more in all.
    """
    num_workers = len(workers)
    open_to: list[int] = []  # tickets that each worker may get, of which the lowest come first
    for worker_idx, worker in enumerate(workers):
        if worker.num_items is None:
            room = min(limit - len(worker.unanswered), num)
            open_to += [(worker.next_item + item) * num_workers + worker_idx for item in range(room)]
    open_to.sort()
    return open_to[:num]
