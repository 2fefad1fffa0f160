"""Memfds, mappings, and the question whether there is memory left."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

import pytest

from headrace.engine.memory.limits import MemoryGuard, Shortage, find_shortage
from headrace.engine.memory.memfd import PAGE_BYTES, Mapping, create_memfd, extend_memfd, round_to_pages
from headrace.errors import CacheError

MIB = 1 << 20


@pytest.fixture
def fd():
    descriptor = create_memfd("headrace-test")
    yield descriptor
    os.close(descriptor)


def test_a_memfd_grows_but_cannot_shrink_and_is_not_inherited(fd):
    extend_memfd(fd, 3 * PAGE_BYTES)
    extend_memfd(fd, PAGE_BYTES)
    assert os.fstat(fd).st_size == 3 * PAGE_BYTES
    with pytest.raises(PermissionError):
        os.ftruncate(fd, PAGE_BYTES)
    assert not os.get_inheritable(fd)


def test_a_long_memfd_takes_no_memory_until_it_is_touched(fd):
    extend_memfd(fd, 1 << 40)
    array = Mapping(fd, 1 << 39, 4 * PAGE_BYTES).as_array()
    assert os.fstat(fd).st_blocks == 0
    array[2 * PAGE_BYTES] = 1
    assert os.fstat(fd).st_blocks * 512 == PAGE_BYTES


def test_a_mapping_outlives_its_descriptor_and_ends_with_its_last_view():
    fd = create_memfd("headrace-lifetime")
    extend_memfd(fd, PAGE_BYTES)
    view = Mapping(fd, 0, PAGE_BYTES).as_array()[10:20].reshape(2, 5)
    os.close(fd)
    gc.collect()
    view[:] = 3
    assert view.sum() == 30
    assert "headrace-lifetime" in Path("/proc/self/maps").read_text()
    del view
    assert "headrace-lifetime" not in Path("/proc/self/maps").read_text()


def test_a_mapping_survives_as_long_as_a_garbage_cycle_can_still_look_at_it():
    seen = []

    class Keeper:
        def __init__(self, array):
            self.array = array
            self.me = self

        def __del__(self):
            seen.append(int(self.array.sum()))

    fd = create_memfd("headrace-cycle")
    extend_memfd(fd, PAGE_BYTES)
    array = Mapping(fd, 0, PAGE_BYTES).as_array()
    array[:] = 2
    Keeper(array)
    del array
    os.close(fd)
    gc.collect()
    assert seen == [2 * PAGE_BYTES]
    assert "headrace-cycle" not in Path("/proc/self/maps").read_text()


def test_memory_that_is_given_back_is_gone_from_the_file_and_reads_as_zero(fd):
    extend_memfd(fd, 4 * PAGE_BYTES)
    mapping = Mapping(fd, 0, 4 * PAGE_BYTES)
    array = mapping.as_array()
    array[:] = 5
    mapping.give_back(3 * PAGE_BYTES)
    assert os.fstat(fd).st_blocks * 512 == PAGE_BYTES
    assert not array[: 3 * PAGE_BYTES].any()
    assert (array[3 * PAGE_BYTES :] == 5).all()


def test_a_mapping_that_the_system_refuses_is_a_clear_error(fd):
    with pytest.raises(CacheError, match=r"(?s)cannot be mapped.*ulimit -v"):
        Mapping(fd, 0, 1 << 60)


def test_a_limit_on_file_sizes_is_a_clear_error(fd):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(CacheError, match=r"(?s)cannot be laid out over 1048577 bytes.*ulimit -f"):
            extend_memfd(fd, MIB + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 0), (1, PAGE_BYTES), (PAGE_BYTES, PAGE_BYTES)])
def test_sizes_are_rounded_up_to_pages(num_bytes, expected):
    assert round_to_pages(num_bytes) == expected
    assert round_to_pages(num_bytes + PAGE_BYTES) == expected + PAGE_BYTES


class FakeMachine:
    """A /proc and a tree of control groups in a folder."""

    def __init__(self, root: Path, available_mib: int, groups: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        (self.proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_mib * 1024} kB\n")
        (self.proc / "self/cgroup").write_text(groups)

    def add(self, folder: str, **files: object) -> None:
        target = self.cgroups / folder
        target.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (target / name.replace("__", ".")).write_text(f"{text}\n")

    def shortage(self, num_mib: int) -> Shortage | None:
        return find_shortage(num_mib * MIB, proc=self.proc, cgroups=self.cgroups)


def test_a_machine_with_enough_memory_and_no_limits_allows_growth(tmp_path):
    machine = FakeMachine(tmp_path, 1000, "0::/\n")
    assert machine.shortage(900) is None


def test_a_machine_short_of_memory_is_named_with_what_it_has_less_a_reserve(tmp_path):
    machine = FakeMachine(tmp_path, 1000, "0::/\n")
    assert machine.shortage(950) == Shortage((1000 - 64) * MIB, "this machine (MemAvailable)")


@pytest.mark.parametrize("folder", ["", "job", "job/step"])
def test_the_limit_of_any_group_above_us_counts(tmp_path, folder):
    machine = FakeMachine(tmp_path, 10_000, "0::/job/step\n")
    machine.add("job/step", memory__max="max", memory__current=0)
    machine.add(folder, memory__max=500 * MIB, memory__current=100 * MIB, memory__stat="inactive_file 0")
    assert machine.shortage(300) is None
    shortage = machine.shortage(350)
    assert shortage is not None
    assert shortage.num_bytes == (400 - 64) * MIB
    assert str(machine.cgroups / folder) in shortage.limit


def test_the_page_cache_of_a_group_does_not_count_as_used(tmp_path):
    machine = FakeMachine(tmp_path, 10_000, "0::/\n")
    stat = f"anon 5\nfile {300 * MIB}\nshmem {100 * MIB}\ninactive_file {150 * MIB}\nactive_file {50 * MIB}"
    machine.add("", memory__max=500 * MIB, memory__current=450 * MIB, memory__stat=stat)
    assert machine.shortage(180) is None
    assert machine.shortage(190) is not None


def test_the_older_kind_of_control_group_is_understood(tmp_path):
    machine = FakeMachine(tmp_path, 10_000, "4:cpuset,memory:/job\n0::/\n")
    stat = f"inactive_file 0\ntotal_inactive_file {100 * MIB}\ntotal_active_file 0"
    machine.add(
        "memory/job",
        memory__limit_in_bytes=500 * MIB,
        memory__usage_in_bytes=400 * MIB,
        memory__stat=stat,
    )
    machine.add("memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=5)
    assert machine.shortage(130) is None
    assert machine.shortage(140) is not None


def test_inside_a_container_a_path_that_leads_nowhere_falls_back_to_the_mount(tmp_path):
    machine = FakeMachine(tmp_path, 10_000, "4:memory:/docker/0123\n")
    machine.add("memory", memory__limit_in_bytes=200 * MIB, memory__usage_in_bytes=0, memory__stat="")
    assert machine.shortage(150) is not None


def test_a_group_path_with_dots_stays_below_the_mount(tmp_path):
    machine = FakeMachine(tmp_path, 10_000, "0::/../../x\n")
    assert machine.shortage(1) is None


def test_the_real_machine_allows_a_page_and_refuses_an_exbibyte():
    assert find_shortage(1) is None
    assert find_shortage(1 << 60) is not None


def test_the_guard_looks_once_per_step_of_growth_and_always_before_a_large_one():
    looks = []

    def record(num_bytes: int) -> None:
        looks.append(num_bytes)

    guard = MemoryGuard(record, step_bytes=100)
    for _ in range(25):
        assert guard.ask(10) is None
    assert looks == [10, 10]
    guard.ask(5000)
    assert looks == [10, 10, 5000]


def test_memory_that_was_refused_is_asked_for_again():
    answers = [Shortage(3, "a limit"), None]
    guard = MemoryGuard(lambda num_bytes: answers.pop(0), step_bytes=100)
    assert guard.ask(100) == Shortage(3, "a limit")
    assert guard.ask(100) is None
    assert guard.ask(99) is None  # no look: nothing is unseen
