"""The first half of encoding.

decides where each part of a value goes, without writing a byte.

A list of like things becomes columns, which are encoded together instead of one by one: of sequences (dicts with the
same keys) there is one column for each key, and the arrays of a column that agree in dtype and in all axes but the
first are written in a row by one call. This is what makes small sequences cheap: five arrays, a tag and a number cost 3
us there and back, instead of the 18 us of a pickle. Where they were produced in the slot, it is said for all of them
together where they are. Whatever does not agree is left to be encoded by element.

Invariant: nothing is written before the whole plan is known, so that the slot is asked for memory once, and a value
that cannot be sent leaves the slot as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, cycle, repeat
from operator import attrgetter, is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import (
    ALIGNMENT,
    ARRAY,
    ATOMS,
    BLOB,
    DICT,
    DICTS,
    LIST,
    LISTED,
    NAMED,
    NAMEDS,
    NUMBERS,
    OBJECT,
    OBJECTS,
    PICKLED,
    PLACED,
    POINTS,
    RAGGED,
    RAW,
    SCALAR,
    SCALAR_CHARS,
    STACKED,
    TENSOR,
    TENSORS,
    TEXT,
    TUPLE,
    TUPLES,
    Node,
    Slot,
    dtype_token,
    tensor_as_array,
    tensor_type,
)
from .objects import LIST_CLASS, NAMED_TUPLE, record_form, state_of

MAX_DEPTH = 64
"""Containers in containers. A value that is deeper, or contains itself, is pickled as a whole."""

MAX_CONTAINERS = 1 << 18
"""With more of them, a value is pickled as a whole: lists that hold one list twice, again and again, have no end."""

MIN_BLOB_BYTES = 4096
"""Longer bytes are copied once into the slot; shorter ones go with the tree, which is copied twice."""


class NoTreeError(Exception):
    """The value cannot be described by a tree, and has to be pickled as a whole; this never leaves the codec."""


class EncodingPlan:
    """What is to be copied where, and what remains to be pickled.

    Args:
        slot: Where arrays may have been produced already.
        make_column: `(plan, type of all elements, elements) -> node`, or `None` if they do not form a column.

    Attributes:
        num_bytes: Size of the part of the slot that is planned so far; a multiple of the alignment.
        copies: Offset and array, to be copied there.
        columns: Offset, array shape of the column and the arrays, to be copied there one after the other.
        pickled: Values to be pickled; one pickle for all of them.
    """

    def __init__(self, slot: Slot, make_column: Callable[[EncodingPlan, type, Sequence[Any]], Node | None]) -> None:
        self.num_bytes = 0
        self.copies: list[tuple[int, NDArray[Any]]] = []
        self.columns: list[tuple[int, tuple[int, ...], Sequence[NDArray[Any]]]] = []
        self.pickled: list[Any] = []
        self._pickled_idx: dict[int, int] = {}
        self._slot = slot
        self._make_column = make_column
        self._depth = 0
        self._num_containers = 0
        self._encoders = _ENCODERS
        tensor = tensor_type()
        if tensor is not None:
            self._encoders = {**_ENCODERS, tensor: EncodingPlan._tensor}

    def node(self, value: Any) -> Node:
        """Plan any value."""
        kind = type(value)
        if kind in ATOMS and kind is not bytes:
            return value
        encode = self._encoders.get(kind)
        return self._other(value) if encode is None else encode(self, value)

    def items(self, values: Sequence[Any]) -> Node:
        """Plan the elements of a list, a tuple or a column; see `format.py` for what is restored."""
        kinds = set(map(type, values))
        if kinds <= ATOMS and not _has_blob(kinds, values):
            return RAW, values
        if len(kinds) == 1 and len(values) > 1:
            self._enter()
            column = self._make_column(self, kinds.pop(), values)
            self._depth -= 1
            if column is not None:
                return column
        nodes = self._each(values)
        return (RAW, values) if _are_raw(nodes) else (LIST, nodes)

    def reserve(self, num_bytes: int) -> int:
        """Return the offset of a new part."""
        offset = self.num_bytes
        self.num_bytes = offset + -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return offset

    def locate(self, array: NDArray[Any]) -> int:
        """Return the offset of an array: where it is in the slot (in C order), else where it will be copied to."""
        position = self.find(array)
        if position is not None:
            return ~position
        offset = self.reserve(array.nbytes)
        self.copies.append((offset, array))
        return offset

    def find(self, array: NDArray[Any]) -> int | None:
        """Return the position of an array that was produced in the slot, else `None`."""
        return None if array.base is None else self._slot.find(array)

    def is_in_slot(self, array: NDArray[Any]) -> bool:
        """Tell whether an array was produced in the slot."""
        return self.find(array) is not None

    def pickle_later(self, value: Any) -> int:
        """Return the index of a value among those that are pickled."""
        idx = self._pickled_idx.setdefault(id(value), len(self.pickled))
        if idx == len(self.pickled):
            self.pickled.append(value)
        return idx

    def _enter(self) -> None:
        """Go one level down."""
        self._depth += 1
        self._num_containers += 1
        if self._depth > MAX_DEPTH or self._num_containers > MAX_CONTAINERS:
            raise NoTreeError

    def _each(self, values: Sequence[Any]) -> list[Node]:
        self._enter()
        nodes = [self.node(value) for value in values]
        self._depth -= 1
        return nodes

    def _list(self, values: list[Any]) -> Node:
        return self.items(values)

    def _tuple(self, values: tuple[Any, ...]) -> Node:
        items = self.items(values)
        return items if items[0] == RAW else (TUPLE, items)

    def _dict(self, mapping: dict[Any, Any]) -> Node:
        keys, values = tuple(mapping), list(mapping.values())
        if set(map(type, keys)) <= ATOMS and not _has_blob({bytes}, keys):
            kinds = set(map(type, values))
            if kinds <= ATOMS and not _has_blob(kinds, values):
                return RAW, mapping
            nodes = self._each(values)
            return (RAW, mapping) if _are_raw(nodes) else (DICT, (RAW, keys), nodes)
        return DICT, self.items(keys), self._each(values)

    def _set(self, values: set[Any] | frozenset[Any]) -> Node:
        return (RAW, values) if set(map(type, values)) <= ATOMS else self._pickle(values)

    def _array(self, array: NDArray[Any]) -> Node:
        token = dtype_token(array.dtype)
        if token is None:
            return self._pickle(array)
        is_fortran = array.flags.fnc
        return ARRAY, self.locate(array.T if is_fortran else array), token, array.shape, is_fortran

    def _blob(self, value: bytes) -> Node:
        if len(value) < MIN_BLOB_BYTES:
            return value
        return BLOB, self.locate(np.frombuffer(value, np.uint8)), len(value)

    def _scalar(self, value: np.generic[Any]) -> Node:
        return SCALAR, SCALAR_CHARS[type(value)], value.tobytes()

    def _text(self, value: np.str_ | np.bytes_) -> Node:
        return TEXT, value[:]  # pickle would strip zeros from its end

    def _tensor(self, tensor: Any) -> Node:
        parts = tensor_as_array(tensor)
        return self._pickle(tensor) if parts is None else (TENSOR, parts[1], self._array(parts[0]))

    def _other(self, value: Any) -> Node:
        form = record_form(type(value))
        if form is None:
            return self._pickle(value)
        cls_idx = self.pickle_later(type(value))
        if form == NAMED_TUPLE:
            return NAMED, cls_idx, self.items(tuple(value))
        if form == LIST_CLASS:
            return LISTED, cls_idx, self.items(list(value))
        return OBJECT, cls_idx, self._dict(state_of(value))

    def _pickle(self, value: Any) -> Node:
        return PICKLED, self.pickle_later(value)


def _are_raw(nodes: list[Node]) -> bool:
    """Tell whether nodes stand for themselves, or hold what they stand for."""
    return all(type(node) is not tuple or node[0] == RAW for node in nodes)


def _has_blob(kinds: set[type], values: Sequence[Any]) -> bool:
    """Tell whether some bytes are too long for the tree."""
    return bytes in kinds and any(type(value) is bytes and len(value) >= MIN_BLOB_BYTES for value in values)


_ENCODERS: dict[type, Callable[[EncodingPlan, Any], Node]] = {
    list: EncodingPlan._list,
    tuple: EncodingPlan._tuple,
    dict: EncodingPlan._dict,
    set: EncodingPlan._set,
    frozenset: EncodingPlan._set,
    bytes: EncodingPlan._blob,
    np.ndarray: EncodingPlan._array,
    np.str_: EncodingPlan._text,
    np.bytes_: EncodingPlan._text,
    **dict.fromkeys(SCALAR_CHARS, EncodingPlan._scalar),
}


MAX_BYTES_IN_COLUMN = 64 * 1024
"""Of the first array. Columns are as fast for larger ones; but some large arrays may have been made in the slot, and
must not be copied for the sake of the others, so each is looked at by itself."""

_SHORT_ATOMS = ATOMS - {bytes}
_dtype, _ndim, _shape, _fortran = map(attrgetter, ("dtype", "ndim", "shape", "flags.fnc"))


def make_column(plan: EncodingPlan, kind: type, values: Sequence[Any]) -> Node | None:
    """Plan two or more elements of exactly one type as a column, or return `None` if they do not form one."""
    if kind is np.ndarray:
        return _arrays(plan, values)
    if kind is dict:
        return _dicts(plan, values)
    if kind in (list, tuple) and _hold_only_short_atoms(values):
        return RAW, values
    if kind is tuple:
        return _tuples(plan, values)
    if kind in SCALAR_CHARS:
        char = SCALAR_CHARS[kind]
        return NUMBERS, plan.locate(np.array(values, char)), char, len(values)
    if kind is tensor_type():
        return _tensors(plan, values)
    form = record_form(kind)
    if form == NAMED_TUPLE:
        tuples = _tuples(plan, values)
        return None if tuples is None else (NAMEDS, plan.pickle_later(kind), tuples)
    if form not in (None, LIST_CLASS):
        return OBJECTS, plan.pickle_later(kind), plan.items([state_of(value) for value in values])
    return None


def _hold_only_short_atoms(containers: Sequence[Sequence[Any]]) -> bool:
    """Tell whether lists or tuples hold nothing but atoms, and no bytes: in a third of the time of looking at each."""
    is_likely = set(map(type, containers[0])) <= _SHORT_ATOMS
    return is_likely and set(map(type, chain.from_iterable(containers))) <= _SHORT_ATOMS


def _arrays(plan: EncodingPlan, arrays: Sequence[NDArray[Any]]) -> Node | None:
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


def _starts(plan: EncodingPlan, arrays: Sequence[NDArray[Any]], itemsize: int) -> tuple[int, ...] | None:
    """Return where arrays lie in the slot, in elements; `None` if not all of them do."""
    starts = []
    for array in arrays:
        position = plan.find(array) if array.size else 0
        if position is None or position % itemsize:
            return None
        starts.append(position // itemsize)
    return tuple(starts)


def _points(plan: EncodingPlan, arrays: Sequence[NDArray[Any]], token: Any) -> Node:
    offset = plan.reserve(len(arrays) * arrays[0].dtype.itemsize)
    plan.columns.append((offset, (len(arrays),), [array.reshape(1) for array in arrays]))
    return POINTS, offset, token, len(arrays)


def _dicts(plan: EncodingPlan, dicts: Sequence[dict[Any, Any]]) -> Node | None:
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


def _tuples(plan: EncodingPlan, tuples: Sequence[tuple[Any, ...]]) -> Node | None:
    """Plan tuples of one length."""
    if not tuples[0] or set(map(len, tuples)) != {len(tuples[0])}:
        return None
    return TUPLES, [plan.items(column) for column in zip(*tuples, strict=True)]


def _tensors(plan: EncodingPlan, tensors: Sequence[Any]) -> Node | None:
    """Plan tensors of one dtype."""
    parts = [tensor_as_array(tensor) for tensor in tensors]
    if None in parts:
        return None
    arrays, names = zip(*[part for part in parts if part is not None], strict=True)
    return None if len(set(names)) != 1 else (TENSORS, names[0], plan.items(list(arrays)))
