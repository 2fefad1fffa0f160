"""A state of a loader is what was saved, or is refused: pure laws."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ResumeError
from headrace.loading.state import FORMAT, LoaderState

PARTS = ("shards", "data", "lengths", "order", "batching", "seed", "user")
digests = st.dictionaries(st.sampled_from(PARTS), st.sampled_from("0123"))


@st.composite
def states(draw):
    position = draw(st.integers(0, 2**62))
    window = draw(st.integers(0, 2**40)), draw(st.integers(0, position))
    return LoaderState(FORMAT, draw(st.integers(0, 2**63 - 1)), position, window, draw(digests))


@given(states(), st.booleans())
def test_a_saved_state_is_json_and_comes_back_as_it_was(state, is_old):
    saved = state.to_dict()
    assert json.loads(json.dumps(saved)) == saved
    given = {**saved, "digest": None} if is_old else saved
    assert LoaderState.of_dict(json.loads(json.dumps(given))).to_dict() == saved


@given(states(), st.integers(1, 9))
def test_each_number_of_a_state_counts(state, difference):
    saved = state.to_dict()
    window, first = saved["window"]
    changes = [
        {"epoch": saved["epoch"] - difference},
        {"position": saved["position"] + difference},
        {"window": [window + difference, first]},
        {"window": [window, first - difference]},
        {"digests": {**saved["digests"], "seed": "other"}},
        {"digest": "other"},
        {"more": difference},
    ]
    for change in changes:
        with pytest.raises(ResumeError):
            LoaderState.of_dict({**saved, **change})


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_named_before_all_else(other):
    with pytest.raises(ResumeError, match=f"the format {other}, .* reads {FORMAT}"):
        LoaderState.of_dict({"format": other})


@pytest.mark.parametrize(
    ("epoch", "position", "window", "is_possible"),
    [
        (0, 0, (0, 0), True),
        (2**63 - 1, 3, (1, 3), True),
        (-1, 3, (1, 2), False),
        (2**63, 3, (1, 2), False),
        (1, -1, (0, 0), False),
        (1, 3, (-1, 2), False),
        (1, 3, (1, -1), False),
        (1, 3, (1, 4), False),
    ],
)
def test_numbers_that_cannot_be_are_refused_whatever_the_digest_says(epoch, position, window, is_possible):
    state = {"format": FORMAT, "epoch": epoch, "position": position, "window": window, "digests": {}}
    if is_possible:
        assert LoaderState.of_dict(state).position == position
    else:
        with pytest.raises(ResumeError, match="not the state of a loader"):
            LoaderState.of_dict(state)


@given(states(), digests)
def test_every_part_of_the_recipe_that_differs_is_named_and_no_other(state, own):
    parts = {*own, *({"shards"} & set(state.digests))}
    differing = {part for part in parts if state.digests.get(part) != own.get(part)}
    names = {"user": "user code (recipe_version)", "shards": "number of ranks", "lengths": "data (its lengths)"}
    text = ""
    try:
        state.check_digests(own)
    except ResumeError as error:
        text = str(error)
    assert {part for part in PARTS if f"another {names.get(part, part)}: " in text} == differing
