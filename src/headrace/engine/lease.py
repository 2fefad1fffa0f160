"""The trainer's side of an arena: leases on slots that another process has written.

A lease is the base of the one array that `ArenaReader.lease` returns, and so of every view that anybody makes of it:
with NumPy, torch, `memoryview`, DLPack, pickle 5. When the last of them is gone, the slot is free. What does *not* hold
it: an address as a number (`array.ctypes.data`) and a copied `__array_interface__`. Whoever lays arrays over it with
`numpy.ndarray(shape, dtype, buffer)` must refuse a dtype with `hasobject`: NumPy would follow the bytes as pointers.

Invariants: the finalizer of a lease appends to a deque and does nothing else, because it can run anywhere, in any
thread, in the middle of any lock. A slot that is leased cannot be leased again before `drain` has told of its end. A
process that was forked off the trainer frees nothing: the views that count are its parent's. A watcher hears of the
memory of a lease before anybody has a view of it, and that it is over before it is unmapped.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InternalError

from .memory import PAGE_BYTES, Mapping, bytes_interface, round_to_pages

_NO_BYTES = np.empty(1, np.uint8)  # an empty array needs an address too


class Lease:
    """A hold on one slot, as long as this object lives. It is made to be the base of an array, not to be handled.

    Args:
        mapping: Where the slot is mapped; None if none of its bytes are of interest.
        slot_idx: Number of the slot.
        num_bytes: Length of the array, in bytes.
        freed: Where to put `slot_idx` in the end.
    """

    __slots__ = ("__array_interface__", "_freed", "_mapping", "_slot_idx")

    def __init__(self, mapping: Mapping | None, slot_idx: int, num_bytes: int, freed: deque[int]) -> None:
        self._mapping = mapping
        self._slot_idx = slot_idx
        self._freed = freed
        self.__array_interface__ = bytes_interface(mapping.address if mapping else _NO_BYTES.ctypes.data, num_bytes)

    def __del__(self) -> None:
        self._freed.append(self._slot_idx)


class MemoryWatcher(Protocol):
    """Who prepares the memory that results come in, as for copies by a device. Called in the consumer's thread.

    The pages behind a mapping stay the same as long as it lives, and who keeps a mapping keeps it mapped.
    """

    def on_lease(self, mapping: Mapping, num_bytes: int) -> None:
        """Take note that the first `num_bytes` hold a result; no view of it exists yet, nor of an earlier one."""

    def on_retire(self, mapping: Mapping) -> None:
        """Take note that nothing new comes in this memory. Views may still be alive, and hold it."""


class ArenaReader:
    """Gives views of slots, and tells which slots nobody looks at any more.

    Views may be dropped and `free` be called in any thread; everything else is for one thread.

    Args:
        fd: The memfd. Duplicated: the caller's descriptor stays the caller's to close.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self._pid = os.getpid()
        self._mappings: dict[int, Mapping] = {}  # the latest of each slot; older ones live as long as their leases
        self._freed: deque[int] = deque()  # filled by finalizers
        self._leased: set[int] = set()  # leased, or freed and not drained yet
        self._watcher: MemoryWatcher | None = None
        self._max_bytes = 0  # of the slots together, if there is a watcher
        self._seen: dict[int, int] = {}  # what the watcher knows of: slot -> bytes that it had in its mapping at most
        self._seen_bytes = 0  # the sum

    @property
    def num_leased(self) -> int:
        """Slots of which views are alive."""
        return len(self._leased) - len(self._freed)

    @property
    def has_freed(self) -> bool:
        """Whether slots became free since the last `drain`."""
        return bool(self._freed)

    def lease(self, slot_idx: int, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return the content of a slot as a writable `uint8[num_bytes]`, without a copy.

        Args:
            slot_idx: Number of the slot.
            offset: Place of the slot in the memfd, in bytes; a multiple of the page size.
            num_bytes: How much of it was used.

        Raises:
            InternalError: The message does not fit the memfd, the slot is still leased, or the reader is closed.
            CacheError: The address space of this process is used up.
        """
        if slot_idx in self._leased:
            raise InternalError("a slot was filled again while it was leased", where=f"slot {slot_idx}")
        mapping = self._mappings.get(slot_idx)
        if num_bytes and (mapping is None or mapping.offset != offset or mapping.num_bytes < num_bytes):
            self._retire(slot_idx)
            mapping = self._mappings[slot_idx] = self._map(slot_idx, offset, num_bytes)
        lease = Lease(mapping, slot_idx, num_bytes, self._freed)  # first: if Ctrl-C comes now, the slot is freed
        self._leased.add(slot_idx)
        if mapping is not None and num_bytes:
            self._tell(slot_idx, mapping, num_bytes)
        return np.asarray(lease)

    def free(self, slot_idx: int) -> None:
        """Have `drain` tell of a slot that was never leased. May be called anywhere, as a finalizer."""
        self._freed.append(slot_idx)

    def drain(self) -> list[int]:
        """Return the slots that became free since the last call: each of them may be written again.

        In a process that was forked off the one that made this reader it is always empty.
        """
        if os.getpid() != self._pid:
            return []
        slot_idxs: list[int] = []
        while self._freed:  # nobody else takes from it; it is filled meanwhile, so it cannot be iterated over
            slot_idxs.append(self._freed.popleft())
        self._leased.difference_update(slot_idxs)
        return slot_idxs

    def watch(self, watcher: MemoryWatcher | None, max_bytes: int = 1 << 62) -> None:
        """Tell a watcher of all memory that results come in from now on, in place of another one or of None.

        The one before hears that all the memory it knew of is retired; not in a process that was forked off.

        Args:
            watcher: Who is told.
            max_bytes: Limit on the memory of all slots together: the watcher knows of no more at the same time.
        """
        if watcher is not self._watcher:
            for slot_idx in list(self._seen):
                self._retire(slot_idx)
        self._watcher, self._max_bytes = watcher, max_bytes

    def close(self) -> None:
        """Let go of the memfd. Views that are alive stay valid, and `drain` goes on telling of them."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.watch(None)
        self._mappings.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _tell(self, slot_idx: int, mapping: Mapping, num_bytes: int) -> None:
        """Tell the watcher of a lease."""
        if self._watcher is None:
            return
        more = num_bytes - self._seen.get(slot_idx, 0)
        if more > 0:
            self._seen[slot_idx] = num_bytes
            self._seen_bytes += more
            # More than there may be: free slots have given memory back, of which the watcher cannot know. All of them
            # are mapped anew when they are used again.
            if self._seen_bytes > self._max_bytes:
                for free_idx in [idx for idx in self._seen if idx not in self._leased]:
                    self._retire(free_idx)
        self._watcher.on_lease(mapping, num_bytes)

    def _retire(self, slot_idx: int) -> None:
        """Give up the mapping of a slot, if there is one."""
        mapping = self._mappings.pop(slot_idx, None)
        num_bytes = self._seen.pop(slot_idx, 0)
        self._seen_bytes -= num_bytes
        if self._watcher is not None and mapping is not None and num_bytes and os.getpid() == self._pid:
            self._watcher.on_retire(mapping)

    def _map(self, slot_idx: int, offset: int, num_bytes: int) -> Mapping:
        if self._fd < 0:
            raise InternalError("a slot was leased from a closed reader", where=f"slot {slot_idx}")
        file_bytes = os.fstat(self._fd).st_size
        # Beyond the end of the file a touch kills the process, so what another process says is checked here.
        if not (offset >= 0 and offset % PAGE_BYTES == 0 and 0 < num_bytes <= file_bytes - offset):
            raise InternalError(
                f"a slot of {num_bytes} bytes at offset {offset} does not lie in a memfd of {file_bytes} bytes",
                where=f"slot {slot_idx}",
            )
        # With room to grow, so that a slot that grows step by step is not mapped anew each time.
        room = 2 ** max(num_bytes - 1, PAGE_BYTES - 1).bit_length()
        return Mapping(self._fd, offset, min(room, round_to_pages(file_bytes - offset)))
