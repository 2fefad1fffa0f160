"""The law of the codec: what comes out is what went in, and its arrays are views of the slot."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from codec_cases import PlainSlot, arrays, atoms, plain_arrays, round_trip, same, seq_lists, values
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.engine.codec.codec import decode, encode
from headrace.engine.codec.plan import EncodingPlan

LAW = examples(400)


@LAW
@given(st.one_of(values, seq_lists()))
def test_what_comes_out_is_what_went_in(value):
    assert same(value, round_trip(value))


@LAW
@given(st.one_of(values, seq_lists(), arrays()))
def test_every_plain_array_is_a_writable_view_and_no_two_overlap(value):
    slot = PlainSlot(1)
    header = encode(value, slot)
    found = plain_arrays(decode(header, slot.buffer))
    sent = plain_arrays(value)
    assert [array.dtype.char for array in found] == [array.dtype.char for array in sent]  # "l" and "q" are equal
    assert all(np.shares_memory(array, slot.buffer) for array in found)
    assert all(array.flags.writeable and array.flags.aligned for array in found)
    start = slot.buffer.__array_interface__["data"][0]
    spans = sorted((array.__array_interface__["data"][0] - start, array.nbytes) for array in found)
    assert all(position + num_bytes <= after for (position, num_bytes), (after, _) in pairwise(spans))


@examples(200)
@given(st.one_of(values, seq_lists()))
def test_columns_give_the_same_as_encoding_by_element(value):
    slot = PlainSlot(1)
    by_column = decode(encode(value, slot), slot.buffer)
    real, EncodingPlan.items = EncodingPlan.items, _items_one_by_one
    try:
        header = encode(value, slot)
    finally:
        EncodingPlan.items = real
    assert same(by_column, decode(header, slot.buffer))


def _items_one_by_one(plan, elements):
    return 1, plan._each(elements)


@LAW
@given(st.lists(values, max_size=5))
def test_a_slot_takes_several_values_and_earlier_ones_stay_readable_when_it_grows(several):
    slot = PlainSlot(1)
    headers = [encode(value, slot) for value in several]
    assert same(several, [decode(header, slot.buffer) for header in headers])


@LAW
@given(st.one_of(values, seq_lists()))
def test_encoding_does_not_change_the_value_and_later_changes_of_it_do_not_arrive(value):
    slot = PlainSlot(1)
    before = round_trip(value)
    header = encode(value, slot)
    assert same(before, value)
    for array in plain_arrays(value):
        if array.flags.writeable:
            array.view(np.ndarray).fill(np.zeros((), array.dtype)[()])
    assert same(before, decode(header, slot.buffer))


@given(st.recursive(atoms, lambda parts: st.lists(parts) | st.dictionaries(atoms, parts), max_leaves=20))
def test_the_header_is_short_for_every_value(value):
    assert len(encode(value, PlainSlot())) <= 300
