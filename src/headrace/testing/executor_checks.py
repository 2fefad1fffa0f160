"""Checks for an executor: what an engine relies on, and what would otherwise show as a hang, or as wrong data."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headrace.engine import Engine, EngineOptions, Executor, Job, Skipping, WorkerInfo
from headrace.errors import HeadraceError

_NUM_TICKETS = 60
_WAIT_SECONDS = 20.0  # after which an answer that does not come is missing
_END_SECONDS = 5.0


def check_executor(make_executor: Callable[[], Executor], *, num_workers: int = 3) -> None:
    """Raise `AssertionError` if an executor does not do what the engine relies on.

    Checked are, each with executors of its own: the order of results, and that each comes once; runs one after the
    other; a run that is given up; errors; functions that cannot be made; workers that end themselves; one iterator for
    each worker; who the workers say that they are; workers that come and go, if it is resizable; the end, after which
    no thread or process is left.

    Args:
        make_executor: Makes one that was not started. The functions that workers are given are functions of this
            package.
        num_workers: How many workers each has.
    """
    threads, children = set(threading.enumerate()), set(multiprocessing.active_children())
    options = EngineOptions(stall_seconds=_WAIT_SECONDS)
    skipping = EngineOptions(stall_seconds=_WAIT_SECONDS, on_error=Skipping(budget=_NUM_TICKETS))
    with _engine(make_executor, _squares, num_workers, options) as engine:
        for payloads in (range(_NUM_TICKETS), range(1), range(_NUM_TICKETS)):
            _expect([done.value for done in engine.run(payloads)], [number**2 for number in payloads], "results")
        given_up = engine.run(itertools.count(1000))
        next(given_up)
        given_up.close()
        _expect([done.value for done in engine.run(range(5))], [0, 1, 4, 9, 16], "results after a run was given up")
        infos = {done.value for done in engine.run([None] * _NUM_TICKETS)}
        assert all(info.num_workers == num_workers and info.worker_idx < num_workers for info in infos), infos
        assert {info.runs_in for info in infos} == {make_executor().runs_in}, f"workers do not run there: {infos}"
    engine.close()  # again
    with _engine(make_executor, _fails_on_odd, num_workers, skipping) as engine:
        even = list(range(0, _NUM_TICKETS, 2))
        _expect([done.value for done in engine.run(range(_NUM_TICKETS))], even, "results beside errors")
    with _engine(make_executor, _cannot_be_made, num_workers, options) as engine:
        error = _error_of(lambda: list(engine.run(range(3))))
        assert isinstance(error, ZeroDivisionError), f"a function that cannot be made raised {error!r}"
    with _engine(make_executor, _iterators, num_workers, options) as engine:
        found = [done.value for done in engine.run_stream(4)]
        turns = [(worker, item) for item in range(4) for worker in range(num_workers)]
        _expect(found, turns, "items of iterators")
    if make_executor().is_resizable:
        with _engine(make_executor, _squares, num_workers, options) as engine:
            found = []
            for done in engine.run(range(_NUM_TICKETS)):
                found.append(done.value)
                if len(found) % 20 == 10:
                    engine.resize(num_workers + 1 if len(found) == 10 else 1 if len(found) == 30 else 2)
            _expect(found, [number**2 for number in range(_NUM_TICKETS)], "results among workers that come and go")
            _expect([done.value for done in engine.run(range(5))], [0, 1, 4, 9, 16], "results of the next run")
    if make_executor().runs_in != "caller":
        with tempfile.TemporaryDirectory() as folder:
            work = partial(_ends_once, folder)
            with _engine(make_executor, work, num_workers, options) as engine:
                found = [done.value for done in engine.run(range(_NUM_TICKETS))]
                _expect(found, list(range(_NUM_TICKETS)), "results of workers that ended in between")
    left = _left_behind(threads, children)
    assert not left, f"left behind: {left}"


@contextlib.contextmanager
def _engine(
    make_executor: Callable[[], Executor],
    setup: Callable[[WorkerInfo], Callable[[Any], Any]],
    num_workers: int,
    options: EngineOptions,
) -> Iterator[Engine]:
    with Engine(Job(setup), num_workers=num_workers, executor=make_executor(), options=options) as engine:
        yield engine


def _expect(found: list[Any], expected: list[Any], what: str) -> None:
    assert found == expected, f"{what}: {found} instead of {expected}"


def _error_of(function: Callable[[], object]) -> Exception | None:
    try:
        function()
    except HeadraceError as error:
        return error
    except Exception as error:  # noqa: BLE001 - it is what is asked for
        return error
    return None


def _left_behind(threads: set[threading.Thread], children: set[Any]) -> list[Any]:
    """Return what lives that did not live before, after it had some time to end."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        left = [*(set(threading.enumerate()) - threads), *(set(multiprocessing.active_children()) - children)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


# --- what workers do ---


def _squares(info: WorkerInfo) -> Callable[[int | None], Any]:
    return lambda number: info if number is None else number**2


def _fails_on_odd(_info: WorkerInfo) -> Callable[[int], int]:
    def work(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number

    return work


def _cannot_be_made(_info: WorkerInfo) -> Callable[[int], int]:
    raise ZeroDivisionError("what the workers do cannot be made")


def _iterators(info: WorkerInfo) -> Callable[[int], Iterator[tuple[int, int]]]:
    return lambda num_items: ((info.worker_idx, item) for item in range(num_items))


def _ends_once(folder: str, _info: WorkerInfo) -> Callable[[int], int]:
    """Each tenth ticket ends its worker when it is done for the first time."""

    def work(number: int) -> int:
        try:
            if number % 10 == 5:
                (Path(folder) / str(number)).touch(exist_ok=False)
                raise SystemExit(f"ended in ticket {number}")
        except FileExistsError:
            pass
        return number

    return work
