"""Frames and their seals: that nothing on the way has changed, left out, repeated or added any of them.

    frame   number of bytes of the messages, and of what follows them; checksum of the messages; how many messages of
            the other side were taken in; seal; messages; parts
    part    bytes of a value, and their checksum, unless values go without

The seal is a BLAKE2b of eight bytes with a key of this connection and direction, over the number of the frame and all
that stands before it. Checksums are XXH3 with a seed that is derived from the key. Invariants: lengths are believed
when the seal was looked at, and messages are decoded when their checksum was. What is *not* promised: XXH3 finds what a
fault of a network changes, and is no proof against somebody who changes bytes on purpose
(docs/how-to/remote-workers.md).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import xxhash

from ..process.messages import encode_packet
from .wire import MAX_MESSAGE_BYTES, WireError

_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<IQQQ")
_SEAL_BYTES = 8

HEAD_BYTES = _HEAD.size + _SEAL_BYTES
"""Bytes of the head of a frame."""

_CHECKSUM_BYTES = 8

PIECE_BYTES = 512 << 10
"""Large values are looked at and sent, or received and looked at, in pieces that stay in the cache meanwhile."""


class Head(NamedTuple):
    """What is to follow.

    Attributes:
        num_bytes: Bytes of messages.
        num_part_bytes: Bytes of values after them, with their checksums.
        checksum: Of the messages.
        num_heard: Messages of this side that the other one has taken in, see `Dialogue`.
    """

    num_bytes: int
    num_part_bytes: int
    checksum: int
    num_heard: int


class Seal:
    """One direction of a connection, at one of its ends.

    Args:
        key: Of the connection and the direction.

    Attributes:
        checks_values: Whether values have checksums: to be changed between two frames, and at both ends.
    """

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=_SEAL_BYTES)  # copied: that is cheaper than the key
        self._seed = int.from_bytes(hashlib.blake2b(b"seed", key=key, digest_size=8).digest(), "little")
        self._num_frames = 0
        self.checks_values = True

    @property
    def checksum_bytes(self) -> int:
        """Bytes that follow those of each value."""
        return _CHECKSUM_BYTES if self.checks_values else 0

    def frame(self, messages: Any, num_values: int = 0, num_value_bytes: int = 0, num_heard: int = 0) -> bytes:
        """Return the next frame, but for the values of it: each of these follows, then its checksum."""
        packet = encode_packet(messages)
        head = _HEAD.pack(
            len(packet),
            num_value_bytes + num_values * self.checksum_bytes,
            xxhash.xxh3_64_intdigest(packet, self._seed),
            num_heard,
        )
        return head + self._sign(head) + packet

    def open_head(self, data: bytes | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Head:
        """Return what the head of the next frame says.

        Raises:
            WireError: It is none, or says that more follows than may be.
        """
        data = bytes(data)
        if not hmac.compare_digest(self._sign(data[: _HEAD.size]), data[_HEAD.size :]):
            raise WireError("bytes were changed, lost or added on the way: a frame has a wrong seal")
        head = Head._make(_HEAD.unpack_from(data))
        if head.num_bytes > max_message_bytes:
            raise WireError(
                f"a message of {head.num_bytes} bytes was announced, more than the limit of {max_message_bytes}"
            )
        return head

    def check_packet(self, head: Head, packet: bytes | memoryview) -> None:
        """See that the messages of a frame are those that were sent.

        Raises:
            WireError: They are not.
        """
        if xxhash.xxh3_64_intdigest(packet, self._seed) != head.checksum:
            raise WireError("bytes were changed on the way: messages have a wrong checksum")

    def begin_value(self) -> xxhash.xxh3_64:
        """Return what computes the checksum of a value, to be updated by all of its bytes."""
        return xxhash.xxh3_64(seed=self._seed)

    def check_value(self, computed: xxhash.xxh3_64, received: bytes | memoryview) -> None:
        """See that a value is the one that was sent.

        Raises:
            WireError: It is not.
        """
        if _NUMBER.pack(computed.intdigest()) != received:
            raise WireError("bytes were changed on the way: a value has a wrong checksum")

    def parts(self, values: Sequence[memoryview]) -> Iterator[memoryview]:
        """Give what follows the messages of a frame, piece by piece; looks at the bytes of each before."""
        for value in values:
            computed = self.begin_value()
            for start in range(0, value.nbytes, PIECE_BYTES):
                piece = value[start : start + PIECE_BYTES]
                if self.checks_values:
                    computed.update(piece)
                yield piece
            if self.checks_values:
                yield memoryview(_NUMBER.pack(computed.intdigest()))

    def _sign(self, head: bytes) -> bytes:
        signed = self._keyed.copy()
        signed.update(_NUMBER.pack(self._num_frames) + head)
        self._num_frames += 1
        return signed.digest()
