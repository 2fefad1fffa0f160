import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import LayoutOptions, Pack, RowLayout, WindowKey, pack_batch
from headrace.errors import ConfigError, SourceError

KEY = WindowKey(seed=1, epoch=1, window=0)


def _seqs(lengths):
    """Token t of sequence s is 100 * s + t + 1, so that it can be recognised anywhere."""
    return [
        {"data": np.arange(100 * number + 1, 100 * number + 1 + length), "tag": f"seq-{number}"}
        for number, length in enumerate(lengths)
    ]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(10, 60), st.integers(1, 4))
def test_a_planned_batch_can_be_taken_apart_again_by_its_segment_ids(lengths, row_tokens, num_rows):
    plan = Pack(row_tokens, num_rows, too_long="alone").plan_window(np.array(lengths), KEY)
    seqs, found = _seqs(lengths), []
    for number in range(len(plan)):
        planned = plan[number]
        members = [seqs[place] for place in planned.members]
        batch = pack_batch(members, RowLayout(planned.rows, row_tokens), LayoutOptions(pad_values={"data": -1}))
        packed, ids = batch.arrays["data"], batch.segment_ids
        assert packed.shape == ids.shape == batch.positions.shape
        assert packed.size == planned.cost
        assert ids.dtype == batch.positions.dtype == batch.rows.dtype == batch.starts.dtype == np.int32
        assert ((packed == -1) == (ids == 0)).all()
        assert (batch.positions[ids == 0] == 0).all()
        in_row = {}
        for place, row, start in zip(planned.members, batch.rows, batch.starts, strict=True):
            in_row[row] = in_row.get(row, 0) + 1
            is_mine = ids[row] == in_row[row]
            np.testing.assert_array_equal(packed[row][is_mine], seqs[place]["data"])
            np.testing.assert_array_equal(batch.positions[row][is_mine], np.arange(lengths[place]))
            assert lengths[place] == 0 or np.flatnonzero(is_mine)[0] == start
        found += batch.arrays["tag"]
    assert sorted(found) == sorted(seq["tag"] for seq in seqs)


def test_rows_that_are_not_used_are_padding():
    batch = pack_batch(_seqs([3]), RowLayout(np.array([0]), 5, num_rows=2), LayoutOptions(pad_values={"data": 9}))
    assert batch.arrays["data"].tolist() == [[1, 2, 3, 9, 9], [9] * 5]
    assert batch.segment_ids.tolist() == [[1, 1, 1, 0, 0], [0] * 5]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 0], [0] * 5]
    assert batch.lengths["data"].tolist() == [3]


def test_a_single_sequence_may_be_longer_than_a_row():
    batch = pack_batch(_seqs([8]), RowLayout(np.array([0]), 5))
    assert batch.arrays["data"].shape == (1, 8)


def test_all_output_can_be_allocated_elsewhere():
    asked = {}

    def allocate(name, shape, dtype):
        asked[name] = np.full(shape, 77, dtype)
        return asked[name]

    seqs = [{"data": np.arange(3), "label": 5}, {"data": np.arange(2), "label": 6}]
    batch = pack_batch(seqs, RowLayout(np.array([0, 0]), 6), allocate=allocate)
    assert set(asked) == {"data", "label", "segment_ids", "positions"}
    assert batch.segment_ids is asked["segment_ids"]
    assert batch.arrays["data"].tolist() == [[0, 1, 2, 0, 1, 0]]
    assert batch.arrays["label"].tolist() == [5, 6]


def test_keys_that_do_not_share_rows_are_padded_one_row_a_sequence():
    seqs = [{"data": np.ones(3), "classes": np.arange(2)}, {"data": np.ones(2), "classes": np.arange(4)}]
    batch = pack_batch(seqs, RowLayout(np.array([0, 0]), 6, packed_keys=("data",)))
    assert batch.arrays["data"].shape == (1, 6)
    assert batch.arrays["classes"].tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert batch.lengths["classes"].tolist() == [2, 4]


def test_keys_of_unequal_lengths_cannot_share_rows():
    seqs = [{"data": np.ones(3), "classes": np.arange(3)}, {"data": np.ones(2), "classes": np.arange(4)}]
    with pytest.raises(SourceError, match=r"'data' and 'classes' cannot share rows.*2 and 4 frames") as error:
        pack_batch(seqs, RowLayout(np.array([0, 0]), 6), tags=["a", "b"])
    assert error.value.where == "'b'"
    assert "packed_keys" in error.value.fix


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([0, 0], {"row_tokens": 4}, "row 0 has 5 tokens, and row_tokens is 4"),
        ([1, 0], {"row_tokens": 9}, "ascending rows"),
        ([0], {"row_tokens": 9}, "2 sequences need ascending rows"),
        ([-1, 0], {"row_tokens": 9}, "ascending rows"),
        ([0, 2], {"row_tokens": 9, "num_rows": 2}, "row 2 is outside a batch of 2 rows"),
        ([0, 1], {"row_tokens": 9, "packed_keys": ("tag",)}, "'tag', which has no time axis"),
        ([0, 1], {"row_tokens": 9, "packed_keys": ()}, "no data key"),
    ],
)
def test_a_layout_that_does_not_suit_the_sequences_is_refused(rows, options, message):
    with pytest.raises(ConfigError, match=message):
        pack_batch(_seqs([3, 2]), RowLayout(np.array(rows), **options))


def test_inner_axes_are_packed_along():
    seqs = [{"data": np.full((2, 3), 1.0)}, {"data": np.full((1, 3), 2.0)}]
    batch = pack_batch(seqs, RowLayout(np.array([0, 0]), 4))
    assert batch.arrays["data"][0, :, 0].tolist() == [1, 1, 2, 0]
