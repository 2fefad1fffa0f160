"""What the dispatching process and its clients say to each other: whole packets over an abstract socket.

The address is random and in no file system, and both sides refuse a peer of another user, because what comes is
unpickled. Items go by the engine's codec: small groups within a packet, large ones in a file that only memory holds,
whose descriptor goes along and of which the receiver's arrays are views.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.engine.channel import MAX_PACKET_BYTES, Channel
from headrace.engine.codec import decode, encode
from headrace.engine.memory import Mapping, create_memfd, extend_memfd
from headrace.engine.slot_protocol import ALIGNMENT
from headrace.errors import HeadraceError

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG = 4096


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first words of a client: the number of a worker, or -1 for the main process."""

    worker_id: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The main process: begin an epoch. `start` is a parcel with an `EpochStart`."""

    epoch: int
    start: bytes


class Want(msgspec.Struct, frozen=True, tag=True):
    """A worker: send me my next items of an epoch; one at most if `alone`."""

    epoch: int
    alone: bool


class Items(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Want`: a group of items, written by the codec.

    Attributes:
        epoch: Of the `Want`.
        num_items: How many; none if the epoch is given up.
        header: Of the codec.
        data: The bytes of the slot, or none if they lie in the file that came with this.
        num_bytes: How many they are.
        has_ended: Whether nothing comes after them.
        error: What comes after them, as the fields of a `CarriedError`.
    """

    epoch: int
    num_items: int
    header: bytes = b""
    data: bytes = b""
    num_bytes: int = 0
    has_ended: bool = False
    error: tuple[str, str, bytes] | None = None


_ENCODER = msgspec.msgpack.Encoder()
_FROM_CLIENT: msgspec.msgpack.Decoder[Hello | Begin | Want] = msgspec.msgpack.Decoder(Hello | Begin | Want)
_FROM_SERVER: msgspec.msgpack.Decoder[Items] = msgspec.msgpack.Decoder(Items)


def draw_address() -> str:
    """Return an address that nobody can guess, and that is in no file system."""
    return f"\0headrace-dispatch-{secrets.token_hex(16)}"


def listen(address: str) -> socket.socket:
    """Return a socket that listens."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(address: str, worker_id: int) -> Channel:
    """Return a channel to a server, after saying hello.

    Raises:
        OSError: There is no server any more.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(address)
        check_peer(sock)
    except BaseException:
        sock.close()
        raise
    channel = Channel(sock)
    channel.send(_ENCODER.encode(Hello(worker_id)))
    return channel


def check_peer(sock: socket.socket) -> None:
    """Refuse a peer that is another user's.

    Raises:
        HeadraceError: It is.
    """
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid not in (os.getuid(), os.geteuid()):
        raise HeadraceError(f"a process of user {uid} is at the other end of a dispatching process's socket")


def say(channel: Channel, message: Hello | Begin | Want) -> None:
    """Send what a client has to say."""
    channel.send(_ENCODER.encode(message))


def hear(packet: bytes) -> Hello | Begin | Want:
    """Return what a client said."""
    return _FROM_CLIENT.decode(packet)


class _AnswerSlot:
    """Where the codec writes an answer: plain memory for a small one, a file that only memory holds for a large one."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self.buffer: NDArray[np.uint8] = np.empty(0, np.uint8)

    def reserve(self, num_bytes: int, alignment: int = ALIGNMENT) -> tuple[int, NDArray[np.uint8]]:
        """Return 0 and `uint8[num_bytes]`; the codec calls it once for a value."""
        del alignment  # both begin at a multiple
        if num_bytes <= MAX_PACKET_BYTES // 2:
            self.buffer = np.empty(num_bytes, np.uint8)
        else:
            self.fd = create_memfd("headrace-items")
            extend_memfd(self.fd, num_bytes)
            self.buffer = Mapping(self.fd, 0, num_bytes).as_array()
        return 0, self.buffer

    def find(self, array: NDArray[Any]) -> int | None:
        """Return None: nothing was made in it."""
        del array
        return None


def encode_items(
    epoch: int, items: list[Any], *, has_ended: bool, error: tuple[str, str, bytes] | None
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
