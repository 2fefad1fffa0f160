"""Copies a graph, or a reading service, without copying the data in it.

A loader must not change the user's pipes. So pipes, small containers and other objects are copied, as pickle would copy
them, while arrays, tensors, bytes, functions, classes, modules, large containers without pipes, and objects that cannot
be pickled (locks, open files) are shared.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections import deque
from typing import Any, TypeVar

import numpy as np

from headrace.pipes.graph import is_pipe

T = TypeVar("T")

_PLAIN = (int, float, complex, str, bool, type(None))
_SHARED = (
    np.ndarray,
    bytes,
    bytearray,
    memoryview,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
)
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
# Elements. Larger containers are data: copying them would take a second per ten million.
_LARGE = 10_000


def copy_graph(thing: T) -> T:
    """Return a copy of a graph, given by its end, or of a reading service, which shares the data with the original."""
    file = io.BytesIO()
    pickler = _GraphPickler(file)
    pickler.dump(thing)
    file.seek(0)
    copied: T = _Unpickler(file, pickler.shared).load()
    return copied


class _GraphPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.shared: list[Any] = []
        self._tensor = getattr(sys.modules.get("torch"), "Tensor", ())

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if kind in _PLAIN:
            return None
        if kind is _Held:
            return self._share(obj.held)
        if kind in _CONTAINERS:
            return self._share(obj) if len(obj) > _LARGE and not _has_pipes(obj) else None
        return self._share(obj) if isinstance(obj, (*_SHARED, self._tensor)) else None

    def reducer_override(self, obj: Any) -> Any:
        """Share what cannot be pickled."""
        try:
            reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001 - user code, or an object that has no copy
            return _identity, (_Held(obj),)
        return reduced if isinstance(reduced, (str, tuple)) else NotImplemented

    def _share(self, obj: Any) -> int:
        self.shared.append(obj)
        return len(self.shared) - 1


class _Held:
    """An object that cannot be copied."""

    def __init__(self, held: Any) -> None:
        self.held = held


def _identity(thing: Any) -> Any:
    return thing


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._objects = shared

    def persistent_load(self, number: Any) -> Any:
        return self._objects[number]


def _has_pipes(container: Any) -> bool:
    values = container.values() if isinstance(container, dict) else container
    return any(is_pipe(value) for value in values)
