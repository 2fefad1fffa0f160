"""Decoding: put a value together from its tree; arrays become views of the buffer.

Invariant: every array that lies in the buffer is a view whose base chain ends in the buffer, so that what the buffer
stands on (a lease) lives as long as the last of them.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Node, Token, dtype_of, tensor_of
from .objects import record_of


class Restorer:
    """Restores nodes.

    Args:
        buffer: The slot, `uint8[num_bytes]`.
        base: Where in it the part begins that the codec reserved.
    """

    def __init__(self, buffer: NDArray[np.uint8], base: int) -> None:
        self._buffer = buffer
        self._base = base
        self._pickled: list[Any] = []
        self._slices: dict[tuple[int, ...], list[slice]] = {}

    def unpickle(self, pickled: tuple[int, int], buffers: list[tuple[int, int]]) -> None:
        """Restore what was pickled, before nodes refer to it.

        Args:
            pickled: Offset and number of bytes of the pickle.
            buffers: The same of its buffers.
        """
        parts = [self._bytes(*part) for part in buffers]
        self._pickled = pickle.loads(self._bytes(*pickled).data, buffers=parts)  # noqa: S301  # made by our own worker

    def node(self, node: Node) -> Any:
        """Restore a value."""
        return _RESTORERS[node[0]](self, *node[1:]) if type(node) is tuple else node

    def _view(self, offset: int, token: Token, shape: tuple[int, ...], is_fortran: bool = False) -> NDArray[Any]:
        position = self._base + offset if offset >= 0 else ~offset
        return np.ndarray(shape, dtype_of(token), self._buffer, position, order="F" if is_fortran else "C")

    def _bytes(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        position = self._base + offset if offset >= 0 else ~offset
        return self._buffer[position : position + num_bytes]

    def _raw(self, value: Any) -> Any:
        return value

    def _list(self, nodes: list[Node]) -> list[Any]:
        return [self.node(node) for node in nodes]

    def _tuple(self, items: Node) -> tuple[Any, ...]:
        return tuple(self.node(items))

    def _dict(self, keys: Node, nodes: list[Node]) -> dict[Any, Any]:
        return dict(zip(self.node(keys), map(self.node, nodes), strict=True))

    def _named(self, cls_idx: int, items: Node) -> Any:
        return tuple.__new__(self._pickled[cls_idx], self.node(items))

    def _listed(self, cls_idx: int, items: Node) -> Any:
        made = list.__new__(self._pickled[cls_idx])
        list.extend(made, self.node(items))
        return made

    def _object(self, cls_idx: int, state: Node) -> Any:
        return record_of(self._pickled[cls_idx], self.node(state))

    def _blob(self, offset: int, num_bytes: int) -> bytes:
        return self._bytes(offset, num_bytes).tobytes()

    def _scalar(self, token: Token, data: bytes) -> Any:
        return np.frombuffer(data, dtype_of(token))[0]

    def _tensor(self, dtype_name: str | None, array: Node) -> Any:
        return tensor_of(self.node(array), dtype_name)

    def _unpickled(self, idx: int) -> Any:
        return self._pickled[idx]

    def _text(self, text: str | bytes) -> Any:
        return np.str_(text) if isinstance(text, str) else np.bytes_(text)

    def _ragged(self, offset: int, token: Token, lengths: tuple[int, ...], tail: tuple[int, ...]) -> list[Any]:
        slices = self._slices.get(lengths)  # mostly several columns have the same lengths
        if slices is None:
            slices = [slice(start, end) for start, end in pairwise(accumulate(lengths, initial=0))]
            self._slices[lengths] = slices
        column = self._view(offset, token, (slices[-1].stop, *tail))
        return [column[part] for part in slices]

    def _stacked(self, offset: int, token: Token, shape: tuple[int, ...]) -> list[Any]:
        return list(self._view(offset, token, shape))

    def _placed(
        self, token: Token, starts: tuple[int, ...], lengths: tuple[int, ...], tail: tuple[int, ...]
    ) -> list[Any]:
        dtype = dtype_of(token)
        elements: NDArray[Any] = np.ndarray(len(self._buffer) // dtype.itemsize, dtype, self._buffer)
        if not tail:
            return [elements[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        size = math.prod(tail)
        return [
            elements[start : start + length * size].reshape(length, *tail)
            for start, length in zip(starts, lengths, strict=True)
        ]

    def _points(self, offset: int, token: Token, num: int) -> list[Any]:
        return [row.reshape(()) for row in self._view(offset, token, (num, 1))]

    def _numbers(self, offset: int, token: Token, num: int) -> list[Any]:
        return list(self._view(offset, token, (num,)))

    def _tensors(self, dtype_name: str | None, items: Node) -> list[Any]:
        return [tensor_of(array, dtype_name) for array in self.node(items)]

    def _dicts(self, keys: tuple[str, ...], columns: list[Node]) -> list[dict[str, Any]]:
        restored = [self.node(column) for column in columns]
        template = dict.fromkeys(keys)
        dicts = [template.copy() for _ in restored[0]]  # copied and filled: half the time of dict(zip(keys, row))
        for key, column in zip(keys, restored, strict=True):
            for mapping, value in zip(dicts, column, strict=True):
                mapping[key] = value
        return dicts

    def _tuples(self, columns: list[Node]) -> list[tuple[Any, ...]]:
        return list(zip(*map(self.node, columns), strict=True))

    def _nameds(self, cls_idx: int, tuples: Node) -> list[Any]:
        return list(map(partial(tuple.__new__, self._pickled[cls_idx]), self.node(tuples)))

    def _objects(self, cls_idx: int, states: Node) -> list[Any]:
        return list(map(partial(record_of, self._pickled[cls_idx]), self.node(states)))


_RESTORERS: tuple[Callable[..., Any], ...] = (  # in the order of the tags
    Restorer._raw,
    Restorer._list,
    Restorer._tuple,
    Restorer._dict,
    Restorer._named,
    Restorer._object,
    Restorer._view,
    Restorer._blob,
    Restorer._scalar,
    Restorer._tensor,
    Restorer._unpickled,
    Restorer._text,
    Restorer._ragged,
    Restorer._stacked,
    Restorer._points,
    Restorer._numbers,
    Restorer._tensors,
    Restorer._dicts,
    Restorer._tuples,
    Restorer._nameds,
    Restorer._objects,
    Restorer._placed,
    Restorer._listed,
)
