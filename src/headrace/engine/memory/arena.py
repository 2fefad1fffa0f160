"""The arena of one worker: slots of shared memory that are written, lent to the trainer, and written again.

Writing to memory that was touched before is several times faster than to new memory, so the slot that came back last is
used first, and the arena keeps what it has until its limit forces it to give some back. Invariants: a slot is written
only between `acquire` and `release`, and it is not released while the trainer has a view; the memory touched never
exceeds `max_bytes`. Only the worker uses this class, from one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

from headrace.errors import CacheError, ConfigError, InternalError

from .limits import MemoryGuard, shortage_error
from .memfd import round_to_pages
from .slot import SlotMemory, SlotWriter

# Half of what Linux can address in a file: the other half is for slots that gave their memory back and moved. Each slot
# has `max_bytes` of the sparse file to itself.
_MAX_FILE_BYTES = 1 << 62

# A result of more than this part of the arena is large: in smaller pieces it might have gone on.
_LARGE_PART = 8


class ValueTooLargeError(CacheError):
    """One result needs more shared memory than its worker may have in all."""


class MemoryHeldError(CacheError):
    """A result that takes much of the memory would fit, but results that the consumer keeps are in the way."""


class ArenaWriter:
    """Hands out slots to write results to, within a limit on memory.

    Args:
        fd: The memfd (`create_memfd`). Duplicated: the caller's descriptor stays the caller's to close.
        slot_bytes: How much of a slot is mapped at first, in bytes. A slot grows beyond it as needed, and takes memory
            only as it is written.
        num_slots: How many results can be with the trainer, or under way, at the same time.
        max_bytes: Limit on the memory of all slots together, in bytes; rounded up to whole pages.
        wait_for_release: Blocks until a slot has been released (calls `release` itself), and returns False when it
            gives up. None: there is no wait.
        guard: Asked before memory is touched for the first time.

    Raises:
        ConfigError: The sizes do not go together.
    """

    def __init__(
        self,
        fd: int,
        *,
        slot_bytes: int,
        num_slots: int,
        max_bytes: int,
        wait_for_release: Callable[[], bool] | None = None,
        guard: MemoryGuard | None = None,
    ) -> None:
        if min(slot_bytes, num_slots, max_bytes) < 1:
            raise ConfigError(
                f"an arena needs slot_bytes, num_slots and max_bytes of at least 1, got {slot_bytes}, {num_slots} and "
                f"{max_bytes}"
            )
        if slot_bytes > max_bytes:
            raise ConfigError(
                f"a slot of slot_bytes={slot_bytes} does not fit into an arena of max_bytes={max_bytes}",
                fix="lower slot_bytes or raise max_bytes",
            )
        if num_slots * max_bytes > _MAX_FILE_BYTES:
            raise ConfigError(
                f"num_slots={num_slots} times max_bytes={max_bytes} is more than a file may be long: {_MAX_FILE_BYTES}",
                fix="lower max_bytes: a limit beyond the memory of the machine limits nothing",
            )
        self.slot_bytes = slot_bytes
        self.max_bytes = round_to_pages(max_bytes)
        self._fd = os.dup(fd)
        self._slots = [SlotMemory(self._fd, slot_idx, self.max_bytes) for slot_idx in range(num_slots)]
        self._free = self._slots[::-1]  # a stack: the slot that came back last is the warmest
        self._committed_bytes = 0  # sum over all slots
        self._next_offset = num_slots * self.max_bytes  # the first stretch that no slot had
        self._wait_for_release = wait_for_release
        self._guard = guard or MemoryGuard()

    @property
    def num_free(self) -> int:
        """Slots that can be acquired now."""
        return len(self._free)

    @property
    def committed_bytes(self) -> int:
        """Memory that the slots may have touched and not given back, in bytes: never more than `max_bytes`."""
        return self._committed_bytes

    def acquire(self, block: bool = False) -> SlotWriter | None:
        """Return a slot to write one result to, or None if all of them are taken.

        Args:
            block: Wait for a release first if need be; None then means that waiting was given up.
        """
        while not self._free:
            if not block or not self._wait():
                return None
        memory = self._free.pop()
        memory.begin_turn()
        return SlotWriter(memory, self._make_room)

    def release(self, slot_idx: int) -> None:
        """Take a slot back: the trainer said that its last view is gone, or the result was never sent.

        Raises:
            InternalError: The slot is not in use. Taking it twice would let two results share memory.
        """
        memory = self._slots[slot_idx] if 0 <= slot_idx < len(self._slots) else None
        if memory is None or not memory.is_in_use:
            raise InternalError(f"slot {slot_idx} was released but is not in use", where=f"{len(self._slots)} slots")
        memory.end_turn()
        self._free.append(memory)

    def close(self) -> None:
        """Let go of the memfd and of all slots. Arrays that live elsewhere stay valid. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._free.clear()
        self._slots.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _make_room(self, memory: SlotMemory, num_bytes: int) -> None:
        """Commit the first `num_bytes` of a slot that is being written, or raise and leave everything as it was."""
        if self._fd < 0:
            raise InternalError("a slot was written after its arena was closed", where=f"slot {memory.slot_idx}")
        wanted = round_to_pages(num_bytes)
        if wanted > self.max_bytes:
            raise ValueTooLargeError(
                f"an item needs {num_bytes} bytes of shared memory, more than the limit max_bytes={self.max_bytes} of "
                "its worker",
                fix=f"raise max_bytes to at least {wanted}, or make the item smaller",
            )
        extra = wanted - memory.committed_bytes
        while (excess := self._committed_bytes + extra - self.max_bytes) > 0:
            if self._give_back(excess) < excess and not self._wait():
                raise self._hoarding_error(memory, num_bytes)
        shortage = self._guard.ask(extra)
        if shortage is not None and self._give_back(extra):
            shortage = self._guard.ask(extra)
        if shortage is not None:
            raise shortage_error(extra, shortage)
        memory.commit(wanted, self.slot_bytes)
        self._committed_bytes += extra

    def _give_back(self, num_bytes: int) -> int:
        """Return at least so much memory of free slots to the system if they have it; tell how much it was."""
        total = 0
        for memory in sorted(self._free, key=lambda memory: memory.committed_bytes, reverse=True):
            is_file_full = self._next_offset >= 2 * _MAX_FILE_BYTES - self.max_bytes
            if total >= num_bytes or not memory.committed_bytes or is_file_full:
                break
            given = memory.give_back(self._next_offset)
            self._next_offset += self.max_bytes
            self._committed_bytes -= given
            total += given
        return total

    def _wait(self) -> bool:
        return self._wait_for_release is not None and self._wait_for_release()

    def no_slot_error(self) -> CacheError:
        """Return what to say if waiting for a slot was given up."""
        return CacheError(
            f"all {len(self._slots)} slots of this worker hold results that are still held elsewhere",
            fix="drop results sooner, or copy what is kept of them",
        )

    def _hoarding_error(self, memory: SlotMemory, num_bytes: int) -> CacheError:
        held = self._committed_bytes - memory.committed_bytes
        num_held = sum(slot.is_in_use for slot in self._slots) - 1
        is_large = num_bytes > self.max_bytes // _LARGE_PART
        kind = MemoryHeldError if is_large else CacheError
        return kind(
            f"an item needs {num_bytes} bytes of shared memory, but {num_held} results that are still held elsewhere "
            f"take {held} of the max_bytes={self.max_bytes} of this worker",
            fix=f"drop results sooner or copy what is kept of them, or raise max_bytes to at least "
            f"{round_to_pages(num_bytes) + held}",
        )
