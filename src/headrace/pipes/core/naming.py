"""How messages name a pipe: by its constructor call, in a short line; and which pipe raised an exception.

The raiser is found from the traceback alone, at no cost without errors.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable
from itertools import chain, islice
from types import TracebackType
from typing import Any

from headrace.errors import takes_note

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdeque = 4
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 40, 40
_PLAIN = (bool, int, float, complex, str, bytes, range, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)
_NUM_ASKED = 1000  # elements of a container whose types are looked at: a longer one holds data, not pipes


def show_call(thing: Any, is_hidden: Callable[[type], bool]) -> str:
    """Return `Class(name=value, ...)` from the constructor's parameters that are attributes and not at their defaults.

    Args:
        thing: An object that keeps its arguments under their names.
        is_hidden: Tells whether values of a class, and containers of them, are omitted.
    """
    cls: Any = type(thing)
    shown = []
    for name, parameter in _parameters_of(cls).items():
        value = vars(thing).get(name, parameter.default)
        if value is parameter.default or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if any(map(is_hidden, {type(value), *_types_inside(value)})):
            continue
        if type(value) is not type(parameter.default) or not isinstance(value, _PLAIN) or value != parameter.default:
            shown.append(f"{name}={show_value(value)}")
    return f"{type(thing).__name__}({', '.join(shown)})" if shown else type(thing).__name__


def show_value(value: Any) -> str:
    """Return a value in at most about 40 characters: functions by name, arrays by dtype and shape."""
    if isinstance(value, functools.partial):
        return f"partial({show_value(value.func)})"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__qualname__", value)).replace("<locals>.", "").replace("<lambda>", "lambda")
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, _PLAIN) or type(value) in _CONTAINERS:
        return _SHORT.repr(value)
    return f"<{type(value).__name__}>"


def _types_inside(value: Any) -> set[type]:
    if not isinstance(value, _CONTAINERS):
        return set()
    elements = chain(value, value.values()) if isinstance(value, dict) else value
    return set(map(type, islice(elements, _NUM_ASKED)))


@functools.lru_cache(maxsize=1024)
def _parameters_of(cls: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(cls).parameters)
    except (TypeError, ValueError):
        return {}


def class_name(pipe: Any) -> str:
    """Return the name of a pipe's class, of torch's and torchdata's without their suffix `IterDataPipe`."""
    return type(pipe).__name__.removesuffix("IterDataPipe")


def find_raiser(traceback: TracebackType | None) -> Any | None:
    """Return the innermost pipe whose method is in a traceback, or `None`."""
    raiser = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_argcount:
            first = traceback.tb_frame.f_locals.get(code.co_varnames[0])
            if looks_like_pipe(type(first)):
                raiser = first
        traceback = traceback.tb_next
    return raiser


def name_raiser(error: BaseException) -> None:
    """Add a note to an exception that says in which pipe it was raised, unless it has one already.

    Args:
        error: An exception on its way out of a graph.
    """
    traceback = error.__traceback__
    # Not the caller's frame: reading its variables keeps a copy of them, `error` too, and so everything in a cycle.
    raiser = find_raiser(traceback and traceback.tb_next)
    if raiser is None:
        return
    note = f"This exception is thrown by __iter__ of {describe(raiser)}"
    if note not in (getattr(error, "__notes__", None) or ()):
        takes_note(error, note)


def describe(pipe: Any) -> str:
    """Return the repr of a pipe, with its parameters; only its class if that fails: user code."""
    try:
        text = repr(pipe)
        return show_call(pipe, looks_like_pipe) if text == type(pipe).__name__ else text
    except Exception:  # noqa: BLE001 - user code: a broken __repr__ must not hide the message
        return type(pipe).__name__


def looks_like_pipe(cls: type) -> bool:
    """Tell whether a class is a pipe's, also torch's, by the names of its bases: `base` imports this module."""
    return any(kind.__name__ in _BASES for kind in cls.__mro__)


_BASES = frozenset({"IterPipe", "MapPipe", "IterDataPipe", "MapDataPipe"})
