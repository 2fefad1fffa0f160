"""Shows a pipe as what was written to make it, in one short line, whatever large things it was given."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdeque = 4
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 40, 40
_PLAIN = (bool, int, float, complex, str, bytes, range, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)
_NUM_ASKED = 1000  # elements of a container: a larger one holds data


def show_call(thing: Any, is_left_out: Callable[[type], bool]) -> str:
    """Return `Class(name=value, ...)` from the constructor's parameters that are attributes and not at their defaults.

    Args:
        thing: An object that keeps its arguments under their names.
        is_left_out: Tells of which classes values are not shown, nor containers of them.
    """
    cls: Any = type(thing)
    shown = []
    for name, parameter in _parameters_of(cls).items():
        value = vars(thing).get(name, parameter.default)
        if value is parameter.default or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if any(map(is_left_out, {type(value), *_types_inside(value)})):
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
