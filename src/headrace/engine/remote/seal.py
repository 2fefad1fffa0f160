"""Frames and their seals, which show that no frame was changed, left out, repeated or added on the way.

    frame   number of bytes of the messages, and of what follows them; how many messages of the other side were taken
            in; tag of the messages; seal; messages; parts
    part    bytes of a value; their checksum, unless values go without; the tag of what is code in them, if any is

Seals and tags are BLAKE2b of 16 bytes with keys of this connection and direction: the seal is over the number of the
frame and all that stands before it, the tag of code over the number of the value, too. A checksum is XXH3, with a seed
and a mask that are new for each value. Invariants: lengths are believed when the seal was looked at, and messages are
decoded when their tag was; nothing is unpickled, on either side, that has no tag, so only someone who knows the secret
can have written it. What is *not* promised: XXH3 finds what a fault of a network changes, and is no proof against
somebody who changes the numbers in large arrays on purpose (docs/how-to/remote-workers.md). A tag would be one: it
takes a processor 1 ms for a MiB at both ends, and XXH3 takes 0.02 ms.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import xxhash

from ..process.messages import encode_packet
from .wire import MAX_MESSAGE_BYTES, WireError

_NUMBER = struct.Struct("<Q")
_SEED_AND_MASK = struct.Struct("<QQ")
_HEAD = struct.Struct("<IQQ16s")
_TAG_BYTES = 16

HEAD_BYTES = _HEAD.size + _TAG_BYTES
"""Bytes of the head of a frame."""

_CHECKSUM_BYTES = 8

PIECE_BYTES = 512 << 10
"""Large values are looked at and sent, or received and looked at, in pieces that stay in the cache meanwhile."""

Value = tuple[memoryview, range]
"""The bytes of a value, and which of them are code, see `find_code`."""


class Head(NamedTuple):
    """What is to follow.

    Attributes:
        num_bytes: Bytes of messages.
        num_part_bytes: Bytes of values after them, with the checksum and tag of each.
        num_heard: Messages of this side that the other one has taken in, see `Dialogue`.
        tag: Tag of the messages.
    """

    num_bytes: int
    num_part_bytes: int
    num_heard: int
    tag: bytes


class Seal:
    """One direction of a connection, at one of its ends.

    Args:
        key: Key of the connection and the direction.

    Attributes:
        checks_values: Whether values have checksums: to be changed between two frames, and at both ends.
    """

    def __init__(self, key: bytes) -> None:
        # Copied each time: that is cheaper than the key.
        self._heads, self._packets, self._codes, self._checksums = (
            hashlib.blake2b(key=key, digest_size=_TAG_BYTES, person=what)
            for what in (b"head", b"messages", b"code", b"checksum")
        )
        self._num_frames = self._num_values = 0
        self.checks_values = True

    def frame(self, messages: Any, values: Sequence[Value] = (), num_heard: int = 0) -> bytes:
        """Return the next frame, but for the values of it, which follow, see `parts`."""
        packet = encode_packet(messages)
        num_part_bytes = sum(self.part_bytes(value.nbytes, code) for value, code in values)
        return self.head(len(packet), num_part_bytes, num_heard, _tag(self._packets, packet)) + packet

    def head(self, *fields: Any) -> bytes:
        """Return the head of the next frame; for its fields see `Head`."""
        head = _HEAD.pack(*fields)
        return head + self._sign(head)

    def open_head(self, data: bytes | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Head:
        """Return what the head of the next frame says.

        Raises:
            WireError: It is none, or says that more follows than may be.
        """
        data = bytes(data)
        if not hmac.compare_digest(self._sign(data[: _HEAD.size]), data[_HEAD.size :]):
            raise WireError("bytes were changed, lost or added on the way: a frame fails the integrity check")
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
        if not hmac.compare_digest(_tag(self._packets, packet), head.tag):
            raise WireError("bytes were changed on the way: messages have a wrong tag")

    # --- values ---

    def part_bytes(self, num_bytes: int, code: range) -> int:
        """Return the size of a value of `num_bytes` bytes with its checksum and tag.

        Raises:
            WireError: Its code is not in it.
        """
        if code and not 0 <= code.start < code.stop <= num_bytes:
            raise WireError(f"a value of {num_bytes} bytes does not have its code in it, which is {code}")
        return num_bytes + (_CHECKSUM_BYTES if self.checks_values else 0) + (_TAG_BYTES if code else 0)

    def begin_value(self, code: range) -> ValueSeal | None:
        """Return the computation of the checksum and tag of the next value: for each, in order, at both ends.

        None: it has neither.
        """
        self._num_values += 1
        if not code and not self.checks_values:
            return None
        number = _NUMBER.pack(self._num_values - 1)
        mask, checksum, signed = 0, None, None
        if self.checks_values:
            seed, mask = _SEED_AND_MASK.unpack(_tag(self._checksums, number))
            checksum = xxhash.xxh3_64(seed=seed)
        if code:
            signed = self._codes.copy()
            signed.update(number)
        return ValueSeal(mask, checksum, signed, code)

    def parts(self, values: Iterable[Value]) -> Iterator[memoryview]:
        """Give what follows the messages of a frame, piece by piece; looks at the bytes of each before."""
        for value, code in values:
            computed = self.begin_value(code)
            if computed is not None and self.checks_values:
                for start in range(0, value.nbytes, PIECE_BYTES):
                    piece = value[start : start + PIECE_BYTES]
                    computed.update(piece)
                    yield piece
            elif value.nbytes:
                yield value
            if computed is not None:
                yield memoryview(computed.finish(value))

    def _sign(self, head: bytes) -> bytes:
        signature = _tag(self._heads, _NUMBER.pack(self._num_frames) + head)
        self._num_frames += 1
        return signature


class ValueSeal:
    """Computes the checksum and tag of one value, at one end.

    Args:
        mask: Mask of the checksum. Without it, who listens could find out seeds from the checksums of short values.
        checksum: That of the bytes until now, if they have one.
        signed: What signs the code, if there is any.
        code: Where that is in the value.

    Attributes:
        num_bytes: Size of the checksum and tag.
    """

    __slots__ = ("_checksum", "_code", "_mask", "_signed", "num_bytes")

    def __init__(self, mask: int, checksum: xxhash.xxh3_64 | None, signed: hashlib.blake2b | None, code: range) -> None:
        self._mask, self._checksum, self._signed, self._code = mask, checksum, signed, code
        self.num_bytes = (0 if checksum is None else _CHECKSUM_BYTES) + (0 if signed is None else _TAG_BYTES)

    def update(self, piece: memoryview) -> None:
        """Take in the next bytes."""
        if self._checksum is not None:
            self._checksum.update(piece)

    def finish(self, value: memoryview) -> bytes:
        """Return the checksum and tag of the value, all of which was taken in."""
        checksum = b"" if self._checksum is None else _NUMBER.pack(self._checksum.intdigest() ^ self._mask)
        if self._signed is None:
            return checksum
        self._signed.update(value[self._code.start : self._code.stop])
        return checksum + self._signed.digest()

    def check(self, value: memoryview, received: bytes | memoryview) -> None:
        """See that a value is the one that was sent.

        Raises:
            WireError: It is not.
        """
        if not hmac.compare_digest(self.finish(value), received):
            raise WireError("bytes were changed on the way: a value has a wrong checksum or tag")


def _tag(keyed: hashlib.blake2b, data: bytes | memoryview) -> bytes:
    signed = keyed.copy()
    signed.update(data)
    return signed.digest()


# --- the arrays of a job ---


class Digests:
    """Digests of large arrays that several workers are sent: each is computed once, as long as its bytes stay the same.

    They go along in a message, whose tag makes them authentic. XXH3 finds out here whether the owner has changed an
    array since; that is no matter of who is on the way.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, bytes]] = {}

    def of(self, buffers: Sequence[memoryview]) -> list[bytes]:
        """Return the digests of arrays, always the same ones."""
        found = []
        for idx, buffer in enumerate(buffers):
            checksum = xxhash.xxh3_64_intdigest(buffer)
            known = self._known.get(idx)
            if known is None or known[0] != checksum:
                known = self._known[idx] = checksum, digest(buffer)
            found.append(known[1])
        return found


def digest(data: memoryview) -> bytes:
    """Return a digest that no other bytes have."""
    return hashlib.blake2b(data, digest_size=32).digest()
