"""What connects to a trainer and is no worker of its run, and workers that somebody else has started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace import DataLoader, FixedCount
from headrace.engine import Engine, EngineOptions, Job, Raising
from headrace.engine.events import Done
from headrace.engine.process.messages import encode_packet
from headrace.engine.process.proc_tree import descendants_of
from headrace.engine.remote import ConnectedWorkers, LocalLauncher, RemoteExecutor
from headrace.engine.remote import seal as seal_module
from headrace.engine.remote.handshake import (
    GREETING_BYTES,
    MAX_INTRODUCTION_BYTES,
    PROOF_BYTES,
    SECRET_VARIABLE,
    derive_keys,
    introduce,
    respond,
)
from headrace.engine.remote.port import listener as listener_module
from headrace.engine.remote.seal import HEAD_BYTES, Seal
from headrace.engine.remote.wire import Alive, RemoteResult
from headrace.errors import ConfigError, StalledError, WorkerDiedError

SECRET = "the secret of these tests"
HOST = socket.gethostname()
WORKER = [sys.executable, "-m", "headrace", "worker"]


def connected(**options: Any) -> RemoteExecutor:
    return RemoteExecutor(
        ConnectedWorkers(),
        **{"host": "localhost", "secret": SECRET, "dead_seconds": 30.0, "checks_values": True, **options},
    )


def port_of(executor: RemoteExecutor) -> int:
    return int(executor.listen().rpartition(":")[2])


@pytest.fixture
def start_worker() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `headrace worker`; each has to end by itself, or by the test."""
    started: list[subprocess.Popen[str]] = []

    def start(address: str, *arguments: str, secret: str | None = SECRET) -> subprocess.Popen[str]:
        environment = {**os.environ, **({} if secret is None else {SECRET_VARIABLE: secret})}
        command = [*WORKER, "--connect", address, "--return-wait", "0", *arguments]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()


# --- workers of somebody else ---


def test_workers_that_somebody_else_started_do_the_work_and_end_with_the_trainer(
    start_worker: Callable[..., subprocess.Popen[str]],
) -> None:
    executor = connected()
    with Engine(Job(lambda info: lambda n: (info.worker_idx, n)), num_workers=2, executor=executor) as engine:
        workers = [start_worker(executor.listen()) for _ in range(2)]
        values = [done.value for done in engine.run(range(100))]
        assert [number for _, number in values] == list(range(100))
        assert {worker_idx for worker_idx, _ in values} == {0, 1}
    for worker in workers:
        _, errors = worker.communicate(timeout=30)
        assert "after 1 connections" in errors
        assert worker.returncode == 0


def test_workers_may_be_there_before_the_trainer_and_come_back_for_another_epoch(
    start_worker: Callable[..., subprocess.Popen[str]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    start_worker(f"localhost:{port}", "--return-wait", "8", "--wait", "60")
    for _ in range(2):
        with Engine(Job(lambda info: abs), num_workers=1, executor=connected(port=port)) as engine:
            assert [done.value for done in engine.run([-1, -2])] == [1, 2]
    # It waits for another trainer now: `start_worker` sees that it ends.


def test_a_spare_worker_takes_the_place_of_one_that_is_killed(
    start_worker: Callable[..., subprocess.Popen[str]],
) -> None:
    executor = connected()
    with Engine(Job(lambda info: lambda n: n), num_workers=1, executor=executor) as engine:
        workers = [start_worker(executor.listen()) for _ in range(2)]
        run = engine.run(range(2000))
        for number in range(100):
            assert next(run).value == number
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            break
        assert [done.value for done in run] == list(range(100, 2000))


_TRAINER = """
import threading
from headrace.engine import Engine, Job
from headrace.engine.remote import ConnectedWorkers, RemoteExecutor

executor = RemoteExecutor(ConnectedWorkers(), host="localhost")
print(executor.listen(), flush=True)
with Engine(Job(lambda info: abs), num_workers=1, executor=executor) as engine:
    print([done.value for done in engine.run([-1, -2])], flush=True)
    threading.Event().wait()
"""


def test_workers_of_somebody_else_end_when_the_trainer_is_killed(
    start_worker: Callable[..., subprocess.Popen[str]], wait_for_end: Callable[[int], None]
) -> None:
    environment = {**os.environ, SECRET_VARIABLE: SECRET}
    command = [sys.executable, "-c", _TRAINER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        worker = start_worker(trainer.stdout.readline().strip())
        assert trainer.stdout.readline() == "[1, 2]\n"
        below = [os.pidfd_open(pid) for pid in descendants_of(worker.pid)]
        assert len(below) == 2
        trainer.kill()
    assert worker.wait(30) == 0
    for pidfd in below:
        wait_for_end(pidfd)


def test_a_stream_whose_sequences_are_changed_needs_one_worker_more_on_the_same_port(
    start_worker: Callable[..., subprocess.Popen[str]],
) -> None:
    def double(features: dict[str, Any]) -> dict[str, Any]:
        return {"x": 2 * features["x"]}

    items = [{"x": np.full(2, float(number))} for number in range(17)]

    class Stream:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter(items)

    options: dict[str, Any] = {"batching": FixedCount(3), "transform": double}
    with DataLoader(Stream(), **options) as loader:
        expected = [batch["x"].tolist() for batch in loader]
    executor = connected()
    address = executor.listen()
    workers = [start_worker(address) for _ in range(3)]
    with DataLoader(Stream(), num_workers=2, executor=executor, **options) as loader:
        assert [batch["x"].tolist() for batch in loader] == expected
    assert [worker.wait(30) for worker in workers] == [0, 0, 0]


def test_a_trainer_without_workers_says_what_to_start() -> None:
    options = EngineOptions(stall_seconds=0.3)
    executor = connected()
    with (
        Engine(Job(lambda info: abs), num_workers=1, executor=executor, options=options) as engine,
        pytest.raises(StalledError) as caught,
    ):
        list(engine.run([1]))
    assert "headrace worker --connect localhost:" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("secret", "code", "words"),
    [("another secret, as long", 1, "the same secret"), (None, 2, SECRET_VARIABLE), ("short", 2, "16 characters")],
)
def test_a_worker_with_a_wrong_secret_says_so_and_the_trainer_goes_on(
    secret: str | None, code: int, words: str, start_worker: Callable[..., subprocess.Popen[str]]
) -> None:
    executor = connected()
    with Engine(Job(lambda info: abs), num_workers=1, executor=executor) as engine:
        wrong = start_worker(executor.listen(), secret=secret)
        start_worker(executor.listen())
        run = engine.run(iter(lambda: 1, 0))
        while wrong.poll() is None:
            assert next(run).value == 1
        _, errors = wrong.communicate()
        assert words in errors
        assert wrong.returncode == code
        assert next(run).value == 1


def test_a_worker_that_reaches_nobody_says_where(start_worker: Callable[..., subprocess.Popen[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    worker = start_worker(f"127.0.0.1:{port}", "--wait", "0")
    _, errors = worker.communicate(timeout=30)
    assert f"127.0.0.1:{port}: Connection refused" in errors
    assert worker.returncode == 2


@pytest.mark.parametrize("starts", [True, False])
def test_another_version_is_an_error_of_the_trainer_that_names_the_machine(
    starts: bool, monkeypatch: pytest.MonkeyPatch, start_worker: Callable[..., subprocess.Popen[str]]
) -> None:
    own = introduce(0)
    monkeypatch.setattr(
        "headrace.engine.remote.handshake.introduce", lambda seat: msgspec.structs.replace(own, numpy="0.1.2")
    )
    executor = RemoteExecutor(LocalLauncher()) if starts else connected()
    if not starts:
        start_worker(executor.listen())
    with (
        Engine(Job(lambda info: abs), num_workers=1, executor=executor) as engine,
        pytest.raises(ConfigError, match="other versions than the trainer: NumPy") as caught,
    ):
        list(engine.run([1]))
    assert HOST in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", ""])
def test_both_internet_protocols_are_spoken(host: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    executor = RemoteExecutor(LocalLauncher(), host=host, dead_seconds=30.0)
    with Engine(Job(lambda info: abs), num_workers=1, executor=executor) as engine:
        assert [done.value for done in engine.run([-3])] == [3]


# --- strangers ---


def say_garbage(sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: trainer\r\n\r\n" + os.urandom(10_000))


def say_nothing(sock: socket.socket) -> None:
    pass


def say_half(sock: socket.socket) -> None:
    sock.sendall(respond(SECRET.encode(), sock.recv(GREETING_BYTES, socket.MSG_WAITALL))[:-1])


def hang_up(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_RDWR)


def enter(sock: socket.socket) -> Seal:
    greeting = sock.recv(GREETING_BYTES, socket.MSG_WAITALL)
    response = respond(SECRET.encode(), greeting)
    sock.sendall(response)
    sock.recv(PROOF_BYTES, socket.MSG_WAITALL)
    return Seal(derive_keys(SECRET.encode(), greeting, response).of_agent)


def forge(seal: Seal, packet: bytes = b"", *, num_bytes: int | None = None, num_part_bytes: int = 0) -> bytes:
    """Return a frame that says anything, as only who knows the secret can make one."""
    tag = seal_module._tag(seal._packets, packet)
    return seal.head(len(packet) if num_bytes is None else num_bytes, num_part_bytes, 0, tag) + packet


def announce(seal: Seal, num_bytes: int, num_part_bytes: int | None = None, header: bytes = b"") -> bytes:
    """Return a frame that tells of a value."""
    packet = encode_packet([Done(0, 0, 1, RemoteResult(header, num_bytes))])
    return forge(seal, packet, num_part_bytes=num_bytes + 8 if num_part_bytes is None else num_part_bytes)


def announce_too_much(sock: socket.socket) -> None:
    sock.sendall(forge(enter(sock), num_bytes=MAX_INTRODUCTION_BYTES + 1))


def announce_values(sock: socket.socket) -> None:
    sock.sendall(forge(enter(sock), b"0123456789", num_part_bytes=1 << 40))


def introduce_as_nonsense(sock: socket.socket) -> None:
    sock.sendall(forge(enter(sock), b"\xc1abcd"))


def introduce_without_a_seal(sock: socket.socket) -> None:
    frame = bytearray(enter(sock).frame(introduce(-1)))
    frame[HEAD_BYTES - 1] ^= 1
    sock.sendall(frame)


def introduce_as_somebody_else(sock: socket.socket) -> None:
    sock.sendall(enter(sock).frame(introduce(-1))[:-1] + b"x")


def introduce_only(sock: socket.socket) -> None:
    sock.sendall(enter(sock).frame(introduce(-1))[:-3])


STRANGERS = [
    say_garbage,
    say_nothing,
    say_half,
    hang_up,
    announce_too_much,
    announce_values,
    introduce_as_nonsense,
    introduce_without_a_seal,
    introduce_as_somebody_else,
    introduce_only,
]


class _Slowly:
    """A function of a worker that takes some milliseconds."""

    def __call__(self, number: int) -> int:
        time.sleep(0.005)
        return number


def test_strangers_get_nowhere_and_disturb_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_HANDSHAKE_SECONDS", 0.5)
    executor = RemoteExecutor(LocalLauncher(), secret=SECRET, dead_seconds=30.0)
    with Engine(Job(lambda info: _Slowly()), num_workers=2, executor=executor) as engine:
        run = engine.run(range(100_000))
        assert next(run).value == 0
        with ThreadPoolExecutor(len(STRANGERS)) as pool:
            visits = [pool.submit(visit, port_of(executor), stranger) for stranger in STRANGERS]
            number = 1
            while not all(one.done() for one in visits):  # the trainer answers while it waits for its workers
                assert next(run).value == number
                number += 1
        assert all(one.result() for one in visits)
        assert sum(worker.num_restarts for worker in engine.report.workers) == 0


def visit(port: int, stranger: Callable[[socket.socket], None]) -> bool:
    """Do what a stranger does, and return whether the trainer then hangs up."""
    with socket.create_connection(("localhost", port)) as sock:
        sock.settimeout(20)
        try:
            stranger(sock)
            while sock.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True


def test_a_trainer_that_was_away_in_the_middle_of_a_handshake_finds_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "_HANDSHAKE_SECONDS", 0.2)
    executor = RemoteExecutor(LocalLauncher(), dead_seconds=0.8)
    with Engine(Job(lambda info: abs), num_workers=2, executor=executor) as engine:
        run = engine.run(range(20))
        for _ in range(10):  # steps of the consumer that are longer than any limit
            run._hear(0.0, None)
            time.sleep(1.0)
        assert [done.value for done in run] == list(range(20))
        assert sum(worker.num_restarts for worker in engine.report.workers) == 0


def test_many_strangers_at_once_are_bounded_and_workers_still_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_MAX_STRANGERS", 8)
    executor = RemoteExecutor(LocalLauncher(), secret=SECRET, dead_seconds=30.0)
    port = port_of(executor)
    strangers = [socket.create_connection(("localhost", port)) for _ in range(40)]
    with Engine(Job(lambda info: _Slowly()), num_workers=2, executor=executor) as engine:
        assert [done.value for done in engine.run(range(100))] == list(range(100))
        assert executor._listener is not None
        assert len(executor._listener._strangers) <= 8
    for sock in strangers:
        sock.close()


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda seal: forge(seal, num_bytes=1 << 31), "2147483648 bytes was announced"),
        (lambda seal: forge(seal, b"\xc1ab"), "cannot be read"),
        (lambda seal: announce(seal, 5000, 5007), "length of its values"),
        (lambda seal: announce(seal, 2 << 20), "more than the credit"),
        (lambda seal: announce(seal, -8), "cannot be read"),
        (lambda seal: announce(seal, 5000, header=b"\2"), "cannot be read"),
        (lambda seal: announce(seal, 5000, header=struct.pack("<QQ", 4000, 5001) + b"\2"), "not have its code in it"),
        (lambda seal: seal.frame([Alive(True)], num_heard=7), "acknowledged messages that were never sent"),
        (lambda seal: seal.frame([Alive(True)])[:-1] + b"x", "messages have a wrong tag"),
        (lambda seal: bytes(100), "a frame fails the integrity check"),
        (lambda seal: (seal.frame([Alive(True)]), seal.frame([Alive(False)]))[1], "a frame fails the integrity check"),
        (lambda seal: 2 * seal.frame([Alive(True)]), "a frame fails the integrity check"),
        (
            lambda seal: announce(seal, 8) + bytes(16),
            "a value has a wrong checksum",
        ),
    ],
)
def test_an_agent_that_lies_is_given_up(lie: Callable[[Seal], bytes], words: str) -> None:
    """It knows the secret, so it may send pickles; but memory is taken for what it has credit for alone."""

    def be_agent(port: int) -> None:
        with socket.create_connection(("localhost", port)) as sock:
            seal = enter(sock)
            sock.sendall(seal.frame(introduce(-1)))
            assert sock.recv(HEAD_BYTES)  # the job
            sock.sendall(lie(seal))
            with contextlib.suppress(OSError):
                while sock.recv(4096):
                    pass

    executor = connected(max_bytes=1 << 20, return_seconds=0)
    options = EngineOptions(on_death=Raising())
    with Engine(Job(lambda info: abs), num_workers=1, executor=executor, options=options) as engine:
        thread = threading.Thread(target=be_agent, args=(port_of(executor),))
        thread.start()
        with pytest.raises(WorkerDiedError, match=words):
            list(engine.run([1]))
        thread.join()


def test_an_agent_that_takes_its_job_and_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.remote.seat._FIRST_SECONDS", 0.5)
    table = np.ones(1_000_000)  # more than sockets take by themselves
    is_over = threading.Event()

    def be_agent(port: int) -> None:
        with socket.create_connection(("localhost", port)) as sock:
            sock.sendall(enter(sock).frame(introduce(-1)))
            is_over.wait(60)

    executor = connected(dead_seconds=0.2)
    options = EngineOptions(on_death=Raising())
    with Engine(Job(lambda info: table.take), num_workers=1, executor=executor, options=options) as engine:
        thread = threading.Thread(target=be_agent, args=(port_of(executor),))
        thread.start()
        with pytest.raises(WorkerDiedError, match="has said nothing"):
            list(engine.run([1]))
        is_over.set()
        thread.join()


def test_the_job_needs_no_more_than_its_own_files_there(tmp_path: Path) -> None:
    """Modules beside the script of the trainer are found, too."""
    (tmp_path / "beside_script.py").write_text("def triple(number):\n    return 3 * number\n")
    (tmp_path / "program.py").write_text(
        "import beside_script\n"
        "from headrace.engine import Engine, Job\n"
        "from headrace.engine.remote import LocalLauncher, RemoteExecutor\n"
        "class Local:\n"
        "    def __call__(self, info):\n"
        "        return beside_script.triple\n"
        "with Engine(Job(Local()), num_workers=2, executor=RemoteExecutor(LocalLauncher())) as engine:\n"
        "    print([done.value for done in engine.run(range(3))])\n"
    )
    found = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout == "[0, 3, 6]\n", found.stderr
