"""Values into a slot and back: arrays are copied once, or not at all where they were produced in the slot.

    header = encode(value, slot)          # in the worker; short
    value = decode(header, buffer)        # in the trainer; arrays are views of the buffer

`decode(encode(x))` equals x in types, dtypes, shapes, C or Fortran order, the order of dicts, and values. What is not
kept: strides that are neither C nor Fortran order, views of one array (each gets memory of its own), read-only
flags, and that an object occurred twice. Read `format.py` first, then `plan.py` and
`restore.py`.

Layout of what is reserved in the slot: the arrays, each at a multiple of 64 bytes, then the tree that describes them if
it is long. A short one is in the header, so that a number or a short text needs no slot at all. The header of one plain
array, the most frequent value, says itself what a tree would say.
"""

from __future__ import annotations

import marshal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import PICKLED, Node, Slot, dtype_of, plain_token
from .objects import pickle_values
from .plan import EncodingPlan, NoTreeError, make_column
from .restore import Restorer

# The last byte of a header says what lies before it: position, token and shape of an array; the tree, and the position
# of what was reserved; that position, the offset of the tree from it, and its number of bytes.
_ARRAY, _SHORT, _LONG = b"\0", b"\1", b"\2"
_POSITION_BYTES = 8
# Bytes of a tree that goes with the header; a longer one would crowd the ring of records.
_MAX_SHORT_BYTES = 256


def encode(value: Any, slot: Slot) -> bytes:
    """Write a value into a slot.

    Arrays, NumPy numbers, Python's plain types and containers, namedtuples, dataclasses and torch tensors (if torch is
    loaded) are described by a tree; the rest is pickled, with its buffers out of band. Lists of like elements, such as
    sequences with the same data keys, are written by column. O(bytes), and 1-2 us for each small sequence.

    Args:
        value: Anything that can be sent. It is not changed, and may be changed by its owner after the return, except
            for arrays that lie in the slot.
        slot: Where it is written; a slot may take several values.

    Returns:
        The header, which `decode` needs together with the bytes of the slot.

    Raises:
        TransformError: The value holds an object that cannot be pickled.
        CacheError: From the slot, if it cannot grow as far.
    """
    if type(value) is np.ndarray:
        header = _encode_array(value, slot)
        if header is not None:
            return header
    plan, tree = _plan(value, slot)
    is_short = len(tree) <= _MAX_SHORT_BYTES
    base, buffer = slot.reserve(plan.num_bytes + (0 if is_short else len(tree)))
    for offset, array in plan.copies:
        np.ndarray(array.shape, array.dtype, buffer, offset)[...] = array
    for offset, shape, arrays in plan.columns:
        np.concatenate(arrays, out=np.ndarray(shape, arrays[0].dtype, buffer, offset), casting="no")
    if is_short:
        return tree + base.to_bytes(_POSITION_BYTES, "little") + _SHORT
    buffer.data[plan.num_bytes :] = tree
    return marshal.dumps((base, plan.num_bytes, len(tree)), 4) + _LONG


def _encode_array(array: NDArray[Any], slot: Slot) -> bytes | None:
    """Write an array that can be viewed where its bytes are, in C order; None: it takes more words to describe it."""
    token = plain_token(array.dtype)
    if token is None or not array.flags.c_contiguous or not array.nbytes:
        return None
    position = None if array.base is None else slot.find(array)
    if position is None:
        position, buffer = slot.reserve(array.nbytes)
        np.ndarray(array.shape, array.dtype, buffer)[...] = array
    return marshal.dumps((position, token, array.shape), 4) + _ARRAY


def decode(header: bytes, buffer: NDArray[np.uint8]) -> Any:
    """Return the value that `encode` wrote.

    Args:
        header: What `encode` returned.
        buffer: The bytes of the slot from its start, `uint8[num_bytes]`. Arrays are views of it and keep it alive; they
            are writable if it is.

    Raises:
        ImportError: A class or function of the value cannot be found in this process.
    """
    kind = header[-1:]  # marshal stops where its object ends
    if kind == _ARRAY:
        position, token, shape = marshal.loads(header)  # noqa: S302  # made by our own worker, as the next ones
        return np.ndarray(shape, dtype_of(token), buffer, position)
    if kind != _LONG:
        node, pickled = marshal.loads(header)  # noqa: S302
        base = int.from_bytes(header[-1 - _POSITION_BYTES : -1], "little")
    else:
        base, offset, num_bytes = marshal.loads(header)  # noqa: S302
        node, pickled = marshal.loads(buffer[base + offset : base + offset + num_bytes].data)  # noqa: S302
    restorer = Restorer(buffer, base)
    if pickled is not None:
        restorer.unpickle(*pickled)
    return restorer.node(node)


def _plan(value: Any, slot: Slot) -> tuple[EncodingPlan, bytes]:
    """Plan a value, and return the tree as bytes; at worst one that says that the value is pickled."""
    try:
        plan = EncodingPlan(slot, make_column)
        return plan, _tree(plan, plan.node(value), value)
    except NoTreeError:
        plan = EncodingPlan(slot, make_column)
        return plan, _tree(plan, (PICKLED, plan.pickle_later(value)), value)


def _tree(plan: EncodingPlan, node: Node, value: Any) -> bytes:
    """Pickle what has to be pickled, and return the tree as bytes."""
    pickled = None
    if plan.pickled:
        data, buffers = pickle_values(plan.pickled, value)
        offsets = [(plan.locate(buffer), buffer.nbytes) for buffer in buffers]
        pickled = (plan.locate(np.frombuffer(data, np.uint8)), len(data)), offsets
    try:
        return marshal.dumps((node, pickled), 4)
    except ValueError as error:  # a str of 2 GiB or more, which pickle takes
        raise NoTreeError from error
