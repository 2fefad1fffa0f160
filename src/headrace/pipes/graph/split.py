"""Decides what runs where: in the dispatching process, in each worker, in the main process. Pure.

The rule, as documented for torchdata: a dispatch point (`sharding_round_robin_dispatch`) and everything upstream of it
cannot be replicated, so it runs once, in the dispatching process. If several of them meet, the dispatching process runs
everything up to where they meet. What says of itself that it is not replicable (`is_replicable()` is False), and
everything downstream, runs in the main process. The rest is replicated, one copy in each worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError

from ..core.walk import list_pipes, sources_of

DISPATCHERS = ("ShardingRoundRobinDispatcher", "ShardingRoundRobinDispatcherIterDataPipe")


@dataclass(frozen=True)
class Parts:
    """What runs where. Lists have sources first.

    Attributes:
        end: The end of the whole graph.
        worker_root: The end of what each worker runs; `None`: there is nothing for workers. Is `dispatch_root` if
            workers only hand on what they get.
        dispatch_root: The end of what the dispatching process runs; `None`: there is no such process.
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
    """Return the pipe where the branches of marked pipes meet, going downstream; `None` if there are none.

    A pipe that reads something upstream of a marked pipe counts as a branch of it: what both read cannot be in two
    processes. For one marked pipe, or several one behind the other, it is the last of them.

    Args:
        pipe: The end of the graph.
        marked: Pipes of the graph.

    Raises:
        ConfigError: The graph has a cycle.
    """
    root = dispatch_roots(pipe, marked).get(id(pipe))
    while root is not None:  # all that is read where branches meet is in one process, too, and who reads that
        further = dispatch_roots(pipe, [*marked, root])[id(pipe)]
        if further is root:
            break
        root = further
    return root


def dispatch_roots(pipe: Any, marked: list[Any]) -> dict[int, Any]:
    """Return of each pipe that reads marked ones the last pipe that must be in one process with them, by `id`.

    Args:
        pipe: The end of the graph.
        marked: Pipes of the graph; they and all that is upstream of them are their own roots.

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
    return type(pipe).__name__ in DISPATCHERS


def is_replicable(pipe: Any) -> bool:
    """Tell whether a pipe may run in several workers: yes, unless its method `is_replicable` says no."""
    says = getattr(pipe, "is_replicable", None)  # of the class, or of this pipe alone
    return not callable(says) or bool(says())
