"""Worker processes from the outside: what is large, kept, left, or interrupted comes out right, and nothing stays."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.engine import Engine, EngineOptions, Job, Mode, Restarting, WorkerInfo, note_item
from headrace.engine.events import Beat, Done, Event
from headrace.engine.process.executor import ProcessExecutor
from headrace.engine.process.proc_tree import descendants_of
from headrace.errors import CacheError, ConfigError, StalledError

_IDENTITY = Job(lambda info: lambda payload: payload)


@pytest.mark.parametrize("num_rounds", [20, pytest.param(200, marks=pytest.mark.long)])
def test_rounds_of_making_reading_and_abandoning_leave_nothing(num_rounds: int) -> None:
    dice = random.Random(num_rounds)
    for round_number in range(num_rounds):
        engine = Engine(_IDENTITY, num_workers=dice.choice([1, 2]), executor="process")
        stream = engine.run(np.full(dice.choice([10, 10_000]), number) for number in range(1000))
        for number in range(dice.choice([0, 0, 1, 5])):
            assert next(stream).value[0] == number
        if round_number % 3 == 0:
            engine.close()
        del engine, stream
    gc.collect()


def test_payloads_of_any_size_reach_the_worker() -> None:
    payloads = [np.arange(length) for length in (0, 1, 10_000, 3_000_000, 10, 500_000)] * 3
    with Engine(_IDENTITY, num_workers=2) as engine:
        for payload, delivered in zip(payloads, engine.run(payloads), strict=True):
            assert np.array_equal(payload, delivered.value)


def test_more_payloads_than_a_socket_holds_do_not_block() -> None:
    payloads = [bytes([number % 256]) * 40_000 for number in range(200)]
    options = EngineOptions(tickets_per_worker=50)
    job = Job(lambda info: len)
    with Engine(job, num_workers=2, options=options) as engine:
        assert [delivered.value for delivered in engine.run(payloads)] == [40_000] * 200


def test_small_results_that_are_kept_are_copied_when_slots_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.process.executor._NUM_SLOTS", 16)
    job = Job(lambda info: lambda number: np.full(3_000, number, np.uint16))
    with Engine(job, num_workers=2, executor=ProcessExecutor(max_bytes=1 << 20)) as engine:
        kept = [delivered.value for delivered in engine.run(range(200))]
    assert all(np.all(array == number) for number, array in enumerate(kept))


def test_a_small_result_that_is_kept_keeps_no_memory_of_others() -> None:
    with Engine(Job(lambda info: lambda number: np.full(100, number)), num_workers=2) as engine:
        kept = [value for ticket, value, _ in engine.run(range(3000)) if ticket % 100 == 0]
    assert {len(value.base) for value in kept} == {800}
    assert all(value.flags.writeable for value in kept)


def test_no_result_waits_for_a_slow_ticket_of_the_same_burst(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"

    def work(number: int) -> int:
        if number in (1001, 1003):  # of both workers: nothing comes any more that could wake the consumer
            while not go_on.exists():
                time.sleep(0.001)
        return number

    options = EngineOptions(tickets_per_worker=64)
    with Engine(Job(lambda info: work), num_workers=2, options=options) as engine:
        run = engine.run(range(2000))
        for number in range(1001):  # would not end
            assert next(run).value == number
        go_on.touch()
        assert [delivered.value for delivered in run] == list(range(1001, 2000))


def test_a_worker_without_free_memory_waits_until_another_thread_drops_a_view() -> None:
    executor = ProcessExecutor(max_bytes=1 << 20, slot_bytes=1 << 16)
    job = Job(lambda info: lambda number: np.full(300_000, number, np.uint8))
    with Engine(job, num_workers=1, executor=executor) as engine:
        stream = engine.run(range(9))
        kept = [next(stream).value for _ in range(3)]  # a fourth does not fit

        def drop_when_starved() -> None:
            pause = threading.Event()
            while executor._lives[0].starved_since is None:
                pause.wait(0.001)
            assert [int(array[0]) for array in kept] == [0, 1, 2]
            kept.clear()

        dropper = threading.Thread(target=drop_when_starved)
        dropper.start()
        assert [int(delivered.value[0]) for delivered in stream] == list(range(3, 9))
        dropper.join()
        assert not kept


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_stalled_worker_is_blamed_with_the_sequence_that_it_is_at(executor: str) -> None:
    stuck: list[threading.Event] = []  # for the thread; a process is ended

    def work(number: int) -> None:
        note_item(f"seq-{number}", 3)
        stuck.append(threading.Event())
        stuck[-1].wait()

    options = EngineOptions(warn_seconds=0, stall_seconds=1.0, start_seconds=60.0)
    with Engine(Job(lambda info: work), num_workers=1, executor=executor, options=options) as engine:
        with pytest.raises(StalledError) as caught:
            next(engine.run(range(2)))
        for event in stuck:
            event.set()
    assert caught.value.where == "tag 'seq-0', epoch 3, ticket 0"


def test_a_consumer_that_keeps_all_the_memory_and_waits_for_more_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.process.link._HOARD_SECONDS", 2.0)
    options = EngineOptions(stall_seconds=1.5, on_stall=Restarting())  # a worker that waits for a slot is not stuck
    job = Job(lambda info: lambda number: np.full(300_000, number, np.uint8))
    executor = ProcessExecutor(max_bytes=1 << 20, slot_bytes=1 << 16)
    with Engine(job, num_workers=1, executor=executor, options=options) as engine:
        stream = engine.run(range(9))
        kept = [next(stream).value for _ in range(3)]
        with pytest.raises(CacheError, match=r"results that are still held .* max_bytes=1048576") as caught:
            next(stream)
        assert "copy what is kept" in str(caught.value)
        assert [int(array[0]) for array in kept] == [0, 1, 2]
        del kept, caught
        assert sum(1 for _ in engine.run(range(9))) == 9


def test_a_consumer_that_keeps_all_slots_and_waits_for_more_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.process.link._HOARD_SECONDS", 0.1)
    monkeypatch.setattr("headrace.engine.process.executor._NUM_SLOTS", 4)
    job = Job(lambda info: lambda number: np.full(300_000, number, np.uint8))
    with Engine(job, num_workers=1, executor=ProcessExecutor(max_bytes=1 << 20, slot_bytes=1 << 16)) as engine:
        stream = engine.run(range(9))
        kept: list[Any] = []
        with pytest.raises(CacheError, match="copy what is kept"):
            kept.extend(delivered.value for delivered in stream)  # each as it comes
        assert [int(array[0]) for array in kept] == list(range(len(kept)))
        assert kept


def test_a_worker_starved_by_results_of_its_own_look_ahead_waits_for_the_slow_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.engine.process.link._HOARD_SECONDS", 0.05)

    def setup(info: WorkerInfo) -> Callable[[int], Any]:
        def work(number: int) -> Any:
            if number == 0:  # meanwhile the other worker fills its memory and waits for longer than it may
                threading.Event().wait(0.5)
            return np.full(300_000, number, np.uint8)

        return work

    executor = ProcessExecutor(max_bytes=1 << 20, slot_bytes=1 << 16)
    with Engine(Job(setup), num_workers=2, executor=executor) as engine:
        assert [int(delivered.value[0]) for delivered in engine.run(range(12))] == list(range(12))


class Unloadable:
    """Comes apart when it is unpickled in the consumer."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_a_result_that_cannot_be_unpickled_is_an_error_with_its_ticket_and_the_workers_stay() -> None:
    job = Job(lambda info: lambda number: Unloadable() if number == 3 else os.getpid())
    with Engine(job, num_workers=1) as engine:
        stream = engine.run(range(9))
        pids = {next(stream).value for _ in range(3)}
        with pytest.raises(ValueError, match="no number") as caught:
            next(stream)
        assert "ticket 3, worker 0" in caught.value.__notes__[0]
        assert {delivered.value for delivered in engine.run([0])} == pids


def test_workers_start_and_are_started_anew_in_a_folder_that_is_gone(
    tmp_path: Path, run_program: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    text = f"""
import os, signal
from headrace.engine import Engine, Job
gone = {str(tmp_path / "gone")!r}
os.mkdir(gone); os.chdir(gone); os.rmdir(gone)
def die_once(number):
    if number == 4 and not os.path.exists({str(tmp_path / "died")!r}):
        open({str(tmp_path / "died")!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return number
with Engine(Job(lambda info: die_once), num_workers=2) as engine:
    print(sum(delivered.value for delivered in engine.run(range(10))))
"""
    done = run_program(text)
    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr
    assert (tmp_path / "died").exists()


def test_a_trainer_that_blocks_the_signal_of_ended_children_sees_its_workers_end() -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        with Engine(Job(lambda info: lambda number: signal.pthread_sigmask(signal.SIG_BLOCK, ())), num_workers=1) as it:
            assert next(it.run([0])).value == set()
            executor = it._workers.executor
            assert isinstance(executor, ProcessExecutor)
            (life,) = executor._lives.values()
            os.kill(life.pid or 0, signal.SIGKILL)
            assert next(it.run([0])).value == set()
            assert it.report.num_restarts == 1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_payloads_that_are_slow_to_come_do_not_hold_up_what_is_done() -> None:
    pulled, seen = [], []

    def payloads() -> Iterator[int]:
        pause = threading.Event()
        for number in range(12):
            pause.wait(0 if seen else 0.05 * 2**number)  # minutes, unless the first result comes meanwhile
            pulled.append(number)
            yield number

    with Engine(_IDENTITY, num_workers=2) as engine:
        assert next(engine.run([-1])).value == -1  # the workers have started
        stream = engine.run(payloads())
        assert next(stream).value == 0
        seen.append(0)
        assert len(pulled) < 12
        assert [delivered.value for delivered in stream] == list(range(1, 12))


def test_a_result_that_is_larger_than_the_limit_is_an_error_that_names_the_option() -> None:
    job = Job(lambda info: lambda length: np.zeros(length, np.uint8))
    with Engine(job, num_workers=1, executor=ProcessExecutor(slot_bytes=4096, max_bytes=1 << 20)) as engine:
        with pytest.raises(CacheError, match="max_bytes"):
            next(engine.run([2 << 20]))
        assert len(next(engine.run([1000])).value) == 1000


def test_a_job_that_cannot_be_carried_starts_nothing() -> None:
    lock = threading.Lock()
    engine = Engine(Job(lambda info: lambda number: lock), num_workers=2)
    with pytest.raises(ConfigError, match="lock"):
        next(engine.run([1]))


def test_a_function_that_forks_and_returns_twice_answers_once() -> None:
    def work(number: int) -> int:
        if number == 2:
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
        return number

    with Engine(Job(lambda info: work), num_workers=1) as engine:
        assert [delivered.value for delivered in engine.run(range(6))] == list(range(6))


def test_a_forked_child_of_the_trainer_sees_a_closed_executor_and_harms_nothing() -> None:
    with Engine(_IDENTITY, num_workers=2) as engine:
        stream = engine.run(range(1000))
        assert next(stream).value == 0
        pid = os.fork()
        if pid == 0:
            try:
                engine.close()
                del stream, engine
                gc.collect()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert [delivered.value for delivered in stream] == list(range(1, 1000))


def test_an_interrupt_comes_through_at_once_and_the_engine_is_usable_after_it() -> None:
    job = Job(lambda info: lambda number: threading.Event().wait() if number == 1 else number)
    with Engine(job, num_workers=2) as engine:
        stream = engine.run(range(4))
        assert next(stream).value == 0
        threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert next(engine.run([7])).value == 7


def test_leaving_early_keeps_the_workers_for_the_next_run() -> None:
    def setup(info: WorkerInfo) -> Callable[[int], tuple[int, int]]:
        return lambda number: (os.getpid(), number)

    with Engine(Job(setup), num_workers=2) as engine:
        pids = set()
        for start in range(20):
            for delivered in engine.run(range(start, start + 50)):
                pids.add(delivered.value[0])
                if delivered.value[1] == start + 3:
                    break
        assert len(pids) == 2


def test_streams_are_closed_in_the_worker_when_the_consumer_leaves() -> None:
    def setup(info: WorkerInfo) -> Callable[[Any], Iterator[Any]]:
        closed = []

        def items(_: Any) -> Iterator[Any]:
            try:
                while True:
                    yield len(closed)
            finally:
                closed.append(1)

        return items

    with Engine(Job(setup), num_workers=2) as engine:
        for number in range(5):
            assert next(engine.run_stream()).value == number


@pytest.mark.kernel_timing
def test_a_stopped_worker_is_replaced_and_the_stream_is_the_same() -> None:
    executor = ProcessExecutor()
    options = EngineOptions(on_stall=Restarting(100), warn_seconds=0, stall_seconds=0.2)
    with Engine(_IDENTITY, num_workers=2, executor=executor, options=options) as engine:
        stream = engine.run(range(100))
        assert next(stream).value == 0
        pid = executor._lives[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        assert [delivered.value for delivered in stream] == list(range(1, 100))


def test_a_worker_that_notes_places_gives_signs_of_life(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    os.mkfifo(go_on)

    def work(number: int) -> int:
        note_item(tag="first")
        go_on.read_text()
        return number

    executor = ProcessExecutor()
    executor.start(Job(lambda info: work), 1)
    executor.begin_run(1, Mode.TASK)
    executor.submit(0, 1, 0, executor.pack(5))
    events: list[Event] = []
    while Beat(0) not in events:
        events += executor.wait(0.01)
    assert not any(isinstance(event, Done) for event in events)
    go_on.write_text("now")
    while not any(isinstance(event, Done) for event in events):
        events += executor.wait(0.01)
    executor.close()


def test_wrong_options_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="'exec', 'spawn'"):
        ProcessExecutor(start_method="clone")
    with pytest.raises(ConfigError, match="slot_bytes=10 and max_bytes=5"):
        ProcessExecutor(slot_bytes=10, max_bytes=5)
    with pytest.raises(ConfigError, match="threads_per_worker is 0"):
        ProcessExecutor(threads_per_worker=0)


@pytest.mark.parametrize("is_known", [False, True])
def test_closing_ends_workers_that_hold_the_interpreter_although_their_warden_is_gone(
    is_known: bool, wait_for_end: Callable[..., None]
) -> None:
    begun, begin = os.pipe()
    trainer = os.getpid()

    def make(_info: WorkerInfo) -> Callable[[int], None]:
        def hold(_payload: int) -> None:
            Path(f"/proc/{trainer}/fd/{begin}").write_bytes(b"!")
            ctypes.PyDLL(None).sleep(60)  # a C function that keeps the lock of the interpreter

        return hold

    with Engine(Job(make), num_workers=1) as engine:
        run = engine.run(range(3))
        executor = engine._workers.executor
        assert isinstance(executor, ProcessExecutor)
        assert executor._warden is not None
        if is_known:
            while executor._lives[0].pid is None:
                executor.wait(1.0)
        assert os.read(begun, 1) == b"!"
        (worker,) = [pid for pid in descendants_of(trainer) if "worker" in Path(f"/proc/{pid}/comm").read_text()]
        pidfd = os.pidfd_open(worker)
        os.kill(executor._warden.pid, signal.SIGKILL)
    wait_for_end(pidfd)
    run.close()
    for fd in (begun, begin):
        os.close(fd)
