"""How many items travel together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.group_size import GROUP_BYTES, GROUP_SECONDS, MAX_ITEMS, GroupSize


def test_small_and_quick_items_travel_in_groups_that_double() -> None:
    size, seen = GroupSize(), []
    for _ in range(14):
        seen.append(size.choose())
        size.note(seen[-1], 1e-6 * seen[-1], 100)
    assert seen == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024, 1024]


def test_a_group_has_no_more_items_than_it_may() -> None:
    size = GroupSize(max_items=1)
    size.note(1, 1e-6, 10)
    assert size.choose() == 1


@given(st.lists(st.tuples(st.integers(0, MAX_ITEMS), st.floats(0, 10), st.floats(0, 1e10)), max_size=30))
def test_a_group_is_never_larger_than_what_was_seen_allows(notes: list[tuple[int, float, float]]) -> None:
    size = GroupSize()
    for num_items, seconds, num_bytes in notes:
        size.note(num_items, seconds, num_bytes)
        assert 1 <= size.choose() <= MAX_ITEMS
    for _ in range(60):
        size.note(1, 0.5, 10 * GROUP_BYTES)
    assert size.choose() == 1
    assert GROUP_SECONDS < 0.5
