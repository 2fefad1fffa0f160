"""What a loader writes down for itself never ends a run: bounded snapshots, and groups that fit into the memory."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.dataloader2.plain_data import NotPlainError, to_json
from headrace.dataloader2.replica import TooManyBytesError, pickle_bounded
from headrace.errors import CacheError
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")

MAX_BYTES = 4 << 20


def _sum_of(item: Any) -> int:
    parts = item if isinstance(item, list) else [item]
    return sum(int(part[0]) + len(part) for part in parts)


def _graph(seed: int, sizes: list[int], buffers: list[tuple[str, int]], num_items: int) -> Any:
    def make(number: int) -> Any:
        draw = np.random.default_rng((seed, number))
        _ = draw.random(3000).sum()  # some work, so that snapshots are due
        return np.full(sizes[int(draw.integers(len(sizes)))], number % 256, np.uint8)

    pipe = IterableWrapper(range(num_items)).sharding_filter().map(make)
    for kind, size in buffers:
        if kind == "shuffle":
            pipe = pipe.shuffle(buffer_size=size)
        elif kind == "prefetch":
            pipe = pipe.prefetch(size)
        else:
            left, right = pipe.fork(2, buffer_size=-1)
            pipe = left.concat(right)
    return pipe.map(_sum_of)


@pytest.mark.filterwarnings("ignore:Unlimited buffer size")
@examples(6)
@given(
    seed=st.integers(0, 99),
    sizes=st.lists(st.sampled_from([1, 1000, 60_000, 300_000]), min_size=1, max_size=3),
    buffers=st.lists(
        st.tuples(st.sampled_from(["shuffle", "prefetch", "fork"]), st.sampled_from([2, 60, 400])), max_size=2
    ),
    num_read=st.integers(1, 500),
)
def test_buffers_of_any_size_give_the_same_stream_and_states(
    seed: int, sizes: list[int], buffers: list[tuple[str, int]], num_read: int
) -> None:
    def loader() -> DataLoader2[Any]:
        service = MultiProcessingReadingService(1, max_bytes=MAX_BYTES)
        made: DataLoader2[Any] = DataLoader2(_graph(seed, sizes, buffers, 500), reading_service=service)
        made.seed(seed)
        return made

    with DataLoader2(_graph(seed, sizes, buffers, 500)) as here:
        here.seed(seed)
        expected = sorted(here)
    with loader() as whole:
        iterator = iter(whole)
        begun = list(itertools.islice(iterator, num_read))
        state = json.loads(json.dumps(whole.state_dict()))
        rest = list(iterator)
    assert sorted(begun + rest) == expected
    assert len(json.dumps(state)) < 2 * MAX_BYTES
    with loader() as again:
        again.load_state_dict(state)
        assert list(again) == rest


@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_group_of_items_that_became_large_all_at_once_is_made_of_fewer(is_dispatched: bool) -> None:
    sizes = [10] * 3000 + [MAX_BYTES // 4] * 20 + [10] * 100
    pipe: Any = IterableWrapper(sizes)
    if is_dispatched:
        pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    pipe = pipe.map(lambda size: np.full(size, 7, np.uint8))
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, max_bytes=MAX_BYTES)) as loader:
        assert [array.size for array in loader] == sizes


def test_an_item_that_is_alone_too_large_is_an_error_behind_those_before_it() -> None:
    sizes = [10] * 500 + [2 * MAX_BYTES]
    pipe = IterableWrapper(sizes).map(lambda size: np.full(size, 7, np.uint8))
    found = []
    with (
        DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, max_bytes=MAX_BYTES)) as loader,
        pytest.raises(CacheError, match="an item needs"),
    ):
        found.extend(array.size for array in loader)
    assert found == [10] * 500


@given(
    st.lists(st.integers(0, 5000), max_size=30), st.integers(0, 60_000), st.sampled_from([bytes, np.zeros, "x".__mul__])
)
def test_a_pickle_is_whole_or_is_refused_before_it_is_larger_than_it_may_be(
    sizes: list[int], max_bytes: int, make: Any
) -> None:
    value = [make(size) for size in sizes]
    try:
        data = pickle_bounded(value, max_bytes)
    except TooManyBytesError:
        # A guess from a few items, and then what was counted: both are near the truth.
        assert 17 * len(pickle.dumps(value, 5)) >= max_bytes
    else:
        assert len(data) <= max_bytes
        assert [len(part) for part in pickle.loads(data)] == sizes


def test_a_state_has_a_limit() -> None:
    assert to_json([b"12345678"] * 3, 100)
    with pytest.raises(NotPlainError, match="more than"):
        to_json([b"12345678"] * 7, 100)


NUM_ITEMS, NUM_HELD, ITEM_BYTES = 2400, 50, 20_000  # as 10,000 of 200 kB are to what workers have by default


class _Make:
    """Makes large items in a time that is known."""

    def __init__(self, draws: bool) -> None:
        self._draws = draws

    def __call__(self, number: int) -> Any:
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:
            pass
        array = np.full(ITEM_BYTES, number % 256, np.uint8)
        array[:8].view(np.int64)[0] = number
        array[8] = np.random.randint(256) if self._draws else 0
        return array


class _DieOnce:
    """Kills its process when it sees some item for the first time."""

    def __init__(self, folder: Path) -> None:
        self._flag = folder / "has died"

    def __call__(self, item: Any) -> Any:
        if not self._flag.exists() and (item[..., :8].view(np.int64) == 2000).any():
            self._flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item[..., :9].tolist()


def _after_a_shuffle(pipe: Any) -> Any:
    return pipe.shuffle(buffer_size=NUM_HELD)


def _after_batches_of_shuffles(pipe: Any) -> Any:
    return pipe.shuffle(buffer_size=NUM_HELD).batch(3).collate().shuffle(buffer_size=2).prefetch(2)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("hold", "draws"), [(_after_a_shuffle, False), (_after_a_shuffle, True), (_after_batches_of_shuffles, False)]
)
def test_large_items_stay_the_same_after_a_death_and_a_resume(
    tmp_path: Path, snapshot_each_group: Any, hold: Any, draws: bool
) -> None:
    def large_items() -> DataLoader2[Any]:
        made = IterableWrapper(range(NUM_ITEMS)).sharding_filter().map(_Make(draws))
        service = MultiProcessingReadingService(2, max_bytes=4 << 20, worker_init_fn=snapshot_each_group)
        loader: DataLoader2[Any] = DataLoader2(hold(made).map(_DieOnce(tmp_path)), reading_service=service)
        loader.seed(5)
        return loader

    with large_items() as killed:
        found = list(killed)
        assert killed.reading_service.report.num_restarts == 1
    with large_items() as whole:
        iterator = iter(whole)
        begun = list(itertools.islice(iterator, len(found) * 5 // 6))
        state = json.dumps(whole.state_dict())
        assert begun + list(iterator) == found
    with large_items() as again:
        again.load_state_dict(json.loads(state))
        assert list(again) == found[len(begun) :]


class _Locked:
    """An item that cannot be written down."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()


def test_a_stream_whose_items_in_hand_cannot_be_pickled_continues_where_it_was(snapshot_each_group: Any) -> None:
    def graph() -> Any:
        pipe = IterableWrapper(range(NUM_ITEMS)).map(_Locked)
        return pipe.shuffle(buffer_size=NUM_HELD).map(lambda item: item.number)

    service = MultiProcessingReadingService(1, worker_init_fn=snapshot_each_group)
    with DataLoader2(graph(), reading_service=service) as whole:
        whole.seed(5)
        iterator = iter(whole)
        list(itertools.islice(iterator, 2000))
        state = json.loads(json.dumps(whole.state_dict()))
        rest = list(iterator)
    with DataLoader2(graph(), reading_service=service) as again:
        again.load_state_dict(state)
        assert list(again) == rest
