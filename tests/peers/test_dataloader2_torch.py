"""Torch's own pipes through `DataLoader2`, as pipelines for torchdata 0.7 were written; needs torch."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import IterDataPipe, functional_datapipe  # noqa: E402
from torch.utils.data.datapipes.iter import IterableWrapper  # noqa: E402
from torch.utils.data.datapipes.map import SequenceWrapper  # noqa: E402

from headrace.dataloader2 import (  # noqa: E402
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    WorkerInfo,
)
from headrace.dataloader2.adapter import Shuffle  # noqa: E402
from headrace.dataloader2.graph import find_dps, traverse_dps  # noqa: E402
from headrace.pipes.iter import IterableWrapper as IterablePipe  # noqa: E402
from headrace.pipes.sharding import SHARDING_PRIORITIES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::DeprecationWarning", "ignore:Lambda")


def _double(number: int) -> int:
    return 2 * number


def _tensor(number: int) -> dict[str, Any]:
    return {"x": torch.full((1000,), number), "y": torch.rand(2), "z": torch.tensor(number, dtype=torch.bfloat16)}


def _noise(number: int) -> tuple[int, float, float, float]:
    return number, random.random(), float(np.random.random()), float(torch.rand(1))


@functional_datapipe("twice")
class Twice(IterDataPipe):
    """A pipe of a user."""

    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self):
        for item in self.source_datapipe:
            yield item
            yield item


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_a_pipeline_gives_the_documented_order_and_epochs_differ(num_workers: int) -> None:
    plain = IterableWrapper(range(31)).sharding_filter().map(_double)
    with DataLoader2(plain, None, MultiProcessingReadingService(num_workers)) as loader:
        assert [list(loader), list(loader)] == [[2 * number for number in range(31)]] * 2
    shuffled = IterableWrapper(range(31)).shuffle().sharding_filter().map(_double)
    with DataLoader2(shuffled, None, MultiProcessingReadingService(num_workers)) as loader:
        loader.seed(3)
        first = [list(loader), list(loader)]
        loader.seed(3)
        assert [list(loader), list(loader)] == first
    assert first[0] != first[1]
    assert sorted(first[0]) == [2 * number for number in range(31)]
    with DataLoader2(shuffled, None, InProcessReadingService()) as loader:
        loader.seed(3)
        assert [list(loader), list(loader)] == first


def test_user_pipes_and_map_style_pipes_run_in_workers() -> None:
    with DataLoader2(IterableWrapper(range(4)).sharding_filter().twice(), None, MultiProcessingReadingService(2)) as dl:
        assert list(dl) == [0, 1, 0, 1, 2, 3, 2, 3]
    assert list(DataLoader2(SequenceWrapper([3, 4]).map(_double))) == [6, 8]


def test_tensors_come_as_tensors_without_pickling_their_data() -> None:
    with DataLoader2(
        IterableWrapper(range(9)).sharding_filter().map(_tensor), None, MultiProcessingReadingService(2)
    ) as loader:
        for number, item in enumerate(loader):
            assert {type(value) for value in item.values()} == {torch.Tensor}
            assert (item["x"] == number).all()
            assert item["z"].dtype == torch.bfloat16
            assert float(item["z"]) == number


def test_all_three_generators_of_workers_follow_from_the_seed_and_the_users_stay() -> None:
    pipe = IterableWrapper(range(8)).sharding_filter().map(_noise)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    epochs = []
    for _ in range(2):
        with DataLoader2(pipe, None, MultiProcessingReadingService(2)) as loader:
            loader.seed(9)
            epochs.append([list(loader), list(loader)])
    assert torch.equal(torch.get_rng_state(), state)
    assert epochs[0] == epochs[1]
    assert len({draws for epoch in epochs[0] for _, *draws in epoch for draws in draws}) == 48


@pytest.mark.parametrize("num_workers", [1, 3])
def test_keyed_randomness_covers_torch(num_workers: int) -> None:
    pipe = IterableWrapper(range(8)).shuffle().sharding_filter().map(_noise)
    epochs = []
    for count in (2, num_workers):
        with DataLoader2(pipe, None, MultiProcessingReadingService(count, keyed_randomness=True)) as loader:
            loader.seed(9)
            epochs.append(list(loader))
    assert epochs[0] == epochs[1]


def test_dispatching_is_known_on_torchs_pipes() -> None:
    pipe = IterableWrapper(range(20)).shuffle().sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    orders = []
    for num_workers in (1, 3):
        with DataLoader2(pipe.map(_double), None, MultiProcessingReadingService(num_workers)) as loader:
            loader.seed(1)
            orders.append(list(loader))
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == [2 * number for number in range(20)]


@pytest.mark.parametrize("service", [lambda: None, lambda: MultiProcessingReadingService(2)])
def test_a_state_in_the_middle_of_an_epoch_goes_on_exactly(service: Any) -> None:
    pipe = IterableWrapper(range(40)).shuffle(buffer_size=10).sharding_filter().map(_double).batch(3)
    with DataLoader2(pipe, None, service()) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        rest, after = list(iterator), list(loader)
    with DataLoader2.from_state(state, pipe, service()) as again:
        assert [list(again), list(again)] == [rest, after]


def test_an_exception_says_which_pipe_raised_it_once() -> None:
    pipe = IterableWrapper([1, 0, 2]).sharding_filter().map(lambda number: 1 // number)
    with (
        DataLoader2(pipe, None, MultiProcessingReadingService(1)) as loader,
        pytest.raises(ZeroDivisionError, match="Caught ZeroDivisionError in worker process 0") as info,
    ):
        list(loader)
    assert str(info.value).count("This exception is thrown by __iter__ of Mapper") == 1


def test_user_functions_and_adapters_see_torchs_classes() -> None:
    def init(datapipe: Any, info: WorkerInfo) -> Any:
        mapper = type(IterableWrapper([]).map(_double))
        assert len(find_dps(traverse_dps(datapipe), mapper)) == 1
        return datapipe.map(lambda number: (info.worker_id, number))

    pipe = IterableWrapper(range(4)).shuffle().sharding_filter().map(_double)
    with DataLoader2(pipe, Shuffle(False), MultiProcessingReadingService(2, worker_init_fn=init)) as loader:
        assert list(loader) == [(0, 0), (1, 2), (0, 4), (1, 6)]


def test_a_shuffle_of_torchs_that_workers_would_read_in_orders_of_their_own_is_warned_of() -> None:
    pipe = IterableWrapper(range(5)).shuffle().cycle(3).sharding_filter()
    with (
        pytest.warns(UserWarning, match="loses items"),
        DataLoader2(pipe, None, MultiProcessingReadingService(2)) as loader,
    ):
        iter(loader)
    ours = IterablePipe(range(5)).shuffle().cycle(3).sharding_filter()
    with DataLoader2(ours, None, MultiProcessingReadingService(2)) as loader:
        assert sorted(loader) == sorted(3 * list(range(5)))
