"""Changes a graph: replaces or removes pipes."""

from __future__ import annotations

from collections import deque
from typing import Any

from ..core.walk import CONTAINERS, list_pipes, pipes_in, source_attributes, sources_of


def replace(pipe: Any, old: Any, new: Any) -> Any:
    """Replace a pipe by another in all pipes that read it.

    Args:
        pipe: The end of the graph, which is changed in place.
        old: The pipe to be replaced. `new` may itself read it, which wraps the pipe.
        new: The pipe that is read instead.

    Returns:
        The end of the graph: `pipe`, or `new` if `pipe` itself was replaced.

    Raises:
        ConfigError: The graph has a cycle.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes import graph
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> list(graph.replace(pipe, pipe.datapipe, IterableWrapper("abc")))
        [['a', 'b'], ['c']]
    """
    if pipe is old:
        return new
    for reader in list_pipes(pipe):
        if reader is not new:
            replace_in(reader, old, new)
    return pipe


def replace_in(reader: Any, old: Any, new: Any) -> None:
    """Replace a source in one pipe only."""
    for name, value in source_attributes(reader).items():
        if any(source is old for source in pipes_in(value)):
            changed = _with(value, old, new, set())
            if changed is not value:
                setattr(reader, name, changed)


def remove(pipe: Any, removed: Any) -> Any:
    """Remove a pipe, so that its readers read its source instead.

    Args:
        pipe: The end of the graph, which is changed in place.
        removed: A pipe with exactly one source.

    Returns:
        The end of the graph.

    Raises:
        RuntimeError: The pipe has no source, or several (the errors that torchdata raises).
        ConfigError: The graph has a cycle.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes import graph
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> list(graph.remove(pipe, pipe.datapipe))
        [[0, 1], [2, 3]]
    """
    sources = sources_of(removed)
    if not sources:
        raise RuntimeError(f"Cannot remove the source DataPipe {removed!r}: nothing is left to read instead")
    if len(sources) > 1:
        raise RuntimeError(
            "Cannot remove the receiving DataPipe having multiple sending DataPipes: "
            f"{removed!r} reads {', '.join(map(repr, sources))}"
        )
    return replace(pipe, removed, sources[0])


def _with(value: Any, old: Any, new: Any, seen: set[int]) -> Any:
    """Return an attribute with one pipe replaced by another: lists, sets and dicts are changed, tuples made anew."""
    if value is old:
        return new
    if not isinstance(value, CONTAINERS) or id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, dict):
        changed = {_with(k, old, new, seen): _with(v, old, new, seen) for k, v in value.items()}
        if any(a is not b or changed[a] is not value[b] for a, b in zip(changed, value, strict=True)):
            value.clear()
            value.update(changed)
        return value
    elements = [_with(element, old, new, seen) for element in value]
    if all(a is b for a, b in zip(elements, value, strict=True)):
        return value
    if isinstance(value, (list, deque)):
        for position, element in enumerate(elements):
            value[position] = element
        return value
    if isinstance(value, set):
        value.clear()
        value.update(elements)
        return value
    return type(value)._make(elements) if hasattr(value, "_make") else type(value)(elements)
