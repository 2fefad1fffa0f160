"""The trainer's memory for the results of one remote worker: received into, lent to the consumer, received into again.

As in the arena of a worker process, memory that was touched before is several times faster than new memory, so it is
kept and reused; leases (`../memory/lease.py`) say when no view of it is left. Here the trainer itself writes, so
the memory outlives the worker. Invariants: a slot is written only while its lease is alive and nothing else has it; all
slots together are at most a quarter larger than what the results in them may be, which the credits of the worker limit.
"""

from __future__ import annotations

import os
from collections import deque

import numpy as np
from numpy.typing import NDArray

from ..memory.lease import ArenaReader, MemoryWatcher
from ..memory.limits import MemoryGuard, shortage_error
from ..memory.memfd import PAGE_BYTES, Mapping, create_memfd, extend_memfd
from .wire import charge

# With more leases than this, a small result is copied out of its slot: see `ArenaReader`.
_MAX_LEASES = 2048
# A result is small if it is less than this part of all the memory.
_SMALL_PART = 4096


class ReceiveMemory:
    """Hands out memory for results. Not thread-safe; views of it may be dropped anywhere.

    Args:
        max_bytes: Limit on the bytes of all results that are in it at the same time, each as `charge` counts it.

    Attributes:
        held_bytes: Bytes of the results that are in it now, as far as `drain` has found out, counted alike.
        freed_bytes: Bytes of those that were freed until then, in all.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = charge(max_bytes)
        self.held_bytes = self.freed_bytes = 0
        self._limit = self.max_bytes + self.max_bytes // 4 + PAGE_BYTES
        self._fd = create_memfd("headrace-remote")
        self._reader = ArenaReader(self._fd, max_leases=_MAX_LEASES, copy_bytes=max_bytes // _SMALL_PART)
        self._guard = MemoryGuard()
        self._offsets: list[int] = []  # by slot, as the next two
        self._capacities: list[int] = []
        self._charges: list[int] = []  # of the result in it
        self._free: dict[int, deque[int]] = {}  # capacity -> free slots, the one that came back last at the end
        self._without_memory: list[int] = []  # slots that gave theirs back
        self._total_bytes = 0  # of the capacities
        self._end = 0  # of the file

    def reserve(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory for one result, to be filled: `uint8[num_bytes]`. It is free when its last view is gone.

        Raises:
            CacheError: The machine has no memory left.
        """
        capacity = capacity_for(num_bytes)
        free = self._free.get(capacity)
        slot_idx = free.pop() if free else self._make_slot(capacity)
        self._charges[slot_idx] = charged = charge(num_bytes)
        self.held_bytes += charged
        return self._reader.lease(slot_idx, self._offsets[slot_idx], num_bytes)

    def drain(self) -> None:
        """Take back memory of which no view is left."""
        reader = self._reader
        if not reader.freed and not reader.seen_by_children:
            return
        for slot_idx in reader.drain():
            self.held_bytes -= self._charges[slot_idx]
            self.freed_bytes += self._charges[slot_idx]
            self._free.setdefault(self._capacities[slot_idx], deque()).append(slot_idx)

    def watch(self, watcher: MemoryWatcher | None) -> None:
        """Tell a watcher of the memory that results come in from now on."""
        self._reader.watch(watcher, self._limit)

    def close(self) -> None:
        """Let go of the memory; results that were handed over stay valid. Harmless twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._reader.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _make_slot(self, capacity: int) -> int:
        """Return a new slot; others give memory back if there would be too much."""
        while self._total_bytes + capacity > self._limit and self._give_back():
            pass
        shortage = self._guard.ask(capacity)
        while shortage is not None and self._give_back():
            shortage = self._guard.ask(capacity)
        if shortage is not None:
            raise shortage_error(capacity, shortage)
        extend_memfd(self._fd, self._end + capacity)
        if self._without_memory:
            slot_idx = self._without_memory.pop()
        else:
            slot_idx = len(self._offsets)
            self._offsets.append(0)
            self._capacities.append(0)
            self._charges.append(0)
        self._offsets[slot_idx], self._capacities[slot_idx] = self._end, capacity
        self._end += capacity
        self._total_bytes += capacity
        return slot_idx

    def _give_back(self) -> bool:
        """Return the memory of the largest free slot to the system; tell whether there was one."""
        capacity = max((capacity for capacity, free in self._free.items() if free), default=0)
        if not capacity:
            return False
        slot_idx = self._free[capacity].popleft()
        Mapping(self._fd, self._offsets[slot_idx], capacity).give_back(capacity)
        # Where it lay is never used again: a device may go on reading the pages that were there (`../memory/slot.py`).
        self._without_memory.append(slot_idx)
        self._total_bytes -= capacity
        return True


def capacity_for(num_bytes: int) -> int:
    """Return the size of a slot for `num_bytes`: whole pages, at most a quarter more, and of few different sizes."""
    pages = max(-(-num_bytes // PAGE_BYTES), 1)
    step = 1 << max(pages.bit_length() - 3, 0)
    return -(-pages // step) * step * PAGE_BYTES
