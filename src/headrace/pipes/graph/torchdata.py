"""The graph functions with torchdata's names and signatures: they take and return what `traverse_dps` returns."""

from __future__ import annotations

from typing import Any

from ..core.walk import Graph, list_pipes, traverse
from .edit import remove, replace


def traverse_dps(datapipe: Any) -> Graph:
    """Return the graph of a pipe: `{id: (pipe, {the same of its sources})}`.

    Raises:
        ConfigError: The graph has a cycle.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.dataloader2 import graph as graphs
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> graph = graphs.traverse_dps(pipe)
        >>> len(graph)
        1
    """
    return traverse(datapipe)


def list_dps(graph: Graph, exclude_dps: Any = None) -> list[Any]:
    """List the pipes of a graph breadth first from its end, each once.

    Args:
        graph: What `traverse_dps` returned.
        exclude_dps: A pipe, or several, to leave out with everything upstream of them.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.dataloader2 import graph as graphs
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> graph = graphs.traverse_dps(pipe)
        >>> [type(one).__name__ for one in graphs.list_dps(graph)]
        ['Batcher', 'Shuffler', 'IterableWrapper']
    """
    if exclude_dps is None:
        exclude_dps = ()
    excluded = exclude_dps if isinstance(exclude_dps, (list, tuple, set, frozenset)) else (exclude_dps,)
    left_out = {id(pipe) for end in excluded for pipe in list_pipes(end)}
    found: dict[int, Any] = {}
    level = [graph]
    while level:
        following = []
        for subgraph in level:
            for number, (pipe, sources) in subgraph.items():
                if number not in left_out and number not in found:
                    found[number] = pipe
                    following.append(sources)
        level = following
    return list(found.values())


def find_dps(graph: Graph, dp_type: type) -> list[Any]:
    """Return the pipes of a graph that are exactly of a type, not of a subclass of it, each once.

    Args:
        graph: What `traverse_dps` returned.
        dp_type: The type.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper, Shuffler
        >>> from headrace.dataloader2 import graph as graphs
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> graph = graphs.traverse_dps(pipe)
        >>> [type(one).__name__ for one in graphs.find_dps(graph, Shuffler)]
        ['Shuffler']
    """
    return [pipe for pipe in list_dps(graph) if type(pipe) is dp_type]


def replace_dp(graph: Graph, old_datapipe: Any, new_datapipe: Any) -> Graph:
    """Replace a pipe by another in all pipes that read it, and return the new graph.

    Args:
        graph: What `traverse_dps` returned. Its pipes are changed.
        old_datapipe: The pipe to be replaced; `new_datapipe` may itself read it.
        new_datapipe: The pipe that is read instead.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.dataloader2 import graph as graphs
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> graph = graphs.traverse_dps(pipe)
        >>> graph = graphs.replace_dp(graph, pipe.datapipe, IterableWrapper("abc"))
        >>> list(pipe)
        [['a', 'b'], ['c']]
    """
    return traverse(replace(_end_of(graph), old_datapipe, new_datapipe))


def remove_dp(graph: Graph, datapipe: Any) -> Graph:
    """Remove a pipe that has one source, and return the new graph.

    Args:
        graph: What `traverse_dps` returned. Its pipes are changed.
        datapipe: The pipe.

    Raises:
        RuntimeError: The pipe has no source, or several.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.dataloader2 import graph as graphs
        >>> pipe = IterableWrapper(range(4)).shuffle().batch(2)
        >>> graph = graphs.traverse_dps(pipe)
        >>> graph = graphs.remove_dp(graph, pipe.datapipe)
        >>> list(pipe)
        [[0, 1], [2, 3]]
    """
    return traverse(remove(_end_of(graph), datapipe))


def _end_of(graph: Graph) -> Any:
    if len(graph) != 1:
        raise RuntimeError(f"a graph has one end, got {len(graph)}")
    return next(iter(graph.values()))[0]
