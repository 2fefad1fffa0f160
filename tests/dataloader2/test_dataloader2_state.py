"""State of a loader: data that `json` can write, exact in the middle of an epoch, whatever the pipes can tell."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import numpy as np
import pytest

from headrace.dataloader2 import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from headrace.dataloader2.interface import Processes
from headrace.dataloader2.state import FORMAT
from headrace.errors import ConfigError, ResumeError
from headrace.pipes import IterPipe
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")


def _noise(number: int) -> tuple[int, float]:
    return number, random.random() + float(np.random.random())


def _pipe() -> Any:
    return IterableWrapper(range(60)).shuffle(buffer_size=20).sharding_filter().map(lambda number: number * 3).batch(4)


class Untold(IterPipe[int]):
    """A pipe of a user who did not write `state`."""

    def __init__(self, num_items=30):
        self.num_items = num_items

    def __iter__(self):
        yield from range(self.num_items)


SERVICES = {
    "none": lambda: None,
    "in process": InProcessReadingService,
    "prefetch": lambda: InProcessReadingService(prefetch_cnt=4),
    "workers": lambda: MultiProcessingReadingService(2),
    "workers without prefetch": lambda: MultiProcessingReadingService(2, worker_prefetch_cnt=0, main_prefetch_cnt=0),
}


def _through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))


@pytest.mark.sample(6)
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("num_read", [0, 1, 7, 15])
def test_what_comes_after_a_state_is_what_would_have_come(service: str, num_read: int) -> None:
    with DataLoader2(_pipe(), reading_service=SERVICES[service]()) as loader:
        loader.seed(2)
        first = list(loader)
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(num_read)]
        state = _through_json(loader.state_dict())
        rest = list(iterator)
        after = list(loader)
    assert len(first) == len(begun) + len(rest)
    for _ in range(2):  # a state may be used twice
        with DataLoader2.from_state(state, _pipe(), SERVICES[service]()) as again:
            assert _through_json(again.state_dict()) == state
            assert list(again) == rest
            assert list(again) == after


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_read", [0, 3, 30])
def test_draws_from_global_generators_in_workers_go_on_too(num_read: int) -> None:
    pipe = IterableWrapper(range(40)).sharding_filter().map(_noise)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(num_read)]
        state = _through_json(loader.state_dict())
        rest = list(iterator)
    assert len(begun) + len(rest) == 40
    with DataLoader2.from_state(state, pipe, MultiProcessingReadingService(2)) as again:
        assert list(again) == rest


def test_workers_go_on_from_their_snapshots_and_not_from_the_start(tmp_path: Any, snapshot_each_group: Any) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()

    def work(number: int) -> tuple[int, float]:
        (calls / f"{number}").touch()
        return _noise(number)

    pipe = IterableWrapper(range(2000)).sharding_filter().map(work)
    service = MultiProcessingReadingService(2, worker_init_fn=snapshot_each_group)
    with DataLoader2(pipe, reading_service=service) as loader:
        iterator = iter(loader)
        for _ in range(1800):
            next(iterator)
        state = _through_json(loader.state_dict())
        rest = list(iterator)
    for path in calls.iterdir():
        path.unlink()
    with DataLoader2.from_state(state, pipe, MultiProcessingReadingService(2)) as again:
        assert list(again) == rest
    assert len(list(calls.iterdir())) < 1500, "the epoch was read again from its start"


def test_pipes_that_cannot_tell_are_read_again_and_the_loader_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for make in (lambda: None, lambda: MultiProcessingReadingService(1)):
        with DataLoader2(Untold().map(abs), reading_service=make()) as loader:
            iterator = iter(loader)
            assert [next(iterator) for _ in range(10)] == list(range(10))
            state = _through_json(loader.state_dict())
        caplog.clear()
        with DataLoader2.from_state(state, Untold().map(abs), make()) as again:
            assert list(again) == list(range(10, 30))
        if make() is None:
            assert "read again" in caplog.text
            assert state["graph"] is None


def test_odd_items_in_hand_are_no_part_of_a_state_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __init__(self, number: int) -> None:
            self.number = number

    pipe = IterableWrapper(range(30)).map(Odd).shuffle(buffer_size=5).map(lambda odd: odd.number)
    with DataLoader2(pipe) as loader:
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(10)]
        state = _through_json(loader.state_dict())
        rest = list(iterator)
    assert "Odd is held in a buffer" in caplog.text
    with DataLoader2.from_state(state, pipe) as again:
        assert list(again) == rest
    assert sorted(begun + rest) == list(range(30))


def test_a_dispatching_process_is_read_again_from_the_start_of_the_epoch() -> None:
    source = IterableWrapper(range(50)).shuffle()
    pipe = source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(_noise)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        iterator = iter(loader)
        for _ in range(21):
            next(iterator)
        state = _through_json(loader.state_dict())
        rest = list(iterator)
    with DataLoader2.from_state(state, pipe, MultiProcessingReadingService(2)) as again:
        assert list(again) == rest


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.filterwarnings("ignore:num_workers=0")
def test_a_state_may_be_used_with_other_workers_where_the_stream_does_not_depend_on_them(num_workers: int) -> None:
    pipe = IterableWrapper(range(50)).shuffle().sharding_filter().map(_noise)

    def service(num: int) -> MultiProcessingReadingService:
        return MultiProcessingReadingService(num, keyed_randomness=True)

    with DataLoader2(pipe, reading_service=service(2)) as loader:
        iterator = iter(loader)
        for _ in range(21):
            next(iterator)
        state = _through_json(loader.state_dict())
        rest, after = list(iterator), list(loader)
    with DataLoader2.from_state(state, pipe, service(num_workers)) as again:
        assert list(again) == rest
        assert list(again) == after


def _batches_of_shares() -> Any:
    return IterableWrapper(range(60)).shuffle(buffer_size=20).sharding_filter().batch(4)


def _shares_of_batches() -> Any:
    return IterableWrapper(range(60)).batch(4).shuffle(buffer_size=3).sharding_filter().map(list)


def _service_of(num_workers: int) -> Any:
    return MultiProcessingReadingService(num_workers) if num_workers > 0 else None


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("make", "saved", "now", "is_exact"),
    [
        (_shares_of_batches, 0, 2, True),
        (_shares_of_batches, 2, 3, True),
        (_shares_of_batches, 3, 0, True),
        (_batches_of_shares, 0, 1, True),
        (_batches_of_shares, 1, 0, True),
        (_batches_of_shares, 0, 2, False),
        (_batches_of_shares, 2, 3, False),
        (_batches_of_shares, 3, 1, False),
        (_batches_of_shares, 2, 0, False),
    ],
)
def test_a_state_goes_on_exactly_with_other_workers_or_is_refused(
    make: Any, saved: int, now: int, is_exact: bool
) -> None:
    with DataLoader2(make(), reading_service=_service_of(saved)) as loader:
        loader.seed(3)
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = _through_json(loader.state_dict())
        rest = list(iterator)
        between = _through_json(loader.state_dict())
    if is_exact:
        with DataLoader2.from_state(state, make(), _service_of(now)) as again:
            assert list(again) == rest
        return
    with pytest.raises(ResumeError, match=f"with {saved} workers, there are {now}, .* Batcher.*"):
        iter(DataLoader2.from_state(state, make(), _service_of(now)))
    if now == 0:  # a new epoch, or this one from its start, may have any number
        for begun in (state, between):
            again = DataLoader2.from_state(begun, make())
            again._restore_checkpoint_beginning_of_epoch()
            assert sorted(item for batch in again for item in batch) == list(range(60))


def test_a_state_of_workers_with_functions_of_their_own_is_for_as_many_workers() -> None:
    loader = DataLoader2(_shares_of_batches())
    next(iter(loader))
    service = MultiProcessingReadingService(2, worker_init_fn=lambda pipe, info: pipe)
    with pytest.raises(ResumeError, match="worker_init_fn"):
        iter(DataLoader2.from_state(loader.state_dict(), _shares_of_batches(), service))


def test_a_state_of_another_number_of_ranks_is_refused() -> None:
    class Ranks(InProcessReadingService):
        num_ranks = 2

        def _processes(self) -> Processes:
            return Processes(num_ranks=self.num_ranks)

    class MoreRanks(Ranks):
        num_ranks = 4

    loader = DataLoader2(_pipe(), reading_service=SequentialReadingService(Ranks()))
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(UserWarning, match="no state"):
        state = loader.state_dict()
    with pytest.raises(ResumeError, match="one of 2 ranks, and there are 4"):
        iter(DataLoader2.from_state(state, _pipe(), SequentialReadingService(MoreRanks())))


def test_batches_in_a_buffer_are_part_of_a_state() -> None:
    made: list[int] = []
    pipe = IterableWrapper(range(400)).map(lambda item: made.append(item) or item).batch(4).shuffle(buffer_size=3)
    with DataLoader2(pipe) as loader:
        iterator = iter(loader)
        for _ in range(90):
            next(iterator)
        state = _through_json(loader.state_dict())
        rest = list(iterator)
    made.clear()
    with DataLoader2.from_state(state, pipe) as again:
        assert list(again) == rest
    assert len(made) < 60, "the epoch was read again from its start"


def test_the_seed_that_waits_for_the_next_epoch_is_part_of_the_state() -> None:
    with DataLoader2(_pipe()) as loader:
        loader.seed(1)
        iterator = iter(loader)
        next(iterator)
        loader.seed(2)
        state = _through_json(loader.state_dict())
        rest, after = list(iterator), list(loader)
    with DataLoader2.from_state(state, _pipe()) as again:
        assert (list(again), list(again)) == (rest, after)


def test_the_epoch_of_a_state_may_be_begun_at_its_start() -> None:
    with DataLoader2(_pipe()) as loader:
        list(loader)
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
        epoch = begun + list(iterator)
    again = DataLoader2.from_state(state, _pipe())
    again._restore_checkpoint_beginning_of_epoch()
    assert list(again) == epoch


@pytest.mark.parametrize("state", [{}, [], {"serialized_datapipe": b""}, {"format": FORMAT}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ResumeError):
        DataLoader2(_pipe()).load_state_dict(state)


def test_states_come_before_iterators_and_go_with_a_pipe() -> None:
    loader = DataLoader2(_pipe())
    state = loader.state_dict()
    next(iter(loader))
    with pytest.raises(RuntimeError, match="after an iterator"):
        loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="from_state"):
        DataLoader2.from_state(state, InProcessReadingService())
    with pytest.raises(ResumeError, match="epoch_seeding"):
        DataLoader2(_pipe(), epoch_seeding="same").load_state_dict(state)


def test_a_state_of_an_epoch_that_is_now_shorter_is_refused() -> None:
    with DataLoader2(Untold()) as loader:
        iterator = iter(loader)
        for _ in range(20):
            next(iterator)
        state = loader.state_dict()
    with pytest.raises(ResumeError, match="ends after 5 items"):
        iter(DataLoader2.from_state(state, Untold(5)))


class Counting(CheckpointableReadingServiceInterface):
    """A service with a state of its own."""

    def __init__(self) -> None:
        self.count = 0

    def initialize(self, datapipe: Any) -> Any:
        return datapipe

    def initialize_iteration(self, seed_generator: Any) -> None:  # without the second parameter, as some have it
        self.count += 1

    def checkpoint(self) -> bytes:
        return bytes([self.count])

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        self.count = serialized_state[0]
        return datapipe


def test_a_service_with_a_state_of_its_own_gets_it_back() -> None:
    loader = DataLoader2(_pipe(), reading_service=Counting())
    list(loader)
    list(loader)
    state = _through_json(loader.state_dict())
    again = DataLoader2.from_state(state, _pipe(), Counting())
    list(again)
    assert again.reading_service.count == 3
    with pytest.raises(TypeError, match="non-checkpointable"):
        iter(DataLoader2.from_state(state, _pipe(), InProcessReadingService()))


def test_services_in_a_row_save_the_states_of_those_that_have_one() -> None:
    loader = DataLoader2(_pipe(), reading_service=SequentialReadingService(Second(), InProcessReadingService()))
    expected = list(loader)
    with pytest.warns(UserWarning, match="InProcessReadingService has no state"):
        state = _through_json(loader.state_dict())
    again = DataLoader2.from_state(state, _pipe(), SequentialReadingService(Second(), InProcessReadingService()))
    with pytest.warns(UserWarning, match="InProcessReadingService has no state"):
        iter(again)
    assert again.reading_service.reading_services[0].count == 2
    assert len(list(again)) == len(expected)


class Second(Counting):
    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.count += 1
        return iter_reset_fn


def test_states_are_small_where_nothing_is_in_hand(caplog: pytest.LogCaptureFixture) -> None:
    pipe = IterableWrapper(range(10_000)).sharding_filter().map(abs)
    with caplog.at_level(logging.WARNING), DataLoader2(pipe) as loader:
        iterator = iter(loader)
        for _ in range(5000):
            next(iterator)
        assert len(json.dumps(loader.state_dict())) < 2000
    assert not caplog.records


def _fail_at_four(number: int) -> int:
    if number == 4:
        raise ValueError("four")
    return number


@pytest.mark.sample(2)
@pytest.mark.parametrize("service", SERVICES)
def test_a_state_taken_after_an_error_or_a_shutdown_goes_on_where_the_loop_was(service: str) -> None:
    loader = DataLoader2(IterableWrapper(range(6)).sharding_filter().map(_fail_at_four), None, SERVICES[service]())
    iterator = iter(loader)
    assert [next(iterator) for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="four"):
        list(iterator)
    state = _through_json(loader.state_dict())
    whole = IterableWrapper(range(6)).sharding_filter().map(abs)
    with DataLoader2.from_state(state, whole, SERVICES[service]()) as again:
        assert list(again) == [4, 5]
    with DataLoader2(whole, None, SERVICES[service]()) as left:
        iterator = iter(left)
        assert [next(iterator) for _ in range(2)] == [0, 1]
    with DataLoader2.from_state(_through_json(left.state_dict()), whole, SERVICES[service]()) as again:
        assert list(again) == [2, 3, 4, 5]


def test_a_state_of_another_graph_is_refused_with_both() -> None:
    loader = DataLoader2(IterableWrapper(range(20)).shuffle().sharding_filter())
    iterator = iter(loader)
    taken = [next(iterator) for _ in range(5)]
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="IterableWrapper > Shuffler > ShardingFilter, and this one is") as info:
        DataLoader2.from_state(state, IterableWrapper(range(20)).sharding_filter())
    assert "IterableWrapper > ShardingFilter" in str(info.value)
    ahead = IterableWrapper(range(20)).shuffle().sharding_filter().prefetch()  # gives the same items
    assert sorted([*taken, *DataLoader2.from_state(state, ahead)]) == list(range(20))
