"""Items are stacked to what NumPy makes of all of them together, whether large arrays were copied when they came."""

import gc
import weakref
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import TransformError
from headrace.batching import ItemStack, stacking


class Pair(NamedTuple):
    image: np.ndarray
    label: int


class Memory:
    """Allocates, and knows what it has allocated."""

    def __init__(self):
        self.arrays = []

    def __call__(self, key, shape, dtype):
        self.arrays.append(np.full(shape, 77, dtype))
        return self.arrays[-1]

    def holds(self, array):
        return any(np.shares_memory(array, own) for own in self.arrays)


def stacked(items, num_items=None, memory=None):
    stack = ItemStack(num_items or len(items), memory or Memory())
    for item in items:
        stack.add(item)
    return stack.stacked()


def reference(items):
    """Stack plainly, without any memory of the caller's."""
    first = items[0]
    if isinstance(first, dict):
        return {key: reference([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        parts = [reference(list(column)) for column in zip(*items, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return np.asarray(items) if isinstance(first, np.ndarray | np.number | int | float) else items


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        np.testing.assert_array_equal(found, wanted, strict=True)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found == wanted


DTYPES = st.sampled_from(["float32", ">f4", "int64", "uint8", "bool", "complex64", "U3", "datetime64[s]"])
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def leaves(draw):
    """Return a function number -> a value of one kind."""
    kind = draw(st.sampled_from(["array", "array", "mixed", "number", "NumPy number", "text"]))
    shape, dtypes = draw(SHAPES), [draw(DTYPES), "float64"]
    make = {
        "array": lambda i: np.full(shape, i, dtypes[0]),
        "mixed": lambda i: np.full(shape, i, ["float32", "float64", "int16"][i % 3]),
        "number": lambda i: [i, float(i), i > 1][draw_kind],
        "NumPy number": lambda i: np.float32(i),
        "text": lambda i: f"text {i}",
    }[kind]
    draw_kind = draw(st.integers(0, 2))
    return make


STRUCTURES = st.recursive(
    leaves(),
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda ps: lambda i: tuple(p(i) for p in ps)),
        st.lists(parts, min_size=1, max_size=3).map(lambda ps: lambda i: [p(i) for p in ps]),
        st.tuples(parts, parts).map(lambda ps: lambda i: Pair(ps[0](i), ps[1](i))),
        parts.map(lambda part: lambda i: (part(i), {"a": part(i)})),
    ),
    max_leaves=4,
)


@settings(max_examples=200)
@given(STRUCTURES, st.integers(1, 6), st.integers(0, 3), st.sampled_from([0, 40, 1 << 14]))
def test_items_of_any_structure_are_stacked_as_numpy_does_it(make, num, num_missing, min_row_bytes):
    items = [make(number) for number in range(num)]
    before, stacking._MIN_ROW_BYTES = stacking._MIN_ROW_BYTES, min_row_bytes
    try:
        assert_same(stacked(items, num + num_missing), reference(items))
    finally:
        stacking._MIN_ROW_BYTES = before


@pytest.mark.parametrize("size", [10, 10_000])
@pytest.mark.parametrize("num", [1, 3])
def test_arrays_are_written_to_the_memory_of_the_batch_once(size, num):
    memory = Memory()
    images, labels = stacked([(np.full(size, i, np.float32), i) for i in range(num)], memory=memory)
    assert memory.holds(images)
    assert len(memory.arrays) == 1
    assert images.tolist() == [[i] * size for i in range(num)]
    assert labels.tolist() == list(range(num))


def test_the_memory_of_a_large_array_is_free_once_the_next_one_is_asked_for():
    stack = ItemStack(2, Memory())
    array = np.zeros(10_000)
    stack.add(array)
    assert not any(np.shares_memory(item, array) for item in stack.items)


def test_without_memory_items_are_collected_as_they_are():
    items = [np.full(10_000, i) for i in range(3)]
    stack = ItemStack(3, None)
    for item in items:
        stack.add(item)
    assert list(map(id, stack.items)) == list(map(id, items))


@pytest.mark.parametrize("size", [3, 10_000])
def test_a_stack_that_is_dropped_gives_its_memory_back_at_once(size):
    stack, array = ItemStack(2, Memory()), np.zeros(size)
    stack.add(array)
    end = weakref.ref(stack)
    gc.disable()
    try:
        del stack
        assert end() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [3, 10_000])
def test_arrays_of_different_shapes_are_refused_with_both(size):
    items = [np.zeros(size), np.zeros(size), np.zeros(size + 1)]
    with pytest.raises(TransformError, match=rf"different shapes: \({size},\) and \({size + 1},\)"):
        stacked(items)


def test_a_large_array_of_another_kind_in_the_middle_changes_what_all_become():
    items = [np.full(10_000, i, np.float64 if i == 1 else np.float32) for i in range(3)]
    assert_same(stacked(items), np.asarray(items))
