"""Looking at many files, several at a time."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import SourceError
from headrace.sources.shared import folder, parts
from headrace.sources.shared.folder import for_each
from headrace.sources.shared.parts import gathering


@examples(40)
@given(
    num_items=st.one_of(st.integers(0, 70), st.integers(0, 10_000)),
    failing=st.sets(st.integers(0, 10_000), max_size=3),
)
def test_results_come_in_order_or_the_first_error_is_raised(num_items: int, failing: set[int]) -> None:
    def look(item: int) -> int:
        if item in failing:
            raise SourceError(f"{item}")
        return item * item

    wrong = [item for item in failing if item < num_items]
    if wrong:
        with pytest.raises(SourceError, match=f"^{min(wrong)}$"):
            for_each(look, range(num_items))
    else:
        assert for_each(look, range(num_items)) == [item * item for item in range(num_items)]


def square(failing: frozenset[int], item: int) -> int:
    if item in failing:
        raise SourceError(f"{item}")
    return item * item


def carried(function: Callable[[Any], Any], parts: Sequence[Any], num_workers: int) -> Iterator[Any]:
    """Do in this process what worker processes would, with what would come there."""
    assert num_workers == 2
    yield from map(pickle.loads(pickle.dumps(function)), parts)


@examples(60)
@given(
    num_items=st.integers(0, 40),
    size=st.integers(1, 9),
    failing=st.frozensets(st.integers(0, 40), max_size=2),
)
def test_worker_processes_find_what_one_process_finds(num_items: int, size: int, failing: frozenset[int]) -> None:
    look = partial(square, failing)
    wrong = [item for item in failing if item < num_items]
    with pytest.MonkeyPatch.context() as patch, gathering(num_workers=2):
        patch.setattr(parts, "_offered", [carried])
        patch.setattr(folder, "_PART_ITEMS", size)
        if wrong:
            with pytest.raises(SourceError, match=f"^{min(wrong)}$"):
                for_each(look, range(num_items))
        else:
            assert for_each(look, range(num_items)) == [item * item for item in range(num_items)]


def test_memory_for_an_item_is_that_of_its_result() -> None:
    for_each(abs, range(100))
    tracemalloc.start()
    try:
        with gathering(num_workers=0):
            for_each(lambda item: None, range(200_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20  # a future for each took 1.7 KB: 340 MB
