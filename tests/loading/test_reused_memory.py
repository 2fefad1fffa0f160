"""User code may fill the same memory again for a later item: each item comes as it was when it was given.

Laws range over what is given (arrays, tuples, lists, dicts, the same dict with new arrays), their size, how many share
a batch, and who makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.batching import ReuseCheck

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM_ITEMS = 100


class Refilled:
    """A map-style dataset whose items are all in one array, or in one dict."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind, self.buffer, self.items = kind, np.zeros(size, np.float32), dict[str, Any]()

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, idx: int) -> Any:
        if self.kind == "the same dict":
            self.items["data"] = np.full(len(self.buffer), idx, np.float32)
            return self.items
        self.buffer[:] = idx
        given: dict[str, Callable[[], Any]] = {
            "array": lambda: self.buffer,
            "view": lambda: self.buffer[:],
            "tuple": lambda: (self.buffer, idx),
            "list": lambda: [self.buffer, idx],
            "dict": lambda: {"data": self.buffer},
        }
        return given[self.kind]()


class RefilledStream:
    """The same as a stream."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind, self.size = kind, size

    def __iter__(self) -> Iterator[Any]:
        items = Refilled(self.kind, self.size)
        return (items[idx] for idx in range(NUM_ITEMS))


def first_of(batch: Any) -> Any:
    """Return the arrays of a batch."""
    if isinstance(batch, list | tuple):
        return batch[0]
    return batch if isinstance(batch, np.ndarray) else batch["data"]


def delivered(dataset: Any, **options: Any) -> list[int]:
    """Return the first value of each item; all values of an item are equal."""
    found: list[int] = []
    with hr.DataLoader(dataset, **options) as loader:
        for batch in loader:
            rows = np.asarray(first_of(batch)).reshape(-1, len(dataset.buffer if hasattr(dataset, "buffer") else [0]))
            assert (rows == rows[:, :1]).all()
            found += rows[:, 0].astype(int).tolist()
    return found


KINDS = ["array", "view", "tuple", "list", "dict", "the same dict"]


@pytest.mark.sample(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 10_000])
@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 0), (7, 0), (7, 2), (64, 0), (1, 2)])
def test_items_in_one_memory_come_as_they_were_given(kind: str, size: int, batch_size: int, num_workers: int) -> None:
    dataset = Refilled(kind, size)
    assert delivered(dataset, batch_size=batch_size, num_workers=num_workers) == list(range(NUM_ITEMS))


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_in_one_memory_comes_as_it_was_given(kind: str, num_workers: int) -> None:
    dataset = RefilledStream(kind, 1)
    assert delivered(dataset, batch_size=7, num_workers=num_workers) == list(range(NUM_ITEMS))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_function_gets_items_as_they_were_given(num_workers: int) -> None:
    dataset = Refilled("array", 4)
    options: dict[str, Any] = {"batch_size": 7, "num_workers": num_workers, "collate": np.stack}
    assert delivered(dataset, **options) == list(range(NUM_ITEMS))


def test_what_keeps_its_content_is_not_copied_for_long() -> None:
    reuse, arrays = ReuseCheck(), [np.full(3, idx) for idx in range(20)]
    for array in arrays[:10]:
        assert np.array_equal(reuse.keep(array), array)
    reuse.look()
    assert reuse.copies  # ten tell too little
    for array in arrays[10:]:
        reuse.keep(array)
    reuse.look()
    assert not reuse.copies


@pytest.mark.parametrize("change", ["array", "list", "dict", "part of a tuple"])
def test_what_changes_is_copied_for_good(change: str) -> None:
    array = np.zeros(3)
    value = {"array": array, "list": [1], "dict": {"a": 1}, "part of a tuple": (array, 1)}[change]
    reuse = ReuseCheck()
    kept = reuse.keep(value)
    array[0] = 1
    if isinstance(value, list):
        value.append(2)
    elif isinstance(value, dict):
        value["a"] = 2
    reuse.look()
    for idx in range(50):
        reuse.keep(np.full(3, idx))
        reuse.look()
    assert reuse.copies
    assert str(kept) in {"[0. 0. 0.]", "[1]", "{'a': 1}", "(array([0., 0., 0.]), 1)"}


def test_numbers_that_are_none_count_as_equal_to_themselves() -> None:
    reuse = ReuseCheck()
    for _ in range(20):
        reuse.keep(np.array([np.nan, 1.0]))
    reuse.look()
    assert not reuse.copies
