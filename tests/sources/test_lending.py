import weakref

import numpy as np
import pytest

from headrace import DataLoader
from headrace.sources import MapSource
from headrace.sources.mapped import own_arrays
from headrace.specs import DataSpec

N = 1 << 13


def fresh():
    return np.arange(N, dtype=np.float64)


HELD = fresh()
REFERENCES = []


def held_weakly():
    array = fresh()
    REFERENCES.append(weakref.ref(array))
    return array


def seen_by_a_view():
    array = fresh()
    REFERENCES.append(array[:10])
    return array[10:]


def on_foreign_memory():
    memory = bytearray(8 * N)
    REFERENCES.append(memory)
    return np.frombuffer(memory, np.float64)


OWN = {
    "new": fresh,
    "a view of a new one": lambda: fresh().reshape(-1, 4)[::2].T,
    "bytes": lambda: np.frombuffer(bytes(8 * N), np.float64).reshape(-1, 4),
}
SHARED = {
    "held": lambda: HELD,
    "a view of one that is held": lambda: HELD[1:],
    "held weakly": held_weakly,
    "seen by another view": seen_by_a_view,
    "foreign memory": on_foreign_memory,
}


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_an_array_that_nobody_else_can_write_to_is_not_copied(make):
    arrays = {"data": make()}
    number = id(arrays["data"])
    own_arrays(arrays)
    assert id(arrays["data"]) == number


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_an_array_that_somebody_else_can_write_to_is_copied(make):
    arrays = {"data": make()}
    before = arrays["data"]
    own_arrays(arrays)
    assert not np.shares_memory(arrays["data"], before)
    assert np.array_equal(arrays["data"], before)


def test_two_keys_that_share_an_array_get_one_each():
    array = fresh()
    arrays = {"data": array, "again": array}
    del array
    own_arrays(arrays)
    assert not np.shares_memory(arrays["data"], arrays["again"])


def test_a_map_source_lends_large_arrays_and_copies_small_ones():
    items = [{"data": np.full(N, number, np.float64), "label": np.full(3, number)} for number in range(2)]
    source = MapSource(items)
    lent = source.lend_seq(1)
    assert np.shares_memory(lent["data"], items[1]["data"])
    assert not np.shares_memory(lent["label"], items[1]["label"])
    assert not np.shares_memory(source.read_seq(1)["data"], items[1]["data"])


def test_numbers_are_lent_as_they_are_and_read_as_arrays():
    specs = {"a": DataSpec("int64", (), has_time=False), "b": DataSpec("float32", (), has_time=False)}
    source = MapSource([{"a": number, "b": np.float32(number)} for number in range(3)], specs=specs)
    lent = source.lend_seq(1)
    own_arrays(lent)
    assert lent == {"a": 1, "b": 1.0}
    assert [type(value) for value in lent.values()] == [int, np.float32]
    for found in (source.read_seq(2), {key: source.read(2, key) for key in specs}):
        assert {key: (type(array), array.dtype.name, array.shape) for key, array in found.items()} == {
            "a": (np.ndarray, "int64", ()),
            "b": (np.ndarray, "float32", ()),
        }
    with DataLoader(source, batch_size=3) as loader:
        batch = next(iter(loader))
    assert {key: (array.dtype.name, array.tolist()) for key, array in batch.items()} == {
        "a": ("int64", [0, 1, 2]),
        "b": ("float32", [0.0, 1.0, 2.0]),
    }
