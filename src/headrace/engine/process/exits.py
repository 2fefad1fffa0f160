"""What becomes of executors with this process: closed at its exit, disowned in a process that is forked off it."""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from ..memory.weak_objects import WeakObjects


class ExitHook(Protocol):
    """What has to know when this process ends or forks."""

    def close(self) -> None:
        """End everything; this process exits."""

    def disown(self) -> None:
        """Forget everything; this is a forked child."""


_endings: WeakObjects[ExitHook] = WeakObjects()


def end_with_process(ending: ExitHook) -> None:
    """Close it at the exit of the interpreter, if it lives then, and disown it in forked children."""
    _endings.add(ending)


def _close_all() -> None:
    for ending in _endings.living():
        ending.close()


def _disown_all() -> None:
    for ending in _endings.living():
        ending.disown()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_disown_all)
