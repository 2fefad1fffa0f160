"""What goes first: pure decisions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.files.cache.entry import EntryKey, derive_source_digest
from headrace.files.cache.folder import EntryState
from headrace.files.cache.options import FileCacheOptions
from headrace.files.cache.room import is_due, may_go_for, order_candidates
from headrace.files.fetch.fetch import SourceStat

_NOW = 1_000_000_000.0
_DAY = 24 * 3600.0


def _state(source: str, *, age_days: float = 0.0, version: str = "1", whole: bool = True, foreign: bool = False):
    return EntryState(EntryKey.of(source, SourceStat(10, version)), whole, 10, _NOW - age_days * _DAY, foreign)


def _order(states, distances=()):
    by_digest = {derive_source_digest(source): float(place) for source, place in dict(distances).items()}
    return order_candidates(states, by_digest, _NOW)


def test_first_goes_what_is_no_copy_then_the_unplanned_by_age_then_what_is_needed_last():
    soon, late, old, new, truncated = (
        _state("/soon", age_days=9),
        _state("/late"),
        _state("/old", age_days=5),
        _state("/new", age_days=1),
        _state("/truncated", whole=False),
    )
    ordered = _order([soon, new, late, truncated, old], {"/soon": 0, "/late": 7})
    assert [candidate.state for candidate in ordered] == [truncated, old, new, late, soon]


def test_a_version_that_was_used_before_another_of_its_source_goes_early_even_if_the_source_is_planned():
    old, new, other = _state("/a", age_days=1), _state("/a", version="2"), _state("/b", age_days=3)
    ordered = _order([new, old, other], {"/a": 0})
    assert [candidate.state for candidate in ordered] == [old, other, new]


def test_a_part_that_another_machine_may_be_writing_is_not_touched_for_an_hour():
    young = _state("/a", age_days=0.5 / 24, whole=False, foreign=True)
    old = _state("/b", age_days=1.5 / 24, whole=False, foreign=True)
    assert [candidate.state for candidate in _order([young, old])] == [old]


@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(0, 100), st.one_of(st.none(), st.integers(0, 50))), min_size=1, max_size=30
    )
)
def test_nothing_goes_before_what_is_needed_later(specs):
    states = [_state(f"/{i}", age_days=age, whole=whole) for i, (whole, age, _) in enumerate(specs)]
    ordered = _order(states, {f"/{i}": place for i, (_, _, place) in enumerate(specs) if place is not None})
    assert sorted(c.state.key.text for c in ordered) == sorted(state.key.text for state in states)
    ranks = [(not c.is_stale, -c.distance, c.state.last_use) for c in ordered]
    assert ranks == sorted(ranks)
    for candidate in ordered:
        assert may_go_for(candidate, -1.0), "what is needed now may take the room of anything that is not in use"
        assert may_go_for(candidate, candidate.distance) == (not candidate.state.has_copy)
        if not math.isinf(candidate.distance):
            assert may_go_for(candidate, candidate.distance - 1)


@pytest.mark.parametrize(
    ("age_days", "planned", "whole", "wants_room", "due"),
    [
        (0.5, False, True, True, False),
        (1.5, False, True, False, False),
        (1.5, False, True, True, True),
        (32.0, False, True, False, True),
        (32.0, True, True, True, False),
        (0.5, False, False, True, False),
        (1.5, True, False, False, True),
    ],
)
def test_age_alone(age_days, planned, whole, wants_room, due):
    (candidate,) = _order([_state("/a", age_days=age_days, whole=whole)], {"/a": 3} if planned else {})
    assert is_due(candidate, FileCacheOptions(), _NOW, wants_room=wants_room) == due
