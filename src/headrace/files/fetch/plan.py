"""Which range is requested next: a pure plan, without a clock, a thread or a network.

Invariants: each missing byte is in exactly one range, which waits, is delayed after a failure, or is in flight; at most
`num_streams` are in flight. After a failure the number of streams is halved, and it grows by one for about as many
arrivals as there are streams, so that an overloaded store gets fewer requests.
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
        """Return it with both ends included, as HTTP does."""
        return f"bytes {self.start}-{self.stop - 1}"


class RangePlan:
    """The ranges of one fetch. Times are in seconds on any one clock of the caller's.

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
        """Whether every byte has arrived."""
        return not (self._ready or self._delayed or self._in_flight)

    def take(self, now: float) -> ByteRange | None:
        """Return a range to request now, which is then in flight; None if nothing may be requested now."""
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
        """Note that the first `num_bytes` > 0 of a range arrived; the rest of it is requested again."""
        self._in_flight.remove(taken)
        self._num_failed_in_row = 0
        self._num_failures.pop(taken.start, None)
        self._allowed = min(float(self._num_streams), self._allowed + 1.0 / self._allowed)
        if num_bytes < len(taken):
            heapq.heappush(self._ready, ByteRange(taken.start + num_bytes, taken.stop))

    def note_failed(self, taken: ByteRange) -> int:
        """Note that a range in flight failed; return its number of failures. Then call `delay`, or end the fetch."""
        self._in_flight.remove(taken)
        self._num_failed_in_row += 1
        self._allowed = max(1.0, self._allowed // 2)
        num_failures = self._num_failures.get(taken.start, 0) + 1
        self._num_failures[taken.start] = num_failures
        return num_failures

    def delay(self, failed: ByteRange, until: float) -> None:
        """Request a failed range again, but not before a time.

        Nothing else is requested before that time either, if nothing arrived since an earlier failure or nothing is in
        flight: then the store fails, not this range.
        """
        heapq.heappush(self._delayed, (until, failed))
        if self._num_failed_in_row > 1 or not self._in_flight:
            self.pause(until)

    def pause(self, until: float) -> None:
        """Request nothing before a time."""
        self._paused_until = max(self._paused_until, until)

    def next_time(self, now: float) -> float | None:
        """Return when `take` may return a range again without an arrival; None: only after one."""
        if len(self._in_flight) >= int(self._allowed) or not (self._ready or self._delayed):
            return None
        due = now if self._ready else self._delayed[0][0]
        return max(due, self._paused_until)


def _cut(part: ByteRange, range_bytes: int) -> Iterable[ByteRange]:
    return (
        ByteRange(start, min(start + range_bytes, part.stop)) for start in range(part.start, part.stop, range_bytes)
    )
