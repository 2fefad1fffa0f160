"""Laws of the arena: what a consumer sees never changes under its eyes, and memory stays within its limit.

A worker and a trainer share a memfd in one process here, each with mappings of its own, as they would in two.
"""

from __future__ import annotations

import gc
import os
import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.lease import ArenaReader
from headrace.engine.memory.memfd import PAGE_BYTES, create_memfd
from headrace.errors import CacheError

NUM_SLOTS = 4
MAX_BYTES = 24 * PAGE_BYTES


class Subclass(np.ndarray):
    pass


def pickle_out_of_band(array):
    if not array.flags.c_contiguous:  # NumPy would copy it
        return array[:]
    array, buffers = np.asarray(array), []  # a subclass, too
    return pickle.loads(pickle.dumps(array, protocol=5, buffer_callback=buffers.append), buffers=buffers)


DERIVE = {
    "slice": lambda a: a[len(a) // 3 :],
    "reverse": lambda a: a[::-1],
    "stride": lambda a: a[::3],
    "columns": lambda a: a[: len(a) // 2 * 2].reshape(-1, 2)[:, 0],
    "subclass": lambda a: a.view(Subclass),
    "frombuffer": lambda a: np.frombuffer(memoryview(a), np.uint8) if a.flags.c_contiguous else a[:],
    "pickle 5": pickle_out_of_band,
    "dlpack": lambda a: np.from_dlpack(a),
    "strided": lambda a: np.lib.stride_tricks.sliding_window_view(a, 1)[:, 0] if len(a) else a[:],
}


class ArenaMachine(RuleBasedStateMachine):
    """Writes, lends, looks, drops, drains and releases in any order, and compares with copies."""

    views = Bundle("views")
    arrays = Bundle("arrays")

    def __init__(self):
        super().__init__()
        self.fd = create_memfd("headrace-law")
        self.writer = ArenaWriter(self.fd, slot_bytes=100, num_slots=NUM_SLOTS, max_bytes=MAX_BYTES)
        self.reader = ArenaReader(self.fd)
        self.slot = None  # being written
        self.written = []  # of the open slot: (position, array, copy)
        self.sent = []  # messages under way: (slot_idx, offset, used, [(position, copy)])
        self.live = {}  # number of a view -> (view, copy, slot_idx)
        self.counter = 0

    @property
    def slots_in_view(self):
        return {slot_idx for _, _, slot_idx in self.live.values()}

    @precondition(lambda self: self.slot is None)
    @rule()
    def acquire(self):
        self.slot = self.writer.acquire()
        if self.slot is None:
            assert self.writer.num_free == 0
            return
        assert self.slot.slot_idx not in self.slots_in_view
        assert self.slot.slot_idx not in {message[0] for message in self.sent}

    @precondition(lambda self: self.slot is not None)
    @rule(
        num_bytes=st.one_of(st.integers(0, 300), st.integers(0, 14 * PAGE_BYTES)),
        alignment=st.sampled_from([1, 8, 64, 4096]),
        seed=st.integers(0, 255),
        in_place=st.booleans(),
    )
    def write(self, num_bytes, alignment, seed, in_place):
        used = self.slot.used
        try:
            if in_place:
                piece = self.slot.empty(num_bytes, np.uint8)
                position = self.slot.find(piece) if num_bytes else self.slot.used
            else:
                position, piece = self.slot.reserve(num_bytes, alignment)
                assert position % alignment == 0
        except CacheError:
            assert self.slot.used == used
            return
        assert used <= position <= self.slot.used == position + num_bytes
        piece[:] = (np.arange(num_bytes) * 7 + seed) % 256
        self.written.append((position, piece, piece.copy()))

    @precondition(lambda self: self.written)
    @rule(pick=st.integers(0, 100))
    def find_what_was_written(self, pick):
        position, piece, copy = self.written[pick % len(self.written)]
        half = piece[len(piece) // 2 :]
        assert self.slot.find(piece) == (position if len(piece) else None)
        assert self.slot.find(half) == (position + len(piece) // 2 if len(half) else None)
        assert self.slot.find(copy) is None

    @precondition(lambda self: self.slot is not None)
    @rule()
    def send(self):
        pieces = [(position, copy) for position, _, copy in self.written]
        self.sent.append((self.slot.slot_idx, self.slot.offset, self.slot.used, pieces))
        self.slot, self.written = None, []

    @precondition(lambda self: self.slot is not None)
    @rule()
    def abandon(self):
        self.writer.release(self.slot.slot_idx)
        self.slot, self.written = None, []

    def keep(self, view, copy, slot_idx):
        self.counter += 1
        self.live[self.counter] = (view, copy, slot_idx)
        return self.counter

    @precondition(lambda self: self.sent)
    @rule(target=views)
    def receive(self):
        slot_idx, offset, used, pieces = self.sent.pop(0)
        content = self.reader.lease(slot_idx, offset, used)
        for position, copy in pieces:
            assert np.array_equal(content[position : position + len(copy)], copy)
        return self.keep(content, content.copy(), slot_idx)

    @rule(target=views, view=views, how=st.sampled_from(sorted(DERIVE)))
    def derive(self, view, how):
        if view not in self.live:
            return view
        array, copy, slot_idx = self.live[view]
        return self.keep(DERIVE[how](array), np.array(DERIVE[how](copy)), slot_idx)

    @rule(view=views, value=st.integers(0, 255))
    def write_as_the_consumer(self, view, value):
        """The consumer owns what it was given: its own writes stay, too."""
        if view not in self.live or not self.live[view][0].flags.writeable:
            return
        array, _, slot_idx = self.live[view]
        array[: len(array) // 2] = value
        for number, (other, copy, other_slot) in self.live.items():
            if other_slot == slot_idx:
                self.live[number] = (other, np.array(other), other_slot)
            else:
                assert np.array_equal(other, copy)

    @rule(view=consumes(views))
    def drop(self, view):
        self.live.pop(view, None)

    @rule()
    def drain_and_release(self):
        freed = self.reader.drain()
        assert len(freed) == len(set(freed))
        assert not set(freed) & self.slots_in_view
        for slot_idx in freed:
            self.writer.release(slot_idx)

    @invariant()
    def what_is_seen_is_what_was_written(self):
        for array, copy, _ in self.live.values():
            assert np.array_equal(array, copy)
        for _, piece, copy in self.written:
            assert np.array_equal(piece, copy)

    @invariant()
    def memory_stays_within_the_limit(self):
        assert os.fstat(self.fd).st_blocks * 512 <= self.writer.committed_bytes <= MAX_BYTES

    @invariant()
    def leases_are_counted(self):
        assert self.reader.num_leased == len(self.slots_in_view)

    def teardown(self):
        self.live.clear()
        self.written.clear()
        gc.collect()
        freed = self.reader.drain()
        for slot_idx in freed + [message[0] for message in self.sent]:
            self.writer.release(slot_idx)
        if self.slot is not None:
            self.writer.release(self.slot.slot_idx)
        assert self.writer.num_free == NUM_SLOTS
        assert self.reader.num_leased == 0
        self.writer.close()
        self.reader.close()
        os.close(self.fd)


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=30, stateful_step_count=50)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 5 * PAGE_BYTES), st.sampled_from([1, 2, 16, 64, 4096])), max_size=20),
    slot_bytes=st.integers(1, 8 * PAGE_BYTES),
)
def test_a_slot_that_grows_reads_like_one_that_was_large_from_the_start(sizes, slot_bytes):
    max_bytes = 200 * PAGE_BYTES
    contents = []
    for first_bytes in (slot_bytes, max_bytes):
        fd = create_memfd("headrace-law")
        with (
            ArenaWriter(fd, slot_bytes=first_bytes, num_slots=2, max_bytes=max_bytes) as writer,
            ArenaReader(fd) as reader,
        ):
            os.close(fd)
            slot = writer.acquire()
            pieces = [slot.reserve(num_bytes, alignment)[1] for num_bytes, alignment in sizes]
            for number, piece in enumerate(pieces):  # after all growth: the earliest pieces are still the slot's
                piece[:] = number + 1
            contents.append(reader.lease(slot.slot_idx, slot.offset, slot.used).copy())
    assert np.array_equal(*contents)
    assert len(contents[0]) >= sum(num_bytes for num_bytes, _ in sizes)
