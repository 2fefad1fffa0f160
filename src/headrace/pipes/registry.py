"""The functional names: `pipe.map(f)` is `Mapper(pipe, f)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.errors import ConfigError

from .torch_classes import find_torch_function, is_torch_pipe, lend_function, register_with_torch

PipeClass = TypeVar("PipeClass", bound=type)

_FUNCTIONS: dict[type, dict[str, Callable[..., Any]]] = {}


def functional_pipe(name: str) -> Callable[[PipeClass], PipeClass]:
    """Give a pipe class a functional name, on pipes of its kind (iterable or map-style); one of torch's, on torch's.

    Args:
        name: What follows the dot.

    Raises:
        ConfigError: The name is taken, or no identifier.
    """

    def register(cls: PipeClass) -> PipeClass:
        if is_torch_pipe(cls):
            register_with_torch(name, cls)
            return cls
        register_function(_kind_of(cls), name, cls)
        return cls

    return register


def register_function(kind: type, name: str, function: Callable[..., Any]) -> None:
    """Make `pipe.name(...)` call `function(pipe, ...)` for all pipes that are of a kind, torch's too if it is loaded.

    A class may be registered again under its name: a notebook's cell that is run twice.

    Args:
        kind: `IterPipe` or `MapPipe`, or a class of yours that only its pipes shall have it.
        name: What follows the dot.
        function: What is called.

    Raises:
        ConfigError: The name is taken, or no identifier.
    """
    if not name.isidentifier() or name.startswith("_"):
        raise ConfigError(f"{name!r} is no name for a function of pipes")
    known = _FUNCTIONS.get(kind, {}).get(name)
    if hasattr(kind, name) or (known is not None and _origin(known) != _origin(function)):
        raise ConfigError(f"pipes have a function {name!r} already", fix="give it another name")
    _FUNCTIONS.setdefault(kind, {})[name] = function
    lend_function(kind, name, function)


def find_function(cls: type, name: str) -> Callable[..., Any] | None:
    """Return what a functional name stands for on pipes of a class; what only torch's pipes know counts too."""
    for kind in cls.__mro__:
        if function := _FUNCTIONS.get(kind, {}).get(name):
            return function
    return next((found for kind in cls.__mro__ if (found := find_torch_function(kind, name))), None)


def list_functions(cls: type) -> dict[str, Callable[..., Any]]:
    """Return all functional names of pipes of a class."""
    found: dict[str, Callable[..., Any]] = {}
    for kind in reversed(cls.__mro__):
        found |= _FUNCTIONS.get(kind, {})
    return found


def _kind_of(cls: type) -> type:
    for kind in reversed(cls.__mro__):
        if kind.__name__ in ("IterPipe", "MapPipe"):
            return kind
    raise ConfigError(f"{cls.__name__} is no pipe", fix="make it a subclass of headrace.pipes.IterPipe or MapPipe")


def _origin(function: Any) -> tuple[str | None, str | None]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)
