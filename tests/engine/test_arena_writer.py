"""The worker's side: slots, their growth, and the limit on memory."""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.lease import ArenaReader
from headrace.engine.memory.limits import MemoryGuard, Shortage
from headrace.engine.memory.memfd import PAGE_BYTES, create_memfd
from headrace.engine.memory.slot import ALIGNMENT
from headrace.errors import CacheError, ConfigError, InternalError


@pytest.fixture
def fd():
    descriptor = create_memfd("headrace-test")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def make_writer(fd):
    writers = []

    def make(slot_bytes=PAGE_BYTES, num_slots=4, max_bytes=64 * PAGE_BYTES, **options):
        writers.append(ArenaWriter(fd, slot_bytes=slot_bytes, num_slots=num_slots, max_bytes=max_bytes, **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


def fill(slot, num_bytes, value):
    _, piece = slot.reserve(num_bytes)
    piece[:] = value
    return piece


def memory_of(fd):
    return os.fstat(fd).st_blocks * 512


def test_each_slot_is_handed_out_once_until_it_is_released(make_writer):
    writer = make_writer(num_slots=3)
    slots = [writer.acquire() for _ in range(3)]
    assert [slot.slot_idx for slot in slots] == [0, 1, 2]
    assert writer.acquire() is None
    assert writer.num_free == 0
    writer.release(1)
    assert writer.acquire().slot_idx == 1


def test_the_slot_that_came_back_last_is_used_first_because_it_is_warm(make_writer):
    writer = make_writer(num_slots=8)
    for _ in range(20):
        slot = writer.acquire()
        fill(slot, 5 * PAGE_BYTES, 1)
        writer.release(slot.slot_idx)
    assert writer.committed_bytes == 5 * PAGE_BYTES


def test_pieces_are_aligned_disjoint_and_inside_the_slot(make_writer):
    slot = make_writer().acquire()
    end = 0
    for num_bytes in (1, 63, 64, 65, 0, 200, 7):
        position, piece = slot.reserve(num_bytes)
        assert position % ALIGNMENT == 0
        assert piece.ctypes.data % ALIGNMENT == 0
        assert position >= end
        assert piece.dtype == np.uint8
        assert piece.shape == (num_bytes,)
        assert piece.flags.writeable
        end = position + num_bytes
        assert slot.used == end


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(5, "f4"), ((), "i8"), ((0, 3), "f8"), ((2, 3), ">i2"), (4, "M8[ms]"), (2, [("a", "u1"), ("b", "f8")]), (3, "U2")],
)
def test_an_array_made_in_place_has_the_shape_and_dtype_asked_for(make_writer, shape, dtype):
    slot = make_writer().acquire()
    slot.reserve(3)
    array = slot.empty(shape, dtype)
    expected = np.empty(shape, dtype)
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert slot.find(array) == (ALIGNMENT if array.size else None)


def test_an_array_of_objects_is_refused_in_a_slot(make_writer):
    slot = make_writer().acquire()
    for dtype in (object, [("a", "i4"), ("b", "O")]):
        with pytest.raises(ConfigError, match="Python objects"):
            slot.empty(3, dtype)
    assert slot.used == 0


def test_a_negative_shape_is_refused(make_writer):
    slot = make_writer().acquire()
    with pytest.raises(ConfigError, match=r"\(2, -1\)"):
        slot.empty((2, -1), "f4")


def test_an_array_whose_strides_were_set_is_not_where_it_was_made(make_writer):
    slot = make_writer().acquire()
    array = slot.empty((4, 2), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array.strides = (4, 16)
    assert slot.find(array) is None


def test_find_knows_whole_contiguous_views_of_the_slot_and_nothing_else(make_writer):
    writer = make_writer()
    slot, other = writer.acquire(), writer.acquire()
    array = slot.empty((4, 6), np.float32)
    assert slot.find(array) == 0
    assert slot.find(array[1:]) == 24
    assert slot.find(array.T) is None
    assert slot.find(array.view(np.uint8).reshape(-1)[5:9]) == 5
    assert slot.find(np.frombuffer(memoryview(array), np.int32)) == 0
    assert slot.find(array[:, 1:3]) is None
    assert slot.find(array[::-1]) is None
    assert slot.find(array[::2]) is None
    assert slot.find(np.broadcast_to(array[0, 0], (3,))) is None
    assert slot.find(array.copy()) is None
    assert slot.find(array.copy()[1:]) is None
    assert slot.find(np.frombuffer(bytes(8), np.uint8)) is None
    assert slot.find(other.empty(3, np.float32)) is None
    assert slot.find(array[0, :0]) is None


def test_find_knows_nothing_beyond_the_used_part(make_writer):
    slot = make_writer().acquire()
    slot.reserve(PAGE_BYTES)
    outside = np.frombuffer(memoryview(slot._memory.array), np.uint8)
    slot.used = 100
    assert slot.find(outside[:100]) == 0
    assert slot.find(outside[:101]) is None


def test_memory_is_taken_only_as_it_is_written(fd, make_writer):
    writer = make_writer(slot_bytes=32 * PAGE_BYTES)
    slot = writer.acquire()
    assert memory_of(fd) == writer.committed_bytes == 0
    fill(slot, 3 * PAGE_BYTES + 1, 1)
    assert memory_of(fd) == writer.committed_bytes == 4 * PAGE_BYTES


def test_an_item_larger_than_the_arena_is_refused_with_its_size_the_limit_and_the_option(make_writer):
    slot = make_writer(max_bytes=10 * PAGE_BYTES).acquire()
    fill(slot, 100, 1)
    size = 128 + 10 * PAGE_BYTES
    with pytest.raises(CacheError, match=rf"needs {size} bytes .* max_bytes={10 * PAGE_BYTES}"):
        slot.reserve(10 * PAGE_BYTES)
    assert slot.used == 100
    fill(slot, 9 * PAGE_BYTES, 2)  # what fits still fits


def test_the_whole_limit_can_be_used_to_the_last_byte(fd, make_writer):
    slot = make_writer(max_bytes=10 * PAGE_BYTES).acquire()
    fill(slot, 10 * PAGE_BYTES, 1)
    assert memory_of(fd) == 10 * PAGE_BYTES


def test_free_slots_give_their_memory_back_before_a_limit_is_felt(fd, make_writer):
    writer = make_writer(num_slots=3, max_bytes=10 * PAGE_BYTES)
    slots = [writer.acquire() for _ in range(3)]
    for slot, pages in zip(slots, (2, 5, 3), strict=True):
        fill(slot, pages * PAGE_BYTES, 1)
    writer.release(0)
    writer.release(1)
    fill(slots[2], 4 * PAGE_BYTES, 2)
    assert writer.committed_bytes == memory_of(fd) == (2 + 0 + 7) * PAGE_BYTES  # the largest free slot gave all
    again = writer.acquire()
    assert again.slot_idx == 1
    assert not fill(again, PAGE_BYTES, 0).any()


def test_results_held_elsewhere_that_fill_the_arena_are_an_error_that_says_so(make_writer):
    writer = make_writer(max_bytes=10 * PAGE_BYTES)
    fill(writer.acquire(), 7 * PAGE_BYTES, 1)
    slot = writer.acquire()
    with pytest.raises(CacheError, match=rf"1 results .* held .* take {7 * PAGE_BYTES} of the max_bytes") as caught:
        slot.reserve(4 * PAGE_BYTES)
    assert f"max_bytes to at least {11 * PAGE_BYTES}" in str(caught.value)
    writer.release(0)
    fill(slot, 4 * PAGE_BYTES, 2)


def test_growth_waits_for_a_release_when_somebody_can_wait(fd, make_writer):
    held = []

    def wait():
        if not held:
            return False
        writer.release(held.pop())
        return True

    writer = make_writer(max_bytes=10 * PAGE_BYTES, wait_for_release=wait)
    for pages in (3, 4):
        slot = writer.acquire()
        fill(slot, pages * PAGE_BYTES, 1)
        held.append(slot.slot_idx)
    slot = writer.acquire()
    fill(slot, 9 * PAGE_BYTES, 2)
    assert held == []
    assert memory_of(fd) == writer.committed_bytes == 9 * PAGE_BYTES
    stuck = writer.acquire()
    with pytest.raises(CacheError, match="held"):
        stuck.reserve(2 * PAGE_BYTES)


def test_acquire_waits_only_when_told_to_and_until_waiting_is_given_up(make_writer):
    waits = []

    def wait():
        waits.append(1)
        if len(waits) == 3:
            return False
        if len(waits) == 2:
            writer.release(0)
        return True

    writer = make_writer(num_slots=1, wait_for_release=wait)
    writer.acquire()
    assert writer.acquire() is None
    assert waits == []
    assert writer.acquire(block=True).slot_idx == 0
    assert len(waits) == 2
    assert writer.acquire(block=True) is None


def test_a_machine_without_memory_is_a_clear_error_and_not_a_kill(fd, make_writer):
    guard = MemoryGuard(lambda num_bytes: Shortage(123, "a small machine"), step_bytes=8 * PAGE_BYTES)
    writer = make_writer(guard=guard)
    slot = writer.acquire()
    fill(slot, 4 * PAGE_BYTES, 1)
    with pytest.raises(CacheError, match=rf"(?s)needs {8 * PAGE_BYTES} more .* only 123 .*a small machine.*max_bytes"):
        slot.reserve(8 * PAGE_BYTES)
    assert memory_of(fd) == writer.committed_bytes == 4 * PAGE_BYTES


def test_free_slots_give_their_memory_back_to_a_machine_that_has_none_left(fd, make_writer):
    budget = 12 * PAGE_BYTES

    def look(num_bytes):
        left = budget - memory_of(fd)
        return None if num_bytes <= left else Shortage(left, "a small machine")

    writer = make_writer(guard=MemoryGuard(look, step_bytes=1))
    idle = writer.acquire()
    slot = writer.acquire()
    fill(idle, 8 * PAGE_BYTES, 1)
    writer.release(idle.slot_idx)
    fill(slot, 12 * PAGE_BYTES, 2)
    assert memory_of(fd) == writer.committed_bytes == 12 * PAGE_BYTES


@pytest.mark.parametrize("slot_idx", [-1, 0, 1, 4, 99])
def test_a_slot_that_is_not_in_use_cannot_be_released(make_writer, slot_idx):
    writer = make_writer()
    writer.acquire()
    writer.release(0)
    with pytest.raises(InternalError, match=f"slot {slot_idx} was released but is not in use"):
        writer.release(slot_idx)
    assert writer.num_free == 4


def test_a_slot_cannot_be_written_after_its_release(make_writer):
    writer = make_writer()
    stale = writer.acquire()
    writer.release(stale.slot_idx)
    with pytest.raises(InternalError, match="after its release"):
        stale.reserve(0)
    fresh = writer.acquire()
    assert fresh.slot_idx == stale.slot_idx
    with pytest.raises(InternalError, match="after its release"):
        stale.empty(1, "u1")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"slot_bytes": 0}, "at least 1"),
        ({"num_slots": 0}, "at least 1"),
        ({"max_bytes": -5}, "at least 1"),
        ({"slot_bytes": 2000, "max_bytes": 1000}, "slot_bytes=2000 .* max_bytes=1000"),
        ({"num_slots": 4, "max_bytes": 1 << 61}, "num_slots=4 times max_bytes="),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(make_writer, options, text):
    with pytest.raises(ConfigError, match=text):
        make_writer(**options)


def test_the_smallest_arena_of_one_byte_works(make_writer):
    slot = make_writer(slot_bytes=1, num_slots=1, max_bytes=1).acquire()
    fill(slot, PAGE_BYTES, 1)
    with pytest.raises(CacheError):
        slot.reserve(1)


def test_a_slot_that_grows_in_small_steps_is_mapped_a_few_times_only(make_writer):
    writer = make_writer(slot_bytes=1, max_bytes=1 << 24)
    slot = writer.acquire()
    for _ in range(2000):
        slot.reserve(PAGE_BYTES)
    assert slot._memory.array.nbytes <= 2 * slot.used
    assert len(slot._memory._mappings) <= 13


def test_closing_leaves_written_arrays_readable_and_no_descriptor(make_writer):
    before = len(os.listdir("/proc/self/fd"))
    writer = make_writer()
    slot = writer.acquire()
    array = slot.empty(1000, np.int16)
    array[:] = 5
    writer.close()
    writer.close()
    assert (array == 5).all()
    assert len(os.listdir("/proc/self/fd")) == before
    assert writer.acquire() is None
    with pytest.raises(InternalError, match="closed"):
        slot.reserve(10 * PAGE_BYTES)


def test_a_forgotten_arena_leaves_no_descriptor_and_no_mapping():
    fd = create_memfd("headrace-forgotten")
    before = len(os.listdir("/proc/self/fd"))
    writer, reader = ArenaWriter(fd, slot_bytes=1, num_slots=2, max_bytes=1 << 20), ArenaReader(fd)
    slot = writer.acquire()
    fill(slot, 100, 1)
    reader.lease(slot.slot_idx, slot.offset, slot.used)
    del writer, reader, slot
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    assert "headrace-forgotten" not in Path("/proc/self/maps").read_text()


def test_a_slot_that_begins_anew_keeps_and_recognises_nothing_of_before(make_writer) -> None:
    slot = make_writer().acquire()
    old = slot.empty(100, np.int32)
    alive = weakref.ref(old)
    assert slot.find(old) == 0
    slot.rewind()
    assert slot.used == 0
    assert slot.find(old) is None
    del old
    assert alive() is None
    assert slot.find(slot.empty(10, np.int32)) == 0
