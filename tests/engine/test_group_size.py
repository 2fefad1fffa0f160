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


def test_one_item_that_had_to_wait_does_not_make_groups_of_quick_items_small() -> None:
    size = GroupSize()
    for _ in range(12):
        size.note(size.choose(), 6e-6 * size.choose(), 100)
    size.note(10, 0.004, 100)
    assert size.choose() > MAX_ITEMS / 4


def test_groups_become_small_when_items_become_slow() -> None:
    size = GroupSize()
    for _ in range(12):
        size.note(size.choose(), 6e-6 * size.choose(), 100)
    size.note(size.choose(), 0.05 * size.choose(), 100)
    assert size.choose() == 1


def test_it_is_known_whether_larger_groups_may_come() -> None:
    size = GroupSize()
    assert size.is_growing
    while size.choose() < MAX_ITEMS:
        assert size.is_growing
        size.note(size.choose(), 1e-6 * size.choose(), 100)
    assert not size.is_growing
    size.note(1, 1.0, 100)
    assert not size.is_growing
