"""Workers come and go at any time, and the stream, its state and what was kept of it are those of a plain loop."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from examples_of_laws import examples
from headrace.engine import Engine, EngineOptions, Job, Restarting
from headrace.engine.local.thread import ThreadExecutor
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, HeadraceError

# After so many results: so many workers, or one more death.
CHANGES = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 5)), max_size=6)
DEATHS = st.frozensets(st.integers(0, 90), max_size=3)
OPTIONS = st.builds(dict, tickets_per_worker=st.none() | st.integers(1, 9), look_ahead=st.none() | st.integers(1, 20))
EXECUTORS = {
    "thread": ThreadExecutor,
    "process": ProcessExecutor,
}


def array_of(number: int) -> np.ndarray:
    return np.full(1500, number)


def make_work(folder: str, deaths: frozenset[int]) -> Any:
    """Make a setup whose worker ends at some numbers, each time they are asked for first."""

    def work(number: int) -> np.ndarray:
        if number in deaths:
            try:
                (Path(folder) / str(number)).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                raise SystemExit(7)
        return array_of(number)

    return lambda info: work


def check_runs(
    executor: str,
    num_workers: int,
    changes: list[tuple[int, int]],
    deaths: frozenset[int],
    options: dict[str, Any],
    num_rounds: int = 2,
) -> None:
    policy = EngineOptions(on_death=Restarting(99), **options)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(make_work(folder, deaths))
        with Engine(job, num_workers=num_workers, executor=EXECUTORS[executor](), options=policy) as engine:
            expected = num_workers
            for number_of_round in range(num_rounds):
                length = 91 - 40 * number_of_round
                kept = []
                for delivered in engine.run(range(length)):
                    assert delivered.ticket == len(kept)
                    assert (delivered.value == array_of(delivered.ticket)).all()
                    kept.append(delivered.value)
                    for at, number in changes:
                        if at == delivered.ticket:
                            engine.resize(number)
                            expected = number
                    assert engine.num_workers == expected
                assert len(kept) == length
                for number, value in enumerate(kept):  # also what was made by workers that are gone
                    assert (value == array_of(number)).all()
            assert sum(worker.num_tickets for worker in engine.report.workers) >= 91
            assert engine.report.num_delivered == 91 + 51 * (num_rounds - 1)


@examples(15)
@given(st.integers(1, 4), CHANGES, DEATHS, OPTIONS)
def test_threads_that_come_and_go_leave_the_stream_as_it_is(
    num_workers: int, changes: list[tuple[int, int]], deaths: frozenset[int], options: dict[str, Any]
) -> None:
    check_runs("thread", num_workers, changes, deaths, options)


@examples(5)
@given(st.integers(1, 4), CHANGES, DEATHS, OPTIONS)
def test_processes_that_come_and_go_leave_the_stream_as_it_is(
    num_workers: int, changes: list[tuple[int, int]], deaths: frozenset[int], options: dict[str, Any]
) -> None:
    check_runs("process", num_workers, changes, deaths, options)


ITEMS = [{"x": np.arange(length, dtype=np.float32)} for length in range(1, 60)]


def noisy(features: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": features["x"] + rng.random(len(features["x"]), np.float32)}


def open_loader(num_workers: int, executor: str = "process") -> hr.DataLoader:
    return hr.DataLoader(
        ITEMS,
        batching=hr.FixedCount(2),
        num_workers=num_workers,
        shuffle=True,
        seed=5,
        transform=noisy,
        executor=executor,
    )


def text_of(batch: Any) -> tuple[list[str], bytes]:
    return list(batch.tags), batch["x"].tobytes()


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    """What two epochs are, without workers."""
    with open_loader(0) as loader:
        return [text_of(batch) for epoch in loader.epochs(1, 2) for batch in epoch]


@examples(5)
@given(
    executor=st.sampled_from(["thread", "process"]),
    num_workers=st.integers(1, 3),
    changes=st.dictionaries(st.integers(0, 59), st.integers(1, 4), max_size=4),
    stop=st.integers(1, 59),
)
def test_a_state_that_was_saved_among_resizes_goes_on_exactly(
    whole: list[Any], executor: str, num_workers: int, changes: dict[int, int], stop: int
) -> None:
    found: list[Any] = []
    with open_loader(num_workers, executor) as loader:
        for epoch in loader.epochs(1, 2):
            for batch in epoch:
                found.append(text_of(batch))
                if len(found) in changes:
                    loader.resize(changes[len(found)])
                    assert f"workers:  {changes[len(found)]}," in loader.explain()
                if len(found) == stop:
                    break
            if len(found) == stop:
                break
        state = loader.state_dict()
    with open_loader(0) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        found += [text_of(batch) for epoch in loader.epochs(last=2) for batch in epoch]
    assert found == whole


class Stream:
    def __iter__(self) -> Any:
        return iter(ITEMS)


def test_where_nobody_can_come_or_go_resize_says_so() -> None:
    with open_loader(0) as loader, pytest.raises(ConfigError, match="the consumer's own thread does the work"):
        loader.resize(2)
    with open_loader(1, "inline") as loader, pytest.raises(ConfigError, match="own thread"):
        loader.resize(2)
    with open_loader(2) as loader, pytest.raises(ConfigError, match="num_workers"):
        loader.resize(0)
    with pytest.raises(HeadraceError, match="closed"):
        loader.resize(2)
    stream = Stream()
    with (
        hr.DataLoader(stream, batch_size=2, num_workers=2, transform=noisy) as loader,
        pytest.raises(ConfigError, match="one worker reads this stream"),
    ):
        loader.resize(3)


def setup_of_streams(info: hr.WorkerInfo) -> Any:
    return lambda num_items: iter([(info.worker_idx, item) for item in range(num_items)])


def test_a_run_of_streams_keeps_its_workers_and_the_next_one_has_others() -> None:
    with Engine(Job(setup_of_streams), num_workers=2, executor="thread") as engine:
        run = engine.run_stream(3)
        assert next(run).value == (0, 0)
        with pytest.raises(ConfigError, match="a stream of its own"):
            engine.resize(3)
        assert engine.num_workers == 2
        assert [delivered.value for delivered in run] == [(1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
        engine.resize(3)
        found = [delivered.value for delivered in engine.run_stream(2)]
        assert found == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_the_memory_of_a_worker_that_was_let_go_is_given_back(
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    def arenas() -> int:
        names = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        return len(names)

    with Engine(Job(lambda info: array_of), num_workers=1) as engine:
        list(engine.run(range(50)))
        gc.collect()
        before = arenas()
        for _ in range(3):
            engine.resize(4)
            list(engine.run(range(50)))
            engine.resize(1)
            kept = [delivered.value for delivered in engine.run(range(50))]
            assert (kept[49] == array_of(49)).all()
            del kept

        def is_given_back() -> bool:
            list(engine.run(range(50)))
            gc.collect()
            return arenas() <= before + 1

        wait_until(is_given_back, "descriptors of workers that were let go are left")


def test_a_multi_proc_dataset_is_resized_in_mid_epoch() -> None:
    config = {"class": "StaticDataset", "data": ITEMS, "seq_ordering": "random"}
    with hr.init_dataset(config) as plain:
        expected = [(seq.tag, seq["x"].tobytes()) for seq in plain.epoch(1)]
    with hr.MultiProcDataset(config, num_workers=1, buffer_size=2) as corpus:
        corpus.initialize()
        found = []
        for seq in corpus.epoch(1):
            found.append((seq.tag, seq["x"].tobytes()))
            if len(found) in (5, 20, 40):
                corpus.resize(len(found) // 10 + 1)
                assert corpus.num_workers == len(found) // 10 + 1
        assert found == expected
    with hr.MultiProcDataset(config, num_workers=2, buffer_size=2, sharding_method="dedicated") as corpus:
        corpus.initialize()
        with pytest.raises(ConfigError, match="share of its own"):
            corpus.resize(3)
