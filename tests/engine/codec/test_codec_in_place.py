"""Lists of arrays that were made in the slot: told together, never copied."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.codec.codec import decode, encode
from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.memfd import create_memfd
from headrace.engine.memory.slot import SlotWriter


def _open_arena() -> ArenaWriter:
    fd = create_memfd("test")
    arena = ArenaWriter(fd, slot_bytes=4096, num_slots=2, max_bytes=1 << 24)
    os.close(fd)
    return arena


@pytest.fixture
def slot() -> Iterator[SlotWriter]:
    with _open_arena() as arena:
        writer = arena.acquire()
        assert writer is not None
        yield writer


def _filled(slot: SlotWriter, shape: tuple[int, ...], dtype: str, value: int) -> np.ndarray:
    array = slot.empty(shape, dtype)
    array.fill(value)
    return array


def _decoded(value: object, slot: SlotWriter) -> tuple[object, int]:
    """Return what comes out, and how many bytes the codec wrote to the slot."""
    used = slot.used
    header = encode(value, slot)
    return decode(header, np.frombuffer(slot.view_used(), np.uint8)), slot.used - used


@given(
    st.lists(
        st.tuples(st.sampled_from([(), (2,), (1, 3)]), st.sampled_from(["f4", "f8", "u1"]), st.integers(0, 700)),
        min_size=2,
        max_size=8,
    ),
    st.booleans(),
    st.booleans(),
)
def test_what_was_made_in_place_comes_out_alike(
    layouts: list[tuple[tuple[int, ...], str, int]], alike: bool, one_outside: bool
) -> None:
    with _open_arena() as arena:
        slot = arena.acquire()
        assert slot is not None
        layouts = [(*layouts[0][:2], length) for *_, length in layouts] if alike else layouts
        arrays = [_filled(slot, (length, *tail), dtype, i) for i, (tail, dtype, length) in enumerate(layouts)]
        if one_outside:
            arrays[len(arrays) // 2] = arrays[len(arrays) // 2].copy()
        found, _ = _decoded([{"data": array} for array in arrays], slot)
        assert isinstance(found, list)
        for mapping, array in zip(found, arrays, strict=True):
            np.testing.assert_array_equal(mapping["data"], array, strict=True)


@pytest.mark.parametrize("num_frames", [10, 100_000], ids=["small", "large"])
def test_nothing_is_copied(slot: SlotWriter, num_frames: int) -> None:
    arrays = [_filled(slot, (num_frames + i, 2), "f4", i) for i in range(20)]
    found, num_bytes = _decoded(arrays, slot)
    assert [array.shape for array in found] == [array.shape for array in arrays]  # type: ignore[attr-defined]
    assert num_bytes < 1000


def test_views_of_what_was_made_in_place_are_found(slot: SlotWriter) -> None:
    whole = _filled(slot, (50, 2), "f4", 3)
    whole[10:] = 4
    found, num_bytes = _decoded([whole[10:20], whole[:10]], slot)
    assert [array[0, 0] for array in found] == [4, 3]  # type: ignore[attr-defined]
    assert num_bytes < 1000


@pytest.mark.parametrize("dtype", ["f8", "U3", "M8[s]", "c16"])
def test_an_array_that_lies_askew_comes_out_alike(slot: SlotWriter, dtype: str) -> None:
    slot.empty(1, "u1")
    _, memory = slot.reserve(1000, alignment=1)
    arrays = [memory[: 20 * np.dtype(dtype).itemsize].view(dtype) for _ in range(2)]
    arrays[0][...] = np.arange(20).astype(dtype)
    found, _ = _decoded(arrays, slot)
    for array, other in zip(found, arrays, strict=True):  # type: ignore[call-overload]
        np.testing.assert_array_equal(array, other, strict=True)


def test_an_array_that_is_reshaped_in_place_is_taken_as_it_is(slot: SlotWriter) -> None:
    arrays = [_filled(slot, (6,), "f4", i) for i in range(2)]
    for array in arrays:
        array.resize((2, 3), refcheck=False)
    assert slot.find(arrays[0]) == 0
    found, _ = _decoded(arrays, slot)
    assert [array.shape for array in found] == [(2, 3), (2, 3)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [np.int64(3), (np.int32(3),), [3], 3])
def test_a_shape_may_be_said_in_all_ways_that_numpy_takes(slot: SlotWriter, shape: object) -> None:
    arrays = [slot.empty(shape, "f4") for _ in range(2)]  # type: ignore[arg-type]
    assert [array.shape for array in arrays] == [(3,), (3,)]
    assert type(slot.used) is int
    found, num_bytes = _decoded(arrays, slot)
    assert len(found) == 2  # type: ignore[arg-type]
    assert num_bytes < 200
