"""The trainer's side: views hold a slot, and the end of the last one frees it, whatever made them."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.lease import ArenaReader
from headrace.engine.memory.memfd import PAGE_BYTES, Mapping, create_memfd, extend_memfd
from headrace.errors import InternalError

NUM_BYTES = 4096


@pytest.fixture
def pair():
    fd = create_memfd("headrace-test")
    with (
        ArenaWriter(fd, slot_bytes=NUM_BYTES, num_slots=4, max_bytes=1 << 24) as writer,
        ArenaReader(fd) as reader,
    ):
        os.close(fd)
        yield writer, reader


def lend(pair, num_bytes=NUM_BYTES):
    """Fill a slot with 0, 1, 2, ... and return the view that the trainer gets of it."""
    writer, reader = pair
    slot = writer.acquire()
    _, piece = slot.reserve(num_bytes)
    piece[:] = np.arange(num_bytes) % 251
    return reader.lease(slot.slot_idx, slot.offset, slot.used)


def pickle_buffers(array):
    buffers = []
    data = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=buffers)


def read_only(array):
    view = array[2:]
    view.flags.writeable = False
    return view


class Subclass(np.ndarray):
    pass


class Capsule:
    """Gives an array by DLPack only, as a foreign library does."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


VIEWS = {
    "slice": lambda a: a[5:9],
    "view of a view": lambda a: a[64:].view(np.float32)[3:].reshape(-1, 1)[1:],
    "ndarray over it": lambda a: np.ndarray((3, 4), np.float64, a, 128),
    "frombuffer of a cast": lambda a: np.frombuffer(memoryview(a).cast("i"), np.int32)[7:],
    "pickle 5": pickle_buffers,
    "ctypes pointer": lambda a: a.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
    "ctypes array": lambda a: (ctypes.c_uint8 * 16).from_buffer(a),
    "void scalar": lambda a: a[:16].view([("x", "<f4"), ("y", "<i4")])[0],
    "subclass": lambda a: a.view(Subclass)[3:],
    "zero-size": lambda a: a[7:7],
    "read-only": read_only,
    "as_strided": lambda a: np.lib.stride_tricks.as_strided(a, (5, 3), (1, 1)),
    "flat iterator": lambda a: a.flat,
    "masked": lambda a: np.ma.array(a, copy=False),
    "dlpack, foreign": lambda a: np.from_dlpack(Capsule(a)),
    "dlpack capsule": lambda a: a.__dlpack__(),
    "closure": lambda a: lambda: a[0],
}
COPIES = {
    "copy": lambda a: a[3:].copy(),
    "scalar": lambda a: a[3],
    "pickle in band": lambda a: pickle.loads(pickle.dumps(a)),
}


@pytest.mark.parametrize("make_view", VIEWS.values(), ids=VIEWS)
def test_any_view_holds_the_slot_and_its_end_frees_it(pair, make_view):
    writer, reader = pair
    view = make_view(lend(pair))
    gc.collect()
    assert reader.drain() == []
    assert reader.num_leased == 1
    del view
    assert reader.drain() == [0]
    assert reader.num_leased == 0
    writer.release(0)


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_a_copy_does_not_hold_the_slot(pair, make_copy):
    _, reader = pair
    copy = make_copy(lend(pair))
    assert reader.drain() == [0]
    assert copy is not None


TENSORS = {
    "from_numpy": lambda torch, a: torch.from_numpy(a),
    "view of a view": lambda torch, a: torch.from_numpy(a)[64:].view(torch.float32).view(-1, 4).T[1:],
    "bfloat16": lambda torch, a: torch.from_numpy(a.view(np.int16)).view(torch.bfloat16),
    "numpy again": lambda torch, a: torch.from_numpy(a)[5:].numpy(),
    "detach": lambda torch, a: torch.from_numpy(a.view(np.float32)).requires_grad_().detach()[2:],
    "storage": lambda torch, a: torch.from_numpy(a).untyped_storage(),
    "dlpack and back": lambda torch, a: np.from_dlpack(torch.from_numpy(a)[7:]),
}


@pytest.mark.extra
@pytest.mark.parametrize("make_tensor", TENSORS.values(), ids=TENSORS)
def test_any_tensor_over_a_slot_holds_it_and_its_end_frees_it(pair, make_tensor):
    torch = pytest.importorskip("torch")
    _, reader = pair
    tensor = make_tensor(torch, lend(pair))
    gc.collect()
    assert reader.drain() == []
    del tensor
    assert reader.drain() == [0]


def test_a_leased_array_is_the_slot_itself_writable_and_not_a_copy(pair):
    writer, reader = pair
    slot = writer.acquire()
    _, piece = slot.reserve(100)
    piece[:] = 1
    leased = reader.lease(slot.slot_idx, slot.offset, slot.used)
    assert (leased.dtype, leased.shape) == (np.uint8, (100,))
    leased[10] = 9
    piece[20] = 8
    assert piece[10] == 9
    assert leased[20] == 8


def test_only_beyond_so_many_leases_is_a_small_result_copied():
    fd = create_memfd("headrace-test")
    with (
        ArenaWriter(fd, slot_bytes=NUM_BYTES, num_slots=4, max_bytes=1 << 24) as writer,
        ArenaReader(fd, max_leases=2, copy_bytes=NUM_BYTES) as reader,
    ):
        os.close(fd)
        sizes = [16, 16, 16, NUM_BYTES]  # the last one is not small
        views = [lend((writer, reader), size) for size in sizes]
        assert [len(view) for view in views] == sizes
        assert [view.base is None for view in views] == [False, False, True, False]
        assert reader.num_leased == 3
        views.clear()


def test_a_view_of_a_slot_cannot_be_turned_into_objects(pair):
    leased = lend(pair)
    with pytest.raises(TypeError):
        leased.view(object)
    with pytest.raises(ValueError, match="OBJECT"):
        np.frombuffer(leased, object)


def test_a_slot_that_gave_its_memory_back_is_seen_where_it_goes_on():
    fd = create_memfd("headrace-test")
    with (
        ArenaWriter(fd, slot_bytes=PAGE_BYTES, num_slots=2, max_bytes=2 * PAGE_BYTES) as writer,
        ArenaReader(fd) as reader,
    ):
        os.close(fd)
        first, other = writer.acquire(), writer.acquire()
        first.reserve(PAGE_BYTES)
        reader.lease(first.slot_idx, first.offset, PAGE_BYTES)
        for slot_idx in reader.drain():
            writer.release(slot_idx)
        other.reserve(2 * PAGE_BYTES)  # which takes the memory of the first one
        again = writer.acquire()
        writer.release(other.slot_idx)
        _, piece = again.reserve(PAGE_BYTES)
        piece[:] = 7
        assert (again.slot_idx, again.offset == first.offset) == (first.slot_idx, False)
        assert reader.lease(again.slot_idx, again.offset, PAGE_BYTES).tolist() == [7] * PAGE_BYTES


class Retired(list):
    """A watcher that notes which mappings are retired."""

    def on_lease(self, mapping, num_bytes):
        pass

    def on_retire(self, mapping):
        self.append(mapping)


def test_what_was_retired_makes_room_for_what_a_watcher_hears_of():
    fd, watcher = create_memfd("headrace-test"), Retired()
    extend_memfd(fd, 5 * PAGE_BYTES)
    with ArenaReader(fd) as reader:
        os.close(fd)
        reader.watch(watcher, max_bytes=3 * PAGE_BYTES)
        for slot_idx, num_pages in enumerate((2, 2, 1)):  # slot 0 is retired for slot 1, and slot 2 fits beside that
            reader.lease(slot_idx, 2 * slot_idx * PAGE_BYTES, num_pages * PAGE_BYTES)
            reader.drain()
        assert len(watcher) == 1


def test_a_slot_is_mapped_anew_when_it_has_grown_and_older_views_stay_valid(pair):
    writer, reader = pair
    old = lend(pair, 100)
    address = old.ctypes.data
    del old
    writer.release(*reader.drain())
    kept = lend(pair, 100)
    assert kept.ctypes.data == address  # the mapping is used again
    other = lend(pair, 50_000)
    del kept
    writer.release(*reader.drain())
    large = lend(pair, 1_000_000)
    assert np.array_equal(large, np.arange(1_000_000) % 251)
    assert np.array_equal(other, np.arange(50_000) % 251)


def test_a_slot_that_is_still_leased_cannot_be_leased_again(pair):
    writer, reader = pair
    slot = writer.acquire()
    slot.reserve(10)
    view = reader.lease(slot.slot_idx, slot.offset, slot.used)
    with pytest.raises(InternalError, match=r"(?s)filled again while it was leased.*slot 0"):
        reader.lease(slot.slot_idx, slot.offset, slot.used)
    del view
    with pytest.raises(InternalError, match="leased"):  # freed, but nobody was told yet
        reader.lease(slot.slot_idx, slot.offset, slot.used)
    assert reader.drain() == [0]
    reader.lease(slot.slot_idx, slot.offset, slot.used)


@pytest.mark.parametrize(
    ("offset", "num_bytes"),
    [(0, 3 * PAGE_BYTES + 1), (2 * PAGE_BYTES, PAGE_BYTES + 1), (1 << 40, 1), (-PAGE_BYTES, 1), (8, 1), (0, -1)],
)
def test_a_place_outside_the_memfd_is_refused_before_it_is_touched(offset, num_bytes):
    fd = create_memfd("headrace-test")
    extend_memfd(fd, 3 * PAGE_BYTES)
    with ArenaReader(fd) as reader:
        os.close(fd)
        with pytest.raises(InternalError, match=f"{num_bytes} bytes at offset {offset} does not lie"):
            reader.lease(0, offset, num_bytes)
        assert reader.num_leased == 0
        assert reader.drain() == [0]


def test_closing_the_reader_keeps_live_views_valid_and_their_ends_known():
    fd = create_memfd("headrace-close")
    writer, reader = ArenaWriter(fd, slot_bytes=1, num_slots=2, max_bytes=1 << 20), ArenaReader(fd)
    os.close(fd)
    view = lend((writer, reader))[10:20]
    writer.close()
    reader.close()
    reader.close()
    del writer
    gc.collect()
    assert view.tolist() == list(range(10, 20))
    with pytest.raises(InternalError, match="closed"):
        reader.lease(1, 0, 1)
    assert reader.drain() == [1]
    del view
    assert reader.drain() == [0]
    assert reader.num_leased == 0
    assert "headrace-close" not in Path("/proc/self/maps").read_text()


def test_a_forked_child_frees_nothing_even_when_it_drops_its_views(pair):
    _, reader = pair
    views = [lend(pair), lend(pair)]
    child = os.fork()
    if child == 0:
        views.clear()
        os._exit(0 if reader.drain() == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.drain() == []
    assert reader.num_leased == 2
    assert views[1][:3].tolist() == [0, 1, 2]
    views.clear()
    assert sorted(reader.drain()) == [0, 1]


def calls_during(act):
    """Return the Python functions that are called while `act` does."""
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        act()
    finally:
        sys.setprofile(None)
    return [name for name in calls if name != act.__qualname__]


def test_no_python_code_runs_when_the_last_view_of_a_slot_goes(pair):
    _, reader = pair
    views = [lend(pair)[5:], lend(pair).reshape(64, -1).T]
    assert calls_during(views.clear) == []
    assert sorted(reader.drain()) == [0, 1]


def test_no_python_code_runs_when_a_mapping_is_undone():
    fd = create_memfd("headrace-undone")
    extend_memfd(fd, PAGE_BYTES)
    arrays = [Mapping(fd, 0, PAGE_BYTES).as_array()[7:] for _ in range(3)]
    os.close(fd)
    assert Path("/proc/self/maps").read_text().count("headrace-undone") == 3
    assert calls_during(arrays.clear) == []
    assert "headrace-undone" not in Path("/proc/self/maps").read_text()


def test_no_lease_is_lost_when_threads_drop_them_under_an_eager_collector():
    num_threads, num_rounds, num_slots = 4, 400, 16
    fd = create_memfd("headrace-test")
    reader = ArenaReader(fd)
    extend_memfd(fd, num_slots * num_threads * PAGE_BYTES)
    os.close(fd)
    threshold = gc.get_threshold()
    switch = sys.getswitchinterval()
    gc.set_threshold(2)
    sys.setswitchinterval(1e-5)
    num_made = num_freed = 0
    boxes: list[list[object]] = [[] for _ in range(num_threads)]
    go = threading.Barrier(num_threads + 1)

    def drop(box):
        for _ in range(num_rounds):
            go.wait()
            while box:
                keeper: list[object] = [box.pop(), [np.zeros(1)]]
                keeper.append(keeper)  # a cycle: the collector has to find it
                del keeper

    threads = [threading.Thread(target=drop, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    try:
        for _ in range(num_rounds):
            for slot_idx in set(range(num_slots * num_threads)) - reader._leased.keys():
                view = reader.lease(slot_idx, slot_idx * PAGE_BYTES, 100)
                num_made += 1
                boxes[slot_idx % num_threads].append(view[3:].reshape(-1, 1))
                del view
            go.wait()
            num_freed += len(reader.drain())
    finally:
        for thread in threads:
            thread.join()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(switch)
    gc.collect()
    num_freed += len(reader.drain())
    assert reader.num_leased == 0
    assert reader._leased == {}
    assert num_freed == num_made >= num_slots * num_threads
    reader.close()


_EXIT = """
import atexit, sys, threading
import numpy as np
from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.lease import ArenaReader
from headrace.engine.memory.memfd import create_memfd

fd = create_memfd("headrace-exit")
writer = ArenaWriter(fd, slot_bytes=1, num_slots=8, max_bytes=1 << 20)
reader = ArenaReader(fd)

def lend():
    slot = writer.acquire()
    slot.empty(100, np.float32)[:] = 1
    return reader.lease(slot.slot_idx, slot.offset, slot.used).view(np.float32)

class Keeper:
    held = lend()
    def __init__(self):
        self.view, self.me = lend(), self
    def __del__(self):
        assert self.view.sum() == 100

view = lend()
sys.kept = lend()
keeper = Keeper()
atexit.register(lambda held=lend(): print(held.sum()))
gate = threading.Event()
threading.Thread(target=lambda held: gate.wait(), args=(lend(),), daemon=True).start()
"""


def test_the_interpreter_ends_in_silence_while_views_are_alive():
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", _EXIT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["100.0"]


def test_many_rounds_leave_no_descriptor_mapping_or_memory_behind():
    def footprint():
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:headrace")

    gc.collect()
    before = footprint()
    fd = create_memfd("headrace-rounds")
    writer = ArenaWriter(fd, slot_bytes=1, num_slots=4, max_bytes=64 * PAGE_BYTES)
    reader = ArenaReader(fd)
    kept: list[np.ndarray] = []
    for step in range(10_000):
        slot = writer.acquire()
        _, piece = slot.reserve(1 + step * 977 % (15 * PAGE_BYTES))
        piece[0] = step % 256
        kept.append(reader.lease(slot.slot_idx, slot.offset, slot.used)[:1])
        if len(kept) == 3:
            assert kept.pop(0)[0] == (step - 2) % 256
        for slot_idx in reader.drain():
            writer.release(slot_idx)
    assert os.fstat(fd).st_blocks * 512 <= 64 * PAGE_BYTES
    assert footprint()[0] == before[0] + 3
    assert footprint()[1] <= before[1] + 2 * 4  # one mapping of each slot on each side
    for _ in range(1_000):
        with ArenaWriter(fd, slot_bytes=1, num_slots=1, max_bytes=PAGE_BYTES) as other, ArenaReader(fd) as second:
            lend((other, second), 10)
    kept.clear()
    piece = slot = None
    writer.close()
    reader.close()
    os.close(fd)
    del writer, reader, other, second
    gc.collect()
    assert footprint() == before
