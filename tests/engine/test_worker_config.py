"""What a job carries gets to the workers: its large arrays once for all, its modules before they are forked."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine import Engine, Job, WorkerInfo
from headrace.engine.process.executor import ProcessExecutor
from headrace.engine.process.worker_config import WorkerConfig, read_worker_config, write_worker_config
from headrace.engine.user.ship import Parcel, ship_job, unship
from headrace.order import Laplace
from headrace.sources import HDFSource

LARGE = 64 << 10  # bytes from which on an array is shared


def _carried(value: object) -> Any:
    parcel = ship_job(value)
    sizes = [buffer.raw().nbytes for buffer in parcel.buffers]
    fd = write_worker_config(WorkerConfig(1, [], "", 1, 1, 1, parcel.data, sizes), parcel.buffers)
    try:
        config, buffers = read_worker_config(fd)
    finally:
        os.close(fd)
    assert (config.job, config.buffer_bytes) == (parcel.data, sizes)
    return unship(config.job, buffers)


@given(st.lists(st.sampled_from([0, 1, 100, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 7]), max_size=5))
def test_arrays_of_any_size_arrive_as_they_were(sizes: list[int]) -> None:
    arrays = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
    found = _carried(arrays)
    for array, expected in zip(found, arrays, strict=True):
        assert array.tobytes() == expected.tobytes()
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0 or array.nbytes < LARGE


def test_layout_flags_and_identity_of_arrays_are_kept() -> None:
    fortran = np.asfortranarray(np.arange(LARGE, dtype=np.float64).reshape(64, -1))
    frozen = np.arange(LARGE)
    frozen.flags.writeable = False
    strided = np.arange(4 * LARGE)[::2]
    found = _carried({"fortran": fortran, "frozen": frozen, "strided": strided, "twice": fortran})
    for key, expected in (("fortran", fortran), ("frozen", frozen), ("strided", strided)):
        np.testing.assert_array_equal(found[key], expected)
    assert found["fortran"].flags.f_contiguous
    assert not found["frozen"].flags.writeable
    assert found["twice"] is found["fortran"]


def test_a_worker_that_writes_to_an_array_writes_to_a_page_of_its_own() -> None:
    table = np.zeros(LARGE, np.int64)

    def setup(info: WorkerInfo) -> Any:
        def work(number: int) -> tuple[int, int, int]:
            before = int(table[0])
            table[0] = number
            return info.worker_idx, before, number

        return work

    with Engine(Job(setup), num_workers=2) as engine:
        found = [delivered.value for delivered in engine.run(range(1, 50))]
    assert table[0] == 0
    last = {0: 0, 1: 0}
    for worker_idx, before, number in found:
        assert before == last[worker_idx]
        last[worker_idx] = number
    assert min(last.values()) > 0


def _num_mapped(payload: object) -> int:
    """Return how many mappings of the config this process has."""
    del payload
    with open("/proc/self/maps") as maps:
        return sum("headrace-config" in line for line in maps)


@pytest.mark.parametrize(("size", "num_mapped"), [(LARGE, 1), (LARGE - 1, 0)])
def test_large_arrays_alone_keep_the_brief_mapped(size: int, num_mapped: int) -> None:
    table = np.zeros(size, np.uint8)
    job = Job(lambda info: lambda payload: _num_mapped(payload) + int(table[0]))
    with Engine(job, num_workers=1) as engine:
        assert next(engine.run([0])).value == num_mapped


def test_a_parcel_names_our_modules_and_nobody_elses() -> None:
    parcel: Parcel = ship_job(partial(print, HDFSource, Laplace(2), Path("x"), np.zeros, pytest.fail))
    assert parcel.modules == {"headrace.sources.hdf.source", "headrace.order.by_length"}


def _describe_warden(classes: list[type], payload: object) -> tuple[bool, bool, int]:
    """Return whether our and the user's module are in the process that this one was forked from; its threads."""
    del classes, payload
    warden = os.getppid()
    with open(f"/proc/{warden}/maps") as maps:
        libraries = maps.read()
    return "h5py" in libraries, "_sqlite3" in libraries, len(os.listdir(f"/proc/{warden}/task"))


@pytest.mark.parametrize("classes", [[HDFSource], []], ids=["needed", "not needed"])
def test_what_a_job_needs_of_ours_is_imported_once_and_starts_no_thread(
    classes: list[type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own_module.py").write_text("import sqlite3\ndef nothing():\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    import users_own_module

    def setup(info: object) -> Any:
        del info
        users_own_module.nothing()
        return partial(_describe_warden, classes)

    with Engine(Job(setup), num_workers=2) as engine:
        for _ in range(2):
            assert {delivered.value for delivered in engine.run(range(4))} == {(bool(classes), False, 1)}
    monkeypatch.delitem(sys.modules, "users_own_module")


def test_workers_of_a_fresh_interpreter_each_share_arrays_too() -> None:
    table = np.arange(LARGE)
    job = Job(lambda info: lambda place: int(table[place]))
    with Engine(job, num_workers=1, executor=ProcessExecutor(start_method="spawn")) as engine:
        assert [delivered.value for delivered in engine.run([3, LARGE - 1])] == [3, LARGE - 1]


def test_a_module_of_ours_that_cannot_be_imported_is_for_the_worker_to_complain_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ghost:
        pass

    Ghost.__module__, Ghost.__qualname__ = "headrace.no_such_module", "Ghost"
    module = type(sys)("headrace.no_such_module")
    module.Ghost, module.__spec__ = Ghost, sys.__spec__
    monkeypatch.setitem(sys.modules, "headrace.no_such_module", module)
    job = Job(partial(_setup_with, Ghost))
    with Engine(job, num_workers=1) as engine, pytest.raises(Exception, match="no_such_module"):
        next(engine.run([0]))


def _setup_with(kind: type, info: object) -> Any:
    del info
    return kind
