"""`MultiProcessingReadingService`: order, shares, seeds, user functions, and what is given to the loop."""

from __future__ import annotations

import collections
import os
import random
from typing import Any

import numpy as np
import pytest

from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService, WorkerInfo
from headrace.errors import ConfigError
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")


def workers(num_workers: int, **options: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(num_workers, **options)


def items_of(datapipe: Any, num_workers: int, **options: Any) -> list[Any]:
    with DataLoader2(datapipe, reading_service=workers(num_workers, **options)) as loader:
        return list(loader)


@pytest.mark.sample(3)
@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [(10, 10), (0, 0), (1, 3)])
def test_filter_sharding_keeps_the_sequential_order(num_workers: int, prefetch: tuple[int, int]) -> None:
    pipe = IterableWrapper(range(53)).sharding_filter().map(lambda number: number * 2)
    counts = {"worker_prefetch_cnt": prefetch[0], "main_prefetch_cnt": prefetch[1]}
    assert items_of(pipe, num_workers, **counts) == [number * 2 for number in range(53)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("of_worker", "of_main", "least"), [(0, 0, 1), (1, 0, 1), (0, 6, 4), (1, 5, 4)], ids=lambda number: str(number)
)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_make_the_next_items_while_the_loop_works_on_one(
    of_worker: int, of_main: int, least: int, num_workers: int, tmp_path: Any, wait_until: Any
) -> None:
    def make(number: int) -> int:
        (tmp_path / str(number)).touch()
        return number

    pipe = IterableWrapper(range(100)).sharding_filter().map(make)
    service = workers(num_workers, worker_prefetch_cnt=of_worker, main_prefetch_cnt=of_main)
    with DataLoader2(pipe, reading_service=service) as loader:
        iterator = iter(loader)
        for _ in range(10):
            next(iterator)
        wait_until(lambda: len(list(tmp_path.iterdir())) >= 10 + least, "the workers wait for the loop")


@pytest.mark.parametrize("num_items", [0, 1, 2])
def test_there_may_be_more_workers_than_items(num_items: int) -> None:
    assert items_of(IterableWrapper(range(num_items)).sharding_filter(), 4) == list(range(num_items))


@pytest.mark.parametrize("num_workers", [2, 3])
def test_workers_with_uneven_counts_take_turns_and_ended_ones_are_passed_over(num_workers: int) -> None:
    lengths = [0, 7, 1, 0, 40, 3, 12]
    pipe = IterableWrapper(lengths).sharding_filter().flatmap(lambda length: [(length, i) for i in range(length)])
    shares = [
        [(length, i) for length in lengths[worker_id::num_workers] for i in range(length)]
        for worker_id in range(num_workers)
    ]
    expected = [share[column] for column in range(max(map(len, shares))) for share in shares if column < len(share)]
    assert items_of(pipe, num_workers) == expected


def test_a_worker_whose_items_are_all_filtered_out_is_passed_over() -> None:
    pipe = IterableWrapper(range(400)).sharding_filter().filter(lambda number: number % 2 == 1)
    assert items_of(pipe, 2) == list(range(1, 400, 2))


def test_a_graph_that_shards_nowhere_warns_and_gives_all_items_of_each_worker() -> None:
    with pytest.warns(UserWarning, match="every item is delivered 2 times"):
        found = items_of(IterableWrapper(range(5)), 2)
    assert found == [number for number in range(5) for _ in range(2)]


def test_one_seed_gives_the_same_epochs_again_and_its_epochs_differ() -> None:
    pipe = IterableWrapper(range(60)).shuffle().sharding_filter()
    with DataLoader2(pipe, reading_service=workers(2)) as loader:
        loader.seed(7)
        first = [list(loader), list(loader)]
        loader.seed(7)
        assert [list(loader), list(loader)] == first
        loader.seed(8)
        assert list(loader) != first[0]
    assert first[0] != first[1]
    assert all(sorted(epoch) == list(range(60)) for epoch in first)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.filterwarnings("ignore:num_workers=0")
def test_a_shuffle_before_the_shards_does_not_depend_on_the_workers(num_workers: int) -> None:
    pipe = IterableWrapper(range(40)).shuffle().sharding_filter()
    with DataLoader2(pipe) as loader:
        loader.seed(3)
        expected = [list(loader), list(loader)]
    with DataLoader2(pipe, reading_service=workers(num_workers)) as loader:
        loader.seed(3)
        assert [list(loader), list(loader)] == expected


def test_old_epoch_seeding_repeats_the_epoch() -> None:
    pipe = IterableWrapper(range(60)).shuffle().sharding_filter()
    with DataLoader2(pipe, reading_service=workers(2), epoch_seeding="same") as loader:
        loader.seed(7)
        assert list(loader) == list(loader)


def _noise(number: int) -> tuple[int, float, float]:
    return number, random.random(), float(np.random.random())


def test_workers_have_generators_of_their_own_which_the_seed_fixes() -> None:
    pipe = IterableWrapper(range(10)).sharding_filter().map(_noise)
    epochs = []
    for _ in range(2):
        with DataLoader2(pipe, reading_service=workers(2)) as loader:
            loader.seed(5)
            epochs.append([list(loader), list(loader)])
    assert epochs[0] == epochs[1]
    assert len({noise for epoch in epochs[0] for noise in epoch}) == 20


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
@pytest.mark.filterwarnings("ignore:num_workers=0")
def test_keyed_randomness_does_not_depend_on_the_workers(num_workers: int) -> None:
    pipe = IterableWrapper(range(30)).shuffle().sharding_filter().map(_noise)
    epochs = []
    for count in (2, num_workers):
        random.seed(0)
        np.random.seed(0)
        before = random.getstate()
        with DataLoader2(pipe, reading_service=workers(count, keyed_randomness=True)) as loader:
            loader.seed(5)
            epochs.append([list(loader), list(loader)])
        assert random.getstate() == before
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1]


def test_the_users_global_generators_are_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    pipe = IterableWrapper(range(10)).shuffle().sharding_filter()
    assert sorted(items_of(pipe, 2)) == list(range(10))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def _tagging_init(datapipe: Any, info: WorkerInfo) -> Any:
    assert info == WorkerInfo(2, info.worker_id)
    return datapipe.map(lambda item: (info.worker_id, item))


def test_init_and_reset_functions_get_their_arguments_and_may_change_the_graph() -> None:
    def reset(datapipe: Any, info: WorkerInfo, seeds: Any) -> Any:
        drawn = seeds.generate_seed(), seeds.generate_shared_seed()
        wrapped = getattr(datapipe, "wrapped", datapipe)
        new = wrapped.map(lambda item: (info.worker_id, drawn, item))
        new.wrapped = wrapped
        return new

    options = {"worker_init_fn": _tagging_init, "worker_reset_fn": reset}
    pipe = IterableWrapper(range(6)).sharding_filter()
    with DataLoader2(pipe, reading_service=workers(2, **options)) as loader:
        epochs = [list(loader), list(loader)]
    for epoch in epochs:
        assert [item for *_, item in epoch] == [(number % 2, number) for number in range(6)]
        locals_, shared = zip(*[drawn for _, drawn, _ in epoch], strict=True)
        assert (len(set(locals_)), len(set(shared))) == (2, 1)
    assert epochs[0][0][1] != epochs[1][0][1]


def test_lambdas_and_local_classes_reach_the_workers_and_come_back() -> None:
    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

    found = items_of(IterableWrapper(range(6)).sharding_filter().map(lambda number: Local(number)), 2)
    assert [item.number for item in found] == list(range(6))
    assert {type(item) for item in found} == {Local}


def test_arrays_bytes_and_plain_objects_come_as_they_were_made() -> None:
    def make(number: int) -> dict[str, Any]:
        large = np.full(200_000, number, np.float32)
        return {"large": large, "bytes": bytes([number]) * 100_000, "set": {number}, "none": None}

    for number, item in enumerate(items_of(IterableWrapper(range(7)).sharding_filter().map(make), 2)):
        assert item["large"].dtype == np.float32
        assert (item["large"] == number).all()
        assert item["bytes"] == bytes([number]) * 100_000
        assert (item["set"], item["none"]) == ({number}, None)


def test_items_are_made_in_the_workers_and_each_worker_lives_over_epochs() -> None:
    pipe = IterableWrapper(range(20)).sharding_filter().map(lambda _: os.getpid())
    with DataLoader2(pipe, reading_service=workers(2)) as loader:
        first, second = list(loader), list(loader)
    assert first == second
    assert len(set(first)) == 2
    assert os.getpid() not in first


def test_a_loop_may_be_left_and_the_next_epoch_is_whole() -> None:
    pipe = IterableWrapper(range(1000)).sharding_filter()
    with DataLoader2(pipe, reading_service=workers(2)) as loader:
        for num_read in (1, 0, 37, 999):
            iterator = iter(loader)
            assert [next(iterator) for _ in range(num_read)] == list(range(num_read))
        assert list(loader) == list(range(1000))


def test_an_endless_pipe_can_be_read_and_left() -> None:
    pipe = IterableWrapper(range(3)).cycle().sharding_filter()
    with DataLoader2(pipe, reading_service=workers(2)) as loader:
        found = [item for item, _ in zip(loader, range(100), strict=False)]
    assert found == [number % 3 for number in range(100)]


def test_the_length_is_known_where_the_pipes_know_it() -> None:
    pipe = IterableWrapper(range(11)).sharding_filter().batch(2)
    with DataLoader2(pipe, reading_service=workers(3)) as loader:
        assert len(loader) == 6  # before the workers are there
        assert len(list(loader)) == len(loader) == 6  # each worker ends with a short batch
    with DataLoader2(pipe.filter(lambda _: True), reading_service=workers(3)) as loader, pytest.raises(TypeError):
        len(loader)


@pytest.mark.sample(2)
@pytest.mark.parametrize("context", ["spawn", "forkserver", None])
def test_all_documented_start_methods_work(context: str | None) -> None:
    pipe = IterableWrapper(range(9)).sharding_filter().map(lambda number: -number)
    assert items_of(pipe, 2, multiprocessing_context=context) == [-number for number in range(9)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"worker_prefetch_cnt": -1}, "worker_prefetch_cnt"),
        ({"main_prefetch_cnt": 1.5}, "main_prefetch_cnt"),
        ({"multiprocessing_context": "thread"}, "start method"),
        ({"multiprocessing_context": "fork"}, "omit 'fork'"),
        ({"multiprocessing_context": 7}, "multiprocessing_context"),
        ({"worker_init_fn": 7}, "worker_init_fn"),
    ],
)
def test_wrong_options_are_refused_when_the_service_is_made(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MultiProcessingReadingService(**{"num_workers": 1, **options})


def test_pipes_that_cannot_be_replicated_stay_in_the_main_process_behind_the_prefetcher() -> None:
    from headrace.pipes import IterPipe
    from headrace.pipes.core.base import read

    class Here(IterPipe):
        def __init__(self, datapipe: Any) -> None:
            self.datapipe = datapipe

        def is_replicable(self) -> bool:
            return False

        def __iter__(self):
            for item in read(self.datapipe):
                yield item, os.getpid()

    pipe = Here(IterableWrapper(range(9)).sharding_filter().map(lambda number: (number, os.getpid())))
    with DataLoader2(pipe.map(lambda item: item), reading_service=workers(2)) as loader:
        for _ in range(2):
            found = list(loader)
            assert [number for (number, _), _ in found] == list(range(9))
            assert {pid for _, pid in found} == {os.getpid()}
            assert os.getpid() not in {pid for (_, pid), _ in found}
        assert collections.Counter(pid for (_, pid), _ in found).most_common(1)[0][1] == 5


class _WithoutSize:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("not known")


def test_items_whose_size_cannot_be_told_come_all_the_same() -> None:
    pipe = IterableWrapper(range(3)).sharding_filter().map(lambda _: _WithoutSize())
    assert [type(item).__name__ for item in items_of(pipe, 2)] == ["_WithoutSize"] * 3


def test_what_a_reset_function_returns_is_of_one_epoch() -> None:
    pipe = IterableWrapper(range(4)).sharding_filter()
    service = workers(2, worker_reset_fn=lambda datapipe, *_: datapipe.map(lambda number: number + 10))
    with DataLoader2(pipe, reading_service=service) as loader:
        assert [list(loader) for _ in range(3)] == [[10, 11, 12, 13]] * 3


class _Stop(BaseException):
    """Of a user who wants no handler to catch it."""


def _stop_at_three(number: int) -> int:
    if number == 3:
        raise _Stop("three")
    return number


def test_what_is_no_exception_is_told_with_its_traceback_too() -> None:
    pipe = IterableWrapper(range(6)).sharding_filter().map(_stop_at_three)
    with DataLoader2(pipe, reading_service=workers(2)) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RuntimeError, match="Caught _Stop in worker process 1"):
            next(iterator)


@pytest.mark.sample(2)
@pytest.mark.parametrize("is_dispatched", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_items_that_are_all_in_one_array_come_as_they_were_given(is_dispatched: bool, num_workers: int) -> None:
    buffer = np.zeros(3, np.int64)

    def fill(number: int) -> Any:
        buffer[:] = number
        return {"data": buffer, "number": number}

    pipe = IterableWrapper(range(700))
    pipe = (
        pipe.map(fill).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        if is_dispatched
        else pipe.sharding_filter().map(fill)
    )
    found = items_of(pipe, num_workers)
    assert [item["number"] for item in found] == list(range(700))
    assert [item["data"].tolist() for item in found] == [[number] * 3 for number in range(700)]
