"""Plain Python data as JSON and back, so that a state can be written into any checkpoint and executes nothing.

Numbers, texts, bytes, None, lists, tuples, dicts with any plain keys, sets, NumPy arrays and numbers, torch tensors
of the CPU. JSON's own types stay as they are; the rest is a dict with one key that begins with "$".
"""

from __future__ import annotations

import base64
import sys
from collections import deque
from typing import Any

import numpy as np

from headrace.errors import ResumeError


class NotPlainError(TypeError):
    """The data hold an object that is not plain."""


_SAFE_INT = 2**53


def to_json(value: Any) -> Any:
    """Return plain data as what `json` can write.

    Raises:
        NotPlainError: There is something else in it.
    """
    kind = type(value)
    if kind in (bool, type(None), str):
        return value
    if kind is int:
        return value if -_SAFE_INT < value < _SAFE_INT else {"$int": str(value)}
    if kind is float:
        return value if np.isfinite(value) else {"$float": repr(value)}
    if kind in (bytes, bytearray):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if kind is list:
        return [to_json(element) for element in value]
    if kind is tuple:
        return {"$tuple": [to_json(element) for element in value]}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: to_json(element) for key, element in value.items()}
        return {"$dict": [[to_json(key), to_json(element)] for key, element in value.items()]}
    if kind in (set, frozenset, deque):
        return {f"${kind.__name__}": [to_json(element) for element in value]}
    return _array_to_json(value)


def _array_to_json(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and value.device.type == "cpu" and not value.requires_grad:
        try:
            return {"$tensor": to_json(value.numpy())}
        except TypeError:  # a type that NumPy lacks
            raise NotPlainError(f"a tensor of {value.dtype}") from None
    if isinstance(value, (np.ndarray, np.generic)) and type(value) in (np.ndarray, type(np.asarray(value)[()])):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise NotPlainError(f"an array of {array.dtype}")
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
        name = "$array" if type(value) is np.ndarray else "$number"
        return {name: [array.dtype.str, list(array.shape), data]}
    raise NotPlainError(f"an object of type {type(value).__module__}.{type(value).__qualname__}")


def from_json(value: Any) -> Any:
    """Return the plain data that `to_json` wrote.

    Raises:
        ResumeError: They were not written by it.
    """
    if isinstance(value, list):
        return [from_json(element) for element in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: from_json(element) for key, element in value.items()}
    if len(value) != 1 or tag not in _READERS:
        raise ResumeError(f"a state holds {tag!r}, which this version does not know")
    try:
        return _READERS[tag](value[tag])
    except (TypeError, ValueError, IndexError) as error:
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
    return torch.from_numpy(from_json(value))


_READERS: dict[str, Any] = {
    "$int": int,
    "$float": float,
    "$bytes": base64.b64decode,
    "$tuple": lambda elements: tuple(from_json(elements)),
    "$dict": lambda pairs: {from_json(key): from_json(element) for key, element in pairs},
    "$set": lambda elements: set(from_json(elements)),
    "$frozenset": lambda elements: frozenset(from_json(elements)),
    "$deque": lambda elements: deque(from_json(elements)),
    "$array": _array_of,
    "$number": lambda fields: _array_of(fields)[()],
    "$tensor": _tensor_of,
}
