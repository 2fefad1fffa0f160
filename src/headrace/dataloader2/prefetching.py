"""The prefetcher at the end of a pipeline in the main process, and how the threads of such pipes are ended."""

from __future__ import annotations

from typing import Any

from headrace.errors import InternalError
from headrace.pipes import IterPipe
from headrace.pipes.graph import list_pipes
from headrace.pipes.registry import find_function


def prefetched(datapipe: Any, count: int) -> Any:
    """Return a pipe that reads another up to `count` items ahead, in a thread; the same pipe if it is 0."""
    return appended("prefetch", datapipe, count) if count > 0 else datapipe


def appended(name: str, datapipe: Any, *arguments: Any) -> Any:
    """Return an operation of ours, by its functional name, over any pipe.

    Raises:
        InternalError: There is none of this name.
    """
    operation = find_function(IterPipe, name)
    if operation is None:
        raise InternalError(f"there is no operation {name!r}")
    return operation(datapipe, *arguments)


def shut_down(datapipe: Any) -> None:
    """End the threads of all pipes of a graph that have any, from the end to the sources."""
    if datapipe is None:
        return
    for pipe in reversed(list_pipes(datapipe)):
        shutdown = getattr(type(pipe), "shutdown", None)
        if callable(shutdown):
            shutdown(pipe)
