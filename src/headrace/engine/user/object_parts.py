"""The parts of an object that pickle would visit, and the path to one: to name what cannot be sent, or is large.

Parts are captured variables and mentioned globals of a function, members of a class, entries of a container, and for
the rest whatever its own `__reduce_ex__` hands out: so an attribute that `__getstate__` leaves out is never blamed. A
path reads `job -> .setup -> captured variable 'log' -> .file`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

# No path that a person reads is longer; it also ends the search in objects that make new parts for ever.
_MAX_DEPTH = 30


class Part(NamedTuple):
    """One part of an object, and the words that lead from the object to it."""

    label: str
    value: object


def find_path(obj: object, choose: Callable[[list[Part]], Part | None]) -> tuple[list[str], object]:
    """Descend from `obj` into the part that `choose` picks, until it picks none.

    Returns:
        The labels on the way, and the object at its end.
    """
    path: list[str] = []
    seen = {id(obj)}
    for _ in range(_MAX_DEPTH):
        parts = [part for part in parts_of(obj) if id(part.value) not in seen]
        chosen = choose(parts)
        if chosen is None:
            break
        path.append(chosen.label)
        obj = chosen.value
        seen.add(id(obj))
    return path, obj


def parts_of(obj: object) -> list[Part]:
    """List what pickle would visit below an object; empty where there is nothing to visit."""
    return list(_parts(obj))


def _parts(obj: object) -> Iterator[Part]:
    if isinstance(obj, types.FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, types.MethodType):
        yield Part(f"method {obj.__name__!r} of", obj.__self__)
    elif isinstance(obj, functools.partial):
        yield Part("partial function", obj.func)
        yield from (Part(f"partial argument {index}", value) for index, value in enumerate(obj.args))
        yield from (Part(f"partial argument {name!r}", value) for name, value in obj.keywords.items())
    elif isinstance(obj, type):
        yield from (Part(f".{name}", value) for name, value in vars(obj).items() if not _is_machinery(name))
    elif isinstance(obj, dict):
        yield from (Part(f"[{key!r}]", value) for key, value in obj.items())
        yield from (Part(f"key {key!r}", key) for key in obj)
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from (Part(f"[{index}]", value) for index, value in enumerate(obj))
    elif not isinstance(obj, str | bytes | int | float | types.NoneType | types.ModuleType | np.ndarray):
        yield from _parts_of_state(obj)


def _is_machinery(name: str) -> bool:
    return name in {"__dict__", "__weakref__", "__module__", "__doc__", "__abstractmethods__", "_abc_impl"}


def _parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Part(f"captured variable {name!r}", cell.cell_contents)
        except ValueError:  # the variable has no value yet
            continue
    mentioned = set(_names_in(function.__code__))
    yield from (Part(f"global {name!r}", value) for name, value in function.__globals__.items() if name in mentioned)
    yield from (Part(f"default {index}", value) for index, value in enumerate(function.__defaults__ or ()))
    yield from (Part(f"default of {name!r}", value) for name, value in (function.__kwdefaults__ or {}).items())
    yield from (Part(f".{name}", value) for name, value in vars(function).items())


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names_in(constant)


def _parts_of_state(obj: Any) -> Iterator[Part]:
    try:
        reduced = obj.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - user code; an object that cannot even begin has no parts: it is the culprit
        return
    if not isinstance(reduced, tuple):
        return
    _, args, state, items, entries = (*reduced, None, None, None)[:5]
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # (__dict__, slots)
        state = {**(state[0] or {}), **state[1]}
    if isinstance(state, dict):
        yield from (Part(f".{name}", value) for name, value in state.items())
    elif state is not None:
        yield Part("state", state)
    yield from (Part(f"argument {index}", value) for index, value in enumerate(args or ()))
    yield from (Part(f"[{index}]", value) for index, value in enumerate(items or ()))
    yield from (Part(f"[{key!r}]", value) for key, value in entries or ())
