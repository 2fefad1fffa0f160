"""Looking at many files, several at a time."""

from __future__ import annotations

import threading
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.sources.shared.folder import for_each


@settings(max_examples=40, deadline=None)
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


def test_even_few_items_are_looked_at_at_the_same_time() -> None:
    together = threading.Barrier(3)
    assert for_each(lambda item: together.wait(10) >= 0, "abc") == [True] * 3


def test_memory_for_an_item_is_that_of_its_result() -> None:
    for_each(abs, range(100))
    tracemalloc.start()
    try:
        for_each(lambda item: None, range(200_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20  # a future for each took 1.7 KB: 340 MB
