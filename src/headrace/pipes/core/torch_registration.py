"""Lets torch's pipes and Headrace's be used together: functional names, and what torch accepts as a pipe.

torchdata gave torch's pipes many functional names (`prefetch`, `header`, `sharding_round_robin_dispatch`, ...), which
they lack without it. Where torch is loaded they get Headrace's, which read torch's pipes like any other source. In turn
torch's classes that check for torch's pipes (`zip`, `concat`, `mux`) accept Headrace's.

Torch is never imported here. If the program imports it after Headrace, a finder at the head of `sys.meta_path` notices
the import, registers when it is done, and removes itself.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .base import IterPipe, MapPipe
from .registry import list_functions
from .torch_classes import COUNTERPARTS, find_torch_class, lend_function

_MODULE = "torch.utils.data"


def register_with_torch() -> bool:
    """Give torch's pipes the functional names that they lack, and make torch accept Headrace's pipes.

    Done by `import headrace.pipes` if torch is loaded, and else as soon as it is. What torch or torchdata has
    registered is never overridden, before or after.

    Returns:
        Whether torch is loaded.

    Examples:
        >>> from headrace.pipes import register_with_torch
        >>> def prepare():  # where torch is installed: torch's pipes get the methods that they lack, such as `header`
        ...     register_with_torch()
    """
    for kind in (IterPipe, MapPipe):
        counterpart = find_torch_class(COUNTERPARTS[kind.__name__])
        if counterpart is None:
            return False
        counterpart.register(kind)
        for name, function in list_functions(kind).items():
            lend_function(kind, name, function)
    return True


def register_when_torch_loads() -> None:
    """Register with torch now, or as soon as the program imports it."""
    if not register_with_torch() and not any(isinstance(finder, _TorchWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchWatcher())


class _TorchWatcher(MetaPathFinder):
    """Has the other finders find `torch.utils.data`, and registers after its import."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            with suppress(AttributeError):  # an odd loader must not keep torch from being imported
                spec.loader.exec_module = _and_register(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _and_register(exec_module: Any) -> Any:
    def exec_and_register(module: ModuleType) -> None:
        exec_module(module)
        register_with_torch()

    return exec_and_register
