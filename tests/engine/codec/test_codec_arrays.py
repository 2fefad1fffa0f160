"""Arrays in the slot: what is a view, what is copied and how often, and what a view keeps alive."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from codec_cases import PlainSlot, Seq, round_trip, same

from headrace.engine.codec.codec import decode, encode


def make_in_slot(slot: PlainSlot, shape: tuple[int, ...], dtype: str = "f4") -> np.ndarray:
    """Produce an array in place."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    array = slot.reserve(size)[1].view(dtype).reshape(shape)
    array[...] = np.arange(array.size).reshape(shape)
    return array


WRAPPED = {
    "alone": lambda array: array,
    "transposed": lambda array: array.T,
    "a slice of rows": lambda array: array[2:5],
    "in a dict": lambda array: {"data": array, "other": np.ones(3)},
    "in a list": lambda array: [array, array[:1]],
    "in like dicts": lambda array: [{"data": array[i : i + 2], "n": i} for i in range(4)],
    "in a dataclass": Seq,
    "in an object that is pickled": lambda array: {"held": Holder(array)},
}


class Holder:
    def __init__(self, array):
        self.array = array

    def __eq__(self, other):
        return same(self.array, other.array)

    __hash__ = None


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_what_was_produced_in_the_slot_is_not_copied(wrap):
    slot = PlainSlot(1 << 20)
    array = make_in_slot(slot, (64, 256))
    used = slot.used
    value = wrap(array)
    header = encode(value, slot)
    assert slot.used - used < 2048
    decoded = decode(header, slot.buffer)
    assert same(value, decoded)
    array[...] = -1
    assert same(value, decoded)


def test_an_array_in_the_slot_keeps_its_place_when_encoding_makes_the_slot_grow():
    slot = PlainSlot(4096)
    array = make_in_slot(slot, (16,))
    large = np.arange(10_000)
    value = [array, large]
    header = encode(value, slot)
    assert same(value, decode(header, slot.buffer))
    assert slot.used < large.nbytes + 1024


def test_a_strided_view_of_the_slot_is_copied():
    slot = PlainSlot(4096)
    array = make_in_slot(slot, (16, 16))
    value = [array[::2], array[:, 3], array[::-1]]
    decoded = round_trip(value, slot)
    assert same(value, decoded)
    assert not np.shares_memory(decoded[0], array)


class Lease:
    """Stands for the memory of a slot: knows when the last view of it is gone."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__


VALUES = {
    "one array": (np.arange(9), lambda value: value),
    "an array in Fortran order": (np.arange(9).reshape(3, 3).T, lambda value: value[1:]),
    "a ragged column": ([np.arange(3), np.arange(4)], lambda value: value[1]),
    "a column of one shape": ([np.arange(3), np.arange(3)], lambda value: value[1]),
    "points": ([np.array(3.0), np.array(4.0)], lambda value: value[0]),
    "like dicts": ([{"a": np.arange(i), "t": str(i)} for i in range(3)], lambda value: value[2]),
    "a pickled object": (Holder(np.arange(9)), lambda value: value.array),
    "a pickled object with a read-only array": (
        Holder(np.broadcast_to(np.arange(3), (2, 3))),
        lambda value: value.array,
    ),
    "structured": (np.zeros(3, [("a", "i4"), ("b", "U2")]), lambda value: value["b"]),
}


@pytest.mark.parametrize(("value", "part"), VALUES.values(), ids=VALUES)
def test_the_buffer_lives_as_long_as_the_last_view_and_no_longer(value, part):
    slot = PlainSlot()
    header = encode(value, slot)
    lease = Lease(slot.buffer)
    is_alive = weakref.ref(lease)
    kept = part(decode(header, np.asarray(lease)))
    del lease
    gc.collect()
    assert is_alive() is not None
    del kept
    gc.collect()
    assert is_alive() is None


def test_a_value_without_arrays_does_not_hold_the_buffer():
    value = {"n": [1, 2, np.float32(3)], "text": "x", "long": b"x" * 10_000, "many": [np.int64(i) for i in range(9)]}
    slot = PlainSlot()
    header = encode(value, slot)
    lease = Lease(slot.buffer)
    is_alive = weakref.ref(lease)
    decoded = decode(header, np.asarray(lease))
    del lease
    gc.collect()
    assert is_alive() is None
    assert same(value, decoded)


def test_views_of_a_read_only_buffer_are_read_only():
    slot = PlainSlot()
    header = encode(np.arange(3), slot)
    buffer = slot.buffer.view()
    buffer.flags.writeable = False
    assert not decode(header, buffer).flags.writeable


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "g", "M8[us]", "U7", "S3", ">i8", "V5"])
@pytest.mark.parametrize("num", [1, 3])
def test_every_array_and_every_column_begins_at_a_multiple_of_64_bytes(dtype, num):
    slot = PlainSlot(1)
    slot.reserve(5)
    value = {key: [np.zeros((size, 3), dtype) for size in (2, 1, 5)[:num]] for key in "abc"}
    header = encode(value, slot)
    start = slot.buffer.__array_interface__["data"][0]
    for arrays in decode(header, slot.buffer).values():
        assert (arrays[0].__array_interface__["data"][0] - start) % 64 == 0


def test_dtypes_that_are_equal_but_differ_in_their_description_keep_it():
    value = [np.zeros(3, np.dtype("i1", metadata={"enum": {"no": 0, "yes": 1}})), np.zeros(2, "i1")]
    first, second = round_trip(value)
    assert first.dtype.metadata == {"enum": {"no": 0, "yes": 1}}
    assert second.dtype.metadata is None
    aligned = np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    assert round_trip(aligned).dtype.isalignedstruct


def test_arrays_with_references_to_objects_are_never_views():
    slot = PlainSlot()
    value = {
        "objects": np.array([1, "x", None, [2]], object),
        "records": np.array([(1, "a"), (2, None)], [("n", "i4"), ("o", object)]),
    }
    if hasattr(np.dtypes, "StringDType"):
        value["text"] = np.array(["short", "x" * 100], np.dtypes.StringDType())
    header = encode(value, slot)
    decoded = decode(header, slot.buffer)
    assert all(not np.shares_memory(array, slot.buffer) for array in decoded.values())
    assert {key: array.tolist() for key, array in decoded.items()} == {
        key: array.tolist() for key, array in value.items()
    }


def test_subclasses_of_arrays_keep_their_type(tmp_path):
    masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False], fill_value=-1)
    records = np.rec.fromarrays([np.arange(3), np.array(["a", "b", "c"])], names="number,text")
    np.save(tmp_path / "file.npy", np.arange(12.0).reshape(3, 4))
    mapped = np.load(tmp_path / "file.npy", mmap_mode="r")
    slot = PlainSlot()
    header = encode([masked, records, mapped, mapped[:, 1:3]], slot)
    masked_out, records_out, mapped_out, strided_out = decode(header, slot.buffer)
    assert type(masked_out) is np.ma.MaskedArray
    assert masked_out.mask.tolist() == masked.mask.tolist()
    assert masked_out.fill_value == -1
    assert masked_out.compressed().tolist() == [1.0, 3.0]
    assert type(records_out) is np.recarray
    assert records_out.text.tolist() == ["a", "b", "c"]
    assert type(mapped_out) is type(strided_out) is np.memmap
    assert mapped_out.tolist() == mapped.tolist()
    assert strided_out.tolist() == mapped[:, 1:3].tolist()
    assert np.shares_memory(mapped_out, slot.buffer)


def test_a_list_where_a_later_array_does_not_fit_the_first_is_encoded_by_element():
    base = np.arange(12, dtype="i4").reshape(4, 3)
    others = {
        "dtype": base.astype("u4"),
        "byte order": base.astype(">i4"),
        "axes": base[0],
        "tail": base[:, :2],
        "Fortran order": np.asfortranarray(base),
        "none": None,
        "subclass": np.ma.masked_array(base),
    }
    for other in others.values():
        slot = PlainSlot()
        header = encode([base, other, base], slot)
        assert same([base, base], decode(header, slot.buffer)[::2])
        decoded = decode(header, slot.buffer)[1]
        assert type(decoded) is type(other)
        if type(other) is np.ndarray:
            assert same(other, decoded)
