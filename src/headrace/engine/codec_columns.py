"""Columns: lists of like things, encoded together instead of one by one.

A list of sequences (dicts with the same keys) becomes one column for each key; the arrays of a column that agree in
dtype and in all axes but the first are written in a row by one call. This is what makes small sequences cheap: five
arrays, a tag and a number cost 3 us there and back, instead of the 18 us of a pickle. Where they were produced in the
slot, it is said for all of them together where they are. Whatever does not agree is left to be encoded by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, cycle, repeat
from operator import attrgetter, is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codec_dtypes import SCALAR_CHARS, dtype_token, tensor_as_array, tensor_type
from .codec_nodes import DICTS, NAMEDS, NUMBERS, OBJECTS, PLACED, POINTS, RAGGED, STACKED, TENSORS, TUPLES, Node
from .codec_plan import Plan
from .codec_records import LIST_CLASS, NAMED_TUPLE, record_form, state_of

MAX_BYTES_IN_COLUMN = 64 * 1024
"""Of the first array. Columns are as fast for larger ones; but some large arrays may have been made in the slot, and
must not be copied for the sake of the others, so each is looked at by itself."""

_dtype, _ndim, _shape, _fortran = map(attrgetter, ("dtype", "ndim", "shape", "flags.fnc"))


def make_column(plan: Plan, kind: type, values: Sequence[Any]) -> Node | None:
    """Plan two or more elements of exactly one type as a column, or return `None` if they do not form one."""
    if kind is np.ndarray:
        return _arrays(plan, values)
    if kind is dict:
        return _dicts(plan, values)
    if kind is tuple:
        return _tuples(plan, values)
    if kind in SCALAR_CHARS:
        char = SCALAR_CHARS[kind]
        return NUMBERS, plan.place(np.array(values, char)), char, len(values)
    if kind is tensor_type():
        return _tensors(plan, values)
    form = record_form(kind)
    if form == NAMED_TUPLE:
        tuples = _tuples(plan, values)
        return None if tuples is None else (NAMEDS, plan.pickle_later(kind), tuples)
    if form not in (None, LIST_CLASS):
        return OBJECTS, plan.pickle_later(kind), plan.items([state_of(value) for value in values])
    return None


def _arrays(plan: Plan, arrays: Sequence[NDArray[Any]]) -> Node | None:
    """Plan arrays of one dtype and equal shapes, or shapes that differ in the first axis only."""
    first = arrays[0]
    dtype, tail = first.dtype, first.shape[1:]
    token = dtype_token(dtype)
    is_in_slot = plan.is_in_slot(first)
    if token is None or (first.nbytes > MAX_BYTES_IN_COLUMN and not is_in_slot):
        return None
    if set(map(_ndim, arrays)) != {first.ndim}:
        return None
    dtypes = list(map(_dtype, arrays))
    if not all(map(is_, dtypes, repeat(dtype))) and set(map(dtype_token, dtypes)) != {token}:
        return None
    if first.ndim == 0:
        return None if is_in_slot else _points(plan, arrays, token)
    if tail:
        lengths, *axes = zip(*map(_shape, arrays), strict=True)
        if any(set(axis) != {length} for axis, length in zip(axes, tail, strict=True)) or any(map(_fortran, arrays)):
            return None
    else:
        lengths = tuple(map(len, arrays))
    if is_in_slot:
        starts = _starts(plan, arrays, dtype.itemsize)
        return None if starts is None else (PLACED, token, starts, lengths, tail)
    num_rows = sum(lengths)
    offset = plan.reserve(num_rows * math.prod(tail) * dtype.itemsize)
    plan.columns.append((offset, (num_rows, *tail), arrays))
    if lengths.count(lengths[0]) == len(lengths):
        return STACKED, offset, token, (len(arrays), *first.shape)
    return RAGGED, offset, token, lengths, tail


def _starts(plan: Plan, arrays: Sequence[NDArray[Any]], itemsize: int) -> tuple[int, ...] | None:
    """Return where arrays lie in the slot, in elements; `None` if not all of them do."""
    starts = []
    for array in arrays:
        position = plan.find(array) if array.size else 0
        if position is None or position % itemsize:
            return None
        starts.append(position // itemsize)
    return tuple(starts)


def _points(plan: Plan, arrays: Sequence[NDArray[Any]], token: Any) -> Node:
    offset = plan.reserve(len(arrays) * arrays[0].dtype.itemsize)
    plan.columns.append((offset, (len(arrays),), [array.reshape(1) for array in arrays]))
    return POINTS, offset, token, len(arrays)


def _dicts(plan: Plan, dicts: Sequence[dict[Any, Any]]) -> Node | None:
    """Plan dicts that have the same str keys in the same order."""
    keys = tuple(dicts[0])
    if not keys or set(map(type, keys)) != {str} or set(map(len, dicts)) != {len(keys)}:
        return None
    # Mostly the keys are the very same objects. Equal ones need not be: a str of a subclass is equal, too.
    if not all(map(is_, chain.from_iterable(dicts), cycle(keys))) and (
        set(map(tuple, dicts)) != {keys} or set(map(type, chain.from_iterable(dicts))) != {str}
    ):
        return None
    return DICTS, keys, [plan.items(column) for column in zip(*map(dict.values, dicts), strict=True)]


def _tuples(plan: Plan, tuples: Sequence[tuple[Any, ...]]) -> Node | None:
    """Plan tuples of one length."""
    if not tuples[0] or set(map(len, tuples)) != {len(tuples[0])}:
        return None
    return TUPLES, [plan.items(column) for column in zip(*tuples, strict=True)]


def _tensors(plan: Plan, tensors: Sequence[Any]) -> Node | None:
    """Plan tensors of one dtype."""
    parts = [tensor_as_array(tensor) for tensor in tensors]
    if None in parts:
        return None
    arrays, names = zip(*[part for part in parts if part is not None], strict=True)
    return None if len(set(names)) != 1 else (TENSORS, names[0], plan.items(list(arrays)))
