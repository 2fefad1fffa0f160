"""What the codec needs of a slot, and a slot over plain memory."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes; unaligned arrays cost a sum 40 %, and torch and BLAS like a cache line


class Slot(Protocol):
    """Memory that is filled from its start: a bump allocator.

    A position is a byte offset from the start of the slot. If `reserve` makes the slot grow, its bytes move with it, so
    earlier positions stay valid; earlier buffers do not belong to the slot any more, but must stay readable until the
    value that they belong to is encoded: `encode` copies from them what it cannot use in place.
    """

    def reserve(self, num_bytes: int, alignment: int = ALIGNMENT) -> tuple[int, NDArray[np.uint8]]:
        """Return the position of the next `num_bytes` bytes, and the writable bytes: `uint8[num_bytes]`."""
        ...

    def find(self, array: NDArray[Any]) -> int | None:
        """Return the position of a C-contiguous array that lies wholly inside the slot as it is now, else `None`."""
        ...


class PlainSlot:
    """A slot over memory of this process.

    Args:
        num_bytes: The first size; it doubles when it does not suffice.
    """

    def __init__(self, num_bytes: int = 4096) -> None:
        self._memory = np.empty(max(num_bytes, 1), np.uint8)
        self._used = 0

    @property
    def used(self) -> int:
        """The number of bytes that are reserved."""
        return self._used

    @property
    def buffer(self) -> NDArray[np.uint8]:
        """The reserved bytes, `uint8[used]`, as a view."""
        return self._memory[: self._used]

    def reserve(self, num_bytes: int, alignment: int = ALIGNMENT) -> tuple[int, NDArray[np.uint8]]:
        """Return the position of the next `num_bytes` bytes, and the writable bytes: `uint8[num_bytes]`."""
        position = -(-self._used // alignment) * alignment
        end = position + num_bytes
        if end > len(self._memory):
            larger = np.empty(max(end, 2 * len(self._memory)), np.uint8)
            larger[: self._used] = self.buffer
            self._memory = larger
        self._used = end
        return position, self._memory[position:end]

    def find(self, array: NDArray[Any]) -> int | None:
        """Return the position of a C-contiguous array that lies wholly inside the slot as it is now, else `None`."""
        if not array.flags.c_contiguous or array.nbytes == 0:
            return None
        start: int = array.__array_interface__["data"][0] - self._memory.__array_interface__["data"][0]
        return start if start >= 0 and start + array.nbytes <= self._used else None

    def reset(self) -> None:
        """Forget what is in the slot, and keep its memory."""
        self._used = 0
