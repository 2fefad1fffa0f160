"""Which range is asked for next: a pure plan, without a clock, a thread or a network.

Invariants: each missing byte is in exactly one range, which waits, is delayed after a failure, or is in flight; at most
`num_streams` are in flight. After a failure the number of streams is halved, and it grows by one for about as many
ranges that come as there are streams: a store that is asked for too much is asked for less.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class ByteRange:
    """The bytes from `start` up to, not including, `stop`."""

    start: int
    stop: int

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.stop - self.start

    def __str__(self) -> str:
        """Say it with both ends included, as HTTP does."""
        return f"bytes {self.start}-{self.stop - 1}"


class RangePlan:
    """The ranges of one fetch. Times are numbers in seconds on any clock that the caller keeps to.

    Args:
        missing: What is to be fetched; disjoint.
        range_bytes: The size of a range.
        num_streams: How many ranges may be in flight.
    """

    def __init__(self, missing: Iterable[ByteRange], *, range_bytes: int, num_streams: int) -> None:
        self._ready = [cut for part in missing for cut in _cut(part, range_bytes)]
        heapq.heapify(self._ready)
        self._delayed: list[tuple[float, ByteRange]] = []
        self._in_flight: set[ByteRange] = set()
        self._num_failures: dict[int, int] = {}  # by the start of the range
        self._num_streams = num_streams
        self._allowed = float(num_streams)
        self._paused_until = float("-inf")
        self._num_failed_in_row = 0

    @property
    def is_finished(self) -> bool:
        """Whether every byte has come."""
        return not (self._ready or self._delayed or self._in_flight)

    def take(self, now: float) -> ByteRange | None:
        """Return a range to ask for now, which is then in flight; None if nothing may be asked for now."""
        if now < self._paused_until or len(self._in_flight) >= int(self._allowed):
            return None
        while self._delayed and self._delayed[0][0] <= now:
            heapq.heappush(self._ready, heapq.heappop(self._delayed)[1])
        if not self._ready:
            return None
        taken = heapq.heappop(self._ready)
        self._in_flight.add(taken)
        return taken

    def note_came(self, taken: ByteRange, num_bytes: int) -> None:
        """Note that the first `num_bytes` > 0 of a range came; what is left of it is asked for again."""
        self._in_flight.remove(taken)
        self._num_failed_in_row = 0
        self._num_failures.pop(taken.start, None)
        self._allowed = min(float(self._num_streams), self._allowed + 1.0 / self._allowed)
        if num_bytes < len(taken):
            heapq.heappush(self._ready, ByteRange(taken.start + num_bytes, taken.stop))

    def note_failed(self, taken: ByteRange) -> int:
        """Note that a range in flight failed; return how often it has by now. Then call `delay`, or give up."""
        self._in_flight.remove(taken)
        self._num_failed_in_row += 1
        self._allowed = max(1.0, self._allowed // 2)
        num_failures = self._num_failures.get(taken.start, 0) + 1
        self._num_failures[taken.start] = num_failures
        return num_failures

    def delay(self, failed: ByteRange, until: float) -> None:
        """Ask for a range that failed again, but not before a time.

        Nothing else is asked for before it either, if nothing came since an earlier failure or nothing is in flight:
        then it is the store that fails and not this range.
        """
        heapq.heappush(self._delayed, (until, failed))
        if self._num_failed_in_row > 1 or not self._in_flight:
            self.pause(until)

    def pause(self, until: float) -> None:
        """Ask for nothing before a time."""
        self._paused_until = max(self._paused_until, until)

    def next_time(self, now: float) -> float | None:
        """Return when `take` may give something again without anything coming; None: only when something comes."""
        if len(self._in_flight) >= int(self._allowed) or not (self._ready or self._delayed):
            return None
        due = now if self._ready else self._delayed[0][0]
        return max(due, self._paused_until)


def _cut(part: ByteRange, range_bytes: int) -> Iterable[ByteRange]:
    return (
        ByteRange(start, min(start + range_bytes, part.stop)) for start in range(part.start, part.stop, range_bytes)
    )
