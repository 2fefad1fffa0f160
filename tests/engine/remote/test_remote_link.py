"""One connection of a trainer: what comes in is the same however it is cut into pieces, and waits are for enough."""

from __future__ import annotations

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
from headrace.engine.remote.handshake import introduce
from headrace.engine.remote.link import AgentLink
from headrace.engine.remote.memory import ReceiveMemory
from headrace.engine.remote.wire import Alive, RemoteResult, encode_frame


@pytest.fixture
def pair() -> Iterator[tuple[AgentLink, socket.socket]]:
    """Return a connection as a trainer has it, and its other end."""
    with socket.create_server(("localhost", 0)) as listening:
        other = socket.create_connection(listening.getsockname())
        sock = listening.accept()[0]
    sock.setblocking(False)
    link = AgentLink(sock, introduce(-1), ReceiveMemory(64 << 20))
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
    frame = encode_frame([Done(0, 0, 1, RemoteResult(b"", value.nbytes)), Alive(True)], value.nbytes)
    other.sendall(frame + value[:100_000].tobytes())
    poll = select.poll()
    poll.register(link, select.POLLIN)
    while link.num_received < len(frame) + 100_000:
        assert poll.poll(20_000) or link.is_patient
        assert link.receive() == []
    other.sendall(value[100_000:200_000].tobytes())
    assert link.is_patient
    assert not poll.poll(50)
    while link.num_received < len(frame) + 200_000:  # as a look now and then does
        assert link.receive() == []
    sender = threading.Thread(target=other.sendall, args=(value[200_000:].tobytes(),))
    sender.start()
    done, alive = receive(link, 2)
    assert (done.result.data == value).all()
    sender.join()
    assert alive == Alive(True)
    assert not link.is_patient


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0, 1, 700, 70_000, 300_000]), max_size=6), st.data())
def test_messages_and_values_come_out_as_they_went_in_however_the_stream_is_cut(sizes: list[int], data: Any) -> None:
    values = [np.full(size, idx + 1, np.uint8) for idx, size in enumerate(sizes)]
    stream = b"".join(
        encode_frame([Alive(False), Done(0, idx, 1, RemoteResult(b"h", value.nbytes))], value.nbytes) + value.tobytes()
        for idx, value in enumerate(values)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    with socket.create_server(("localhost", 0)) as listening:
        other = socket.create_connection(listening.getsockname())
        sock = listening.accept()[0]
    sock.setblocking(False)
    link = AgentLink(sock, introduce(-1), ReceiveMemory(64 << 20))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    sender = threading.Thread(target=lambda: [other.sendall(piece) for piece in pieces])
    sender.start()
    messages = receive(link, 2 * len(values))
    sender.join()
    other.close()
    assert [message for message in messages if isinstance(message, Alive)] == [Alive(False)] * len(values)
    found = [message.result.data for message in messages if isinstance(message, Done)]
    assert all((one == value).all() and one.size == value.size for one, value in zip(found, values, strict=True))
    link.close()
