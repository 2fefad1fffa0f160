"""`hand_over`: each process of a worker gets a channel of its own, which has no name and is nobody else's."""

import os
import signal
import socket

import pytest

from headrace.engine import Engine, EngineOptions, Job, Restarting
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import WorkerDiedError

pytestmark = pytest.mark.long


class Lines:
    """Hands over one end of a new pair whenever a worker is started, and keeps the other."""

    def __init__(self):
        self.ends = []

    def __call__(self, worker_idx):
        ours, theirs = socket.socketpair()
        self.ends.append((worker_idx, ours))
        return [theirs.detach()]

    def close(self):
        for _, end in self.ends:
            end.close()


def answer_by_the_line(info):
    line = socket.socket(fileno=info.handed[0])

    def work(payload):
        if payload == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        line.send(f"{info.worker_idx} {payload}.".encode())
        return len(info.handed)

    return work


def test_a_worker_that_is_started_anew_gets_a_new_line_and_the_old_one_has_ended():
    lines = Lines()
    options = EngineOptions(on_death=Restarting(budget=1), tickets_per_worker=1)
    executor = ProcessExecutor(hand_over=lines)
    with Engine(Job(answer_by_the_line), num_workers=1, executor=executor, options=options) as engine:
        run = engine.run(["a", "die"])
        assert next(run).value == 1
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            next(run)
    (_, first), (_, second) = lines.ends
    assert [first.recv(100), first.recv(100), second.recv(100)] == [b"0 a.", b"", b""]
    lines.close()
