"""Plain Python data as JSON and back, so that a state can be written into any checkpoint and executes nothing.

Numbers, texts, bytes, None, lists, batches, tuples, dicts with any plain keys, sets, NumPy arrays and numbers, torch
tensors of the CPU. JSON's own types stay as they are; the rest is a dict with one key that begins with "$".
"""

from __future__ import annotations

import base64
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.errors import ResumeError
from headrace.pipes.ops.batch import DataChunk


class NotPlainError(TypeError):
    """The data hold an object that cannot be written as plain data."""


class OptionalList(list[Any]):
    """A list that is written as None if one of its elements cannot be written."""

    __slots__ = ()


_SAFE_INT = 2**53


def _note_nothing(error: NotPlainError) -> None:
    del error


def to_json(
    value: Any, max_bytes: int = sys.maxsize, note_left_out: Callable[[NotPlainError], None] = _note_nothing
) -> Any:
    """Return plain data in a form that `json` can write.

    Args:
        value: The data.
        max_bytes: Approximate limit on its size.
        note_left_out: Called with the reason why an `OptionalList` is left out.

    Raises:
        NotPlainError: There are objects of other types in it, or more than `max_bytes`.
    """
    return _Writer(max_bytes, note_left_out).write(value)


class _Writer:
    """Writes one value, and counts its bytes."""

    def __init__(self, max_bytes: int, note_left_out: Callable[[NotPlainError], None]) -> None:
        self._max_bytes = self._bytes_left = max_bytes
        self._note_left_out = note_left_out

    def write(self, value: Any) -> Any:
        kind = type(value)
        self._count(8)
        if kind in (bool, type(None)):
            return value
        if kind is str:
            self._count(len(value))
            return value
        if kind is int:
            return value if -_SAFE_INT < value < _SAFE_INT else {"$int": str(value)}
        if kind is float:
            return value if np.isfinite(value) else {"$float": repr(value)}
        if kind in (bytes, bytearray):
            return {"$bytes": self._bytes(value)}
        if kind is list:
            return [self.write(element) for element in value]
        if kind is tuple:
            return {"$tuple": [self.write(element) for element in value]}
        if kind is dict:
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {key: self.write(element) for key, element in value.items()}
            return {"$dict": [[self.write(key), self.write(element)] for key, element in value.items()]}
        if kind in (set, frozenset, deque, DataChunk):
            return {f"${kind.__name__}": [self.write(element) for element in value]}
        if kind is OptionalList:
            return self._optional(list(value))
        return self._array(value)

    def _optional(self, value: list[Any]) -> Any:
        bytes_left = self._bytes_left
        try:
            return self.write(value)
        except NotPlainError as error:
            self._bytes_left = bytes_left
            self._note_left_out(error)
            return None

    def _array(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor and value.device.type == "cpu" and not value.requires_grad:
            try:
                return {"$tensor": self.write(value.numpy())}
            except (TypeError, RuntimeError):  # a type that NumPy lacks, or a nested one
                raise NotPlainError(f"a tensor of {value.dtype}") from None
        if isinstance(value, (np.ndarray, np.generic)) and type(value) in (np.ndarray, type(np.asarray(value)[()])):
            array = np.asarray(value)
            if array.dtype.hasobject or array.dtype.names is not None:
                raise NotPlainError(f"an array of {array.dtype}")
            self._count(array.nbytes)
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
            name = "$array" if type(value) is np.ndarray else "$number"
            return {name: [array.dtype.str, list(array.shape), data]}
        raise NotPlainError(f"an object of type {type(value).__module__}.{type(value).__qualname__}")

    def _bytes(self, value: bytes | bytearray) -> str:
        self._count(len(value))
        return base64.b64encode(value).decode("ascii")

    def _count(self, num_bytes: int) -> None:
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            raise NotPlainError(f"more than {self._max_bytes >> 20} MiB of data")


def from_json(value: Any) -> Any:
    """Return the plain data that `to_json` wrote.

    Raises:
        ResumeError: They were not written by it.
    """
    try:
        return _from_json(value)
    except RecursionError as error:
        raise ResumeError("a state is damaged: it is nested too deeply") from error


def _from_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):  # some formats for states turn lists into tuples
        return [_from_json(element) for element in value]
    if isinstance(value, float) and not np.isfinite(value):
        raise ResumeError(f"a state is damaged: it holds {value}")
    if not isinstance(value, dict):
        return value
    if not all(isinstance(key, str) for key in value):
        raise ResumeError("a state is damaged: one of its keys is not a string")
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: _from_json(element) for key, element in value.items()}
    if len(value) != 1 or tag not in _READERS:
        raise ResumeError(f"a state holds {tag!r}, which this version does not know")
    try:
        return _READERS[tag](value[tag])
    except (TypeError, ValueError, IndexError, OverflowError, MemoryError) as error:
        raise ResumeError(f"a state is damaged: {tag} cannot be read ({error})") from error


def _array_of(fields: Any) -> Any:
    dtype_text, shape, data = fields
    dtype = np.dtype(dtype_text)
    if dtype.hasobject:
        raise ValueError(f"an array of {dtype}")
    return np.frombuffer(bytearray(base64.b64decode(data)), dtype).reshape(shape)


def _tensor_of(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise ResumeError("a state holds a tensor", fix="import torch before you load it")
    return torch.from_numpy(_from_json(value))


_READERS: dict[str, Any] = {
    "$int": int,
    "$float": float,
    "$bytes": base64.b64decode,
    "$tuple": lambda elements: tuple(_from_json(elements)),
    "$dict": lambda pairs: {_from_json(key): _from_json(element) for key, element in pairs},
    "$set": lambda elements: set(_from_json(elements)),
    "$frozenset": lambda elements: frozenset(_from_json(elements)),
    "$DataChunk": lambda elements: DataChunk(_from_json(elements)),
    "$deque": lambda elements: deque(_from_json(elements)),
    "$array": _array_of,
    "$number": lambda fields: _array_of(fields)[()],
    "$tensor": _tensor_of,
}
