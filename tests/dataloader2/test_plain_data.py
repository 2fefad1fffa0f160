"""Plain data as JSON and back."""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dataloader2.plain_data import NotPlainError, OptionalList, from_json, to_json
from headrace.errors import ResumeError
from headrace.pipes.iter import DataChunk

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
_PLAIN = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(_KEYS, inner)
        | st.frozensets(st.integers())
        | st.sets(st.text())
        | st.builds(deque, st.lists(inner))
        | st.builds(DataChunk, st.lists(inner))
    ),
    max_leaves=20,
)


@given(_PLAIN)
def test_plain_data_come_back_with_their_types(value: Any) -> None:
    again = from_json(json.loads(json.dumps(to_json(value))))
    assert again == value
    assert _types_of(again) == _types_of(value)


def _types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return [dict, *((_types_of(key), _types_of(element)) for key, element in value.items())]
    if isinstance(value, (list, tuple, deque)):  # a DataChunk is a list, too
        return [type(value), *map(_types_of, value)]
    return type(value)


@pytest.mark.parametrize("dtype", ["f4", ">i2", "?", "c16", "U5", "S3", "M8[s]", "f2"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    again = from_json(json.loads(json.dumps(to_json(array))))
    assert (again.dtype, again.shape, type(again)) == (array.dtype, array.shape, np.ndarray)
    assert again.tobytes() == array.tobytes()
    again[...] = 1  # belongs to the caller


def test_numbers_of_numpy_and_odd_floats_come_back() -> None:
    number = from_json(to_json(np.float32(1.5)))
    assert (type(number), number) == (np.float32, 1.5)
    assert math.isnan(from_json(to_json(math.nan)))
    assert from_json(to_json(-math.inf)) == -math.inf


@pytest.mark.parametrize("value", [object(), np.zeros(1, object), int, [1, {"a": object()}], 1 < 2 and Exception()])
def test_other_objects_are_refused(value: Any) -> None:
    with pytest.raises(NotPlainError):
        to_json(value)


@pytest.mark.parametrize(
    "value", [{"$call": "os.system"}, {"$bytes": "§"}, {"$array": ["O", [1], ""]}, {"$array": [1]}, {"$int": "x"}]
)
def test_damaged_data_are_refused_and_nothing_is_executed(value: Any) -> None:
    with pytest.raises(ResumeError):
        from_json(value)


def test_what_may_be_left_out_is_left_out_alone_and_costs_nothing() -> None:
    reasons: list[str] = []
    value = [OptionalList([1, object()]), OptionalList([b"x" * 200]), OptionalList([2, (3,)]), 4]
    written = to_json(value, 150, lambda error: reasons.append(str(error)))
    assert from_json(json.loads(json.dumps(written))) == [None, None, [2, (3,)], 4]
    assert reasons == ["an object of type builtins.object", "more than 0 MiB of data"]
