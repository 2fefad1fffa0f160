"""The steps of a stream that a worker reads: already made there, or carried to other workers that make them.

Invariants: each step comes once, in order; a batch that is left out keeps its number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace.engine import Delivered, Engine, Run

from ..plan import Progress
from ..steps import Arrived, PlannedArrivals
from .marks import WindowMarks
from .work import StreamBroken, StreamEnd

_CARRIED_BYTES = 256 << 20  # of sequences that the reader has sent here
_WEIGHT = 0.25  # of the last batch in the mean: sizes change from window to window


class _Load:
    """How much is carried through the trainer, which bounds how many batches may be in flight.

    Args:
        num_makers: How many workers make batches of it.
    """

    def __init__(self, num_makers: int) -> None:
        self._num_makers, self._mean_bytes = num_makers, 0.0

    def take_up(self, parcel: Any) -> None:
        """Note the size of a batch that was read."""
        num_bytes = len(parcel) if isinstance(parcel, bytes) else 0  # a task is in the trainer's memory anyway
        self._mean_bytes += (num_bytes - self._mean_bytes) * (_WEIGHT if self._mean_bytes else 1)

    def max_tickets(self) -> int:
        """Return how many batches may be in flight: half of the memory is for those that are read ahead of them."""
        return max(int(_CARRIED_BYTES / 2 / max(self._mean_bytes, 1)), self._num_makers)


class StreamArrivals:
    """Steps of a stream that one worker reads.

    Args:
        on_progress: Called with what is known of the stream.
        marks: Compares what is read anew, if that worker dies, with what it had read.
    """

    def __init__(self, on_progress: Callable[[Progress], None], marks: WindowMarks) -> None:
        self._marks = marks
        self._on_progress = on_progress
        self.next_ticket = 0

    def take(self, delivered: Delivered) -> Arrived | None:
        """Return the step."""
        self.next_ticket = delivered.ticket + 1
        made = delivered.value
        if isinstance(made, StreamBroken):
            raise made.raisable(delivered.ticket, delivered.worker_idx)
        self._on_progress(made.progress)
        self._marks.take(made.marks)
        if isinstance(made, StreamEnd):
            self._marks.end(made.num_windows)
            return None
        return Arrived(made.step, made.seq_idx, np.full(len(made.seq_idx), -1), made.chunk_starts, made.value)

    def num_skipped(self, delivered: Delivered | None) -> int:
        """Return how many tickets were skipped."""
        return 0 if delivered is None else delivered.ticket - self.next_ticket


class CarriedRun:
    """Two chained runs: one worker reads, others make the batches; the second run begins when a batch is waited for.

    Args:
        reading: The run of the reader.
        makers: Who make the batches.
        read: What the tickets of the reader are.

    Attributes:
        arrivals: What the tickets of this run are.
    """

    def __init__(self, reading: Run, makers: Engine, read: StreamArrivals) -> None:
        self.arrivals = PlannedArrivals()
        self._reading, self._makers, self._load = reading, makers, _Load(makers.num_workers)
        self._parcels = _carried(reading, read, self.arrivals.asked, self._load)
        self._making: Run | None = None

    def __next__(self) -> Delivered:
        """Return the next batch."""
        if self._making is None:
            self._making = self._makers.run(self._parcels, max_open=self._load.max_tickets)
        return next(self._making)

    def close(self) -> None:
        """Close both runs."""
        for run in (self._making, self._reading):
            if run is not None:
                run.close()


def _carried(reading: Iterator[Delivered], read: StreamArrivals, asked: deque[Arrived], load: _Load) -> Iterator[Any]:
    """Yield the parcels of the steps that were read, and remember these. A function, as `_tasks`."""
    while True:
        delivered = next(reading, None)
        arrived = None if delivered is None else read.take(delivered)
        if arrived is None:
            return
        parcel, arrived.value = arrived.value, None
        arrived.seq_idx = np.array(arrived.seq_idx)  # not in the reader's memory, of which the consumer may keep some
        arrived.chunk_starts = None if arrived.chunk_starts is None else np.array(arrived.chunk_starts)
        asked.append(arrived)
        load.take_up(parcel)
        del delivered, arrived
        yield parcel
