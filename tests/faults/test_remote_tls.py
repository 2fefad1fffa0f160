"""Connections with TLS: the same stream, the same ends, and nobody in it who has not the certificates."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.engine import Engine, Job, WorkerInfo
from headrace.engine.remote import ConnectedWorkers, Invitation, Launched, LocalLauncher, RemoteExecutor, Tls
from headrace.engine.remote.dial import Trainer, connect_once, read, shake_hands, write
from headrace.engine.remote.handshake import GREETING_BYTES, SECRET_VARIABLE, introduce, respond
from headrace.engine.remote.port.listener import Listener
from headrace.engine.remote.port.stranger import Connection
from headrace.engine.remote.tls import bind_secret
from headrace.errors import ConfigError
from servers.tcp_proxy import Kind, Trouble, tcp_proxy

FILES = Path(__file__).parents[1] / "servers" / "certificates"
CA, OTHER_CA = str(FILES / "ca.pem"), str(FILES / "other-ca.pem")
TRAINER = Tls(ca=CA, cert=str(FILES / "trainer.pem"), key=str(FILES / "trainer.key"))
WORKER = Tls(ca=CA, cert=str(FILES / "worker.pem"), key=str(FILES / "worker.key"))
OF_WORKER = ["--tls-cert", str(WORKER.cert), "--tls-key", str(WORKER.key)]
SECRET = "the secret of these tests"
NUM_TICKETS = 60


class Agents(LocalLauncher):
    """Has agents connect through a proxy, with these certificates."""

    def __init__(self, *troubles: Trouble, tls: Tls | None = WORKER) -> None:
        super().__init__()
        self.troubles, self.tls = list(troubles), tls
        self.proxies: list[Any] = []
        self.pids: list[int] = []

    def launch(self, invitation: Invitation) -> Launched:
        _, _, port = invitation.addresses[0].rpartition(":")
        proxy = tcp_proxy(("localhost", int(port)), *self.troubles[:1])
        del self.troubles[:1]
        self.proxies.append(proxy)
        addresses = (proxy.__enter__().address,)
        launched = super().launch(dataclasses.replace(invitation, addresses=addresses, tls=self.tls))
        self.pids.append(launched.pid)  # type: ignore[attr-defined]
        return launched


@pytest.fixture
def agents() -> Iterator[Callable[..., Agents]]:
    made: list[Agents] = []

    def make(*troubles: Trouble, **options: Any) -> Agents:
        made.append(Agents(*troubles, **options))
        return made[-1]

    yield make
    for launcher in made:
        for proxy in launcher.proxies:
            proxy.__exit__(None, None, None)


def remote(launcher: LocalLauncher, **options: Any) -> RemoteExecutor:
    return RemoteExecutor(launcher, **{"dead_seconds": 30.0, "tls": TRAINER, **options})


def work_of(info: WorkerInfo) -> Callable[[int], Any]:
    return lambda number: np.full((3, 9_000, 120_000)[number % 3], number)


def check(executor: RemoteExecutor, num_workers: int = 2) -> int:
    """See that the stream is what it has to be, and return how many workers were replaced."""
    with Engine(Job(work_of), num_workers=num_workers, executor=executor) as engine:
        number = -1
        for number, delivered in enumerate(engine.run(range(NUM_TICKETS))):
            assert len(delivered.value) == (3, 9_000, 120_000)[number % 3]
            assert (delivered.value == number).all()
        assert number == NUM_TICKETS - 1
        return sum(worker.num_restarts for worker in engine.report.workers)


def test_the_stream_is_the_same_with_certificates_of_workers_and_without(agents: Callable[..., Agents]) -> None:
    assert check(remote(LocalLauncher())) == 0
    of_trainer_only = Tls(cert=TRAINER.cert, key=TRAINER.key)
    assert check(remote(agents(tls=Tls(ca=CA)), tls=of_trainer_only)) == 0


@pytest.mark.parametrize(
    ("kind", "after_bytes", "of"),
    [
        ("reset", 300_000, "client"),
        ("flip", 400_000, "client"),
        ("flip", 300, "server"),
        ("drip", 0, "client"),
        ("drip", 0, "server"),
    ],
)
def test_what_happens_to_a_connection_changes_nothing(
    kind: Kind, after_bytes: int, of: Any, agents: Callable[..., Agents]
) -> None:
    trouble = Trouble(kind, after_bytes, of)
    num_restarts = check(remote(agents(trouble)))
    assert trouble.happened.is_set()
    was_at_work = after_bytes >= 100_000  # so that its agent comes back, and nothing needs to be done again
    assert num_restarts == (0 if kind == "drip" or was_at_work else 1)


def test_a_connection_through_which_nothing_goes_is_noticed(agents: Callable[..., Agents]) -> None:
    trouble = Trouble("stall", 300_000)
    assert check(remote(agents(trouble), dead_seconds=1.5), num_workers=1) >= 1
    assert trouble.happened.is_set()


def test_a_large_job_comes_through_whole(agents: Callable[..., Agents]) -> None:
    table = np.random.default_rng(1).random(1_000_000)

    def setup(info: WorkerInfo) -> Callable[[int], float]:
        return lambda number: float(table[number])

    with Engine(Job(setup), num_workers=1, executor=remote(agents())) as engine:
        assert [done.value for done in engine.run(range(0, 1_000_000, 99_999))] == table[::99_999].tolist()


# --- who has not the certificates ---


def meet(arguments: list[str], trainer: Tls | None) -> str:
    """Have a worker with these options try to get to a trainer, and return what it says."""
    executor = RemoteExecutor(ConnectedWorkers(), host="localhost", secret=SECRET, dead_seconds=30.0, tls=trainer)
    command = [sys.executable, "-m", "headrace", "worker", "--connect", executor.listen(), "--wait", "0", *arguments]
    environment = {**os.environ, SECRET_VARIABLE: SECRET}
    worker = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        while worker.poll() is None:
            assert executor._listener is not None
            executor._listener.pump()
            select_briefly(executor._listener)
        _, errors = worker.communicate(timeout=30)
    finally:
        worker.kill()
        worker.wait()
        executor.close()
    assert worker.returncode in (1, 2)
    return " ".join(errors.replace("│", " ").split())


def select_briefly(listener: Any) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.poll(50)


@pytest.mark.parametrize(
    ("arguments", "trainer", "words"),
    [
        (["--tls-ca", CA, *OF_WORKER], None, "the TLS handshake with the other side failed"),
        (["--tls-ca", OTHER_CA, *OF_WORKER], TRAINER, "certificate of the trainer"),
        (["--tls-ca", CA, "--tls-name", "somebody"], TRAINER, "certificate of the trainer"),
        (["--tls-ca", CA], TRAINER, "TLS has failed"),
        (OF_WORKER, TRAINER, "needs the certificate of the authority"),
        (["--tls-ca", "/no/such/file"], TRAINER, "certificate cannot be used"),
    ],
)
def test_a_worker_says_why_it_and_its_trainer_do_not_come_together(
    arguments: list[str], trainer: Tls | None, words: str
) -> None:
    assert words in meet(arguments, trainer)


def test_a_worker_without_tls_says_that_the_trainer_may_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.remote.port.listener._HANDSHAKE_SECONDS", 0.5)
    assert "give --tls-ca if the trainer has" in meet([], TRAINER)


def test_nothing_that_is_sent_can_be_read_on_the_way(agents: Callable[..., Agents]) -> None:
    heard = bytearray()
    send = socket.socket.sendall

    class Recording(socket.socket):
        def sendall(self, data: Any, *flags: int) -> None:
            heard.extend(data)
            send(self, data, *flags)

    words = "words that nobody else is to read " * 3000
    with pytest.MonkeyPatch.context() as patch:
        connect = socket.create_connection

        def connect_recording(*arguments: Any, **options: Any) -> socket.socket:
            sock = connect(*arguments, **options)
            return Recording(sock.family, sock.type, sock.proto, fileno=sock.detach())

        patch.setattr(socket, "create_connection", connect_recording)  # of the proxy, in this process
        with Engine(Job(lambda info: lambda n: words), num_workers=1, executor=remote(agents())) as engine:
            assert next(engine.run([0])).value == words
    assert len(heard) > len(words)
    assert b"nobody else" not in heard


# --- strangers ---


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener("localhost", 0, SECRET.encode(), Tls(cert=TRAINER.cert, key=TRAINER.key))
    yield listener
    listener.close()


def pump_until(listener: Listener, is_over: Callable[[], bool]) -> None:
    for _ in range(2000):
        select_briefly(listener)
        listener.pump()
        if is_over():
            return
    raise AssertionError("it goes on and on")


def test_a_stranger_that_says_little_with_many_records_is_given_up(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cafile=CA)

    def be_stranger() -> None:
        with context.wrap_socket(
            socket.create_connection(("localhost", listener.port)), server_hostname="localhost"
        ) as sock:
            greeting = sock.recv(GREETING_BYTES)
            with contextlib.suppress(OSError):
                for byte in respond(b"another secret, as long", greeting)[:-1]:
                    sock.sendall(bytes([byte]))

    thread = threading.Thread(target=be_stranger)
    thread.start()
    pump_until(listener, lambda: listener._num_refused == 1)
    thread.join()
    assert "it sends more than a worker does" in caplog.text


_KEY_UPDATES = """
import ctypes, socket, sys
try:
    library = ctypes.CDLL("libssl.so.3")
except OSError:
    raise SystemExit(77)
for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
    getattr(library, name).restype = ctypes.c_void_p
context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
ssl = ctypes.c_void_p(library.SSL_new(context))
sock = socket.create_connection(("localhost", int(sys.argv[1])))
library.SSL_set_fd(ssl, sock.fileno())
assert library.SSL_connect(ssl) == 1
while library.SSL_key_update(ssl, 0) == 1 and library.SSL_do_handshake(ssl) == 1:
    pass
"""


def test_a_stranger_that_changes_its_keys_again_and_again_is_given_up(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen([sys.executable, "-c", _KEY_UPDATES, str(listener.port)]) as process:
        try:
            pump_until(listener, lambda: listener._num_refused == 1 or process.poll() is not None)
        finally:
            process.kill()
    if process.returncode == 77:
        pytest.skip("there is no libssl.so.3")
    pump_until(listener, lambda: listener._num_refused == 1)
    assert "it sends more than a worker does" in caplog.text


def test_what_follows_an_introduction_at_once_is_not_lost(listener: Listener) -> None:
    """As the request of a trainer to a shared service does: in the same record, or in the next ones."""
    arrived: list[Connection] = []

    class Door:
        seat, takes_any = -1, True
        welcome = staticmethod(arrived.append)

    said = [b"request %d" % number for number in range(3)]

    def be_trainer() -> None:
        trainer = Trainer([f"localhost:{listener.port}"], SECRET.encode(), Tls(ca=CA))
        found = connect_once(trainer, 10.0)
        assert not isinstance(found, list)
        with found as sock:
            _, outgoing = shake_hands(sock, trainer)
            write(sock, [memoryview(outgoing.frame(introduce(-1)) + said[0])])
            write(sock, [memoryview(said[1])])
            write(sock, [memoryview(said[2])])
            assert sock.recv(2) == b"ok"

    listener.expect(Door())  # type: ignore[arg-type]
    thread = threading.Thread(target=be_trainer)
    thread.start()
    pump_until(listener, lambda: bool(arrived))
    sock = arrived[0].sock
    sock.settimeout(20.0)
    assert bytes(read(sock, sum(map(len, said)))) == b"".join(said)
    assert arrived[0].is_local
    sock.send(b"ok")
    thread.join()
    sock.close()


def test_the_secret_is_bound_to_the_certificate_of_the_trainer() -> None:
    certificate = ssl.PEM_cert_to_DER_cert(Path(TRAINER.cert or "").read_text())
    assert TRAINER.bind_secret(b"secret") == bind_secret(b"secret", certificate)
    assert TRAINER.bind_secret(b"secret") != WORKER.bind_secret(b"secret")


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        (Tls(ca=CA), "needs a certificate"),
        (Tls(ca=CA, cert=str(FILES / "missing.pem")), "missing.pem"),
        (Tls(ca=CA, cert=TRAINER.cert, key=WORKER.key), "with the key"),
    ],
)
def test_certificates_that_cannot_be_used_are_refused_at_once(tls: Tls, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RemoteExecutor(LocalLauncher(), tls=tls)
