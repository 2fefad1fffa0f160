"""`DataLoader2` and its iterator: the documented surface, without workers."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.dataloader2 import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    PauseIteration,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
    WorkerInfo,
)
from headrace.dataloader2.adapter import CacheTimeout, Shuffle
from headrace.dataloader2.graph import find_dps, list_dps, traverse_dps
from headrace.dataloader2.linter import _check_shuffle_before_sharding
from headrace.dataloader2.random import SeedGenerator
from headrace.errors import ConfigError
from headrace.pipes import IterPipe
from headrace.pipes.iter import IterableWrapper, Mapper, Shuffler
from headrace.pipes.map import SequenceWrapper

pytestmark = pytest.mark.usefixtures("warm_workers")


def test_the_names_are_at_the_top_too() -> None:
    assert headrace.DataLoader2 is DataLoader2
    assert headrace.MultiProcessingReadingService is MultiProcessingReadingService


def test_without_a_service_the_pipe_is_read_here_and_the_seed_counts() -> None:
    loader = DataLoader2(IterableWrapper(range(20)).shuffle())
    loader.seed(1)
    first = [list(loader), list(loader)]
    loader.seed(1)
    assert [list(loader), list(loader)] == first
    assert first[0] != first[1]
    assert sorted(first[0]) == list(range(20))


def test_unseeded_epochs_and_loaders_differ_and_leave_global_generators_alone() -> None:
    random.seed(0)
    np.random.seed(0)
    before = random.getstate()
    epochs = []
    for _ in range(2):
        random.seed(0)
        loader = DataLoader2(IterableWrapper(range(50)).shuffle())
        epochs += [tuple(loader), tuple(loader)]
    assert len(set(epochs)) == 4
    random.seed(0)
    assert random.getstate() == before


def test_map_style_pipes_give_their_items_in_order() -> None:
    assert list(DataLoader2(SequenceWrapper(["a", "b", "c"]))) == ["a", "b", "c"]


def test_the_users_graph_and_service_are_not_changed_and_may_be_used_again() -> None:
    pipe = IterableWrapper(range(10)).shuffle().sharding_filter()
    service = InProcessReadingService()
    loaders = [DataLoader2(pipe, reading_service=service) for _ in range(2)]
    for loader in loaders:
        loader.seed(1)
    assert list(loaders[0]) == list(loaders[1])
    assert loaders[0].datapipe is not pipe
    assert loaders[0].reading_service is not service
    reader = iter(pipe)
    next(reader)
    list(DataLoader2(pipe))
    next(reader)  # not invalidated


def test_data_are_not_copied_and_what_cannot_be_copied_is_shared() -> None:
    array, lock, many = np.zeros(10), threading.Lock(), list(range(20_000))
    pipe = IterableWrapper(many, deepcopy=False).map(lambda number: (array, lock, number))
    loader = DataLoader2(pipe.map(lambda item: item))
    source = list_dps(traverse_dps(loader.datapipe))[-1]
    assert source.iterable is many
    assert next(iter(loader))[:2] == (array, lock) or next(iter(loader))[0] is array


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a pipe"):
        DataLoader2([1, 2])
    with pytest.raises(ConfigError, match="not a reading service"):
        DataLoader2(IterableWrapper([]), reading_service=7)
    with pytest.raises(ConfigError, match="not an adapter"):
        DataLoader2(IterableWrapper([]), 7)
    with pytest.raises(ConfigError, match="epoch_seeding"):
        DataLoader2(IterableWrapper([]), epoch_seeding="never")
    loader = DataLoader2(IterableWrapper([]))
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="seed"):
            loader.seed(seed)
    with pytest.raises(RuntimeError, match="no datapipe to iterate over"):
        iter(DataLoader2(None))


def test_one_iterator_is_valid_and_two_in_a_row_are_one_epoch() -> None:
    loader = DataLoader2(IterableWrapper(range(30)).shuffle())
    loader.seed(4)
    first = iter(loader)
    second = iter(loader)
    with pytest.raises(RuntimeError, match="This iterator has been invalidated"):
        next(first)
    epoch = list(second)
    loader.seed(4)
    assert list(loader) == epoch


def test_attributes_of_the_pipe_are_attributes_of_the_iterator() -> None:
    class Telling(IterPipe[int]):
        def __iter__(self):
            yield from range(3)

        def tell(self) -> str:
            return "told"

    iterator = iter(DataLoader2(Telling()))
    assert iterator.tell() == "told"
    with pytest.raises(AttributeError):
        _ = iterator.no_such_thing


@pytest.mark.parametrize(
    "service",
    [
        lambda: None,
        InProcessReadingService,
        lambda: InProcessReadingService(prefetch_cnt=3),
        lambda: MultiProcessingReadingService(2),
        lambda: SequentialReadingService(MultiProcessingReadingService(2)),
    ],
)
def test_a_limit_pauses_and_nothing_is_lost_or_comes_twice(service: Any) -> None:
    with DataLoader2(IterableWrapper(range(10)).sharding_filter(), reading_service=service()) as loader:
        iterator = iter(loader)
        iterator.limit(3)
        assert list(iterator) == [0, 1, 2]
        with pytest.raises(PauseIteration):
            next(iterator)
        iterator.resume()
        assert list(iterator) == [3, 4, 5]
        iterator.resume()
        iterator.limit(None)
        assert list(iterator) == [6, 7, 8, 9]
        assert list(loader) == list(range(10))


def test_a_resume_without_a_pause_warns_and_wrong_limits_are_refused() -> None:
    iterator = iter(DataLoader2(IterableWrapper(range(4))))
    with pytest.warns(UserWarning, match="not paused"):
        iterator.resume()
    with pytest.raises(ConfigError):
        iterator.limit(-1)
    iterator.limit(0)
    assert list(iterator) == []


def test_the_in_process_service_honours_all_of_its_options() -> None:
    calls: list[Any] = []
    pid_of_thread: set[int] = set()

    def init(datapipe: Any, info: WorkerInfo) -> Any:
        calls.append(info)
        return datapipe.map(lambda number: (pid_of_thread.add(threading.get_ident()), number)[1])

    def reset(datapipe: Any, info: WorkerInfo, seeds: SeedGenerator) -> Any:
        calls.append((info, seeds.generate_seed()))
        return datapipe

    with DataLoader2(
        IterableWrapper(range(9)).sharding_filter(), reading_service=InProcessReadingService(4, init, reset)
    ) as loader:
        assert [list(loader), list(loader)] == [list(range(9))] * 2
    assert calls[0] == WorkerInfo(1, 0)
    assert [call[0] for call in calls[1:]] == [WorkerInfo(1, 0)] * 2
    assert calls[1][1] != calls[2][1]
    assert threading.get_ident() not in pid_of_thread


def test_errors_shut_the_loader_down() -> None:
    loader = DataLoader2(
        IterableWrapper([1, 0]).map(lambda number: 1 // number), reading_service=InProcessReadingService()
    )
    iterator = iter(loader)
    assert next(iterator) == 1
    with pytest.raises(ZeroDivisionError) as info:
        next(iterator)
    assert any("thrown by __iter__ of Mapper" in note for note in info.value.__notes__)
    with pytest.raises(RuntimeError, match="already been shut down"):
        iter(loader)


def test_the_shuffle_adapter_turns_shuffles_on_and_off_and_adds_one_where_there_is_none() -> None:
    shuffled = IterableWrapper(range(30)).shuffle()
    assert list(DataLoader2(shuffled, Shuffle(False))) == list(range(30))
    assert list(DataLoader2(shuffled, [Shuffle(False), Shuffle(True)])) != list(range(30))
    assert list(DataLoader2(IterableWrapper(range(30)), Shuffle(None))) == list(range(30))
    with pytest.warns(UserWarning, match="no shuffle in this graph"):
        loader = DataLoader2(IterableWrapper(range(30)), Shuffle())
    assert find_dps(traverse_dps(loader.datapipe), Shuffler)
    assert sorted(loader) == list(range(30))
    with pytest.raises(ConfigError):
        Shuffle("yes")


def test_the_timeout_of_caches_is_set_on_all_of_them() -> None:
    class Cache(Mapper):
        timeout = 0.0

        def set_timeout(self, timeout: float) -> None:
            self.timeout = timeout

    loader = DataLoader2(Cache(IterableWrapper([]), abs).map(abs), CacheTimeout(7))
    assert [pipe.timeout for pipe in find_dps(traverse_dps(loader.datapipe), Cache)] == [7]
    with pytest.raises(TypeError):
        CacheTimeout()
    with pytest.raises(ConfigError):
        CacheTimeout(-1)


def test_the_linter_finds_a_shard_that_is_not_shuffled() -> None:
    source = IterableWrapper(range(3))
    assert _check_shuffle_before_sharding(source)
    assert _check_shuffle_before_sharding(source.shuffle().map(abs).sharding_filter())
    assert not _check_shuffle_before_sharding(source.sharding_filter().shuffle())
    assert not _check_shuffle_before_sharding(source.shuffle().zip(IterableWrapper([1])).sharding_filter())


class Recording(ReadingServiceInterface):
    """Writes down what is called."""

    def __init__(self, name: str, log: list[str] | None = None) -> None:
        self.name = name
        self.log: list[str] = [] if log is None else log

    def initialize(self, datapipe: Any) -> Any:
        self.log.append(f"{self.name} initialize")
        return datapipe

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.log.append(f"{self.name} iteration {iter_reset_fn is not None}")
        return lambda datapipe: datapipe

    def finalize_iteration(self) -> None:
        self.log.append(f"{self.name} end")

    def finalize(self) -> None:
        if hasattr(self, "log"):
            self.log.append(f"{self.name} finalize")


def test_services_in_a_row_begin_in_order_and_end_in_reverse() -> None:
    loader = DataLoader2(IterableWrapper([1]), reading_service=SequentialReadingService(Recording("a"), Recording("b")))
    logs = [service.log for service in loader.reading_service.reading_services]
    merged: list[str] = []
    for service in loader.reading_service.reading_services:
        service.log = merged
    assert list(loader) == [1]
    loader.shutdown()
    assert logs == [[], []]
    assert merged == [
        "a initialize",
        "b initialize",
        "a iteration False",
        "b iteration True",
        "b end",
        "a end",
        "b end",
        "a end",
        "b finalize",
        "a finalize",
    ]
    with pytest.raises(ConfigError):
        SequentialReadingService()
    with pytest.raises(ConfigError):
        SequentialReadingService(7)


def test_a_service_that_cannot_pause_says_so() -> None:
    iterator = iter(DataLoader2(IterableWrapper(range(3)), reading_service=Recording("a")))
    iterator.limit(1)
    assert next(iterator) == 0
    with pytest.warns(UserWarning, match="Recording doesn't support `pause`"):
        assert list(iterator) == []


def test_the_old_name_gives_the_service_and_warns() -> None:
    with pytest.warns(UserWarning, match="old name"):
        service = PrototypeMultiProcessingReadingService(1)
    assert type(service) is MultiProcessingReadingService


def test_no_workers_warn_and_run_here() -> None:
    with pytest.warns(UserWarning, match="InProcessReadingService"):
        service = MultiProcessingReadingService()
    assert list(DataLoader2(IterableWrapper(range(5)).sharding_filter(), reading_service=service)) == list(range(5))


def test_the_distributed_service_says_that_there_are_no_ranks() -> None:
    from headrace.dataloader2 import DistributedReadingService

    with (
        DataLoader2(IterableWrapper(range(5)), reading_service=DistributedReadingService()) as loader,
        pytest.raises(RuntimeError, match=r"torch|Torch"),
    ):
        iter(loader)


def test_a_list_of_a_loader_warns_of_no_length_and_a_loader_is_true() -> None:
    loader = DataLoader2(IterableWrapper(range(10)).filter(lambda _: True).header(3))
    assert list(loader) == [0, 1, 2]
    assert loader
    assert len(loader) == 3
    with pytest.raises(TypeError):
        len(DataLoader2(IterableWrapper(range(10)).filter(lambda _: True)))


def test_a_share_that_the_user_took_by_hand_stays() -> None:
    pipe = IterableWrapper(range(10)).sharding_filter()
    pipe.apply_sharding(5, 1)
    assert list(DataLoader2(pipe)) == [1, 6]


@pytest.mark.parametrize("service", [lambda: None, InProcessReadingService, lambda: MultiProcessingReadingService(2)])
def test_iter_twice_loses_nothing_and_an_epoch_left_in_the_middle_is_told_of_once(service, caplog):
    with DataLoader2(IterableWrapper(range(6)).shuffle().sharding_filter(), reading_service=service()) as loader:
        loader.seed(3)
        epochs = [list(loader) for _ in range(4)]
        loader.seed(3)
        iter(loader)
        iter(loader)
        assert list(loader) == epochs[0]
        assert not caplog.records
        state = loader.state_dict()
        iter(loader)
        assert next(iter(loader)) == epochs[1][0]
        for expected in epochs[2:]:
            iterator = iter(loader)
            assert [next(iterator) for _ in range(2)] == expected[:2]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["epoch 1 was left after 1 items"]
    again = DataLoader2.from_state(state, IterableWrapper(range(6)).shuffle().sharding_filter(), service())
    with again:
        iter(again)
        assert list(again) == epochs[1]


def test_a_seed_that_is_given_before_the_first_item_counts() -> None:
    with DataLoader2(IterableWrapper(range(20)).shuffle()) as loader:
        loader.seed(5)
        expected = list(loader)
    with DataLoader2(IterableWrapper(range(20)).shuffle()) as loader:
        iter(loader)
        loader.seed(5)
        assert list(loader) == expected


def test_a_seed_that_is_given_after_a_resume_waits_for_the_next_epoch() -> None:
    with DataLoader2(IterableWrapper(range(20)).shuffle()) as loader:
        loader.seed(5)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = list(iterator)
    with DataLoader2(IterableWrapper(range(20)).shuffle()) as loader:
        loader.load_state_dict(state)
        iter(loader)
        loader.seed(6)
        assert list(loader) == rest
