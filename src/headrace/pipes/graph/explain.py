"""Shows which pipe will run in which process, before anything is started, and draws a graph by graphviz."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError

from ..core.naming import class_name, describe
from ..core.walk import list_pipes, sources_of
from .lint import find_warnings
from .split import Parts, split_graph


def explain(pipe: Any, reading_service: Any = None) -> str:
    """Return, as text, which pipe will run in which process, with warnings about likely mistakes.

    Args:
        pipe: The end of the graph. Nothing is started or changed.
        reading_service: The service that will run it, or a sequence of services; `None`: it runs in the main process.

    Raises:
        ConfigError: The graph has a cycle, or cannot be split.
    """
    plan = _plan_of(reading_service)
    parts = _split(pipe, plan)
    numbers = {id(each): number for number, each in enumerate(list_pipes(pipe), start=1)}
    lines = []
    for title, pipes, after in _sections(parts, plan):
        lines.append(f"{title}:")
        for each in pipes:
            read = ", ".join(str(numbers[id(source)]) for source in sources_of(each))
            lines.append(f"  {numbers[id(each)]} {describe(each)}{' <- ' if read else ''}{read}")
        lines += [f"  {note}" for note in after]
    warnings = find_warnings(parts, plan.num_workers)
    lines += [f"warning: {warning}" for warning in warnings]
    return "\n".join(lines)


def to_graph(dp: Any, *, debug: bool = False) -> Any:
    """Return the graph as a `graphviz.Digraph`.

    Args:
        dp: The end of the graph.
        debug: Show the parameters of pipes, not only their class names.

    Raises:
        ModuleNotFoundError: The package `graphviz` is not installed.
        ConfigError: The graph has a cycle.

    Examples:
        >>> from headrace.pipes import to_graph
        >>> def draw(pipe):  # where graphviz is installed
        ...     to_graph(pipe).render("pipe.svg")
    """
    try:
        import graphviz
    except ModuleNotFoundError as error:
        error.add_note("to_graph needs graphviz: pip install graphviz. explain works without it")
        raise
    graph = graphviz.Digraph(node_attr={"shape": "box", "fontname": "sans-serif"})
    pipes = list_pipes(dp)
    names = {id(each): f"p{number}" for number, each in enumerate(pipes, start=1)}
    for each in pipes:
        graph.node(names[id(each)], graphviz.escape(describe(each) if debug else type(each).__name__))
        for source in sources_of(each):
            graph.edge(names[id(source)], names[id(each)])
    return graph


@dataclass(frozen=True)
class _Plan:
    """The facts about the reading services that a picture of the graph shows."""

    num_workers: int = 0
    worker_prefetch: int = 0
    main_prefetch: int = 0
    is_distributed: bool = False


def _plan_of(reading_service: Any) -> _Plan:
    services = list(_flat(reading_service))
    workers = [each for each in services if isinstance(getattr(each, "num_workers", None), int)]
    if len(workers) > 1:
        raise ConfigError(
            f"{len(workers)} of the reading services have workers, but only one may", fix="remove the others"
        )
    is_distributed = any("Distributed" in type(each).__name__ for each in services)
    if not workers or workers[0].num_workers <= 0:
        return _Plan(is_distributed=is_distributed)
    return _Plan(
        num_workers=workers[0].num_workers,
        worker_prefetch=getattr(workers[0], "worker_prefetch_cnt", 0),
        main_prefetch=getattr(workers[0], "main_prefetch_cnt", 0),
        is_distributed=is_distributed,
    )


def _flat(service: Any) -> Iterator[Any]:
    inner = service if isinstance(service, (list, tuple)) else getattr(service, "reading_services", None)
    if inner is None:
        yield service
    else:
        for each in inner:
            yield from _flat(each)


def _split(pipe: Any, plan: _Plan) -> Parts:
    if plan.num_workers <= 0:
        return Parts(pipe, None, None, (), (), tuple(list_pipes(pipe)))
    return split_graph(pipe)


def _sections(parts: Parts, plan: _Plan) -> Iterator[tuple[str, tuple[Any, ...], list[str]]]:
    """Yield for each process its title, its pipes, and notes on what happens to their items."""
    if parts.dispatch_root is not None:
        dealt = f"-> gives items to {plan.num_workers} workers in turn"
        yield "dispatching process", parts.dispatched, [dealt]
    if parts.worker_root is not None:
        copies = f"worker process ({plan.num_workers} of them, each with a copy)"
        read_from = [] if parts.replicated else ["passes items on"]
        ahead = [f"-> reads {plan.worker_prefetch} items ahead"] if plan.worker_prefetch > 0 else []
        yield copies, parts.replicated, [*read_from, *ahead]
    after = ["reads the workers in turn: 0, 1, ..."] if parts.worker_root is not None and not parts.main else []
    if plan.is_distributed and not any(class_name(each) == "FullSync" for each in parts.main):
        after.append("fullsync: all ranks end together")
    if plan.main_prefetch > 0:
        after.append(f"-> reads {plan.main_prefetch} items ahead")
    yield "main process", parts.main, after
