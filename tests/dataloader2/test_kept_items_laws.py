"""What a graph keeps for all epochs, in a map or a cache, is the same after a resume in any epoch, or it is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.errors import ResumeError
from headrace.pipes.iter import IterableWrapper, IterPipe
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")

_RANDOM = ["shuffle", "shuffled_flatmap", "own"]
_SHARDING = ["sharding_filter", "dispatch"]
_KEPT = ["map", "map_twice", "map_beside", "shared", "cache", "cache_in_map"]
_BEHIND = ["shuffle", "batch", "enumerate"]


def _draw(item: Any) -> list[Any]:
    return [item, random.random()]


class _OwnRandom(IterPipe[Any]):
    """A random pipe as users write them: a generator of its own, no state."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        self._seed = 0

    def set_seed(self, seed: int) -> _OwnRandom:
        self._seed = seed
        return self

    def __iter__(self) -> Iterator[Any]:
        items = list(self.datapipe)
        random.Random(self._seed).shuffle(items)
        yield from items


def _to_map(pipe: Any) -> Any:
    return pipe.enumerate().to_map_datapipe()


def _operate(pipe: Any, name: str) -> Any:
    match name:
        case "shuffle":
            return pipe.shuffle(buffer_size=7)
        case "shuffled_flatmap":
            return pipe.shuffled_flatmap(lambda item: [item, -item])
        case "sharding_filter":
            return pipe.sharding_filter()
        case "dispatch":
            return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        case "own":
            return _OwnRandom(pipe)
        case "map":
            return _to_map(pipe).to_iter_datapipe()
        case "draw":
            return pipe.map(_draw)
        case "map_twice":
            return _to_map(pipe).zip(_to_map(pipe)).to_iter_datapipe()
        case "map_beside":
            return _to_map(pipe).to_iter_datapipe().zip(IterableWrapper(range(40)).shuffle())
        case "shared":
            kept, read = pipe.fork(2, buffer_size=1000)
            return _to_map(kept).to_iter_datapipe().zip(read)
        case "cache":
            return pipe.in_memory_cache()
        case "cache_in_map":
            return _to_map(pipe.in_memory_cache()).shuffle()
        case "batch":
            return pipe.batch(3)
        case _:
            return pipe.enumerate()


def _plain(item: Any) -> Any:
    return [_plain(element) for element in item] if isinstance(item, (list, tuple)) else item


def _graph(operations: list[str]) -> Any:
    pipe: Any = IterableWrapper(range(20))
    for name in operations:
        pipe = _operate(pipe, name)
    return pipe


def _loader(operations: list[str], num_workers: int, keyed: bool = False) -> DataLoader2[Any]:
    service = None
    if num_workers or keyed:
        service = MultiProcessingReadingService(num_workers, keyed_randomness=keyed)
    return DataLoader2(_graph(operations), reading_service=service)


def _refusal(loader: DataLoader2[Any], state: dict[str, Any]) -> str | None:
    try:
        loader.load_state_dict(state)
    except ResumeError as error:
        return str(error)
    return None


def _check(
    operations: list[str], num_workers: int, stops: list[int], reseed_at: int | None, num_more: int, keyed: bool = False
) -> None:
    """Read epochs, with a state somewhere in each, and compare what is resumed from each with what came."""
    states, epochs = [], []
    with _loader(operations, num_workers, keyed) as loader:
        loader.seed(5)
        for epoch in range(len(stops) + num_more):
            if epoch == reseed_at:
                loader.seed(6)
            iterator = iter(loader)
            items: list[Any] = []
            for item in iterator:
                items.append(_plain(item))
                if epoch < len(stops) and len(items) == stops[epoch]:
                    states.append((epoch, len(items), json.loads(json.dumps(loader.state_dict()))))
            if epoch < len(stops):
                states.append((epoch + 1, 0, json.loads(json.dumps(loader.state_dict()))))
            epochs.append(items)
    for epoch, position, state in states:
        if epoch == reseed_at and position == 0:
            continue  # the seed was given after it
        with _loader(operations, num_workers, keyed) as again:
            if (refusal := _refusal(again, state)) is not None:
                assert {"shared", "map_twice"} & set(operations)
                assert "shuffle after" in refusal
                continue
            if epoch < len(epochs):
                assert [_plain(item) for item in again] == epochs[epoch][position:]
            if epoch + 1 < len(epochs) and reseed_at is None:
                assert [_plain(item) for item in again] == epochs[epoch + 1]


@pytest.mark.filterwarnings("ignore:nothing shards")
@examples(15)
@given(
    before=st.lists(st.sampled_from(_RANDOM), max_size=2),
    sharding=st.sampled_from(_SHARDING),
    between=st.lists(st.sampled_from(_RANDOM), max_size=2),
    kept=st.sampled_from(_KEPT),
    behind=st.lists(st.sampled_from(_BEHIND), max_size=2),
    num_workers=st.sampled_from([0, 0, 1, 2]),
    stops=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    reseed_at=st.sampled_from([None, None, 1]),
)
def test_a_resumed_epoch_is_that_of_the_uninterrupted_run_or_refused(
    before: list[str],
    sharding: str,
    between: list[str],
    kept: str,
    behind: list[str],
    num_workers: int,
    stops: list[int],
    reseed_at: int | None,
) -> None:
    assume((sharding, kept) != ("dispatch", "map_twice"))  # refused: each dispatched item is given out once
    _check([*before, sharding, *between, kept, *behind], num_workers, stops, reseed_at, num_more=1)


@pytest.mark.sample(4)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kept", ["map", "cache"])
@pytest.mark.parametrize("before", ["shuffle", "own", "shuffled_flatmap"])
def test_a_map_and_a_cache_keep_the_order_of_the_first_epoch_over_a_restart(
    before: str, kept: str, num_workers: int
) -> None:
    _check([before, "sharding_filter", kept], num_workers, stops=[4, 4], reseed_at=None, num_more=1)


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore:num_workers=0")
@pytest.mark.parametrize("reseed_at", [None, 1])
@pytest.mark.parametrize(("num_workers", "keyed"), [(0, True), (2, False), (2, True)])
def test_what_functions_before_a_map_drew_from_global_generators_is_kept_over_a_restart(
    num_workers: int, keyed: bool, reseed_at: int | None
) -> None:
    operations = ["shuffle", "draw", "sharding_filter", "map", "draw"]
    _check(operations, num_workers, stops=[4, 4], reseed_at=reseed_at, num_more=1, keyed=keyed)


def test_a_shuffle_that_others_read_too_is_refused_with_what_to_do() -> None:
    with _loader(["shuffle", "shared"], 0) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with pytest.raises(ResumeError, match="give IterToMapConverter a source of its own, and shuffle after it"):
        _loader(["shuffle", "shared"], 0).load_state_dict(state)
