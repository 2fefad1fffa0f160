"""Children that are forked off the trainer: what they have views of is not written again while they live."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from headrace.engine import Engine, Job
from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.forks import living_forks
from headrace.engine.memory.lease import ArenaReader
from headrace.engine.memory.memfd import create_memfd


@pytest.fixture(autouse=True)
def _no_descriptor_is_left():
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before
    assert living_forks == []


@pytest.fixture
def pair():
    fd = create_memfd("headrace-test")
    with (
        ArenaWriter(fd, slot_bytes=4096, num_slots=4, max_bytes=1 << 24) as writer,
        ArenaReader(fd) as reader,
    ):
        os.close(fd)
        yield writer, reader


def lend(pair, value):
    writer, reader = pair
    slot = writer.acquire()
    _, piece = slot.reserve(100)
    piece[:] = value
    return reader.lease(slot.slot_idx, slot.offset, slot.used)


class Child:
    """A child that calls `act` when it is told to, and exits with 0 if that returns True."""

    def __init__(self, act):
        told, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._tell)
                os.read(told, 1)
                code = 0 if act() else 2
            finally:
                os._exit(code)
        os.close(told)

    def finish(self):
        """Tell it, and return its exit code."""
        os.write(self._tell, b"!")  # its end is not enough: other children may have the descriptor too
        os.close(self._tell)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_slot_that_a_child_looks_at_is_free_when_the_child_has_ended(pair):
    _, reader = pair
    views = [lend(pair, 7)]
    child = Child(lambda: set(views[0]) == {7})
    views.clear()
    assert reader.drain() == []
    assert reader.seen_by_children, "it is asked again"
    assert child.finish() == 0
    assert reader.drain() == [0]
    assert not reader.seen_by_children


def test_it_is_kept_for_the_children_of_a_child_too(pair):
    _, reader = pair
    views = [lend(pair, 7)]
    told, tell = os.pipe()
    seen, see = os.pipe()

    def leave_a_child_behind():
        if os.fork() == 0:
            os.close(tell)
            os.read(told, 1)
            os.write(see, bytes(views[0][:1]))
            os._exit(0)
        return True

    child = Child(leave_a_child_behind)
    views.clear()
    assert child.finish() == 0
    assert reader.drain() == []
    os.close(see)
    os.close(told)
    os.close(tell)
    assert os.read(seen, 9) == b"\x07"
    assert os.read(seen, 9) == b"", "it has ended, or is about to"
    os.close(seen)
    freed = []
    while not freed:  # the grandchild's descriptors are closed one after the other
        freed = reader.drain()
    assert freed == [0]


def test_what_is_leased_after_a_fork_is_free_as_ever(pair):
    _, reader = pair
    early = [lend(pair, 1)]
    child = Child(lambda: set(early[0]) == {1})
    late = lend(pair, 2)
    del late
    assert reader.drain() == [1]
    early.clear()
    assert reader.drain() == []
    assert child.finish() == 0
    assert reader.drain() == [0]


def test_a_fork_while_nothing_is_leased_leaves_no_trace(pair):
    _, reader = pair
    view = lend(pair, 1)
    del view
    assert reader.drain() == [0]
    child = Child(lambda: True)
    assert living_forks == []
    assert child.finish() == 0


def test_a_child_that_executes_a_program_keeps_nothing(pair):
    _, reader = pair
    view = lend(pair, 1)
    program = "import sys; print('here', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: None,  # so that it is a fork with all that belongs to it
    ) as process:
        assert process.stdout.read(4) == b"here"
        del view
        assert reader.drain() == [0]


class Watcher:
    """Has the memory that it knows of mapped anew when it is replaced."""

    def on_lease(self, mapping, num_bytes): ...

    def on_retire(self, mapping): ...


@pytest.mark.parametrize("watcher", [None, Watcher()])
def test_what_a_child_writes_stays_its_own(pair, watcher):
    _, reader = pair
    reader.watch(watcher)
    view = lend(pair, 1)
    reader.watch(None)

    def write():
        view[:] = 2
        return set(view) == {2}

    child = Child(write)
    assert child.finish() == 0
    assert set(view) == {1}


def test_a_fork_that_fails_keeps_nothing(pair):
    _, reader = pair
    view = lend(pair, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() == 0:
        pytest.skip("root may start as many processes as it likes")
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
    try:
        with pytest.raises(BlockingIOError):
            os.fork()
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    del view
    assert reader.drain() == [0]


def test_without_a_descriptor_for_it_a_slot_is_kept_for_good(pair):
    _, reader = pair
    view = lend(pair, 3)
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    told, tell = os.pipe()
    resource.setrlimit(resource.RLIMIT_NOFILE, (tell + 1, hard))
    filled = []
    try:
        while True:
            filled.append(os.dup(0))
    except OSError:
        pass
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.read(told, 1)
        os._exit(0 if set(view) == {3} else 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for fd in (*filled, told):
        os.close(fd)
    del view
    assert reader.drain() == []
    os.close(tell)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert reader.drain() == []
    reader.close()


def test_forks_of_several_threads_at_once_keep_what_each_child_looks_at(pair):
    _, reader = pair
    views = {value: lend(pair, value) for value in (1, 2, 3)}
    children, go = [], threading.Barrier(3)

    def fork():
        for _ in range(3):
            go.wait()
            children.append(Child(lambda: all(set(view) == {value} for value, view in views.items())))

    threads = [threading.Thread(target=fork) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(children) == 9
    views.clear()
    assert reader.drain() == []
    assert {child.finish() for child in children} == {0}
    assert sorted(reader.drain()) == [0, 1, 2]


def make_full(_info):
    return lambda number: np.full(1 << 15, number, np.int64)


def test_workers_do_not_overwrite_what_a_forked_child_holds():
    with Engine(Job(make_full), num_workers=1) as engine:
        run = engine.run(range(40))
        batches = [next(run).value]
        child = Child(lambda: set(batches[0].tolist()) == {0})
        batches.clear()
        assert [set(delivered.value[:9].tolist()) for delivered in run] == [{number} for number in range(1, 40)]
        assert child.finish() == 0
