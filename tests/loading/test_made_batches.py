"""What travels between a loader and its workers comes out as it went in."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loading.batch import Batch, is_made, pack_made
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
    carried = Task.of(pickle.loads(pickle.dumps(task.carried(), 5)))
    for name in Task.__struct_fields__:
        ours, theirs = getattr(task, name), getattr(carried, name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(theirs, ours, strict=True)
        else:
            assert theirs == ours


def test_a_part_of_an_array_is_carried_alone():
    indices = np.arange(10_000)[10:12]
    assert len(pickle.dumps(Task(1, 2, indices).carried(), 5)) < 50


@pytest.mark.parametrize(
    "tags", [[], [""], ["", ""], ["a"], ["a", "ü\ud800"], ["a\0b"], ["\0", "", "x"], [3, b"x"], [3]]
)
def test_tags_of_any_text_come_out_as_they_were(tags):
    made = pack_made(tags, None, {}, {})
    assert is_made(made)
    seq_idx = np.arange(len(tags))
    batch = Batch({}, {}, [], seq_idx, seq_idx, epoch=1, position=0, step=0)
    batch.take_tags(made[1])
    assert batch.num_seqs == len(tags)
    for carried in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), batch, batch):
        assert carried.tags == tags
    with pytest.raises(AttributeError, match="no attribute 'tag'"):
        _ = batch.tag


@pytest.mark.parametrize(
    "value", [None, (), (np.zeros(3),) * 6, ["headrace batch"] * 6, ("other", "", None, {}, {}, None)]
)
def test_what_a_collate_returns_is_not_taken_for_a_batch(value):
    assert not is_made(value)


def test_tags_that_follow_from_the_corpus_indices_are_not_sent():
    made = pack_made(None, np.array([1]), {}, {})
    assert is_made(made)
    assert made[1] is None
    batch = Batch({}, {}, [], np.array([7]), np.array([40]), epoch=1, position=0, step=0)
    batch.take_tags(made[1])
    for carried in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), batch, batch):
        assert carried.tags == ["seq-40"]
