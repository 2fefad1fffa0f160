"""Finds the pipes that a graph consists of, without running, copying or pickling anything.

A pipe's sources are its attributes that are pipes, and the pipes in lists, tuples, sets, dicts (keys and values) and
deques that are attributes. Headrace's pipes and torch's (`torch.utils.data.IterDataPipe`, `MapDataPipe`) are read by
the same code; torch is never imported. Nothing is changed, and a container of more than 10,000 elements is taken for
data and skipped.

Invariants: the order in which sources are found depends only on the order in which attributes were set; a graph is
acyclic, or it is refused with the path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeAlias

from headrace.errors import ConfigError

from .base import is_pipe, pipe_classes

Graph: TypeAlias = "dict[int, tuple[Any, Graph]]"
"""What `traverse` returns: `{id(pipe): (pipe, the same of its sources)}`."""

CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_ITEM_BUFFERS = ("buffer", "cache", "pending")  # containers of these names hold items, which may be pipes too
_MAX_SEARCHED = 10_000  # elements of an attribute on one level: more of them are data. Searching as many takes 0.2 ms


def sources_of(pipe: Any) -> list[Any]:
    """Return the pipes that a pipe reads, each once, in the order of its attributes."""
    found = {id(source): source for value in source_attributes(pipe).values() for source in pipes_in(value)}
    return list(found.values())


def source_attributes(pipe: Any) -> dict[str, Any]:
    """Return the attributes that may hold a pipe's sources: pipes, and containers other than buffers of items."""
    kinds = pipe_classes()
    attributes = getattr(pipe, "__dict__", {}).items()
    buffers = [name for name, _ in attributes if any(word in name for word in _ITEM_BUFFERS)]
    return {
        name: value
        for name, value in attributes
        if issubclass(type(value), kinds) or (isinstance(value, CONTAINERS) and value and name not in buffers)
    }


def list_pipes(pipe: Any) -> list[Any]:
    """List the pipes of a graph, each once, sources before their readers; the pipe itself is the last.

    Args:
        pipe: The end of the graph.

    Raises:
        ConfigError: The graph has a cycle.
        TypeError: It is not a pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes import graph
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> [type(one).__name__ for one in graph.list_pipes(pipe)]
        ['IterableWrapper', 'Shuffler', 'Batcher']
    """
    if not is_pipe(pipe):
        raise TypeError(f"Expected a pipe (an IterDataPipe or MapDataPipe, ours or torch's), got {type(pipe).__name__}")
    order: dict[int, Any] = {}
    path: dict[int, Any] = {}
    waiting = [(pipe, iter(sources_of(pipe)))]
    path[id(pipe)] = pipe
    while waiting:
        reader, sources = waiting[-1]
        for source in sources:
            if id(source) in path:
                raise _cycle(list(path.values()), source)
            if id(source) not in order:
                path[id(source)] = source
                waiting.append((source, iter(sources_of(source))))
                break
        else:
            waiting.pop()
            del path[id(reader)]
            order[id(reader)] = reader
    return list(order.values())


def traverse(pipe: Any) -> Graph:
    """Return the graph of a pipe in torchdata's form: `{id: (pipe, {the same of its sources})}`.

    A source of several pipes is one dict that occurs several times, so that the size is that of the graph.

    Raises:
        ConfigError: The graph has a cycle.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes import graph
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> len(graph.traverse(pipe))
        1
    """
    known: dict[int, tuple[Any, Graph]] = {}
    for each in list_pipes(pipe):
        known[id(each)] = (each, {id(source): known[id(source)] for source in sources_of(each)})
    return {id(pipe): known[id(pipe)]}


def find(pipe: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """Return the pipes of a graph that are instances of a class, or of one of several, sources first.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper, Shuffler
        >>> from headrace.pipes import graph
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> [type(one).__name__ for one in graph.find(pipe, Shuffler)]
        ['Shuffler']
    """
    return [each for each in list_pipes(pipe) if isinstance(each, kind)]


def pipes_in(value: Any) -> Iterator[Any]:
    """Yield the pipes in an attribute, level by level: elements, elements of elements, ..."""
    kinds = pipe_classes()
    if issubclass(type(value), kinds):
        yield value
        return
    seen: set[int] = set()
    containers = [value]
    while containers and sum(map(len, containers)) <= _MAX_SEARCHED:
        seen |= {id(container) for container in containers}
        types = set(map(type, _elements(containers)))
        pipe_types = tuple(kind for kind in types if issubclass(kind, kinds))
        deeper = tuple(kind for kind in types if issubclass(kind, CONTAINERS) and kind not in pipe_types)
        if pipe_types:
            yield from (element for element in _elements(containers) if type(element) in pipe_types)
        if not deeper:
            return
        containers = [element for element in _elements(containers) if type(element) in deeper]
        containers = [container for container in containers if id(container) not in seen]


def _elements(containers: list[Any]) -> Iterator[Any]:
    return chain.from_iterable(chain(c, c.values()) if isinstance(c, dict) else c for c in containers)


def _cycle(path: list[Any], source: Any) -> ConfigError:
    start = next(position for position, pipe in enumerate(path) if pipe is source)
    names = " <- ".join(type(pipe).__name__ for pipe in [*path[start:], source])
    return ConfigError(
        f"the graph has a cycle, so it has no beginning: {names}",
        fix="a pipe may only hold pipes that it reads as attributes; refer to others by a weakref or an id",
    )
