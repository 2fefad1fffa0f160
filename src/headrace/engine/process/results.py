"""The value of a ticket on its way from a worker process: where it lies, and how the trainer takes it.

All are sent as they are; a value in a slot gets its hold on the slot when it comes in.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..codec.codec import decode
from ..codec.format import dtype_of, plain_token

# A worker is told at once of slots that became free where a result is so large (bytes) that writing to memory that is
# still warm matters; else with the next tickets, which saves calls.
_WARM_BYTES = 128 << 10


class InlineResult(msgspec.Struct, array_like=True, tag=0):
    """A small value that came within its message.

    Attributes:
        header: Header of the codec.
        data: The bytes of the value: its own memory.
        num_bytes: How many.
    """

    header: bytes
    data: bytearray
    num_bytes: int

    def take(self) -> Any:
        """Decode the value."""
        return decode(self.header, np.frombuffer(self.data, np.uint8))

    def discard(self) -> None:
        """Nothing is held."""


class InlineArray(msgspec.Struct, array_like=True, tag=2):
    """A small array that came within its message: the most frequent small value, in a third of the time.

    Attributes:
        data: Its bytes in C order: its own memory.
        num_bytes: How many.
        token: Token of its dtype, see `plain_token`.
        shape: Its shape.
    """

    data: bytearray
    num_bytes: int
    token: str
    shape: tuple[int, ...]

    def take(self) -> Any:
        """Return the array."""
        return np.ndarray(self.shape, dtype_of(self.token), self.data)

    def discard(self) -> None:
        """Nothing is held."""


def inline_array(value: Any, max_bytes: int) -> InlineArray | None:
    """Return an array of few bytes as it is sent; `None` for all else."""
    if type(value) is not np.ndarray or value.nbytes > max_bytes or not value.flags.c_contiguous:
        return None
    token = plain_token(value.dtype)
    return None if token is None else InlineArray(bytearray(value), value.nbytes, token, value.shape)


class SlotResult(msgspec.Struct, array_like=True, tag=1):
    """A value in a slot, which is free when this object, or the last view of the value, is dropped.

    Attributes:
        header: Header of the codec.
        slot_idx: Number of the slot.
        offset: Where it begins in the arena, in bytes.
        num_bytes: How much of it was used.
        owner: Whose slot it is: not sent, but set where it comes in.
        lease: The hold on the slot, likewise.
    """

    header: bytes
    slot_idx: int
    offset: int
    num_bytes: int
    owner: Any = None  # a WorkerConnection
    lease: Any = None  # a Lease

    def take(self) -> Any:
        """Decode the value: its arrays are views of the slot, and hold it."""
        owner, lease = self.owner, self.lease
        self.lease = None
        assert lease is not None, "a result is taken once"
        if self.num_bytes >= _WARM_BYTES:
            owner.give_credits()
        buffer = owner.reader.view(lease, self.slot_idx, self.offset, self.num_bytes)
        del lease
        return decode(self.header, buffer)

    def discard(self) -> None:
        """Free the slot."""
        self.lease = None
