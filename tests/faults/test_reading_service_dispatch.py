"""A dispatching process, or a worker that reads from it, raises, is killed or hangs: told at once, nothing is left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.engine.process.proc_tree import descendants_of
from headrace.errors import CacheError, ConfigError, TransformError, WorkerDiedError
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")


def _loader(source: Any, behind: Callable[[Any], Any] = abs, **options: Any) -> DataLoader2[Any]:
    pipe = source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(behind)
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, **options))


def _at(position: int, action: Callable[[], Any]) -> Callable[[int], int]:
    def function(number: int) -> int:
        if number == position:
            action()
        return number

    return function


def _read(loader: Any, into: list[int]) -> None:
    for item in loader:
        into.append(item)


def _fail() -> None:
    raise LookupError("not there")


@pytest.mark.sample(1)
@pytest.mark.parametrize("position", [0, 1, 300])
def test_an_exception_of_the_dispatching_process_comes_behind_the_items_before_it(position: int) -> None:
    found: list[int] = []
    with (
        _loader(IterableWrapper(range(1000)).map(_at(position, _fail))) as loader,
        pytest.raises(LookupError, match="dispatching process") as info,
    ):
        _read(loader, found)
    assert found == list(range(position))
    assert str(info.value).startswith(f"Caught LookupError in worker process {position % 2}.")
    assert "LookupError: not there" in str(info.value)


def test_an_exception_of_a_worker_behind_it_names_the_worker() -> None:
    with (
        _loader(IterableWrapper(range(100)), _at(31, _fail)) as loader,
        pytest.raises(LookupError, match="in worker process 1"),
    ):
        list(loader)


@pytest.mark.sample(1)
@pytest.mark.parametrize("position", [0, 57, 999])
def test_a_killed_dispatching_process_is_named_with_its_signal(position: int) -> None:
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    with (
        _loader(IterableWrapper(range(1000)).map(_at(position, kill))) as loader,
        pytest.raises(WorkerDiedError, match=r"the dispatching process was killed by signal 9 \(SIGKILL\)"),
    ):
        list(loader)


@examples(8)
@given(num_read=st.integers(0, 400), seed=st.integers(0, 99))
def test_a_dispatching_process_that_is_killed_at_any_moment_never_makes_an_epoch_short(
    num_read: int, seed: int
) -> None:
    sizes = random.Random(seed).choices([1, 3000], k=400)
    source = IterableWrapper(sizes).map(lambda size: (os.getpid(), np.full(size, 1, np.int32)))
    pipe = source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    found = []
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        iterator = iter(loader)
        victim, _ = next(iterator)
        found += [len(array) for _, array in islice(iterator, num_read)]
        os.kill(victim, signal.SIGKILL)
        error = None
        try:
            for _, array in iterator:
                found.append(len(array))
        except WorkerDiedError as raised:
            error = raised
    assert found == sizes[1 : 1 + len(found)]
    assert len(found) == len(sizes) - 1 or "the dispatching process was killed" in str(error)


@pytest.mark.sample(2)
@pytest.mark.parametrize("start_method", [None, "spawn", "forkserver"])
def test_no_process_of_a_loader_listens_or_has_a_name_that_a_stranger_could_connect_to(
    start_method: str | None,
) -> None:
    pipe = IterableWrapper(range(1000)).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    service = MultiProcessingReadingService(2, multiprocessing_context=start_method)
    of_the_runner = _sockets_of({os.getpid()})
    with DataLoader2(pipe.map(abs), reading_service=service) as loader:
        iterator = iter(loader)
        next(iterator)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:  # that the test can see one
            listening.bind("\0headrace-test-" + os.urandom(8).hex())
            ours = {os.getpid(), *descendants_of(os.getpid())}
            assert len(ours) >= 5  # the wardens, the workers, the dispatching process
            inode = os.fstat(listening.fileno()).st_ino
            assert set(_named_sockets(ours)) == {inode}
            for other in ("tcp", "tcp6", "udp", "udp6"):
                inodes = {line.split()[9] for line in Path(f"/proc/net/{other}").read_text().splitlines()[1:]}
                assert not inodes & {str(found) for found in _sockets_of(ours) - of_the_runner}
        assert list(iterator) == list(range(1, 1000))


def _sockets_of(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (target := str(entry.readlink())).startswith("socket:["):
                    found.add(int(target.removeprefix("socket:[").removesuffix("]")))
    return found


def _named_sockets(pids: set[int]) -> list[int]:
    """Return those sockets of processes that have a name or listen."""
    own = _sockets_of(pids)
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [
        int(fields[6])
        for fields in lines
        if int(fields[6]) in own and (len(fields) > 7 or int(fields[3], 16) & 0x10000)
    ]


def test_a_dispatching_process_that_exits_is_an_error() -> None:
    with (
        _loader(IterableWrapper(range(1000)).map(_at(3, lambda: os._exit(0)))) as loader,
        pytest.raises(WorkerDiedError, match="the dispatching process ended with exit code 0"),
    ):
        list(loader)


def test_a_killed_worker_is_named_because_its_share_cannot_be_dealt_out_again(tmp_path: Path) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        _loader(IterableWrapper(range(1000)), _at(31, die)) as loader,
        pytest.raises(WorkerDiedError, match=r"worker 1 was killed by signal 9 \(SIGKILL\)") as info,
    ):
        list(loader)
    assert "Restarting" not in str(info.value)  # which would not help here
    assert "resume from a state" in str(info.value)


def test_a_worker_that_drops_all_it_gets_of_an_endless_source_does_not_fill_the_memory() -> None:
    endless = IterableWrapper(range(1000)).cycle().map(lambda number: np.full(10_000, number))
    pipe = endless.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    odd = pipe.filter(lambda array: array[0] % 2 == 1)  # so worker 0 has nothing to give
    with (
        DataLoader2(odd, reading_service=MultiProcessingReadingService(2, max_bytes=64 << 20)) as loader,
        pytest.raises(CacheError, match="wait for worker 1, because worker 0 reads item after item") as info,
    ):
        next(iter(loader))
    assert "filter before sharding_round_robin_dispatch" in str(info.value)


def test_an_item_that_cannot_be_dealt_out_is_named_by_its_place() -> None:
    with (
        _loader(IterableWrapper(range(10)).map(lambda number: {"a": threading.Lock()})) as loader,
        pytest.raises(TransformError, match="lock"),
    ):
        list(loader)


def test_a_part_that_cannot_be_carried_is_told_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        loader = _loader(IterableWrapper(range(9)).map(lambda number: log.write(str(number))))
        with pytest.raises(ConfigError, match="cannot be sent"):
            iter(loader)


@pytest.mark.parametrize("num_read", [0, 1, 50])
def test_shutdown_in_the_middle_of_an_epoch_leaves_nothing(num_read: int) -> None:
    loader = _loader(IterableWrapper(range(100_000)))
    iterator = iter(loader)
    assert [next(iterator) for _ in range(num_read)] == list(range(num_read))
    loader.shutdown()
    loader.shutdown()


@pytest.mark.parametrize("where", ["before the dispatch point", "behind it"])
def test_an_interrupt_of_the_loop_ends_a_process_that_hangs(where: str, tmp_path: Path, wait_until: Any) -> None:
    stuck = tmp_path / "stuck"

    def stick() -> None:
        stuck.touch()
        threading.Event().wait()

    before, behind = (_at(9, stick), abs) if where == "before the dispatch point" else (abs, _at(9, stick))
    loader = _loader(IterableWrapper(range(100)).map(before), behind)

    def interrupt() -> None:
        wait_until(stuck.exists, "nobody comes to item 9")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    thread.join()
    with pytest.raises(RuntimeError, match="shut down"):
        iter(loader)


def test_nothing_outlives_a_main_process_that_is_killed(tmp_path: Path, wait_for_end: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os
from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.engine.process.proc_tree import descendants_of
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES
pipe = IterableWrapper(range(10_000_000)).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(abs)
loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2))
iterator = iter(loader)
assert [next(iterator), next(iterator)] == [0, 1]  # of both workers
print(*descendants_of(os.getpid()), flush=True)
for item in iterator:
    pass
""")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        pidfds = [os.pidfd_open(int(pid)) for pid in output.readline().split()]
        process.kill()
        process.wait()
    assert len(pidfds) >= 4  # a warden or two, the dispatching process, two workers
    wait_for_end(*pidfds)
