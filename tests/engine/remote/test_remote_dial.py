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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.engine.remote import agent, dial
from headrace.engine.remote.dial import TrainerGone, has_no_answer, write
from headrace.engine.remote.handshake import make_greeting
from headrace.engine.remote.port.listener import Listener
from headrace.engine.remote.tls import Tls
from headrace.errors import ConfigError


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


# --- what takes the connection and is no trainer ---

_SECRET = b"the secret of these tests"


def say_nothing(_: socket.socket) -> None:
    pass


def drip(sock: socket.socket) -> None:
    """Say a byte of a greeting now and then."""
    with contextlib.suppress(OSError):
        for byte in make_greeting():
            sock.sendall(bytes([byte]))
            sock.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                if not sock.recv(1):
                    return


def greet_only(sock: socket.socket) -> None:
    sock.sendall(make_greeting())


@pytest.fixture
def impostor(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of one that takes a connection, and does this."""
    with socket.create_server(("localhost", 0)) as listening:

        def accept() -> None:
            with listening.accept()[0] as sock:
                request.param(sock)
                with contextlib.suppress(OSError):
                    sock.settimeout(60)
                    while sock.recv(4096):
                        pass

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"localhost:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("impostor", [say_nothing, drip, greet_only], indirect=True)
def test_who_takes_a_connection_and_does_not_show_that_it_knows_the_secret_is_waited_for_so_long(impostor: str) -> None:
    trainer = dial.Trainer([impostor], _SECRET, None, greeting_seconds=0.5)
    sock = dial.connect_once(trainer, 10.0)
    assert not isinstance(sock, list)
    with sock, pytest.raises(dial.TrainerSilent):
        dial.shake_hands(sock, trainer)


@pytest.mark.parametrize("impostor", [say_nothing], indirect=True)
def test_who_speaks_no_tls_is_waited_for_so_long_too(impostor: str) -> None:
    files = Path(__file__).parents[2] / "servers" / "certificates"
    trainer = dial.Trainer([impostor], _SECRET, Tls(ca=str(files / "ca.pem")), greeting_seconds=0.5)
    found = dial.connect_once(trainer, 10.0)
    assert isinstance(found, list)
    assert "timed out" in str(found[0])


@pytest.mark.parametrize("impostor", [say_nothing], indirect=True)
def test_a_worker_that_is_told_how_long_to_wait_does_not_wait_for_ever_for_what_says_nothing(
    impostor: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent, "MIN_GREETING_SECONDS", 0.2)
    with ThreadPoolExecutor(1) as pool:  # in the main thread it would take SIGTERM for itself
        serving = pool.submit(agent.serve, [impostor], _SECRET, wait_seconds=0.0, return_seconds=0.0)
        with pytest.raises(ConfigError, match="or nothing is received"):
            serving.result()
    assert "has said nothing for 0.2 s" in capfd.readouterr().err


def test_a_trainer_that_is_busy_for_a_while_is_waited_for() -> None:
    listener = Listener("localhost", 0, _SECRET)
    trainer = dial.Trainer([f"localhost:{listener.port}"], _SECRET, None)
    sock = dial.connect_once(trainer, 10.0)
    assert not isinstance(sock, list)
    timer = threading.Timer(0.5, lambda: [listener.pump() for _ in iter(lambda: done.wait(0.01), True)])
    done = threading.Event()
    timer.start()
    with sock:
        dial.shake_hands(sock, trainer)
        assert sock.gettimeout() is None
    done.set()
    timer.join()
    listener.close()
