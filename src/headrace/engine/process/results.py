"""The value of a ticket on its way from a worker process: where it lies, and how the trainer takes it.

Both are sent as they are; a value in a slot gets its hold on the slot when it comes in.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np

from ..codec.codec import decode
from ..memory.lease import ArenaReader, Lease

# A worker is told at once of slots that became free where a result is so large (bytes) that writing to memory that is
# still warm matters; else with the next tickets, which saves calls.
_WARM_BYTES = 128 << 10


class SlotOwner(Protocol):
    """Whose arena a slot is of."""

    reader: ArenaReader

    def give_credits(self) -> None:
        """Tell the worker of slots that became free."""


class InlineResult(msgspec.Struct, array_like=True, tag=0):
    """A small value that came within its message.

    Attributes:
        data: The header of the codec, and the bytes of the value.
        num_bytes: Of the value.
    """

    data: bytes
    num_bytes: int

    def take(self) -> Any:
        """Decode the value; its arrays have memory of their own."""
        data = self.data
        offset = len(data) - self.num_bytes
        return decode(data[:offset], np.frombuffer(bytearray(data[offset:]), np.uint8))

    def discard(self) -> None:
        """Nothing is held."""


class SlotResult(msgspec.Struct, array_like=True, tag=1):
    """A value in a slot, which is free when this is dropped, by whomever, or the last view of the value.

    Attributes:
        header: Of the codec.
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
    owner: Any = None  # a SlotOwner
    lease: Any = None  # a Lease

    def take(self) -> Any:
        """Decode the value: its arrays are views of the slot, and hold it."""
        owner: SlotOwner = self.owner
        lease: Lease | None = self.lease
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
