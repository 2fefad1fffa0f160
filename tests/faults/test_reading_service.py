"""Workers that raise, end, are killed or cannot begin, and loops that are left: told at once, and nothing is left."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.engine import EngineOptions, Raising, Restarting
from headrace.errors import ConfigError, TransformError, WorkerDiedError
from headrace.pipes import IterPipe
from headrace.pipes.core.base import read
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")


class TwoArgumentsError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class MessageError(Exception):
    message = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _raise_at(position: int, error: BaseException) -> Callable[[int], int]:
    def function(number: int) -> int:
        if number == position:
            raise error
        return number

    return function


def _read(loader: Any, into: list[Any]) -> None:
    for item in loader:
        into.append(item)


@pytest.mark.parametrize("position", [0, 1, 8, 30])
def test_an_exception_comes_behind_the_items_before_it_with_its_type_worker_pipe_and_traceback(position: int) -> None:
    pipe = IterableWrapper(range(60)).sharding_filter().map(_raise_at(position, LookupError("not there")))
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2))
    found: list[int] = []
    with pytest.raises(LookupError) as info:
        _read(loader, found)
    assert found == list(range(position))
    text = str(info.value)
    assert text.startswith(
        f"Caught LookupError in worker process {position % 2}.\nOriginal Traceback (most recent call"
    )
    assert "in function\n" in text
    assert "LookupError: not there" in text
    assert "thrown by __iter__ of Mapper" in text
    assert info.value.__cause__.args == ("not there",)
    with pytest.raises(RuntimeError, match="already been shut down"):
        iter(loader)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (TwoArgumentsError(1, 2), RuntimeError, "Caught TwoArgumentsError in worker process 1."),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), RuntimeError, "Caught UnicodeDecodeError"),
        (MessageError("m"), MessageError, "Caught MessageError"),
        (SystemExit(3), RuntimeError, "Caught SystemExit"),
        (StopIteration("s"), RuntimeError, "generator raised StopIteration"),
    ],
)
def test_exceptions_that_cannot_be_made_of_a_text_become_runtime_errors(
    error: BaseException, kind: type[Exception], text: str
) -> None:
    pipe = IterableWrapper(range(9)).sharding_filter().map(_raise_at(3, error))
    with (
        DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader,
        pytest.raises(kind, match=text),
    ):
        list(loader)


def test_a_key_error_keeps_its_line_breaks() -> None:
    pipe = IterableWrapper(range(9)).sharding_filter().map(_raise_at(3, KeyError("k")))
    with (
        DataLoader2(pipe, reading_service=MultiProcessingReadingService(1)) as loader,
        pytest.raises(KeyError) as info,
    ):
        list(loader)
    assert str(info.value).startswith("Caught KeyError in worker process 0.\nOriginal")


@pytest.mark.sample(3)
@pytest.mark.parametrize("option", ["worker_init_fn", "worker_reset_fn"])
@pytest.mark.parametrize("what", ["raises", "exits", "returns nothing"])
def test_user_functions_that_fail_are_told_at_once(option: str, what: str) -> None:
    def function(datapipe: Any, *_: Any) -> Any:
        if what == "raises":
            raise LookupError("no way")
        if what == "exits":
            raise SystemExit(1)

    kind = {"raises": LookupError, "exits": RuntimeError, "returns nothing": TransformError}[what]
    pipe = IterableWrapper(range(9)).sharding_filter()
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, **{option: function})) as loader:
        with pytest.raises(kind, match="in worker process 0") as info:
            list(loader)
        if what == "returns nothing":
            assert f"{option} must return a pipe" in str(info.value)


def test_an_item_that_cannot_be_pickled_is_named_by_its_place() -> None:
    pipe = IterableWrapper(range(9)).sharding_filter().map(lambda number: {"a": [number, threading.Lock()]})
    with (
        DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader,
        pytest.raises(TransformError, match="lock") as info,
    ):
        list(loader)
    assert "'a'" in str(info.value)


def test_a_graph_that_cannot_be_carried_is_named_by_its_path(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        pipe = IterableWrapper(range(9)).sharding_filter().map(lambda number: log.write(str(number)))
        loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2))
        with pytest.raises(ConfigError, match="cannot be sent") as info:
            iter(loader)
    assert "log" in str(info.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("position", [0, 7, 500])
def test_a_killed_worker_changes_no_item(once: Callable[[], bool], position: int) -> None:
    def noisy(number: int) -> tuple[int, float]:
        if number == position and once():
            os.kill(os.getpid(), signal.SIGKILL)
        return number, float(np.random.random())

    pipe = IterableWrapper(range(1000)).shuffle(buffer_size=50).sharding_filter().map(noisy)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        loader.seed(4)
        found = [list(loader), list(loader)]
        assert loader.reading_service.report.num_restarts == 1
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        loader.seed(4)
        assert [list(loader), list(loader)] == found
        assert loader.reading_service.report.num_restarts == 0


def test_a_killed_worker_goes_on_from_its_snapshot(tmp_path: Path, once: Callable[[], bool]) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()

    def work(number: int) -> tuple[int, float]:
        sum(range(20_000))  # long enough for snapshots
        (calls / f"{number}-{os.getpid()}").touch()
        if number == 900 and once():
            os.kill(os.getpid(), signal.SIGKILL)
        return number, float(np.random.random())

    pipe = IterableWrapper(range(1000)).sharding_filter().map(work)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1)) as loader:
        loader.seed(4)
        found = list(loader)
        assert loader.reading_service.report.num_restarts == 1
    assert [number for number, _ in found] == list(range(1000))
    num_again = len(list(calls.iterdir())) - 1000
    assert num_again < 800, "the worker began at the start of the epoch"
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1)) as loader:
        loader.seed(4)
        assert list(loader) == found


@pytest.mark.sample(3)
@pytest.mark.parametrize("on_death", [Raising(), Restarting(1)])
@pytest.mark.parametrize(("num_workers", "culprit"), [(1, 0), (1, 30), (2, 41), (3, 40)])
def test_all_items_before_one_that_kills_its_workers_are_delivered(
    num_workers: int, culprit: int, on_death: Raising | Restarting
) -> None:
    def die(number: int) -> int:
        time.sleep(0.001 if number % num_workers == culprit % num_workers else 0.002)  # so that groups hold several
        return os._exit(7) if number == culprit else number

    pipe = IterableWrapper(range(90)).sharding_filter().map(die)
    service = MultiProcessingReadingService(num_workers, engine_options=EngineOptions(on_death=on_death))
    found = []
    with DataLoader2(pipe, reading_service=service) as loader:
        with pytest.raises(WorkerDiedError, match=rf"item {culprit // num_workers} of worker {culprit % num_workers}"):
            found.extend(loader)
        assert found == list(range(culprit))


def test_two_items_that_kill_their_workers_are_told_in_their_order() -> None:
    def die(number: int) -> int:
        time.sleep(0.002 if number % 2 == 0 else 0.0)
        return os._exit(7) if number in (50, 61) else number  # the worker of the second one is quicker

    pipe = IterableWrapper(range(90)).sharding_filter().map(die)
    service = MultiProcessingReadingService(2, engine_options=EngineOptions(on_death=Raising()))
    found = []
    with DataLoader2(pipe, reading_service=service) as loader:
        with pytest.raises(WorkerDiedError, match="worker 0 ended with exit code 7"):
            found.extend(loader)
        assert found == list(range(50))


def test_shutdown_in_the_middle_of_an_epoch_is_quick_and_may_be_repeated() -> None:
    pipe = IterableWrapper(range(100_000)).sharding_filter()
    for num_read in (0, 1, 100, 101):
        loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2))
        iterator = iter(loader)
        assert [next(iterator) for _ in range(num_read)] == list(range(num_read))
        loader.shutdown()
        loader.shutdown()
        with pytest.raises(RuntimeError, match="already been shut down"):
            next(iterator)


def test_a_loader_that_is_dropped_ends_its_workers() -> None:
    iterator = iter(
        DataLoader2(IterableWrapper(range(1000)).sharding_filter(), reading_service=MultiProcessingReadingService(2))
    )
    assert next(iterator) == 0
    del iterator
    gc.collect()


@pytest.mark.parametrize(
    ("pipe", "num"),
    [
        ("source.sharding_filter()", 5),
        ("source.sharding_filter()", 10_000),
        ("source.sharding_filter()", 0),
        ("Here(source.sharding_filter())", 1),
        ("source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(abs)", 1),
    ],
)
def test_a_program_that_leaves_without_shutdown_ends(pipe: str, num: int, run_program: Any) -> None:
    program = f"""
from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.pipes import IterPipe
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES
class Here(IterPipe):
    def __init__(self, datapipe):
        self.datapipe = datapipe
    def is_replicable(self):
        return False
    def __iter__(self):
        yield from self.datapipe
source = IterableWrapper(range(10_000))
iterator = iter(DataLoader2({pipe}, reading_service=MultiProcessingReadingService(2)))
print(sum(1 for _ in zip(range({num}), iterator)))
"""
    result = run_program(program)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{num}\n", "")


def test_a_stuck_worker_is_ended_by_shutdown(tmp_path: Path, wait_until: Any) -> None:
    stuck = tmp_path / "stuck"

    def stick(number: int) -> int:
        if number == 4:
            stuck.touch()
            threading.Event().wait()
        return number

    pipe = IterableWrapper(range(9)).sharding_filter().map(stick)
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2))
    iterator = iter(loader)
    assert [next(iterator) for _ in range(4)] == list(range(4))
    wait_until(stuck.exists, "the worker does not come to item 4")
    loader.shutdown()


class Here(IterPipe[Any]):
    """A pipe that stays in the main process."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        yield from read(self.datapipe)

    def state(self) -> dict[str, Any]:
        return {}


def _slow_at_4(number: int) -> int:
    if number == 4:
        threading.Event().wait()
    return number


@pytest.mark.sample(1)
@pytest.mark.parametrize("prefetch", [0, 10])
def test_a_loop_with_pipes_in_the_main_process_may_be_left_at_any_time(prefetch: int) -> None:
    pipe = Here(IterableWrapper(range(1000)).sharding_filter()).map(abs)
    service = MultiProcessingReadingService(2, worker_prefetch_cnt=prefetch, main_prefetch_cnt=prefetch)
    with DataLoader2(pipe, reading_service=service) as loader:
        for num_read in (1, 0, 99):
            iterator = iter(loader)
            assert [next(iterator) for _ in range(num_read)] == list(range(num_read))
        state = loader.state_dict()
        assert list(iterator) == list(range(99, 1000))
    with DataLoader2.from_state(state, pipe, service) as again:
        assert list(again) == list(range(99, 1000))


@pytest.mark.parametrize("prefetch", [0, 10])
def test_a_limit_pauses_pipes_with_threads_in_the_main_process_too(prefetch: int) -> None:
    pipe = Here(IterableWrapper(range(10)).sharding_filter()).prefetch(2)
    service = MultiProcessingReadingService(2, worker_prefetch_cnt=prefetch, main_prefetch_cnt=prefetch)
    with DataLoader2(pipe, reading_service=service) as loader:
        iterator = iter(loader)
        iterator.limit(4)
        parts = []
        for _ in range(3):
            parts.append(list(iterator))
            if len(parts[-1]) == 4:
                iterator.resume()
        assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert list(loader) == list(range(10))


def test_a_thread_that_waits_for_a_stuck_worker_does_not_keep_the_loader_from_ending() -> None:
    pipe = Here(IterableWrapper(range(9)).sharding_filter().map(_slow_at_4))
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2))
    iterator = iter(loader)
    assert [next(iterator) for _ in range(4)] == list(range(4))
    loader.shutdown()


def test_errors_of_workers_come_through_the_thread_in_the_main_process() -> None:
    pipe = Here(IterableWrapper(range(60)).sharding_filter().map(_raise_at(31, LookupError("not there"))))
    found: list[int] = []
    with (
        DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader,
        pytest.raises(LookupError, match="worker process 1"),
    ):
        _read(loader, found)
    assert found == list(range(31))


def test_a_forked_process_leaves_the_loader_alone() -> None:
    pipe = IterableWrapper(range(1000)).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(abs)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        pid = os.fork()
        if pid == 0:
            try:
                loader.shutdown()
                next(iterator, None)
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert list(iterator) == list(range(1, 1000))


def test_threads_in_the_workers_graph_end_with_each_epoch() -> None:
    pipe = IterableWrapper(range(500)).sharding_filter().prefetch(5).map(lambda n: (n, threading.active_count()))
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        for num_read in (1, 7, 100):
            iterator = iter(loader)
            assert [next(iterator)[0] for _ in range(num_read)] == list(range(num_read))
        found = list(loader)
    assert [number for number, _ in found] == list(range(500))
    assert max(threads for _, threads in found) <= 4


@pytest.mark.long
def test_many_epochs_take_no_more_memory() -> None:
    pipe = IterableWrapper(range(20)).shuffle().sharding_filter().map(lambda n: (n, _resident_bytes()))
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1)) as loader:
        sizes = [max(size for _, size in loader) for _ in range(200)]
    assert sizes[-1] < sizes[20] + (4 << 20)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
