"""Whatever the pipes, the number of workers and the place of the stop: the same items, and a state goes on exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.sharding import SHARDING_PRIORITIES

pytestmark = pytest.mark.usefixtures("warm_workers")

_BEFORE = st.lists(st.sampled_from(["shuffle", "map", "enumerate"]), max_size=2)
_BEHIND = st.lists(st.sampled_from(["map", "filter", "flatmap", "batch", "shuffle"]), max_size=3)


def _weigh(item: Any) -> int:
    return sum(map(_weigh, item)) if isinstance(item, (list, tuple)) else int(item)


def _operate(pipe: Any, name: str) -> Any:
    match name:
        case "shuffle":
            return pipe.shuffle(buffer_size=7)
        case "map":
            return pipe.map(lambda item: [item, 1])
        case "enumerate":
            return pipe.enumerate()
        case "filter":
            return pipe.filter(lambda item: _weigh(item) % 3 > 0)
        case "flatmap":
            return pipe.flatmap(lambda item: [item] * (_weigh(item) % 4))
        case _:
            return pipe.batch(3)


def _graph(num_items: int, before: list[str], sharding: str, behind: list[str]) -> Any:
    pipe: Any = IterableWrapper(range(num_items))
    for name in before:
        pipe = _operate(pipe, name)
    if sharding == "filter":
        pipe = pipe.sharding_filter()
    else:
        pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    for name in behind:
        pipe = _operate(pipe, name)
    return pipe


def _plain(item: Any) -> Any:
    return [_plain(element) for element in item] if isinstance(item, (list, tuple)) else item


def _flat(item: Any) -> list[int]:
    return [number for element in item for number in _flat(element)] if isinstance(item, list) else [item]


def _columns(items: list[Any]) -> list[list[int]]:
    """Return the first numbers of all items, the second ones, ..., each sorted."""
    return [sorted(column) for column in zip(*map(_flat, items), strict=True)]


@examples(12)
@given(
    num_items=st.integers(0, 60),
    before=_BEFORE,
    sharding=st.sampled_from(["filter", "dispatch"]),
    behind=_BEHIND,
    num_workers=st.sampled_from([1, 2, 5]),
    prefetch=st.sampled_from([0, 1, 10]),
    data=st.data(),
)
def test_workers_give_the_items_of_a_plain_loop_twice_alike_and_go_on_from_any_state(
    num_items: int, before: list[str], sharding: str, behind: list[str], num_workers: int, prefetch: int, data: Any
) -> None:
    def service() -> MultiProcessingReadingService:
        return MultiProcessingReadingService(num_workers, worker_prefetch_cnt=prefetch, main_prefetch_cnt=prefetch)

    pipe = _graph(num_items, before, sharding, behind)
    alone = DataLoader2(pipe)
    alone.seed(5)
    expected = [_plain(item) for item in alone]
    with DataLoader2(pipe, reading_service=service()) as loader:
        loader.seed(5)
        first = [_plain(item) for item in loader]
        loader.seed(5)
        iterator = iter(loader)
        num_read = data.draw(st.integers(0, len(first)))
        begun = [_plain(next(iterator)) for _ in range(num_read)]
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [_plain(item) for item in iterator]
    assert begun + rest == first
    is_shuffled = sharding == "dispatch" and "shuffle" in before  # in another order than alone
    if set(behind) <= {"map"} and not is_shuffled:
        assert first == expected
    elif is_shuffled and before[-1] == "enumerate":  # so the numbers are those of other items
        if not {"batch", "filter", "flatmap"} & set(behind):
            assert sorted(map(str, _columns(first))) == sorted(map(str, _columns(expected)))
    elif not {"batch", "filter", "flatmap"} & set(behind):
        assert sorted(map(repr, first)) == sorted(map(repr, expected))
    elif "batch" not in behind[:-1]:  # what looks at whole batches of a share depends on the number of workers
        numbers = [sorted(number for item in items for number in _flat(item)) for items in (first, expected)]
        assert numbers[0] == numbers[1]
    with DataLoader2.from_state(state, pipe, service()) as again:
        assert [_plain(item) for item in again] == rest
