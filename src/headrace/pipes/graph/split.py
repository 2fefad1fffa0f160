"""Decides what runs where: in the dispatching process, in each worker, in the main process. Pure.

The rule is torchdata's: a dispatch point (`sharding_round_robin_dispatch`) and everything upstream of it cannot be
replicated, so it runs once, in the dispatching process. If branches with dispatch points are joined, the dispatching
process runs everything up to the join. A pipe that is not replicable (its `is_replicable()` is False) and everything
downstream of it run in the main process. The rest is replicated: each worker has a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError

from ..core.naming import class_name
from ..core.walk import list_pipes, sources_of


@dataclass(frozen=True)
class Parts:
    """What runs where. In the tuples, sources come before their readers.

    Attributes:
        end: The end of the whole graph.
        worker_root: The last pipe that each worker runs; `None`: there is nothing for workers. It is `dispatch_root` if
            workers only pass items on.
        dispatch_root: The last pipe that the dispatching process runs; `None`: there is no such process.
        dispatched: The pipes of the dispatching process.
        replicated: The pipes that each worker has a copy of.
        main: The pipes of the main process.
    """

    end: Any
    worker_root: Any | None
    dispatch_root: Any | None
    dispatched: tuple[Any, ...]
    replicated: tuple[Any, ...]
    main: tuple[Any, ...]


def split_graph(pipe: Any) -> Parts:
    """Split a graph for workers.

    Args:
        pipe: The end of the graph. It is not changed.

    Raises:
        ConfigError: The graph has a cycle, or the main process would have to join several replicated branches.
    """
    pipes = list_pipes(pipe)
    dispatch_root = lowest_common_ancestor(pipe, [each for each in pipes if is_dispatch_point(each)])
    dispatched = list_pipes(dispatch_root) if dispatch_root is not None else []
    inside = {id(each) for each in dispatched}
    main: dict[int, Any] = {}
    for each in pipes:
        if id(each) not in inside and (
            not is_replicable(each) or any(id(source) in main for source in sources_of(each))
        ):
            main[id(each)] = each
    roots = {id(source): source for each in main.values() for source in sources_of(each) if id(source) not in main}
    if not main:
        roots = {id(pipe): pipe}
    if len(roots) > 1:
        raise ConfigError(
            "MultiProcessingReadingService only supports single replicable branch currently: the main process would "
            f"have to join {', '.join(repr(root) for root in roots.values())}",
            fix="join the branches (zip, mux, concat) before the pipe that must run in the main process: "
            + ", ".join(repr(each) for each in main.values() if not is_replicable(each)),
        )
    worker_root = next(iter(roots.values()), None)
    replicated = [] if worker_root is None else [each for each in list_pipes(worker_root) if id(each) not in inside]
    return Parts(pipe, worker_root, dispatch_root, tuple(dispatched), tuple(replicated), tuple(main.values()))


def lowest_common_ancestor(pipe: Any, marked: list[Any]) -> Any | None:
    """Return the first pipe downstream where all branches of marked pipes have been joined; `None` if none is marked.

    A pipe that reads something upstream of a marked pipe counts as a branch too, because what both read cannot run in
    two processes. If the marked pipes are all on one path, it is the last of them.

    Args:
        pipe: The end of the graph.
        marked: Pipes of the graph.

    Raises:
        ConfigError: The graph has a cycle.
    """
    root = dispatch_roots(pipe, marked).get(id(pipe))
    while root is not None:  # everything upstream of the join is in that process too, and so are other readers of it
        further = dispatch_roots(pipe, [*marked, root])[id(pipe)]
        if further is root:
            break
        root = further
    return root


def dispatch_roots(pipe: Any, marked: list[Any]) -> dict[int, Any]:
    """Return for each pipe downstream of marked ones, by `id`, the last pipe that must run in the same process as they.

    Args:
        pipe: The end of the graph.
        marked: Pipes of the graph; these and all pipes upstream of them are their own roots.

    Raises:
        ConfigError: The graph has a cycle.
    """
    inside = {id(each) for one in marked for each in list_pipes(one)}
    root: dict[int, Any] = {}
    for each in list_pipes(pipe):
        if id(each) in inside:
            root[id(each)] = each
            continue
        found = {id(root[id(source)]): root[id(source)] for source in sources_of(each) if id(source) in root}
        if found:
            root[id(each)] = next(iter(found.values())) if len(found) == 1 else each
    return root


def is_dispatch_point(pipe: Any) -> bool:
    """Tell whether a pipe is a `sharding_round_robin_dispatch`, ours or torchdata's; a subclass of it is not."""
    return class_name(pipe) == "ShardingRoundRobinDispatcher"


def is_replicable(pipe: Any) -> bool:
    """Tell whether a pipe may be copied to several workers: yes, unless its method `is_replicable` returns False."""
    says = getattr(pipe, "is_replicable", None)  # of the class, or of this pipe alone
    return not callable(says) or bool(says())
