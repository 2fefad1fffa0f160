"""What a loader asks of errors and of graphs that it goes on with."""

from __future__ import annotations

from typing import Any

from headrace.pipes import IterPipe
from headrace.pipes.graph import list_pipes


def is_named(error: BaseException) -> bool:
    """Tell whether the text of an error says which pipe raised it: that of a worker, or torch's."""
    return any("thrown by __iter__ of" in argument for argument in error.args if isinstance(argument, str))


def forget_position(end: Any) -> None:
    """Have all pipes of a graph begin at their start, though some may have been restored."""
    for pipe in list_pipes(end):
        if isinstance(pipe, IterPipe):
            pipe._is_restored, pipe._restored = False, None
