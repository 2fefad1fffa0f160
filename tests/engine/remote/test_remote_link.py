"""One connection of a trainer: what comes in is the same however it is cut into pieces, and waits are for enough."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.engine.codec.codec import NO_CODE, find_code
from headrace.engine.events import Done
from headrace.engine.remote.dialogue import Dialogue
from headrace.engine.remote.handshake import introduce
from headrace.engine.remote.link import AgentLink
from headrace.engine.remote.memory import ReceiveMemory
from headrace.engine.remote.port.stranger import Connection
from headrace.engine.remote.seal import Seal
from headrace.engine.remote.wire import Alive, RemoteResult, charge
from headrace.errors import CacheError

KEYS = b"k" * 32, b"l" * 32


def open_pair() -> tuple[AgentLink, socket.socket]:
    """Return a connection as a trainer has it, and its other end."""
    with socket.create_server(("localhost", 0)) as listening:
        other = socket.create_connection(listening.getsockname())
        sock = listening.accept()[0]
    sock.setblocking(False)
    incoming, outgoing = map(Seal, KEYS)
    return AgentLink(Connection(sock, introduce(-1), incoming, outgoing), ReceiveMemory(64 << 20), Dialogue()), other


@pytest.fixture
def pair() -> Iterator[tuple[AgentLink, socket.socket]]:
    link, other = open_pair()
    yield link, other
    link.close()
    other.close()


def receive(link: AgentLink, num_messages: int) -> list[Any]:
    """Return so many messages; waits for them."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    messages: list[Any] = []
    while len(messages) < num_messages:
        assert poll.poll(20_000)
        messages += link.receive()
    return messages


def test_a_part_of_a_large_value_wakes_nobody_and_is_read_all_the_same(pair: tuple[AgentLink, socket.socket]) -> None:
    link, other = pair
    value = np.arange(1 << 20, dtype=np.uint8)
    seal = Seal(KEYS[0])
    values = [(value.data, NO_CODE)]
    frame = seal.frame([Done(0, 0, 1, RemoteResult(b"", value.nbytes)), Alive(True)], values)
    stream = frame + b"".join(seal.parts(values))
    other.sendall(stream[: len(frame) + 100_000])
    poll = select.poll()
    poll.register(link, select.POLLIN)
    while link.num_received < len(frame) + 100_000:
        assert poll.poll(20_000) or link.is_patient
        assert link.receive() == []
    other.sendall(stream[len(frame) + 100_000 : len(frame) + 200_000])
    assert link.is_patient
    assert not poll.poll(50)
    while link.num_received < len(frame) + 200_000:  # as a look now and then does
        assert link.receive() == []
    sender = threading.Thread(target=other.sendall, args=(stream[len(frame) + 200_000 :],))
    sender.start()
    done, alive = receive(link, 2)
    assert (done.result.data == value).all()
    sender.join()
    assert alive == Alive(True)
    assert not link.is_patient


SIZES = st.lists(st.sampled_from([0, 1, 700, 70_000, 300_000]), max_size=8)


def write_stream(
    sizes: list[int], *, with_checksums: bool = True, num_per_frame: int = 1, code_in_each: int = 2
) -> bytes:
    """Return what an agent says that sends values of these sizes; each second, or n-th, has code in it."""
    seal, stream = Seal(KEYS[0]), b""
    seal.checks_values = with_checksums
    for first in range(0, len(sizes), num_per_frame):
        messages: list[Any] = []
        values = []
        for idx, size in enumerate(sizes[first : first + num_per_frame], first):
            has_code = idx % code_in_each == code_in_each - 1 and size
            header = struct.pack("<QQ", size // 3, size) + b"\2" if has_code else b"h"
            messages += [Alive(False), Done(0, idx, 1, RemoteResult(header, size))]
            values.append((np.full(size, idx + 1, np.uint8).data, find_code(header)))
        stream += seal.frame(messages, values) + b"".join(seal.parts(values))
    return stream


@examples(30)
@given(SIZES, st.booleans(), st.integers(1, 8), st.sampled_from([2, 3, 100]), st.data())
def test_messages_and_values_come_out_as_they_went_in_however_the_stream_is_cut(
    sizes: list[int], with_checksums: bool, num_per_frame: int, code_in_each: int, data: Any
) -> None:
    stream = write_stream(sizes, with_checksums=with_checksums, num_per_frame=num_per_frame, code_in_each=code_in_each)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    link, other = open_pair()
    link.expect_values(with_checksums=with_checksums)
    sender = threading.Thread(target=lambda: [other.sendall(piece) for piece in pieces])
    sender.start()
    messages = receive(link, 2 * len(sizes))
    sender.join()
    other.close()
    assert [message for message in messages if isinstance(message, Alive)] == [Alive(False)] * len(sizes)
    found = [message.result.data for message in messages if isinstance(message, Done)]
    for idx, (value, size) in enumerate(zip(found, sizes, strict=True)):
        assert value.size == size
        assert (value == idx + 1).all()
    link.close()


class CountingSocket:
    """A socket that counts how often it is read."""

    def __init__(self, sock: Any) -> None:
        self._sock, self.num_reads = sock, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv_into(self, target: memoryview) -> int:
        self.num_reads += 1
        return self._sock.recv_into(target)

    def recvmsg_into(self, targets: list[memoryview]) -> Any:
        self.num_reads += 1
        return self._sock.recvmsg_into(targets)


def test_values_that_are_there_together_are_read_together() -> None:
    sizes = [20_000] * 16
    stream = write_stream(sizes, with_checksums=False, num_per_frame=len(sizes), code_in_each=100)
    link, other = open_pair()
    link.expect_values(with_checksums=False)
    counting = link._sock = CountingSocket(link._sock)  # type: ignore[assignment]
    sender = threading.Thread(target=other.sendall, args=(stream[:-1],))
    sender.start()
    messages: list[Any] = []
    while link.num_received < len(stream) - 1:
        num_before, counting.num_reads = link.num_received, 0
        messages += link.receive()
        assert counting.num_reads <= 3 or link.num_received == num_before  # each message and value by itself: 16
    sender.join()
    other.sendall(stream[-1:])
    messages += receive(link, 2 * len(sizes) - len(messages))
    found = [message.result.data for message in messages if isinstance(message, Done)]
    assert all((value == idx + 1).all() for idx, value in enumerate(found))
    assert len(found) == len(sizes)
    link.close()
    other.close()


@pytest.mark.parametrize("with_checksums", [True, False])
@pytest.mark.parametrize("num_there", [0, 1, 100_000, 250_000])
def test_a_connection_that_breaks_gives_back_the_memory_of_values_that_were_to_come(
    num_there: int, with_checksums: bool
) -> None:
    sizes = [100_000] * 5
    stream = write_stream(sizes, with_checksums=with_checksums, num_per_frame=5, code_in_each=100)
    link, other = open_pair()
    memory = link._memory
    link.expect_values(with_checksums=with_checksums)
    num_sent = len(stream) - sum(sizes) - 5 * 8 * with_checksums + num_there
    other.sendall(stream[:num_sent])
    messages: list[Any] = []
    while link.num_received < num_sent:
        messages += link.receive()
    num_complete = sum(isinstance(message, Done) for message in messages)
    assert num_complete == num_there // (100_008 if with_checksums else 100_000)
    assert memory.held_bytes == 5 * charge(100_000)
    other.close()
    link.close()
    messages.clear()
    memory.drain()
    assert memory.held_bytes == 0
    # What is complete was freed by its consumer, of which the agent hears; the rest comes again.
    assert memory.freed_bytes - link.abandoned_bytes == num_complete * charge(100_000)


def test_a_value_for_which_there_is_no_memory_now_comes_later_and_so_do_those_after_it(
    pair: tuple[AgentLink, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, other = pair
    link.expect_values(with_checksums=False)
    other.sendall(write_stream([100_000] * 4, with_checksums=False, num_per_frame=4, code_in_each=100))
    reserve, num_left = link._memory.reserve, 2

    def reserve_two(num_bytes: int) -> np.ndarray:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise CacheError("the machine has no memory left")
        return reserve(num_bytes)

    monkeypatch.setattr(link._memory, "reserve", reserve_two)
    with pytest.raises(CacheError):
        link.receive()
    monkeypatch.undo()
    found = [message.result.data for message in receive(link, 8) if isinstance(message, Done)]
    assert [np.unique(value).tolist() for value in found] == [[1], [2], [3], [4]]


@examples(60)
@given(SIZES.filter(bool), st.integers(1, 8), st.data())
def test_a_bit_that_is_flipped_anywhere_is_found_before_what_it_belongs_to_is_believed(
    sizes: list[int], num_per_frame: int, data: Any
) -> None:
    stream = bytearray(write_stream(sizes, num_per_frame=num_per_frame))
    at, bit = data.draw(st.integers(0, len(stream) - 1)), data.draw(st.integers(0, 7))
    stream[at] ^= 1 << bit
    link, other = open_pair()

    def send() -> None:
        with other, contextlib.suppress(OSError):
            other.sendall(stream)

    sender = threading.Thread(target=send)
    sender.start()
    poll = select.poll()
    poll.register(link, select.POLLIN)
    messages: list[Any] = []
    while link.lost is None:
        assert poll.poll(20_000)
        messages += link.receive()
    assert "changed" in link.lost
    link.close()
    sender.join()
    for message in messages:
        if isinstance(message, Done):
            assert message.result.num_bytes == sizes[message.ticket]
            assert (message.result.data == message.ticket + 1).all()
