"""An executor of somebody else's: its name is known to nobody, so where it runs is all that may be asked."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from headrace import DataLoader, FixedCount, MapDataset, MultiProcDataset, StaticDataset
from headrace.engine import Engine, Executor, Job, make_executor
from headrace.engine.local.inline import InlineExecutor
from headrace.engine.local.thread import ThreadExecutor
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError
from headrace.testing import check_executor

pytestmark = pytest.mark.usefixtures("warm_workers")


class PoolExecutor(ThreadExecutor):
    name = "pool"


class HereExecutor(InlineExecutor):
    name = "here"


class ElsewhereExecutor(ProcessExecutor):
    name = "elsewhere"


OWN = [PoolExecutor, HereExecutor, ElsewhereExecutor]


@pytest.mark.parametrize("name", ["inline", "thread", "process"])
def test_executors_of_headrace_keep_their_promises(name: str) -> None:
    check_executor(lambda: make_executor(name), num_workers=2)


class Forgetting(ThreadExecutor):
    """Loses each hundredth answer."""

    num = 0

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: object) -> None:
        type(self).num += 1
        super().submit(worker_idx, run_id, ticket, payload if self.num % 100 else 7)


class Staying(ThreadExecutor):
    """Leaves a thread behind."""

    def close(self) -> None:
        super().close()
        if not STAY.is_set() and not any(thread.name == "staying" for thread in threading.enumerate()):
            threading.Thread(target=STAY.wait, name="staying", daemon=True).start()


STAY = threading.Event()


class Pretending(ThreadExecutor):
    """Says that it runs elsewhere."""

    runs_in = "process"

    def start(self, job: Job, num_workers: int) -> None:
        self.runs_in = "thread"  # type: ignore[misc]
        super().start(job, num_workers)
        self.runs_in = "process"  # type: ignore[misc]


@pytest.mark.parametrize(("broken", "words"), [(Forgetting, "results"), (Pretending, "run there")])
def test_a_broken_promise_is_found(broken: type[Executor], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_executor(broken)


def test_a_thread_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.executor_checks._END_SECONDS", 0.1)
    try:
        with pytest.raises(AssertionError, match="staying"):
            check_executor(Staying)
    finally:
        STAY.set()


def _stream(start: int):
    class Numbers:
        def __iter__(self):
            return iter([{"x": np.full(2, number)} for number in range(start, start + 17)])

    return Numbers()


def _draw(features, rng):
    return {"x": features["x"] + rng.random() + np.random.default_rng(0).random() + np.random.random()}


SUBJECTS = {
    "items": lambda: [{"x": np.full(2, float(number))} for number in range(17)],
    "dataset": lambda: StaticDataset([{"data": np.full((2, 1), float(number))} for number in range(17)]),
    "iterable": lambda: _stream(3),
    "config": lambda: {
        "class": "MultiProcDataset",
        "dataset": {"class": "StaticDataset", "data": [{"data": np.full((2, 1), float(n))} for n in range(17)]},
        "num_workers": 0,
        "buffer_size": 4,
    },
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("executor", OWN)
def test_the_stream_is_that_of_no_workers_whatever_the_executor_is_called(
    subject: str, executor: type[Executor]
) -> None:
    def batches(**workers):
        with DataLoader(SUBJECTS[subject](), batching=FixedCount(3), seed=3, **workers) as loader:
            return [{key: np.array(value) for key, value in batch.items()} for _ in range(2) for batch in loader]

    expected = batches(num_workers=0)
    found = batches(num_workers=3, executor=executor())
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert {key: value.tolist() for key, value in left.items()} == {
            key: value.tolist() for key, value in right.items()
        }


class OnlyOnce(MapDataset):
    """Cannot be copied."""

    def __copy__(self):
        raise TypeError("it holds a connection")

    def __reduce__(self):
        raise TypeError("it holds a connection")


@pytest.mark.parametrize("executor", [ThreadExecutor, PoolExecutor])
def test_threads_of_any_name_never_share_a_dataset(executor: type[Executor]) -> None:
    items = [{"data": np.full(1, number)} for number in range(9)]
    loader = DataLoader(OnlyOnce(items), batching=FixedCount(2), num_workers=2, executor=executor())
    with loader, pytest.raises(TypeError, match="holds a connection"):
        list(loader)


@pytest.mark.sample(2)
@pytest.mark.parametrize("executor", OWN)
def test_global_generators_are_left_alone_where_threads_share_them(executor: type[Executor]) -> None:
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    items = [{"x": np.zeros(2)} for _ in range(9)]
    with DataLoader(items, batch_size=2, num_workers=2, executor=executor(), transform=_draw) as loader:
        assert len(list(loader)) == 5
    if executor is not PoolExecutor:  # whose threads draw from the trainer's own
        assert np.random.random() == expected


@pytest.mark.parametrize("executor", [ThreadExecutor, ProcessExecutor, PoolExecutor])
def test_one_executor_carries_one_engine(executor: type[Executor]) -> None:
    shared, job = executor(), Job(lambda info: abs)
    with Engine(job, num_workers=1, executor=shared) as first:
        with pytest.raises(ConfigError, match="another engine"):
            Engine(job, num_workers=1, executor=shared)
        assert [done.value for done in first.run([-1])] == [1]
    with Engine(job, num_workers=1, executor=shared) as second:  # the first was closed
        assert [done.value for done in second.run([-2])] == [2]
    with pytest.raises(ConfigError, match="another engine"):
        (Engine(job, num_workers=1, executor=shared), Engine(job, num_workers=1, executor=shared))


@pytest.mark.parametrize("executor", [PoolExecutor, ElsewhereExecutor])
def test_multi_proc_takes_an_executor_of_ones_own(executor: type[Executor]) -> None:
    config = {"class": "StaticDataset", "data": [{"data": np.full((2, 1), float(n))} for n in range(9)]}
    with MultiProcDataset(config, num_workers=2, buffer_size=4, executor=executor()) as corpus:
        corpus.initialize()
        assert [seq["data"][0, 0] for seq in corpus.epoch(1)] == list(range(9))
