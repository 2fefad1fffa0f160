"""Who listens, and may change what he hears, learns nothing that helps, and has nobody unpickle what he has written."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.codec.codec import NO_CODE, find_code
from headrace.engine.events import Done
from headrace.engine.remote import dial
from headrace.engine.remote.dialogue import Dialogue
from headrace.engine.remote.handshake import introduce
from headrace.engine.remote.link import AgentLink
from headrace.engine.remote.memory import ReceiveMemory
from headrace.engine.remote.port.stranger import Connection
from headrace.engine.remote.seal import HEAD_BYTES, Digests, Seal, Value, digest
from headrace.engine.remote.wire import RemoteResult, Welcome, WireError

KEYS = b"k" * 32, b"l" * 32
CODE = struct.pack("<QQ", 0, 4096) + b"\2"  # a header that says that so many bytes are a tree


def stream_of(seal: Seal, value: bytes, header: bytes = b"h") -> bytes:
    """Return what an agent sends that has a result."""
    values = [(memoryview(value), find_code(header))]
    frame = seal.frame([Done(0, 0, 1, RemoteResult(header, len(value)))], values)
    return frame + b"".join(seal.parts(values))


# --- what a checksum tells ---

# XXH3, as its specification has it: the first bytes of its secret, and constants.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)
_WORD = (1 << 64) - 1


def words_of(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 8}Q", data)


def seed_of_short(data: bytes, checksum: int) -> int:
    """Return the seed with which up to three bytes have this checksum: each step of XXH3 can be undone."""

    def unshifted(word: int, num_bits: int) -> int:
        found = word
        for _ in range(64 // num_bits + 1):
            found = word ^ (found >> num_bits)
        return found

    word = unshifted(checksum, 32)
    word = unshifted(word * pow(0x165667B19E3779F9, -1, 1 << 64) & _WORD, 29)
    word = unshifted(word * pow(0xC2B2AE3D27D4EB4F, -1, 1 << 64) & _WORD, 33)
    combined = (data[0] << 16) | (data[len(data) >> 1] << 24) | data[-1] | (len(data) << 8)
    flip = struct.unpack_from("<I", _SECRET, 0)[0] ^ struct.unpack_from("<I", _SECRET, 4)[0]
    return ((word ^ combined) - flip) & _WORD


def twins(seed: int) -> tuple[bytes, bytes]:
    """Return two values of 4 KiB that have the same checksum with a seed that is known."""
    keys = [(word + (-seed if idx % 2 else seed)) & _WORD for idx, word in enumerate(words_of(_SECRET))]
    words = list(words_of(os.urandom(4096)))
    others = list(words)
    for stripe, change in ((0, 0x1234567), (1, -0x1234567)):
        at = 8 * stripe + 3  # a word whose lower half is that of the key adds nothing, whatever its upper half is
        low = keys[stripe + 3] & 0xFFFFFFFF
        upper = words[at] >> 32
        words[at] = upper << 32 | low
        others[at] = (upper + change & 0xFFFFFFFF) << 32 | low
    return struct.pack("<512Q", *words), struct.pack("<512Q", *others)


def test_with_a_seed_that_is_known_two_values_have_the_same_checksum() -> None:
    """So that the next test could fail."""
    assert seed_of_short(b"abc", xxhash.xxh3_64_intdigest(b"abc", 12345)) == 12345
    one, other = twins(12345)
    assert one != other
    assert xxhash.xxh3_64_intdigest(one, 12345) == xxhash.xxh3_64_intdigest(other, 12345)


@pytest.mark.parametrize("text", [b"", b"x", b"xyz"])
def test_who_listens_learns_no_seed_that_gives_two_values_the_same_checksum(text: bytes) -> None:
    """He knows what short messages and values say, and tries all that could be their checksum."""
    key = os.urandom(32)
    seal = Seal(key)
    heard = stream_of(seal, text) if text else seal.frame([])
    known = text or heard[HEAD_BYTES:]
    for at in range(len(heard) - 7):
        one, other = twins(seed_of_short(known, struct.unpack_from("<Q", heard, at)[0]))
        of_one, of_other = Seal(key), Seal(key)
        for _ in range(3):
            assert stream_of(of_one, one)[-8:] != stream_of(of_other, other)[-8:]


# --- what is unpickled ---


def receive(stream: bytes, *, with_checksums: bool) -> tuple[list[Any], str]:
    """Return the messages that a trainer takes in, and why it gives the connection up."""
    with socket.create_server(("localhost", 0)) as listening:
        other = socket.create_connection(listening.getsockname())
        sock = listening.accept()[0]
    sock.setblocking(False)
    link = AgentLink(Connection(sock, introduce(-1), *map(Seal, KEYS)), ReceiveMemory(64 << 20), Dialogue())
    link.expect_values(with_checksums=with_checksums)
    with other:
        other.sendall(stream)
    poll = select.poll()
    poll.register(link, select.POLLIN)
    messages: list[Any] = []
    while link.lost is None:
        assert poll.poll(20_000)
        messages += link.receive()
    lost = link.lost
    link.close()
    return messages, lost


def seal_of_agent(*, with_checksums: bool) -> Seal:
    seal = Seal(KEYS[0])
    seal.checks_values = with_checksums
    return seal


@pytest.mark.parametrize("with_checksums", [True, False])
def test_code_in_a_value_is_refused_even_if_its_checksum_was_forged(with_checksums: bool) -> None:
    value, other = os.urandom(10_000), os.urandom(10_000)
    stream = stream_of(seal_of_agent(with_checksums=with_checksums), value, CODE)
    messages, lost = receive(stream, with_checksums=with_checksums)
    assert [bytes(message.result.data) for message in messages] == [value]
    assert lost == "it was closed"
    start = stream.index(value)
    forged = stream_of(seal_of_agent(with_checksums=with_checksums), other, CODE)
    messages, lost = receive(stream[:start] + forged[start:-16] + stream[-16:], with_checksums=with_checksums)
    assert messages == []
    assert lost == "bytes were changed on the way: a value has a wrong checksum or tag"


def test_the_tag_of_one_value_is_of_no_use_for_another_one() -> None:
    value = bytes(5000)
    seal = seal_of_agent(with_checksums=False)
    assert stream_of(seal, value, CODE)[-16:] != stream_of(seal, value, CODE)[-16:]


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 300))
def test_a_value_has_its_code_in_it(start: int, num_code_bytes: int, num_bytes: int) -> None:
    code = range(start, start + num_code_bytes)
    if code.stop <= num_bytes:
        assert Seal(KEYS[0]).part_bytes(num_bytes, code) == num_bytes + 24
    else:
        with pytest.raises(WireError, match="code in it"):
            Seal(KEYS[0]).part_bytes(num_bytes, code)


# --- the job ---


def welcome(buffers: list[memoryview]) -> Welcome:
    return Welcome(
        worker_idx=0,
        num_workers=1,
        executor="remote",
        formats=[],
        argv=[],
        cwd="/",
        preload=[],
        modules=[],
        job=b"a pickle",
        buffer_bytes=[buffer.nbytes for buffer in buffers],
        buffer_digests=Digests().of(buffers),
        sys_path=[],
        max_bytes=1 << 20,
        num_threads=1,
        credit_bytes=1 << 20,
        alive_seconds=1.0,
        checks_values=True,
        dialogue=b"d" * 16,
        return_seconds=1.0,
    )


def take_job(stream: bytes) -> tuple[Welcome, list[memoryview]]:
    """Be an agent that is told this."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=theirs.sendall, args=(stream,))
        sender.start()
        try:
            return dial.wait_for_job(dial.Connected(ours, Seal(KEYS[1]), Seal(KEYS[0])), -1)
        finally:
            sender.join()


def test_a_job_and_its_arrays_are_those_that_were_sent_even_if_a_checksum_was_forged() -> None:
    array, other = (np.frombuffer(os.urandom(70_000), np.uint8).data for _ in range(2))

    def say(sent: memoryview) -> bytes:
        """Return what a trainer says, of whose array somebody has made another one of the same checksum."""
        seal = Seal(KEYS[1])
        values: list[Value] = [(sent, NO_CODE)]
        frame = seal.frame(welcome([array]), values)
        return frame + b"".join(seal.parts(values))

    found, buffers = take_job(say(array))
    assert found.job == b"a pickle"
    assert buffers == [array]
    with pytest.raises(WireError, match="an array of the job has a wrong digest"):
        take_job(say(other))
    with pytest.raises(WireError, match="messages have a wrong tag"):
        take_job(say(array).replace(b"a pickle", b"a tickle"))


def test_arrays_are_digested_once_and_again_when_their_owner_has_changed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    digested = []

    def count(data: memoryview) -> bytes:
        digested.append(data.nbytes)
        return digest(data)

    monkeypatch.setattr("headrace.engine.remote.seal.digest", count)
    arrays, digests = [np.zeros(1000, np.uint8), np.zeros(2000, np.uint8)], Digests()
    first = digests.of([array.data for array in arrays])
    assert digests.of([array.data for array in arrays]) == first
    assert digested == [1000, 2000]
    arrays[1][7] = 1
    second = digests.of([array.data for array in arrays])
    assert second[0] == first[0]
    assert second[1] == digest(arrays[1].data) != first[1]
    assert digested == [1000, 2000, 2000]
