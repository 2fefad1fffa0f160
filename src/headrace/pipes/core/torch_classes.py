"""Finds torch's pipes, if the program has imported torch. Nothing here imports it, nor knows Headrace's pipes."""

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
    """Give a class of torch's kind a functional name in torch's register, where Headrace's pipes find it too."""
    sys.modules["torch.utils.data"].functional_datapipe(name)(cls)


def find_torch_function(kind: type, name: str) -> Callable[..., Any] | None:
    """Return the function of a functional name on torch's pipes of a kind, if torch is loaded and has it.

    Args:
        kind: `IterPipe` or `MapPipe`.
        name: What follows the dot.
    """
    counterpart = find_torch_class(COUNTERPARTS.get(kind.__name__, ""))
    return None if counterpart is None else counterpart.functions.get(name)


def lend_function(kind: type, name: str, function: Callable[..., Any]) -> None:
    """Give torch's pipes of a kind one of Headrace's functional names, if torch is loaded and lacks it.

    It is an attribute of the class and not an entry of torch's register, which refuses to have a name twice: torchdata,
    if it is imported later, can register its own, and that is then what the name means.

    Args:
        kind: `IterPipe` or `MapPipe`.
        name: What follows the dot.
        function: What it calls.
    """
    counterpart = find_torch_class(COUNTERPARTS.get(kind.__name__, ""))
    if counterpart is None or name in counterpart.functions:
        return
    if not hasattr(counterpart, name) or isinstance(vars(counterpart).get(name), _Lent):
        setattr(counterpart, name, _Lent(name, function))


def torch_hook(name: str) -> Callable[[Any], Any] | None:
    """Return a hook that torch's own graph functions set while they read a graph, if one is set.

    They pickle a pipe and look at the objects inside. Headrace's pipes call the hooks, so that those functions work on
    them.

    Args:
        name: `reduce_ex_hook` or `getstate_hook`.
    """
    return getattr(find_torch_class("IterDataPipe"), name, None)


class _Lent:
    """A functional name of Headrace's on torch's pipes; torch's register and instance attributes take precedence."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function

    def __get__(self, pipe: Any, kind: Any) -> Any:
        if pipe is None:
            return self._function
        return functools.partial(kind.functions.get(self._name, self._function), pipe)
