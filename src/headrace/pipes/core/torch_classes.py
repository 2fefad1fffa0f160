"""Finds torch's pipe classes, if the program has imported torch. Does not import torch, nor Headrace's pipes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

COUNTERPARTS = {"IterPipe": "IterDataPipe", "MapPipe": "MapDataPipe"}


def find_torch_class(name: str) -> Any | None:
    """Return a class of `torch.utils.data` if torch is loaded, else `None`."""
    found = getattr(sys.modules.get("torch.utils.data"), name, None)
    return found if isinstance(found, type) else None


def is_torch_pipe(cls: type) -> bool:
    """Tell whether a class derives from torch's pipes, and is not only registered as one."""
    return any(find_torch_class(name) in cls.__mro__ for name in COUNTERPARTS.values())


def register_with_torch(name: str, cls: type) -> None:
    """Register a functional name for a class of torch's pipes with torch; Headrace's pipes find it there."""
    sys.modules["torch.utils.data"].functional_datapipe(name)(cls)


def find_torch_function(kind: type, name: str) -> Callable[..., Any] | None:
    """Return the function of a functional name on torch's pipes of a kind, if torch is loaded and has that name.

    Args:
        kind: `IterPipe` or `MapPipe`.
        name: The method name.
    """
    counterpart = find_torch_class(COUNTERPARTS.get(kind.__name__, ""))
    return None if counterpart is None else counterpart.functions.get(name)


def lend_function(kind: type, name: str, function: Callable[..., Any]) -> None:
    """Make one of Headrace's functional names work on torch's pipes of a kind, if torch is loaded and lacks the name.

    The name becomes an attribute of the class, not an entry in torch's registry, which refuses to register a name
    twice: if torchdata is imported later, it can still register its own, which then takes precedence.

    Args:
        kind: `IterPipe` or `MapPipe`.
        name: The method name.
        function: The function to call.
    """
    counterpart = find_torch_class(COUNTERPARTS.get(kind.__name__, ""))
    if counterpart is None or name in counterpart.functions:
        return
    if not hasattr(counterpart, name) or isinstance(vars(counterpart).get(name), _Lent):
        setattr(counterpart, name, _Lent(name, function))


def torch_hook(name: str) -> Callable[[Any], Any] | None:
    """Return a hook that torch's own graph functions set while they traverse a graph, if one is set.

    They pickle a pipe to find the pipes inside. Headrace's pipes call the hooks, so that those functions work on them.

    Args:
        name: `reduce_ex_hook` or `getstate_hook`.
    """
    return getattr(find_torch_class("IterDataPipe"), name, None)


class _Lent:
    """A functional name of Headrace's on torch's pipes; torch's registry and instance attributes take precedence."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function

    def __get__(self, pipe: Any, kind: Any) -> Any:
        if pipe is None:
            return self._function
        return functools.partial(kind.functions.get(self._name, self._function), pipe)
