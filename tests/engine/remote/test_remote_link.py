"""One connection of a trainer: what comes in is the same however it is cut into pieces, and waits are for enough."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.events import Done
from headrace.engine.remote.dialogue import Dialogue
from headrace.engine.remote.handshake import introduce
from headrace.engine.remote.link import AgentLink
from headrace.engine.remote.listener import Connection
from headrace.engine.remote.memory import ReceiveMemory
from headrace.engine.remote.seal import Seal
from headrace.engine.remote.wire import Alive, RemoteResult

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
    frame = seal.frame([Done(0, 0, 1, RemoteResult(b"", value.nbytes)), Alive(True)], 1, value.nbytes)
    stream = frame + b"".join(seal.parts([value.data]))
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


SIZES = st.lists(st.sampled_from([0, 1, 700, 70_000, 300_000]), max_size=6)


def write_stream(sizes: list[int]) -> bytes:
    seal, stream = Seal(KEYS[0]), b""
    for idx, size in enumerate(sizes):
        value = np.full(size, idx + 1, np.uint8)
        stream += seal.frame([Alive(False), Done(0, idx, 1, RemoteResult(b"h", size))], 1, size)
        stream += b"".join(seal.parts([value.data]))
    return stream


@settings(deadline=None, max_examples=30)
@given(SIZES, st.data())
def test_messages_and_values_come_out_as_they_went_in_however_the_stream_is_cut(sizes: list[int], data: Any) -> None:
    stream = write_stream(sizes)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    link, other = open_pair()
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


@settings(deadline=None, max_examples=60)
@given(SIZES.filter(bool), st.data())
def test_a_bit_that_is_flipped_anywhere_is_found_before_what_it_belongs_to_is_believed(
    sizes: list[int], data: Any
) -> None:
    stream = bytearray(write_stream(sizes))
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
