"""Blocks of sequences: what goes in comes out, by whatever column it travels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from plain_slot import PlainSlot

from headrace.datasets.wrap.blockwise import SeqBlock, make_columns, read_columns
from headrace.engine.codec.codec import decode, encode
from headrace.sources import MemorySource, fill_rows

DTYPES = st.sampled_from(["f4", "i4", "u1", ">i2", "M8[s]", "U3", "c8", "O"])


def arrays_of(dtype, tail):
    if dtype == "O":
        return st.integers(0, 3).map(lambda n: np.full((n, *tail), "text", object))
    shapes = st.integers(0, 4).map(lambda n: (n, *tail))
    return npst.arrays(dtype, shapes)


@st.composite
def columns_of_seqs(draw, num_seqs):
    """Draw one array for each sequence: alike, or with differences that a column cannot hold."""
    kind = draw(st.sampled_from(["ragged", "ragged", "0-d", "mixed", "fortran", "strided", "masked"]))
    dtype, tail = draw(DTYPES), draw(st.sampled_from([(), (2,), (1, 3), (0,)]))
    if kind == "mixed":
        alike = st.tuples(DTYPES, st.sampled_from([(), (2,), (3,)]))
        return [draw(arrays_of(*draw(alike))) for _ in range(num_seqs)]
    if kind == "0-d":
        return [np.array(draw(st.integers(0, 9)), "i8") for _ in range(num_seqs)]
    arrays = [draw(arrays_of(dtype, tail)) for _ in range(num_seqs)]
    if kind == "fortran":
        return [np.asfortranarray(array) for array in arrays]
    if kind == "strided":
        return [np.repeat(array, 2, axis=0)[::2] for array in arrays]
    if kind == "masked" and dtype in ("f4", "i4"):  # NumPy itself pickles others in another byte order
        return [np.ma.masked_array(array) for array in arrays]
    return arrays


@st.composite
def lists_of_features(draw):
    num_seqs = draw(st.integers(0, 5))
    columns = {key: draw(columns_of_seqs(num_seqs)) for key in draw(st.sets(st.sampled_from("abc")))}
    seqs = [{key: column[i] for key, column in columns.items()} for i in range(num_seqs)]
    if draw(st.booleans()) and seqs and columns:
        seqs[draw(st.integers(0, num_seqs - 1))].pop(draw(st.sampled_from(sorted(columns))))
    return seqs


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    assert (found.dtype, found.shape, found.flags.fnc) == (wanted.dtype, wanted.shape, wanted.flags.fnc)
    if found.dtype.hasobject:
        assert found.tolist() == wanted.tolist()
    else:
        assert found.tobytes() == wanted.tobytes()


def travel(value):
    slot = PlainSlot()
    header = encode(value, slot)
    return decode(header, slot.buffer)


@pytest.mark.parametrize("carry", [lambda value: value, travel], ids=["here", "through the codec"])
@given(seqs=lists_of_features())
def test_sequences_come_out_as_they_went_in(carry, seqs):
    tags = [f"s{i}" for i in range(len(seqs))]
    block = SeqBlock(*carry((tags, list(range(len(seqs))), None, make_columns(seqs))))
    assert len(block) == len(seqs)
    for i, wanted in enumerate(seqs):
        seq = block.seq(i, i + 10, None)
        assert (seq.seq_idx, seq.tag, seq.corpus_idx, seq.complete_frac) == (i + 10, f"s{i}", i, None)
        assert set(seq.features) == set(wanted)
        for key, array in wanted.items():
            assert_same(seq[key], array)


def test_progress_is_what_the_number_of_sequences_says_or_else_the_sequence():
    block = SeqBlock(["a", "b"], None, [0.25, None], ({}, {}))
    assert [block.seq(i, i + 2, 8).complete_frac for i in range(2)] == [3 / 8, 4 / 8]
    assert [block.seq(i, i + 2, None).complete_frac for i in range(2)] == [0.25, None]
    assert block.seq(1, 1, None).corpus_idx is None


def test_arrays_are_made_once_for_each_key_and_an_unknown_key_is_none():
    block = SeqBlock(["a"], None, None, make_columns([{"data": np.zeros(3)}]))
    assert block.arrays["data"][0] is block.arrays["data"][0]
    with pytest.raises(KeyError):
        block.arrays["dta"]


def test_large_arrays_stay_by_themselves():
    arrays = [np.zeros(100_000), np.zeros(3)]
    values, offsets = make_columns([{"data": array} for array in arrays])
    assert values["data"] == arrays
    assert offsets == {}


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 5), max_size=9))
def test_reading_together_is_reading_one_by_one(lengths, indices):
    seqs = [
        {"data": np.full((n, 2), i, np.float32), "classes": np.full(n, i % 3, np.int32), "speaker": np.array(i % 2)}
        for i, n in enumerate(lengths)
    ]
    source = MemorySource(seqs)
    chosen = [i for i in indices if i < len(seqs)]
    columns = read_columns(source, np.array(chosen, np.int64))
    block = SeqBlock([f"seq-{i}" for i in chosen], chosen, None, columns)
    for offset, i in enumerate(chosen):
        for key, array in source.read_seq(i).items():
            assert_same(block.arrays[key][offset], array)


@pytest.mark.parametrize("num_bytes", [8, 100_000])
@pytest.mark.parametrize("shift", [-1, 1])
def test_rows_that_do_not_fit_are_refused(num_bytes, shift):
    arrays = [np.zeros(num_bytes, np.uint8)] * 2
    with pytest.raises(ValueError, match=r"size|shape"):
        fill_rows(np.empty(2 * num_bytes + shift, np.uint8), arrays)
    with pytest.raises(ValueError, match="no arrays"):
        fill_rows(np.empty(num_bytes, np.uint8), [])


def test_objects_are_copied_as_objects():
    out = np.empty(3, object)
    fill_rows(out, [np.array(["a"], object), np.array([None, {}], object)])
    assert out.tolist() == ["a", None, {}]
