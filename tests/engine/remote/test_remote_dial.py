"""Whether a trainer that takes no more is only busy, or its machine is gone."""

from __future__ import annotations

import contextlib
import gc
import socket
import subprocess
import sys
import threading
import time
import weakref

import pytest

from headrace.engine.remote import dial
from headrace.engine.remote.dial import TrainerGone, has_no_answer, write


def fill(sock: socket.socket) -> None:
    """Send until nothing goes any more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16), socket.MSG_DONTWAIT)


def test_who_does_not_read_is_not_gone_and_gets_all_when_it_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(dial, "_ANSWER_SECONDS", 0.0)
    looks: list[bool] = []

    def look(sock: socket.socket, seconds: float) -> bool:
        looks.append(has_no_answer(sock, seconds))
        return looks[-1]

    monkeypatch.setattr(dial, "has_no_answer", look)
    data = bytes(range(256)) * (1 << 16)  # more than any buffer takes
    with socket.create_server(("localhost", 0)) as listening, socket.create_connection(listening.getsockname()) as sock:
        other = listening.accept()[0]
        writer = threading.Thread(target=write, args=(sock, [memoryview(data)]))
        writer.start()
        while len(looks) < 30:  # more than a second, in which it is asked several times whether it takes more
            assert writer.is_alive()
            time.sleep(0.01)
        received = bytearray()
        while len(received) < len(data):
            received += other.recv(1 << 20)
        writer.join()
        other.close()
    assert received == data
    assert not any(looks)


_VANISHING = """
import socket, subprocess
from headrace.engine.remote import dial
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
dial._LOOK_SECONDS, dial._ANSWER_SECONDS = 0.1, 1.0
with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as sock:
    other = listening.accept()[0]
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    try:
        dial.write(sock, [memoryview(bytes(1 << 26))])
    except dial.TrainerGone:
        print("gone")
"""


def test_a_machine_that_does_not_answer_is_gone() -> None:
    apart = ["unshare", "--map-root-user", "--net"]  # a network of our own, that can be cut
    try:
        subprocess.run([*apart, "ip", "link", "set", "lo", "up"], capture_output=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this system gives no network namespaces to us")
    found = subprocess.run(
        [*apart, sys.executable, "-c", _VANISHING], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout == "gone\n", found.stderr


def test_a_connection_that_is_reset_while_something_is_sent_is_over() -> None:
    with socket.create_server(("localhost", 0)) as listening, socket.create_connection(listening.getsockname()) as sock:
        other = listening.accept()[0]
        fill(sock)
        closer = threading.Timer(0.1, other.close)
        closer.start()
        with pytest.raises(TrainerGone):
            write(sock, [memoryview(bytes(1 << 26))])
        closer.join()


class _Large:
    """Stands for the results of a worker, which waits for their memory."""


def test_an_attempt_to_connect_that_fails_keeps_nothing_that_its_callers_have_at_hand() -> None:
    with socket.create_server(("localhost", 0)) as listening:
        address = f"localhost:{listening.getsockname()[1]}"

    def attempt() -> weakref.ref[_Large]:
        large = _Large()
        found = dial.connect_once(dial.Trainer([address], b"", None), 1.0)
        assert isinstance(found, list)
        assert [one.is_refused for one in found] == [True]
        assert str(found[0]) == f"{address}: Connection refused"
        return weakref.ref(large)

    gc.disable()
    try:
        assert attempt()() is None
    finally:
        gc.enable()
