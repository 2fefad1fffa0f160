"""One slot: a piece of the arena that holds one result at a time, and the slot that the current ticket may fill.

Each slot has a stretch of the memfd to itself, as long as the arena may ever become. The file is sparse, so this costs
nothing, and a slot grows in place: nothing is moved, no position changes, and arrays that were handed out before stay
part of the slot. A slot that gave its memory back goes on in a new stretch, because a device that reads page-locked
memory by itself (see `MemoryWatcher`) would go on reading the pages that were there. A worker's function makes its
result in the open slot by `empty`, so that nothing has to be copied. Invariants: pages up to `committed_bytes` may have
been touched and no others; all of them are mapped; a byte of the file has one page for ever; a `SlotWriter` of an
earlier turn cannot reserve; at most one slot is open in a process, and only the thread that performs tickets writes to
it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InternalError

from .memfd import Mapping, extend_memfd

# In bytes: a cache line, and what vector instructions like. Misaligned arrays made a sum 40 % slower.
ALIGNMENT = 64


class SlotMemory:
    """The bytes of one slot in the worker, and what is known of them. Owned by the arena.

    Args:
        fd: The memfd; the arena keeps it open.
        slot_idx: Number of the slot.
        max_bytes: Length of the stretch of each slot in the memfd: whole pages.

    Attributes:
        array: `uint8[N]` over the part that is mapped now.
        committed_bytes: Pages that may have been touched, in bytes.
        turn: Counts the beginnings and ends of uses.
    """

    def __init__(self, fd: int, slot_idx: int, max_bytes: int) -> None:
        self.slot_idx = slot_idx
        self.offset = slot_idx * max_bytes
        self.array: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.committed_bytes = 0
        self.turn = 0
        self._fd = fd
        self._max_bytes = max_bytes
        self._mappings: list[Mapping] = []  # the last one is current; the others were, in this turn

    @property
    def is_in_use(self) -> bool:
        """Whether a writer or the trainer has it."""
        return self.turn % 2 == 1

    def begin_turn(self) -> None:
        """Count a new use. Arrays of earlier uses are none of this slot's any more."""
        self.turn += 1
        del self._mappings[:-1]

    def end_turn(self) -> None:
        """Count the end of a use."""
        self.turn += 1

    def commit(self, num_bytes: int, min_mapped_bytes: int) -> None:
        """Make at least the first `num_bytes` (whole pages) writable; the caller has checked that they may be taken.

        Raises:
            CacheError: The system refuses to lay out or map them. The slot is as it was.
        """
        if num_bytes > self.array.nbytes:
            # Twice as much each time, so that a result made of many small arrays maps a slot a few times only.
            length = min(max(num_bytes, 2 * self.array.nbytes, min_mapped_bytes), self._max_bytes)
            extend_memfd(self._fd, self.offset + length)
            mapping = Mapping(self._fd, self.offset, length)
            self._mappings.append(mapping)
            self.array = mapping.as_array()
        # Tried: getting the new pages at once (`MADV_POPULATE_WRITE`). Filling 16 MiB took 10.7 ms in place of 12.9,
        # once a slot; workers' time up to the tenth batch of 16 MiB was the same: 257 to 301 ms, 260 to 289 without.
        # Huge pages change nothing where the system has none for shared memory (`shmem_enabled`: "never" by default).
        self.committed_bytes = max(self.committed_bytes, num_bytes)

    def give_back(self, new_offset: int) -> int:
        """Return all memory of an unused slot to the system, tell how much it was, and go on at another offset."""
        num_bytes = self.committed_bytes
        self._mappings[-1].give_back(num_bytes)
        self._mappings.clear()
        self.array = np.empty(0, np.uint8)
        self.committed_bytes, self.offset = 0, new_offset
        return num_bytes

    def find(self, address: int) -> int | None:
        """Return the position in the slot of an address in this process, or None if it lies outside."""
        for mapping in self._mappings:
            if mapping.address <= address < mapping.address + mapping.num_bytes:
                return address - mapping.address
        return None


class SlotWriter:
    """Where one result is written: hands out pieces of the slot, one after the other.

    Belongs to the worker that acquired it, from `ArenaWriter.acquire` until `ArenaWriter.release`. Not thread-safe.

    Attributes:
        slot_idx: Number of the slot.
        offset: Offset of the slot in the memfd, in bytes. Stays while the slot is in use.
        used: Bytes of the slot up to the end of the last piece.
    """

    __slots__ = ("_handed_out", "_make_room", "_memory", "_turn", "offset", "slot_idx", "used")

    def __init__(self, memory: SlotMemory, make_room: Callable[[SlotMemory, int], None]) -> None:
        self.slot_idx = memory.slot_idx
        self.offset = memory.offset
        self.used = 0
        self._memory = memory
        self._make_room = make_room
        self._turn = memory.turn
        # By their ids, with their positions. They are kept alive, so that no other array gets the id of one of them.
        self._handed_out: dict[int, tuple[NDArray[Any], int]] = {}

    def reserve(self, num_bytes: int, alignment: int = ALIGNMENT) -> tuple[int, NDArray[np.uint8]]:
        """Take the next piece of the slot; the slot grows if it must.

        Args:
            num_bytes: Length of the piece, in bytes; may be 0.
            alignment: The position is a multiple of it. Up to the page size, the address is one too.

        Returns:
            Position in the slot in bytes, and the piece as a writable `uint8[num_bytes]` with arbitrary content.

        Raises:
            CacheError: The arena may not become so large, or the machine has no memory left. The slot is as it was.
            InternalError: The slot has been released.
        """
        position = self._take(num_bytes, alignment)
        return position, self._memory.array[position : self.used]

    def _take(self, num_bytes: int, alignment: int) -> int:
        position = -(-self.used // alignment) * alignment
        end = position + num_bytes
        memory = self._memory
        if self._turn != memory.turn:
            raise InternalError("a slot was written after its release", where=f"slot {self.slot_idx}")
        if end > memory.committed_bytes:
            self._make_room(memory, end)
        self.used = end
        return position

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        """Return an array inside the slot, to be filled in place: `dtype[shape]` in C order, with arbitrary content.

        It is recognised when the result is encoded and not copied. It must not be written after that, since the trainer
        owns it then. It stays safe to write if the slot grows.

        Raises:
            ConfigError: The dtype holds Python objects, which no other process can read.
            CacheError: See `reserve`.
        """
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise ConfigError(
                f"an array of dtype {dtype} cannot be made in shared memory: it holds Python objects",
                fix="use a dtype of fixed size, or return an ordinary array, which is then pickled",
            )
        if type(shape) is not tuple:
            shape = (index(shape),) if hasattr(shape, "__index__") else tuple(shape)
        num_bytes = dtype.itemsize
        for length in shape:
            if length < 0:
                raise ConfigError(f"an array cannot have the shape {shape}: a length is negative")
            num_bytes *= index(length)
        position = self._take(num_bytes, ALIGNMENT)
        array: NDArray[Any] = np.ndarray(shape, dtype, self._memory.array, position)
        if num_bytes:
            self._handed_out[id(array)] = array, position
        return array

    def rewind(self) -> None:
        """Begin anew: what was written is not needed."""
        self.used = 0
        self._handed_out.clear()

    def view_used(self) -> NDArray[np.uint8]:
        """Return all that was reserved so far, `uint8[used]`: a view."""
        return self._memory.array[: self.used]

    def find(self, array: NDArray[np.generic]) -> int | None:
        """Return where in the slot an array lies, or None if it is not in it as one piece in C order.

        Args:
            array: Any array; one of another slot, or of an earlier use of this one's memory, counts only if it lies
                where this slot has handed out a piece.

        Returns:
            Position of the first byte, if the array has any bytes, is C-contiguous, and lies wholly in the used part.
        """
        handed_out = self._handed_out.get(id(array))
        if handed_out is not None:
            return handed_out[1] if array.flags.c_contiguous else None  # its strides can be set
        base = array.base
        while isinstance(base, np.ndarray):
            base = base.base
        if base is None:  # memory of NumPy's own: by far the most frequent case, and the next steps cost ten times more
            return None
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        position = self._memory.find(array.__array_interface__["data"][0])
        if position is None or position + array.nbytes > self.used:
            return None
        return position


_slot: SlotWriter | None = None
_thread = 0


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return an array for the result of the current ticket, to be filled in place: `dtype[shape]`, arbitrary content.

    In the main thread of a worker process it lies in shared memory, and a result that contains it is delivered without
    a copy; it must not be written any more once the result is returned. Anywhere else it is `numpy.empty`, which takes
    1 us less: an array of less than about 10 KiB is copied in that time.

    Raises:
        CacheError: The result does not fit into the worker's shared memory.

    Examples:
        >>> from headrace.engine import empty
        >>> array = empty((2, 3), "float32")
        >>> array.shape
        (2, 3)
    """
    slot = _slot
    if slot is None or get_ident() != _thread:
        return np.empty(shape, dtype)
    dtype = np.dtype(dtype)
    return np.empty(shape, dtype) if dtype.hasobject else slot.empty(shape, dtype)


def is_in_place(array: NDArray[Any]) -> bool:
    """Tell whether an array lies where the result of the current ticket goes, so that nothing has to be copied."""
    return _slot is not None and get_ident() == _thread and _slot.find(array) is not None


def open_slot(slot: SlotWriter | None) -> None:
    """Tell `empty` where the result of the current ticket goes; None: nowhere. For the loop of a worker only."""
    global _slot, _thread
    _slot = slot
    _thread = get_ident()


def close_slot() -> SlotWriter | None:
    """Have `empty` give ordinary memory in this thread, until the slot that is returned, if any, is opened again."""
    global _slot
    if _slot is None or get_ident() != _thread:
        return None
    slot, _slot = _slot, None
    return slot
