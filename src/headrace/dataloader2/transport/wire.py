"""The messages between the dispatching process, the main process and the workers, in whole packets.

Each of them holds one end of a pair of sockets that the main process made and handed over, so there is no name by which
another process could find or join them: messages are unpickled. Items are sent by the engine's codec: small groups
within a packet, large ones in a memory file, whose descriptor is sent along and of which the receiver's arrays are
views.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.engine.codec.codec import decode, encode
from headrace.engine.codec.format import ALIGNMENT
from headrace.engine.memory.memfd import Mapping, create_memfd_of
from headrace.engine.process.channel import MAX_PACKET_BYTES, Channel

from .worker_error import CarriedError


class Join(msgspec.Struct, frozen=True, tag=True):
    """From the main process: the channel of a worker, whose descriptor comes with this, replacing an older one."""

    worker_id: int


class BeginEpoch(msgspec.Struct, frozen=True, tag=True):
    """From the main process: begin an epoch. `start` is an encoded `EpochStart`."""

    epoch: int
    start: bytes


class ItemsRequest(msgspec.Struct, frozen=True, tag=True):
    """From a worker: send its next items of an epoch; at most one if `alone`."""

    epoch: int
    alone: bool


class Items(msgspec.Struct, frozen=True, tag=True):
    """The answer to an `ItemsRequest`: a group of items, encoded by the engine's codec.

    Attributes:
        epoch: The epoch of the request.
        num_items: How many items there are; 0 if the epoch was abandoned.
        header: The header of the codec.
        data: The encoded bytes; empty if they are in the memory file that came with this.
        num_bytes: How many bytes there are.
        has_ended: Whether these are the last items of the epoch.
        error: The error that was raised after them.
    """

    epoch: int
    num_items: int
    header: bytes = b""
    data: bytes = b""
    num_bytes: int = 0
    has_ended: bool = False
    error: CarriedError | None = None


_ENCODER = msgspec.msgpack.Encoder()
FROM_MAIN: msgspec.msgpack.Decoder[Join | BeginEpoch] = msgspec.msgpack.Decoder(Join | BeginEpoch)
FROM_WORKER: msgspec.msgpack.Decoder[ItemsRequest] = msgspec.msgpack.Decoder(ItemsRequest)
_FROM_SERVER: msgspec.msgpack.Decoder[Items] = msgspec.msgpack.Decoder(Items)


def send_message(channel: Channel, message: Join | BeginEpoch | ItemsRequest, fds: Sequence[int] = ()) -> None:
    """Send a message of the main process or a worker.

    Raises:
        OSError: The dispatching process is gone.
    """
    channel.send(_ENCODER.encode(message), fds)


class _AnswerSlot:
    """Where the codec writes an answer: plain memory for a small one, a memory file for a large one."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self.buffer: NDArray[np.uint8] = np.empty(0, np.uint8)

    def reserve(self, num_bytes: int, alignment: int = ALIGNMENT) -> tuple[int, NDArray[np.uint8]]:
        """Return 0 and `uint8[num_bytes]`; the codec calls it once for a value."""
        del alignment  # both begin at a multiple
        if num_bytes <= MAX_PACKET_BYTES // 2:
            self.buffer = np.empty(num_bytes, np.uint8)
        else:
            self.fd = create_memfd_of("headrace-items", num_bytes)
            self.buffer = Mapping(self.fd, 0, num_bytes).as_array()
        return 0, self.buffer

    def find(self, array: NDArray[Any]) -> int | None:
        """Return None: nothing was made in it."""
        del array
        return None


def encode_items(
    epoch: int, items: list[Any], *, has_ended: bool, error: CarriedError | None
) -> tuple[bytes, int | None]:
    """Return the packet of an answer, and the descriptor of the file that goes with it, which the caller owns.

    Raises:
        TransformError: An item cannot be pickled.
    """
    if not items:
        return _ENCODER.encode(Items(epoch, 0, has_ended=has_ended, error=error)), None
    slot = _AnswerSlot()
    try:
        header = encode(items, slot)
        data = slot.buffer.tobytes() if slot.fd is None else b""
        answer = Items(epoch, len(items), header, data, len(slot.buffer), has_ended=has_ended, error=error)
        return _ENCODER.encode(answer), slot.fd
    except BaseException:
        if slot.fd is not None:
            os.close(slot.fd)
        raise


def decode_items(packet: bytes, fds: list[int]) -> tuple[Items, list[Any]]:
    """Return an answer and its items; closes the descriptors."""
    try:
        answer = _FROM_SERVER.decode(packet)
        if not answer.num_items:
            return answer, []
        if fds:
            buffer = Mapping(fds[0], 0, answer.num_bytes).as_array()
        else:
            buffer = np.frombuffer(bytearray(answer.data), np.uint8)
        return answer, decode(answer.header, buffer)
    finally:
        for fd in fds:
            os.close(fd)
