"""What travels between a loader and its workers comes out as it went in."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loading.batch import is_made, pack_made, tags_of
from headrace.loading.work import Task

NUMBERS = st.lists(st.integers(-(2**40), 2**40), max_size=5).map(lambda values: np.array(values, np.int64))
SMALL = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(lambda values: np.array(values, np.int32))


@given(
    st.builds(
        Task,
        epoch=st.integers(1, 2**40),
        number=st.integers(0, 2**40),
        indices=NUMBERS,
        occurrences=st.none() | NUMBERS,
        rows=st.none() | SMALL,
        chunk_starts=st.none() | NUMBERS,
        chunk_frames=st.none() | NUMBERS,
        seq_frames=st.none() | NUMBERS,
        seqs=st.none() | st.just([("a", {"data": [1, 2]})]),
    )
)
def test_a_task_is_carried_with_all_that_it_says(task):
    carried = pickle.loads(pickle.dumps(task, 5))
    for name in Task.__struct_fields__:
        ours, theirs = getattr(task, name), getattr(carried, name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(theirs, ours, strict=True)
        else:
            assert theirs == ours


def test_a_part_of_an_array_is_carried_alone():
    indices = np.arange(10_000)[10:12]
    assert len(pickle.dumps(Task(1, 2, indices), 5)) < 200


@pytest.mark.parametrize("tags", [[], [""], ["", ""], ["a"], ["a", "ü\ud800"], ["a\0b"], ["\0", "", "x"], [3, b"x"]])
def test_tags_of_any_text_come_out_as_they_were(tags):
    made = pack_made(tags, None, {}, {})
    assert is_made(made)
    assert tags_of(made[1]) == tags


@pytest.mark.parametrize(
    "value", [None, (), (np.zeros(3),) * 6, ["headrace batch"] * 6, ("other", "", None, {}, {}, None)]
)
def test_what_a_collate_returns_is_not_taken_for_a_batch(value):
    assert not is_made(value)
