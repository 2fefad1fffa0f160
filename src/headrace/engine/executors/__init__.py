"""Where workers live: in the consumer's own thread, in threads, in processes.

This room decides how a ticket gets to a worker and an outcome back. It never decides which worker does what, nor what
happens after a death: that is the supervisor's. Read `base.py` first.
"""

from __future__ import annotations

import importlib

from headrace.errors import ConfigError, did_you_mean

from .base import Executor

_CLASS_OF = {
    "inline": ("inline", "InlineExecutor"),
    "process": ("process", "ProcessExecutor"),
    "thread": ("thread", "ThreadExecutor"),
}


def make_executor(name: str) -> Executor:
    """Make an executor by name; its module is imported when it is first asked for.

    Raises:
        ConfigError: If there is none of this name.
    """
    if name not in _CLASS_OF:
        raise ConfigError(f"there is no executor {name!r}", fix=did_you_mean(name, _CLASS_OF))
    module, class_name = _CLASS_OF[name]
    executor = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)()
    assert isinstance(executor, Executor)
    return executor


__all__ = ["Executor", "make_executor"]
