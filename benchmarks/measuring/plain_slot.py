"""A slot of the codec over plain memory, for what carries values nowhere: a benchmark, and tests."""

from __future__ import annotations

import numpy as np

from headrace.engine.codec.format import ALIGNMENT


class PlainSlot:
    """A slot over memory of this process; it doubles when its first size does not suffice."""

    def __init__(self, num_bytes: int = 4096) -> None:
        self._memory = np.empty(max(num_bytes, 1), np.uint8)
        self.used = 0

    @property
    def buffer(self) -> np.ndarray:
        """What is in use, `uint8[used]`."""
        return self._memory[: self.used]

    def reserve(self, num_bytes: int, alignment: int = ALIGNMENT) -> tuple[int, np.ndarray]:
        """Return the position of so many new bytes, and these."""
        position = -(-self.used // alignment) * alignment
        end = position + num_bytes
        if end > len(self._memory):
            larger = np.empty(max(end, 2 * len(self._memory)), np.uint8)
            larger[: self.used] = self.buffer
            self._memory = larger
        self.used = end
        return position, self._memory[position:end]

    def find(self, array: np.ndarray) -> int | None:
        """Return where an array lies in the slot; None if it does not."""
        if not array.flags.c_contiguous or array.nbytes == 0:
            return None
        start: int = array.__array_interface__["data"][0] - self._memory.__array_interface__["data"][0]
        return start if start >= 0 and start + array.nbytes <= self.used else None

    def reset(self) -> None:
        """Empty it; the memory stays."""
        self.used = 0
