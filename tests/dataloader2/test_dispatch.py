"""The dispatching process: each item once over all workers, in a fixed order, wherever the dispatch points are."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

from headrace.dataloader2 import (
    DataLoader2,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
    WorkerInfo,
)
from headrace.errors import ConfigError, TransformError
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")

FOR_WORKERS = SHARDING_PRIORITIES.MULTIPROCESSING


def dispatched(source: Any) -> Any:
    return source.sharding_round_robin_dispatch(FOR_WORKERS)


def loader_of(datapipe: Any, num_workers: int, **options: Any) -> DataLoader2[Any]:
    return DataLoader2(datapipe, reading_service=MultiProcessingReadingService(num_workers, **options))


@pytest.mark.sample(3)
@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [10, 0])
def test_items_are_dealt_out_in_turn_and_come_in_the_order_of_the_source(num_workers: int, prefetch: int) -> None:
    pipe = dispatched(IterableWrapper(range(50))).map(lambda number: (number, os.getpid()))
    with loader_of(pipe, num_workers, worker_prefetch_cnt=prefetch, main_prefetch_cnt=prefetch) as loader:
        for _ in range(2):
            found = list(loader)
            assert [number for number, _ in found] == list(range(50))
            assert len({pid for _, pid in found}) == num_workers


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_items", [0, 1, 3])
def test_there_may_be_fewer_items_than_workers(num_items: int) -> None:
    with loader_of(dispatched(IterableWrapper(range(num_items))).map(abs), 4) as loader:
        assert list(loader) == list(range(num_items))


def test_a_dispatch_point_at_the_very_end_leaves_workers_that_hand_on() -> None:
    with loader_of(dispatched(IterableWrapper(range(20)).map(lambda n: (n, os.getpid()))), 2) as loader:
        found = list(loader)
    assert [number for number, _ in found] == list(range(20))
    assert len({pid for _, pid in found}) == 1
    assert os.getpid() not in {pid for _, pid in found}


def test_several_dispatch_points_run_up_to_where_they_meet() -> None:
    left = dispatched(IterableWrapper(range(10))).map(lambda n: ("l", n))
    right = dispatched(IterableWrapper(range(10))).map(lambda n: ("r", n))
    with loader_of(left.zip(right).map(lambda pair: (*pair, os.getpid())), 2) as loader:
        found = list(loader)
    assert [(a, b) for a, b, _ in found] == [(("l", n), ("r", n)) for n in range(10)]
    assert len({pid for *_, pid in found}) == 2


def test_a_dispatched_branch_joins_one_that_is_sharded() -> None:
    dealt = dispatched(IterableWrapper(range(10)))
    filtered = IterableWrapper(range(10)).sharding_filter()
    with loader_of(dealt.zip(filtered), 2) as loader:
        assert list(loader) == [(n, n) for n in range(10)]


def test_a_sharding_filter_behind_a_dispatch_point_is_inert() -> None:
    with loader_of(dispatched(IterableWrapper(range(10))).sharding_filter(), 2) as loader:
        assert list(loader) == list(range(10))


def test_the_shuffle_in_the_dispatching_process_does_not_depend_on_the_workers() -> None:
    epochs = []
    for num_workers in (1, 2, 3):
        with loader_of(dispatched(IterableWrapper(range(40)).shuffle()).map(abs), num_workers) as loader:
            loader.seed(11)
            epochs.append([list(loader), list(loader)])
    assert epochs[0] == epochs[1] == epochs[2]
    assert epochs[0][0] != epochs[0][1]
    assert sorted(epochs[0][0]) == list(range(40))


def test_a_worker_that_drops_all_of_its_items_starves_nobody() -> None:
    pipe = dispatched(IterableWrapper(range(5000))).map(lambda n: (n, np.zeros(100, np.uint8)))
    with loader_of(pipe.filter(lambda item: item[0] % 2 == 1 or item[0] == 4998), 2) as loader:
        assert [number for number, _ in loader] == [4998, *range(1, 5000, 2)]


def test_a_lagging_worker_gets_its_items_all_the_same() -> None:
    def slow_in_worker_0(number: int) -> int:
        return number if number % 2 else sum(range(3000)) * 0 + number

    with loader_of(dispatched(IterableWrapper(range(4000))).map(slow_in_worker_0), 2) as loader:
        assert list(loader) == list(range(4000))


def test_large_and_odd_items_come_through_as_they_are() -> None:
    def make(number: int) -> dict[str, Any]:
        return {"array": np.full(100_000 if number % 3 == 0 else 10, number), "odd": {number}, "bytes": b"x" * number}

    with loader_of(dispatched(IterableWrapper(range(40)).map(make)).map(lambda item: item), 2) as loader:
        for number, item in enumerate(loader):
            assert item["array"].size == (100_000 if number % 3 == 0 else 10)
            assert (item["array"] == number).all()
            assert (item["odd"], item["bytes"]) == ({number}, b"x" * number)


@pytest.mark.parametrize("num_read", [0, 1, 25])
def test_an_epoch_may_be_left_and_the_next_one_is_whole(num_read: int) -> None:
    with loader_of(dispatched(IterableWrapper(range(3000))).map(abs), 2) as loader:
        for _ in range(3):
            iterator = iter(loader)
            assert [next(iterator) for _ in range(num_read)] == list(range(num_read))
        assert list(loader) == list(range(3000))


def test_reset_functions_of_workers_and_limits_work_with_a_dispatching_process() -> None:
    def reset(datapipe: Any, info: WorkerInfo, seeds: Any) -> Any:
        del info, seeds
        datapipe.fn = lambda number: -number
        return datapipe

    pipe = dispatched(IterableWrapper(range(10))).map(abs)
    with loader_of(pipe, 2, worker_reset_fn=reset) as loader:
        iterator = iter(loader)
        iterator.limit(3)
        parts = [list(iterator)]
        while parts[-1]:
            iterator.resume()
            iterator.limit(4)
            parts.append(list(iterator))
            if len(parts[-1]) < 4:
                break
    assert parts == [[0, -1, -2], [-3, -4, -5, -6], [-7, -8, -9]]


class _FirstEpochOnly(ReadingServiceInterface):
    """A service that changes the graphs elsewhere in the first epoch, and not in later ones."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def initialize(self, datapipe: Any) -> Any:
        return datapipe

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        change, self.change = self.change, iter_reset_fn
        return change


def test_a_graph_that_an_outer_service_has_changed_for_one_epoch_is_as_before_in_the_next() -> None:
    service = SequentialReadingService(
        _FirstEpochOnly(lambda datapipe: datapipe.map(lambda number: number + 100)), MultiProcessingReadingService(2)
    )
    with DataLoader2(dispatched(IterableWrapper(range(6))).map(abs), reading_service=service) as loader:
        assert list(loader) == list(range(200, 206))  # once in the dispatching process, once in a worker
        assert list(loader) == list(range(6))


def test_to_read_dispatched_items_twice_is_refused_and_before_the_dispatch_point_it_works() -> None:
    with (
        loader_of(dispatched(IterableWrapper(range(4))).map(abs).cycle(2), 2) as loader,
        pytest.raises(ConfigError, match="a second time in one epoch"),
    ):
        list(loader)
    with loader_of(dispatched(IterableWrapper(range(4)).cycle(2)).map(abs), 2) as loader:
        assert list(loader) == [0, 1, 2, 3] * 2


def test_the_length_is_known_behind_a_dispatch_point() -> None:
    with loader_of(dispatched(IterableWrapper(range(11))).map(abs), 3) as loader:
        iter(loader)
        assert len(loader) == 11


def test_what_comes_before_an_item_that_cannot_be_sent_is_not_lost() -> None:
    source = IterableWrapper(range(30)).map(lambda number: threading.Lock() if number == 13 else number)
    items: list[Any] = []
    with loader_of(dispatched(source), 2) as loader, pytest.raises(TransformError, match="cannot be sent"):
        items.extend(iter(loader))
    assert items == list(range(13))
