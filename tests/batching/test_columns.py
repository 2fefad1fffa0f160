"""Columns from anywhere are laid out like sequences in memory, in rows that are large or small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import Column, LayoutOptions, RowLayout, pack_batch, pack_columns, pad_batch, pad_columns
from headrace.batching import layout as layout_module
from headrace.specs import DataSpec

DIRTY = 77


class Generated(Column):
    """Value i is full of i + 1, made when it is written."""

    def __init__(self, key, lengths, inner, *, has_time=True):
        self.key, self.num_seqs, self.dtype, self.inner = key, len(lengths), np.dtype(np.int16), inner
        self.lengths = np.array(lengths, np.int32) if has_time else None
        self._lengths = lengths

    def write(self, outs):
        for number, (out, length) in enumerate(zip(outs, self._lengths, strict=True)):
            assert out.shape == (length, *self.inner)
            assert out.flags.c_contiguous
            out[...] = number + 1

    def stack(self, out):
        assert out.shape == (self.num_seqs, *self.inner)
        out[...] = np.arange(1, self.num_seqs + 1).reshape(-1, *(1 for _ in self.inner))

    def seqs(self):
        shapes = self.inner if self.lengths is None else None
        return [
            np.full((length, *self.inner) if shapes is None else shapes, number + 1, np.int16)
            for number, length in enumerate(self._lengths)
        ]


def _allocate(name, shape, dtype):
    return np.full(shape, DIRTY, dtype)


@pytest.fixture(params=[0, 4096, 1 << 30], ids=["large rows", "as it is", "small rows"], autouse=True)
def _small_row_bytes(request, monkeypatch):
    monkeypatch.setattr(layout_module, "_SMALL_ROW_BYTES", request.param)


shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
lengths_of_batches = st.lists(st.integers(0, 30), min_size=1, max_size=8)


@given(lengths_of_batches, shapes, shapes, st.integers(1, 8))
def test_padded_columns_are_padded_sequences(lengths, inner, static, multiple_of):
    columns = [Generated("data", lengths, inner), Generated("speaker", lengths, static, has_time=False)]
    pairs = zip(*(column.seqs() for column in columns), strict=True)
    seqs = [{"data": data, "speaker": speaker} for data, speaker in pairs]
    specs = {"speaker": DataSpec("int16", static, has_time=False)}
    options = LayoutOptions(specs, {"data": -3}, multiple_of)
    found = pad_columns({column.key: column for column in columns}, options, _allocate)
    expected = pad_batch(seqs, options)
    for key in ("data", "speaker"):
        np.testing.assert_array_equal(found.arrays[key], expected.arrays[key])
        assert found.arrays[key].dtype == expected.arrays[key].dtype
    assert found.lengths.keys() == expected.lengths.keys() == {"data"}
    for row, length in zip(found.arrays["data"], lengths, strict=True):
        assert (row[length:] == -3).all()
    assert not (found.arrays["data"] == DIRTY).any()


@given(lengths_of_batches, shapes, st.data())
def test_packed_columns_are_packed_sequences(lengths, inner, data):
    breaks = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    rows = np.cumsum([0, *breaks[1:]]).astype(np.int32)
    column = Generated("data", lengths, inner)
    layout = RowLayout(rows, row_tokens=max(1, sum(lengths)))
    options = LayoutOptions(pad_values={"data": -3})
    found = pack_columns({"data": column}, layout, options, allocate=_allocate)
    expected = pack_batch([{"data": seq} for seq in column.seqs()], layout, options)
    np.testing.assert_array_equal(found.arrays["data"], expected.arrays["data"])
    for row in range(rows[-1] + 1):
        used = 0
        for number, member in enumerate(np.flatnonzero(rows == row).tolist()):
            place = slice(used, used + lengths[member])
            assert (found.arrays["data"][row, place] == member + 1).all()
            assert (found.segment_ids[row, place] == number + 1).all()
            assert found.positions[row, place].tolist() == list(range(lengths[member]))
            used += lengths[member]
        assert (found.arrays["data"][row, used:] == -3).all()
        assert not found.segment_ids[row, used:].any()
        assert not found.positions[row, used:].any()
