"""Who connects to a trainer: crowds of workers all come in, and who knows no secret keeps nobody out."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.engine.remote import LocalLauncher, RemoteExecutor
from headrace.engine.remote.addresses import set_up_socket
from headrace.engine.remote.handshake import GREETING_BYTES, PROOF_BYTES, derive_keys, introduce, respond
from headrace.engine.remote.port import listener as listener_module
from headrace.engine.remote.port.listener import Listener
from headrace.engine.remote.seal import Seal
from headrace.errors import ConfigError

SECRET = b"the secret of these tests"


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(listener_module, "_MAX_STRANGERS", 8)
    listener = Listener("127.0.0.1", 0, SECRET)
    yield listener
    listener.close()


@pytest.fixture
def call(listener: Listener) -> Iterator[Callable[..., socket.socket]]:
    """Connect to it, from any address of this machine."""
    with contextlib.ExitStack() as stack:
        yield lambda host="127.0.0.1": stack.enter_context(
            socket.create_connection(("127.0.0.1", listener.port), source_address=(host, 0))
        )


def is_readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0.0)[0])


def prove(sock: socket.socket) -> None:
    """Answer the greeting, and say who one is."""
    greeting = sock.recv(GREETING_BYTES, socket.MSG_WAITALL)
    response = respond(SECRET, greeting)
    sock.sendall(response)
    keys = derive_keys(SECRET, greeting, response)
    sock.sendall(Seal(keys.of_agent).frame(introduce(-1)))


def test_many_workers_that_connect_at_once_all_come_in_however_slowly_they_answer(
    listener: Listener, call: Callable[..., socket.socket]
) -> None:
    waiting = [call() for _ in range(50)]
    for _ in range(1000):
        for _ in range(5):
            listener.pump()
        assert len(listener._strangers) <= 8
        answering = [sock for sock in waiting if is_readable(sock)]
        for sock in answering[:3]:
            prove(sock)
            waiting.remove(sock)
        if listener.num_spares == 50:
            break
    assert listener.num_spares == 50


def test_who_connects_again_and_again_does_not_keep_out_who_connects_once(
    listener: Listener, call: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr("headrace.engine.remote.port.listener.time.monotonic", lambda: now[0])
    for _ in range(20):
        call("127.0.0.2")
    listener.pump()
    worker = call()
    for _ in range(40):
        now[0] += 0.2
        for _ in range(10):
            call("127.0.0.2")
        listener.pump()
        if is_readable(worker):
            break
    for _ in range(20):  # it takes its time
        call("127.0.0.2")
        now[0] += 0.2
        listener.pump()
    prove(worker)
    listener.pump()
    assert len(worker.recv(PROOF_BYTES, socket.MSG_WAITALL)) == PROOF_BYTES
    assert listener.num_spares == 1


@pytest.fixture
def clock(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A time that goes on by 4 ms when somebody has connected, and as a test wants."""
    now = [time.monotonic()]

    def take_time(sock: socket.socket) -> None:
        set_up_socket(sock)
        now[0] += 0.004

    monkeypatch.setattr("headrace.engine.remote.port.listener.time.monotonic", lambda: now[0])
    monkeypatch.setattr("headrace.engine.remote.port.listener.set_up_socket", take_time)
    return now


def test_strangers_take_a_small_part_of_the_time_and_wake_nobody_when_it_is_over(
    listener: Listener, call: Callable[..., socket.socket], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_MAX_STRANGERS", 64)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    begin, spent, longest, num_rests, num_called = clock[0], 0.0, 0.0, 0, 0
    while clock[0] < begin + 10.0:
        while num_called - listener._num_refused < 40:  # so that there always is one
            call().close()
            num_called += 1
        start = clock[0]
        listener.pump()
        spent, longest = spent + clock[0] - start, max(longest, clock[0] - start)
        clock[0] += 0.02
        if not poll.poll(0):  # although others wait
            num_rests += 1
            clock[0] += 0.05
    assert longest < 0.015
    assert 0.9 < spent < 1.4
    assert num_rests > 50
    assert listener._num_refused > 200


def test_workers_come_in_between_strangers(
    listener: Listener, call: Callable[..., socket.socket], clock: list[float]
) -> None:
    waiting = [call() for _ in range(20)]
    num_called = 0
    for _ in range(2000):
        while num_called - listener._num_refused < 40:
            call().close()
            num_called += 1
        listener.pump()
        clock[0] += 0.05
        for worker in [one for one in waiting if is_readable(one)]:
            prove(worker)
            waiting.remove(worker)
        if not waiting and listener.num_spares == 20:
            break
    assert listener.num_spares == 20


@pytest.mark.usefixtures("clock")
def test_what_workers_take_is_not_counted_as_the_time_of_strangers(
    listener: Listener, call: Callable[..., socket.socket]
) -> None:
    for num_workers in range(1, 101):
        worker = call()
        for _ in range(10):
            listener.pump()
            if is_readable(worker):
                break
        prove(worker)
        for _ in range(10):
            listener.pump()
            if listener.num_spares == num_workers:
                break
        assert listener.num_spares == num_workers


def test_strangers_that_take_the_last_descriptors_do_not_end_a_training(
    listener: Listener, call: Callable[..., socket.socket]
) -> None:
    for _ in range(6):
        call()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 2, hard))
    try:
        for _ in range(10):
            listener.pump()
        assert 1 <= len(listener._strangers) <= 2
        listener._drop(next(iter(listener._strangers.values())), "of this test")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_trainer_that_has_no_descriptor_for_its_first_worker_says_so(
    listener: Listener, call: Callable[..., socket.socket]
) -> None:
    call()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        with pytest.raises(ConfigError, match="no more files can be opened"):
            listener.pump()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_forked_child_that_listens_has_a_port_of_its_own() -> None:
    executor = RemoteExecutor(LocalLauncher())
    address = executor.listen()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, executor.listen().encode())
            executor.close()
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        found = file.read()
    os.waitpid(pid, 0)
    executor.close()
    assert found.startswith("localhost:")
    assert found != address


_BLOCKED = """
import socket, sys
from headrace.engine.remote import notice as notice_module
from headrace.engine.remote.dial import write

notice_module._LAST_SECONDS = 0.1
notice = notice_module.LeaveNotice(0.1)
notice.listen()
notice.on_notice = lambda: None
ours, theirs = socket.socketpair()
print("waits", flush=True)
write(ours, [memoryview(bytes(100_000_000))])
"""


def test_an_agent_that_waits_for_a_trainer_that_reads_nothing_leaves_in_time_when_told_to() -> None:
    with subprocess.Popen([sys.executable, "-c", _BLOCKED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.terminate()
        try:
            assert process.wait(20) == 0
        finally:
            process.kill()
