"""Whatever happens to a state on its way: it is refused, or gives the same items."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.dataloader2 import DataLoader2, MultiProcessingReadingService
from headrace.dataloader2.state import FORMAT, _digest_of
from headrace.errors import ResumeError
from headrace.pipes import IterPipe
from headrace.pipes.iter import IterableWrapper

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM_ITEMS = 40


def _pipe() -> Any:
    left, right = IterableWrapper(range(NUM_ITEMS)).shuffle(buffer_size=6).fork(2)
    return left.batch(2).zip_longest(right.map(str)).sharding_filter()


def _state_of(service: Any = None, num_read: int = 9) -> tuple[dict[str, Any], list[Any]]:
    with DataLoader2(_pipe(), reading_service=service) as loader:
        loader.seed(3)
        list(loader)
        iterator = iter(loader)
        list(itertools.islice(iterator, num_read))
        return json.loads(json.dumps(loader.state_dict())), list(iterator)


STATE, REST = _state_of()

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["ended", "derived", "same", FORMAT, "$bytes", "$tuple"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("$array"), inner, max_size=2)
    ),
    max_leaves=5,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the ways to all parts of a state."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in parts for found in _paths(part, (*path, key)))]


@st.composite
def _changed(draw: Any, state: Any) -> Any:
    """Draw a state that differs in one place."""
    changed = copy.deepcopy(state)
    path = draw(st.sampled_from(_paths(state)[1:]))
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    old = parent[path[-1]]
    kind = draw(st.sampled_from(["value", "leave out", "add", "text", "number", "tuple"]))
    if kind == "leave out":
        del parent[path[-1]]
    elif kind == "add" and isinstance(parent, list):
        parent.insert(path[-1], draw(_VALUES))
    elif kind == "add":
        parent[draw(st.text(max_size=5))] = draw(_VALUES)
    elif kind == "text" and isinstance(old, str) and old:
        place = draw(st.integers(0, len(old) - 1))
        parent[path[-1]] = old[:place] + draw(st.characters(codec="ascii")) + old[place + 1 :]
    elif kind == "number" and isinstance(old, int):
        parent[path[-1]] = draw(st.sampled_from([old + 1, old - 1, float(old), not old, str(old), 2**63, 2**64]))
    elif kind == "tuple" and isinstance(old, list):
        parent[path[-1]] = tuple(old)
    else:
        parent[path[-1]] = draw(_VALUES)
    assume(repr(changed) != repr(state))
    return changed


@given(_changed(STATE))
def test_a_state_that_was_changed_in_one_place_is_refused_or_gives_the_same_items(state: Any) -> None:
    try:
        loader = DataLoader2.from_state(state, _pipe())
    except ResumeError:
        return
    assert list(loader) == REST


@given(_changed(STATE))
def test_a_state_that_somebody_made_up_raises_nothing_but_a_refusal(state: Any) -> None:
    try:
        state["digest"] = _digest_of(state)
        iter(DataLoader2.from_state(state, _pipe()))
    except ResumeError:
        pass


@pytest.fixture(scope="module")
def state_of_workers() -> Any:
    return _state_of(MultiProcessingReadingService(2))


@given(st.data())
def test_a_state_of_workers_that_was_changed_in_one_place_is_refused(state_of_workers: Any, data: Any) -> None:
    changed = data.draw(_changed(state_of_workers[0]))
    try:
        DataLoader2.from_state(changed, _pipe(), MultiProcessingReadingService(2))
    except ResumeError:
        return
    assert json.dumps(changed, sort_keys=True) == json.dumps(state_of_workers[0], sort_keys=True)


def test_a_state_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ResumeError, match="changed after it was taken"):
        DataLoader2.from_state({**STATE, "position": STATE["position"] + 1}, _pipe())
    with pytest.raises(ResumeError, match="missing required field `seed`"):
        DataLoader2.from_state({key: value for key, value in STATE.items() if key != "seed"}, _pipe())
    with pytest.raises(ResumeError, match=r"\$\.epoch"):
        DataLoader2.from_state({**STATE, "epoch": "2"}, _pipe())
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ResumeError):
        DataLoader2.from_state({**STATE, "graph": deep}, _pipe())
    while deep:  # deallocation of what is nested so deeply needs help
        deep = deep[0]


class Forgetful(IterPipe[int]):
    """A pipe of a user that cannot use its own state any more, after a generator was restored."""

    def __init__(self, datapipe: Any, *, is_new: bool) -> None:
        self.datapipe, self.is_new, self._number = datapipe, is_new, 0

    def reset(self) -> None:
        self._number = 0

    def __iter__(self) -> Any:
        for item in self.datapipe:
            self._number += 1
            yield item

    def state(self) -> dict[str, Any]:
        return {"number": self._number}

    def restore(self, state: dict[str, Any]) -> None:
        if self.is_new:
            raise KeyError("num_items")
        self._number = state["number"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pipe_that_cannot_use_its_state_costs_a_second_reading_and_no_item(num_workers: int) -> None:
    def pipe(is_new: bool) -> Any:
        shuffled = IterableWrapper(range(3000)).shuffle(buffer_size=30).sharding_filter()
        return Forgetful(shuffled.map(lambda number: number + 0 * sum(range(20_000))), is_new=is_new)

    def service() -> Any:
        return MultiProcessingReadingService(num_workers) if num_workers else None

    with DataLoader2(pipe(is_new=False), reading_service=service()) as loader:
        loader.seed(1)
        iterator = iter(loader)
        list(itertools.islice(iterator, 2000))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = list(iterator)
    if num_workers:
        assert any(worker["snapshot"] is not None for worker in state["graph"][0][1]["workers"])
    with DataLoader2.from_state(state, pipe(is_new=True), service()) as again:
        assert list(again) == rest
