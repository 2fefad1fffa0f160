"""Engines of one process share the process that starts their workers, and nothing else."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine import Engine, EngineOptions, Job, Raising, WorkerInfo
from headrace.engine.process.executor import ProcessExecutor
from headrace.engine.process.warden_client import _shared
from headrace.errors import WorkerDiedError


def _open(num_workers: int = 1, **options: object) -> Engine:
    return Engine(
        Job(lambda info: lambda number: (number, os.getpid(), os.getppid(), os.environ.get("FLAVOUR"))),
        num_workers=num_workers,
        executor=ProcessExecutor(**options),  # type: ignore[arg-type]
    )


def _warden_of(engine: Engine) -> int:
    return next(engine.run([0])).value[2]


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    assert not _shared
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert not _shared
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_engines_have_one_warden_and_the_end_of_one_is_none_of_the_other() -> None:
    with _open() as first:
        warden = _warden_of(first)
        stream = first.run(range(1000))
        assert next(stream).value[0] == 0
        with _open(2) as second:
            assert _warden_of(second) == warden
            (_, pid, _, _) = next(second.run([1])).value
        assert not Path(f"/proc/{pid}").exists()
        assert [delivered.value[0] for delivered in stream] == list(range(1, 1000))
        assert first.report.num_restarts == 0
    assert not Path(f"/proc/{warden}").exists()


def test_the_first_that_started_it_may_end_before_the_others() -> None:
    first, second = _open(), _open()
    warden = _warden_of(first)
    assert _warden_of(second) == warden
    first.close()
    assert next(second.run([5])).value[0] == 5
    second.close()
    assert not Path(f"/proc/{warden}").exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_other_numbers_of_threads_need_no_other_warden(threads: int) -> None:
    with _open() as first, _open(threads_per_worker=threads) as second:
        assert _warden_of(first) == _warden_of(second)


def test_a_changed_environment_reaches_the_workers_of_the_next_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with _open() as first:
        assert next(first.run([0])).value[3] is None
        monkeypatch.setenv("FLAVOUR", "salt")
        with _open() as second:
            assert next(second.run([0])).value[3] == "salt"
            assert _warden_of(first) != _warden_of(second)


def test_a_warden_that_is_killed_is_replaced_for_all_its_engines() -> None:
    with _open(2) as first, _open(2) as second:
        streams = [first.run(range(100)), second.run(range(100))]
        pids = {next(stream).value[2] for stream in streams}
        assert len(pids) == 1
        os.kill(pids.pop(), signal.SIGKILL)
        for stream in streams:
            assert [delivered.value[0] for delivered in stream] == list(range(1, 100))
        assert _warden_of(first) == _warden_of(second)


def test_the_death_of_a_shared_warden_is_named_to_each_of_its_engines() -> None:
    job = Job(lambda info: lambda number: os.getppid())
    options = EngineOptions(on_death=Raising())
    with Engine(job, num_workers=1, options=options) as first, Engine(job, num_workers=1, options=options) as second:
        streams = [first.run(iter(int, 1)), second.run(iter(int, 1))]
        warden, _ = (next(stream).value for stream in streams)
        os.kill(warden, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(WorkerDiedError, match=r"warden process \d+, which was killed by signal 9"):
                for _ in stream:
                    pass


def test_a_worker_that_hangs_at_its_end_delays_no_other_engine() -> None:
    def setup(info: WorkerInfo):  # type: ignore[no-untyped-def]
        def work(number: int) -> int:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if number:
                threading.Event().wait()
            return os.getpid()

        return work

    with _open() as other:
        warden = _warden_of(other)
        with Engine(Job(setup), num_workers=1) as engine:
            pid = next(engine.run([0])).value
            engine.run([1])
        assert not Path(f"/proc/{pid}").exists()
        assert _warden_of(other) == warden


def test_engines_of_many_threads_come_and_go() -> None:
    failures: list[BaseException] = []
    wardens: set[int] = set()

    def run(number: int) -> None:
        try:
            for _ in range(4):
                with _open() as engine:
                    found = [delivered.value for delivered in engine.run(range(number, number + 20))]
                    assert [value[0] for value in found] == list(range(number, number + 20))
                    wardens.add(found[0][2])
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    with _open() as keeper:
        warden = _warden_of(keeper)
        threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert wardens == {warden}


def test_a_forked_child_has_a_warden_of_its_own() -> None:
    with _open() as engine:
        warden = _warden_of(engine)
        child = os.fork()
        if not child:
            code = 1
            try:
                with _open() as own:
                    code = 0 if _warden_of(own) != warden else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _warden_of(engine) == warden
        assert engine.report.num_restarts == 0


@pytest.mark.long
def test_engines_that_are_collected_while_another_starts_do_not_block_it() -> None:
    thresholds = gc.get_threshold()
    try:
        for _ in range(5):
            dropped = _open()
            _warden_of(dropped)
            dropped.itself = dropped  # type: ignore[attr-defined] # only the collector frees it
            gc.set_threshold(1)  # as often as it can, so within the start of the next one too
            del dropped
            with _open() as engine:
                assert next(engine.run([7])).value[0] == 7
            gc.set_threshold(*thresholds)
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
