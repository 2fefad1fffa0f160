"""The trainer's side of an arena: leases on slots that another process has written.

A lease is the base of the one array that `ArenaReader.lease` returns, and so of every view that is made of it:
with NumPy, torch, `memoryview`, DLPack, pickle 5. When the last of them is gone, the slot is free. What does *not* hold
it: an address as a number (`array.ctypes.data`) and a copied `__array_interface__`. Code that lays arrays over it with
`numpy.ndarray(shape, dtype, buffer)` must refuse a dtype with `hasobject`: NumPy would follow the bytes as pointers.

Invariants: no Python code runs when a lease ends, because that happens anywhere, in any thread, in the middle of any
lock, and what a signal handler raises there would be lost: C code appends to a deque, and no more. A slot that is
leased cannot be leased again before `drain` has told of its end. A process that was forked off the trainer frees
nothing, and what it has views of is not free before it has ended (`forks.py`). A watcher hears of the memory of a lease
before anybody has a view of it, and that it is over before it is unmapped.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InternalError

from . import forks
from .forks import forget_ended_forks, has_seen, living_forks, watch_forks
from .memfd import PAGE_BYTES, Mapping, bytes_interface, round_to_pages

_NO_BYTES = np.empty(1, np.uint8)  # an empty array needs an address too
_NO_BYTES_INTERFACE = bytes_interface(_NO_BYTES.ctypes.data, 0)


class Lease:
    """A hold on one slot, as long as this object lives. It is made to be the base of an array, not to be handled."""

    __slots__ = ("__array_interface__", "__weakref__", "mapping")

    mapping: Mapping | None
    __array_interface__: dict[str, Any]


class _LeaseEnd(weakref.ref[Lease]):
    """What is left of a lease that has ended: handed to a callable, which C code calls.

    Attributes:
        slot_idx: The number of its slot.
        num_forks: See `forks.num_forks`, at its beginning.
    """

    __slots__ = ("num_forks", "slot_idx")

    slot_idx: int
    num_forks: int


class MemoryWatcher(Protocol):
    """Prepares the memory of results, as for copies by a device. Called in the consumer's thread.

    The pages of a mapping stay the same as long as it lives, and a reference to a mapping keeps it mapped.
    """

    def on_lease(self, mapping: Mapping, num_bytes: int) -> None:
        """Note that the first `num_bytes` hold a result; no view of it exists yet, nor of an earlier one."""

    def on_retire(self, mapping: Mapping) -> None:
        """Note that no new results come in this memory. Views may still be alive, and hold it."""


class ArenaReader:
    """Gives views of slots, and tells which slots have no views any more.

    Leases and views may be dropped in any thread; everything else is for one thread.

    Args:
        fd: The memfd. Duplicated: the caller's descriptor stays the caller's to close.
        max_leases: With more leases than this, a view of less than `copy_bytes` is a copy that holds no slot, so that
            a consumer that keeps many small results does not run out of slots.
        copy_bytes: See `max_leases`.

    Attributes:
        freed: Leases that have ended since the last `drain`. To be looked at, as the next one.
        seen_by_children: Of earlier ones, those of which forked children may have views.
    """

    def __init__(self, fd: int, *, max_leases: int = 1 << 62, copy_bytes: int = 0) -> None:
        self._max_leases, self._copy_bytes = max_leases, copy_bytes
        self._fd = os.dup(fd)
        self._pid = os.getpid()
        self._mappings: dict[int, Mapping] = {}  # the latest of each slot; older ones live as long as their leases
        self.freed: deque[_LeaseEnd] = deque()  # filled by leases that end
        self._note_end: Callable[[_LeaseEnd], None] = self.freed.append
        self._leased: dict[int, _LeaseEnd] = {}  # or freed and not drained yet; an end is noted while it is kept
        self.seen_by_children: list[_LeaseEnd] = []
        self._watcher: MemoryWatcher | None = None
        self._max_bytes = 0  # of the slots together, if there is a watcher
        self._seen: dict[int, int] = {}  # what the watcher knows of: slot -> bytes that it had in its mapping at most
        self._seen_bytes = 0  # the sum
        watch_forks(self)

    @property
    def num_leased(self) -> int:
        """Slots that are held or of which views are alive."""
        return len(self._leased) - len(self.freed)

    @property
    def is_open(self) -> bool:
        """Whether slots will be written again when they are free."""
        return self._fd >= 0

    @property
    def is_leased(self) -> bool:
        """Whether it is open and anybody may have views of its slots."""
        return self._fd >= 0 and bool(self._leased)

    def lease(self, slot_idx: int, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return the content of a slot as a writable `uint8[num_bytes]`, without a copy: `hold` and `view` at once.

        If there can be no view, the slot is free again, of which `drain` tells.
        """
        (lease,) = self.hold((slot_idx,))
        return self.view(lease, slot_idx, offset, num_bytes)

    def hold(self, slot_idxs: Sequence[int]) -> list[Lease]:
        """Return leases on slots, of each of which there may be a `view` later: it is free when its lease is gone.

        Raises:
            InternalError: A slot is leased already.
        """
        leases: list[Lease] = []
        for slot_idx in slot_idxs:
            if slot_idx in self._leased:
                raise InternalError("a slot was filled again while it was leased", where=f"slot {slot_idx}")
            lease = Lease()
            end = _LeaseEnd(lease, self._note_end)
            end.slot_idx, end.num_forks = slot_idx, forks.num_forks
            self._leased[slot_idx] = end
            leases.append(lease)
        return leases

    def view(self, lease: Lease, slot_idx: int, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return the content of a slot as a writable `uint8[num_bytes]` that keeps the lease alive, or a copy of it.

        Args:
            lease: On this slot. To be used for one view.
            slot_idx: Number of the slot.
            offset: Offset of the slot in the memfd, in bytes; a multiple of the page size.
            num_bytes: How much of it was used.

        Raises:
            InternalError: The message does not fit the memfd, or the reader is closed.
            CacheError: The address space of this process is used up.
        """
        mapping = self._mappings.get(slot_idx)
        if num_bytes and (mapping is None or mapping.offset != offset or mapping.num_bytes < num_bytes):
            mapping = self._map_anew(slot_idx, offset, num_bytes)
        if mapping is not None and num_bytes and self._watcher is not None:
            self._tell(self._watcher, slot_idx, mapping, num_bytes)
        lease.mapping = mapping
        interface = _NO_BYTES_INTERFACE if mapping is None else mapping.__array_interface__
        lease.__array_interface__ = {**interface, "shape": (num_bytes,)}
        content = np.asarray(lease)
        is_copied = num_bytes < self._copy_bytes and len(self._leased) - len(self.freed) > self._max_leases
        return content.copy() if is_copied else content

    def drain(self) -> list[int]:
        """Return the slots that became free since the last call: each of them may be written again.

        In a process that was forked off the one that made this reader it is always empty.
        """
        if forks.own_pid != self._pid:
            return []
        slot_idxs: list[int] = []
        seen, self.seen_by_children = self.seen_by_children, []
        while self.freed:  # only this takes from it; it is filled meanwhile, so it cannot be iterated over
            end = self.freed.popleft()
            if living_forks and has_seen(end.num_forks):  # asked now: a fork that came before this end is known by now
                seen.append(end)
            else:
                slot_idxs.append(end.slot_idx)
        if seen:
            forget_ended_forks()
            for end in seen:
                if has_seen(end.num_forks):
                    self.seen_by_children.append(end)
                else:
                    slot_idxs.append(end.slot_idx)
        for slot_idx in slot_idxs:
            del self._leased[slot_idx]
        return slot_idxs

    def make_private(self) -> None:
        """In a forked child: have what is written to leased slots not reach the parent."""
        for end in self._leased.values():
            mapping = getattr(end(), "mapping", None)  # there is none without a view
            if mapping is not None and self._fd >= 0:
                mapping.make_private(self._fd)

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
        if living_forks and os.getpid() == self._pid:
            forget_ended_forks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _tell(self, watcher: MemoryWatcher, slot_idx: int, mapping: Mapping, num_bytes: int) -> None:
        """Tell a watcher of a lease."""
        more = num_bytes - self._seen.get(slot_idx, 0)
        if more > 0:
            self._seen[slot_idx] = num_bytes
            self._seen_bytes += more
            # More than there may be: free slots have given memory back, of which the watcher cannot know. All of them
            # are mapped anew when they are used again.
            if self._seen_bytes > self._max_bytes:
                for free_idx in [idx for idx in self._seen if idx not in self._leased]:
                    self._retire(free_idx)
        watcher.on_lease(mapping, num_bytes)

    def _map_anew(self, slot_idx: int, offset: int, num_bytes: int) -> Mapping:
        """Map so much of a slot, in place of what was mapped of it."""
        self._retire(slot_idx)
        mapping = self._mappings[slot_idx] = self._map(slot_idx, offset, num_bytes)
        return mapping

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
