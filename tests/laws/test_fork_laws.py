"""Forks at any moment: a child goes on seeing what it saw when it was forked, and no slot is lost to one that ended."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.forks import living_forks
from headrace.engine.memory.lease import ArenaReader
from headrace.engine.memory.memfd import create_memfd

NUM_SLOTS = 4
NUM_BYTES = 64


class Child:
    """A forked child: drops views when it is told to, writes to them, and says what is in those that it has."""

    def __init__(self, views: dict[int, np.ndarray]) -> None:
        self.expected = {number: bytes(view) for number, view in views.items()}
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._socket.close()
                self._serve(theirs, views)
            finally:
                os._exit(0)
        theirs.close()

    @staticmethod
    def _serve(trainer: socket.socket, views: dict[int, np.ndarray]) -> None:
        while request := trainer.recv(3):
            what, number, value = request
            if what == ord("q"):
                return
            if what == ord("d"):
                views.pop(number, None)
            elif what == ord("w"):
                views[number][:] = value
            trainer.sendall(b"".join(bytes(view) for _, view in sorted(views.items())) + b"\n")

    def tell(self, what: str, number: int = 0, value: int = 0) -> None:
        """Have it do something, and look whether it sees what it should."""
        if what == "d":
            self.expected.pop(number, None)
        elif what == "w" and number not in self.expected:
            return
        elif what == "w":
            self.expected[number] = bytes([value]) * NUM_BYTES
        self._socket.sendall(bytes([ord(what), number, value]))
        expected = b"".join(content for _, content in sorted(self.expected.items())) + b"\n"
        seen = b""
        while len(seen) < len(expected):
            more = self._socket.recv(1 << 16)
            assert more, "the child has ended"
            seen += more
        assert seen == expected

    def end(self) -> None:
        self._socket.sendall(b"q..")  # its end is not enough: children that were forked later have the socket, too
        self._socket.close()
        os.waitpid(self._pid, 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["lend", "lend", "drop", "drop", "fork", "child", "write", "end"]), st.integers(0, 7)),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=40)
def test_a_child_sees_what_it_saw_when_it_was_forked(steps):
    fd = create_memfd("headrace-test")
    num_before = len(os.listdir("/proc/self/fd"))
    numbers: Iterator[int] = iter(range(200))
    views: dict[int, np.ndarray] = {}
    children: list[Child] = []
    with (
        ArenaWriter(fd, slot_bytes=NUM_BYTES, num_slots=NUM_SLOTS, max_bytes=1 << 20) as writer,
        ArenaReader(fd) as reader,
    ):

        def lend() -> None:
            for slot_idx in reader.drain():
                writer.release(slot_idx)
            slot = writer.acquire()
            if slot is not None:
                number = next(numbers)
                slot.reserve(NUM_BYTES)[1][:] = number
                views[number] = reader.lease(slot.slot_idx, slot.offset, slot.used)

        def pick(place: int) -> int:
            return sorted(views)[place % len(views)] if views else 0

        try:
            for what, place in steps:
                if what == "lend":
                    lend()
                elif what == "drop":
                    views.pop(pick(place), None)
                elif what == "fork" and len(children) < 4:
                    children.append(Child(views))
                elif what == "child" and children:
                    children[place % len(children)].tell("d", pick(place))
                elif what == "write" and children:
                    children[place % len(children)].tell("w", pick(place), 255)
                elif what == "end" and children:
                    children.pop(place % len(children)).end()
                for child in children:
                    child.tell("?")
                assert all(set(view) == {number} for number, view in views.items())
        finally:
            while children:
                children.pop().end()
        views.clear()
        for slot_idx in reader.drain():
            writer.release(slot_idx)
        assert writer.num_free == NUM_SLOTS
        assert reader.num_leased == 0
    os.close(fd)
    assert living_forks == []
    assert len(os.listdir("/proc/self/fd")) == num_before - 1
