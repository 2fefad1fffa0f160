"""Memory of workers that a device reads by itself: locked once, before the first copy, and unlocked in time."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from devices import FakeDevice, HeldPages, is_mapped
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace import StaticDataset
from headrace.adapters.ahead import RunAhead
from headrace.batching import FixedCount
from headrace.engine import EngineOptions, Restarting
from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.lease import ArenaReader
from headrace.engine.memory.memfd import PAGE_BYTES, create_memfd
from headrace.errors import CacheError, ConfigError
from headrace.loading import DataLoader
from servers.leaks import nothing_left


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_left():
        yield


def make_seqs(lengths):
    return [{"data": np.full((length, 1), i, np.float32)} for i, length in enumerate(lengths)]


def widen(seq):
    """Let batches be of some 10 to 500 KiB, and the job that goes to workers small."""
    return {**seq, "data": seq["data"] + np.arange(64, dtype=np.float32)}


LENGTHS = [37 * i % 50 + 20 for i in range(60)]


def open_loader(lengths=LENGTHS, **options):
    return DataLoader(
        StaticDataset(make_seqs(lengths)),
        **{"batching": FixedCount(3), "num_workers": 2, "transform": widen, **options},
    )


def run(loader, device, depth=2):
    """Return an iterator over the batches of an epoch, by way of the device."""
    loader.watch_memory(device.memory)
    return RunAhead(loader, depth, "test").run(lambda: iter(loader), device)


def content_of(batch):
    return batch["data"].tobytes(), batch.lengths["data"].tolist(), batch.tags


def expected_of(**options):
    with open_loader(**{**options, "num_workers": 0}) as loader:
        return [content_of(batch) for batch in loader]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_batches_are_sent_from_where_workers_wrote_and_come_whole(depth):
    device = FakeDevice()
    with open_loader() as loader:
        assert [content_of(batch) for batch in run(loader, device, depth)] == expected_of()
        assert (device.num_in_place, device.num_staged) == (2 * 20, 0)
        num_before = device.host.num_calls("register")
        assert [content_of(batch) for batch in run(loader, device, depth)] == expected_of()
        assert device.memory.num_bytes > 0
    # Of some twelve slots that are in turn, each is locked again when a batch is larger than all before it.
    assert 0 < num_before <= device.host.num_calls("register") < 40
    assert device.host.locked == {}
    assert device.memory.num_bytes == 0


@pytest.mark.parametrize("lag", [2, 7, 23])
def test_memory_is_not_written_to_before_the_copy_however_late_that_is(lag):
    device = FakeDevice(lag)
    with open_loader() as loader:
        batches = list(run(loader, device))
        device.host.wait()
        assert [content_of(batch) for batch in batches] == expected_of()
        assert device.num_staged == 0


def test_batches_that_grow_step_by_step_are_not_locked_anew_one_by_one():
    device = FakeDevice()
    lengths = list(range(100, 400))
    options = {"lengths": lengths, "batching": FixedCount(1)}
    few_slots = EngineOptions(tickets_per_worker=8)  # of many, each would be larger by more than room to grow
    with open_loader(**options, num_workers=1, engine_options=few_slots) as loader:
        for batch, expected in zip(run(loader, device), expected_of(**options), strict=True):
            assert content_of(batch) == expected
    assert device.num_staged == 0
    # 300 batches, each larger than those before: without room to grow, each would be locked on its own.
    assert device.host.num_calls("register") < 150


def test_no_more_is_locked_than_workers_may_use_and_an_eighth():
    limit = 2 << 20
    device = FakeDevice()
    lengths = [37 * i % 700 + 1 for i in range(300)]  # batches of 1 to 520 KiB: slots have to give memory back
    with open_loader(lengths, max_bytes=limit) as loader:
        for batch, expected in zip(run(loader, device, 1), expected_of(lengths=lengths), strict=True):
            assert content_of(batch) == expected
    given_back = 520 << 10  # memory that a worker gave back stays locked until the consumer is told: one batch's
    assert 0 < device.host.most_bytes <= limit * 9 / 8 + given_back + 64 * PAGE_BYTES
    assert device.host.locked == {}


@pytest.mark.kernel_timing  # the worker is killed wherever it is
def test_the_memory_of_a_worker_that_died_is_unlocked_and_that_of_its_heir_is_locked():
    device = FakeDevice()

    def tell(seq):
        return {**widen(seq), "pid": np.array([os.getpid()])}

    # With all of its 20 tickets at hand, a quick worker may be done before it is killed, and would have no heir.
    few_ahead = EngineOptions(on_death=Restarting(3), tickets_per_worker=2)
    options = {"num_workers": 1, "transform": tell, "engine_options": few_ahead}
    with open_loader(**options) as loader:
        found, pids = [], set()
        for step, batch in enumerate(run(loader, device)):
            found.append(content_of(batch))
            pid = int(batch["pid"][0, 0])
            pids.add(pid)
            if step == 5:
                locked = set(device.host.locked)
                os.kill(pid, signal.SIGKILL)
        assert len(pids) == 2
        assert found == expected_of(transform=tell)
        unlocked = {address for call, address in device.host.calls if call == "unregister"}
        assert locked <= unlocked
        assert device.host.locked
    assert device.host.locked == {}


def test_where_memory_cannot_be_locked_batches_are_staged_and_that_is_said_once(caplog):
    device = FakeDevice()
    device.host.refuses = True
    with caplog.at_level(logging.WARNING), open_loader() as loader:
        assert [content_of(batch) for batch in run(loader, device)] == expected_of()
    assert device.num_in_place == 0
    assert [record.getMessage() for record in caplog.records if "page-locked" in record.getMessage()] == [
        record.getMessage() for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert "not enough of something" in caplog.text


def test_what_was_locked_before_a_failure_goes_on_and_is_unlocked():
    device = FakeDevice()
    with open_loader(num_workers=1) as loader:
        found = []
        for step, batch in enumerate(run(loader, device)):
            found.append(content_of(batch))
            device.host.refuses = step >= 2
        assert found == expected_of()
    assert device.host.locked == {}
    assert device.num_in_place > 0


def test_memory_that_cannot_be_unlocked_is_never_unmapped(caplog):
    device = FakeDevice()
    with open_loader() as loader:
        for _ in run(loader, device):
            pass
        device.host.keeps = True
        stuck = dict(device.host.locked)
    assert stuck
    assert all(is_mapped(*entry) for entry in stuck.items())
    assert caplog.text.count("cannot be unlocked") == len(stuck)
    assert device.memory.num_bytes == 0


def test_leaving_early_waits_for_the_copies_and_closing_unlocks():
    device = FakeDevice()
    with open_loader() as loader:
        for _ in run(loader, device, 3):
            break
        assert device.work == []
        assert device.host.locked
    assert device.host.locked == {}


def test_a_loader_that_is_closed_in_mid_epoch_unlocks_after_the_copies():
    device = FakeDevice()
    loader = open_loader()
    batches = run(loader, device, 3)
    batch = content_of(next(batches))
    assert device.work
    loader.close()
    assert device.work == []
    assert device.host.locked == {}
    assert batch == expected_of()[0]
    batches.close()


def test_another_device_takes_over():
    first, second = FakeDevice(), FakeDevice()
    with open_loader() as loader:
        for device in (first, second):
            assert [content_of(batch) for batch in run(loader, device)] == expected_of()
        assert first.host.locked == {}
        assert second.host.locked
        loader.watch_memory(None)
        assert second.host.locked == {}


def test_whoever_iterates_without_a_device_gets_memory_that_is_not_locked():
    """A copy that he begins reads from there when the batch is gone: the system must make it wait."""
    device = FakeDevice()
    with open_loader() as loader:
        for _ in run(loader, device, 3):
            break
        assert device.host.locked
        for batch in loader:
            assert not device.memory.covers(batch["data"].ctypes.data, batch["data"].nbytes)
        assert device.host.locked == {}
        loader.set_epoch(1)
        assert [content_of(batch) for batch in run(loader, device)] == expected_of()
        assert device.host.locked


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"executor": "thread"}])
def test_without_processes_nothing_is_locked(options):
    device = FakeDevice()
    with open_loader(**options) as loader:
        assert [content_of(batch) for batch in run(loader, device)] == expected_of()
    assert device.host.calls == []


def test_a_depth_of_none_is_refused():
    with open_loader(num_workers=0) as loader, pytest.raises(ConfigError, match="depth"):
        RunAhead(loader, 0, "to_device")


# --- the arena keeps its pages ---


def test_a_device_that_holds_pages_sees_what_is_written_after_memory_was_given_back():
    fd = create_memfd("headrace-test")
    with (
        ArenaWriter(fd, slot_bytes=PAGE_BYTES, num_slots=3, max_bytes=8 * PAGE_BYTES) as writer,
        ArenaReader(fd) as reader,
    ):
        os.close(fd)

        def write(num_pages, value):
            slot = writer.acquire()
            _, piece = slot.reserve(num_pages * PAGE_BYTES)
            piece[:] = value
            return slot

        def lend(slot):
            view = reader.lease(slot.slot_idx, slot.offset, slot.used)
            return view, reader._mappings[slot.slot_idx]

        slots = [write(3, 1), write(4, 2)]
        views = [lend(slot) for slot in slots]
        held = [HeldPages(mapping.address, slot.used) for slot, (_, mapping) in zip(slots, views, strict=True)]
        assert held[1].read() == bytes([2]) * 4 * PAGE_BYTES
        del views
        for slot_idx in sorted(reader.drain()):
            writer.release(slot_idx)
        larger = write(6, 3)  # in the second, for which the first gives its memory
        assert (larger.slot_idx, writer.committed_bytes) == (1, 6 * PAGE_BYTES)
        again = write(2, 4)
        assert again.slot_idx == 0
        # What was held of the first is not what it has now, and there is no telling but by its place in the file.
        assert again.offset != slots[0].offset
        _, mapping = lend(again)
        assert held[0].read() == bytes([1]) * 3 * PAGE_BYTES
        anew = HeldPages(mapping.address, again.used)
        assert anew.read() == bytes([4]) * 2 * PAGE_BYTES
        # The second stayed where it was, and so did its pages.
        assert larger.offset == slots[1].offset
        assert held[1].read() == bytes([3]) * 4 * PAGE_BYTES
        for pages in (*held, anew):
            pages.close()


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=40))
def test_what_a_watcher_holds_is_always_what_a_worker_writes_to(steps):
    """Whatever is held, grown and given back: the pages locked at one time stay those of that place of the file."""
    fd = create_memfd("headrace-test")
    pages = {}  # address -> what a device holds

    class Watcher:
        def on_lease(self, mapping, num_bytes):
            self.on_retire(mapping) if mapping.address in pages and pages[mapping.address][1] < num_bytes else None
            if mapping.address not in pages:
                pages[mapping.address] = HeldPages(mapping.address, num_bytes), num_bytes, mapping

        def on_retire(self, mapping):
            held = pages.pop(mapping.address, None)
            if held is not None:
                held[0].close()

    with (
        ArenaWriter(fd, slot_bytes=PAGE_BYTES, num_slots=4, max_bytes=12 * PAGE_BYTES) as writer,
        ArenaReader(fd) as reader,
    ):
        reader.watch(Watcher(), 12 * PAGE_BYTES)
        views = []
        for value, (num_kept, num_pages) in enumerate(steps):
            del views[: max(0, len(views) - num_kept)]
            for slot_idx in reader.drain():
                writer.release(slot_idx)
            slot = writer.acquire()
            if slot is None:
                continue
            try:
                _, piece = slot.reserve(num_pages * PAGE_BYTES)
            except CacheError:
                writer.release(slot.slot_idx)
                continue
            piece[:] = value % 251
            view = reader.lease(slot.slot_idx, slot.offset, slot.used)
            held, num_bytes, mapping = pages[view.ctypes.data]
            assert held.read() == bytes(mapping.as_array()[:num_bytes])
            assert held.read()[: slot.used] == bytes([value % 251]) * slot.used
            assert sum(num_bytes for _, num_bytes, _ in pages.values()) <= 12 * PAGE_BYTES
            views.append(view)
            del view, mapping
        views.clear()
    os.close(fd)
    assert pages == {}
