"""Shows which pipe will run in which process, before anything is started: as text, for mermaid, for graphviz."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ConfigError

from ..core.naming import class_name, describe
from ..core.walk import list_pipes, sources_of
from .hoist import Hoist, plan_hoists
from .lint import find_warnings
from .split import Parts, split_graph


def wiring_of(pipe: Any, hoists: list[Hoist]) -> dict[int, list[Any]]:
    """Return for each pipe of a graph, by `id`, the pipes that it reads once joins have been moved.

    A moved join reads the dispatched pipes, the first operation of each branch reads the join, and the readers of the
    join read the last operations of the branches. (A few internal pipes between them are not shown.)

    Args:
        pipe: The end of the graph. It is not changed.
        hoists: What `plan_hoists` returned for it.
    """
    pipes = list_pipes(pipe)
    sources = {id(each): sources_of(each) for each in pipes}
    exits: dict[int, list[Any]] = {}  # for each moved join, the last operations of its branches
    for hoist in hoists:
        join, readers_of_bases = hoist.join, set[int]()
        exits[id(join)] = []
        for base, operations in zip(hoist.bases, hoist.operations, strict=True):
            if not operations:
                exits[id(join)].append(join)
                continue
            ends = exits.get(id(operations[-1]), [operations[-1]])
            sources[id(join)] = _put(sources[id(join)], ends, [base])
            for reader in pipes:
                if reader is not join and any(each is base for each in sources[id(reader)]):
                    sources[id(reader)] = _put(sources[id(reader)], [base], [join])
                    readers_of_bases.add(id(reader))
            exits[id(join)] += _put(ends, [base], [join])
        for reader in pipes:
            if id(reader) not in readers_of_bases:
                sources[id(reader)] = _put(sources[id(reader)], [join], exits[id(join)])
    return sources


def _put(pipes: list[Any], old: list[Any], new: list[Any]) -> list[Any]:
    """Return a list of pipes with some of them replaced by others, each pipe once."""
    gone = {id(each) for each in old}
    found = [end for each in pipes for end in (new if id(each) in gone else [each])]
    return list({id(each): each for each in found}.values())


def explain(pipe: Any, reading_service: Any = None) -> str:
    """Return, as text, which pipe will run in which process, with warnings about likely mistakes.

    Args:
        pipe: The end of the graph. Nothing is started or changed.
        reading_service: The service that will run it, or a sequence of services; `None`: it runs in the main process.

    Raises:
        ConfigError: The graph has a cycle, or cannot be split.
    """
    plan = _plan_of(reading_service)
    parts, sources = _split(pipe, plan)
    numbers = {id(each): number for number, each in enumerate(list_pipes(pipe), start=1)}
    lines = []
    for title, pipes, after in _sections(parts, plan):
        lines.append(f"{title}:")
        for each in pipes:
            read = ", ".join(str(numbers[id(source)]) for source in sources[id(each)])
            lines.append(f"  {numbers[id(each)]} {describe(each)}{' <- ' if read else ''}{read}")
        lines += [f"  {note}" for note in after]
    warnings = find_warnings(parts, plan.num_workers)
    lines += [f"warning: {warning}" for warning in warnings]
    return "\n".join(lines)


def to_mermaid(pipe: Any, reading_service: Any = None) -> str:
    """Return the graph as a mermaid flowchart, with a box for each process.

    Args:
        pipe: The end of the graph.
        reading_service: As for `explain`.

    Raises:
        ConfigError: The graph has a cycle, or cannot be split.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes import to_mermaid
        >>> to_mermaid(IterableWrapper(range(4)).batch(2)).splitlines()[0]
        'flowchart TD'
    """
    plan = _plan_of(reading_service)
    parts, sources = _split(pipe, plan)
    names = {id(each): f"p{number}" for number, each in enumerate(list_pipes(pipe), start=1)}
    lines = ["flowchart TD"]
    for number, (title, pipes, _) in enumerate(_sections(parts, plan), start=1):
        if pipes:
            lines.append(f'  subgraph s{number}["{_escaped(title)}"]')
            lines += [f'    {names[id(each)]}["{_escaped(describe(each))}"]' for each in pipes]
            lines.append("  end")
    lines += [f"  {names[id(source)]} --> {name}" for number, name in names.items() for source in sources[number]]
    return "\n".join(lines)


def to_graph(dp: Any, *, debug: bool = False, reading_service: Any = None) -> Any:
    """Return the graph as a `graphviz.Digraph`.

    Args:
        dp: The end of the graph.
        debug: Show the parameters of pipes, not only their class names.
        reading_service: As for `explain`.

    Raises:
        ModuleNotFoundError: The package `graphviz` is not installed.
        ConfigError: The graph has a cycle, or cannot be split.

    Examples:
        >>> from headrace.pipes import to_graph
        >>> def draw(pipe):  # where graphviz is installed
        ...     to_graph(pipe).render("pipe.svg")
    """
    try:
        import graphviz
    except ModuleNotFoundError as error:
        error.add_note("to_graph needs graphviz: pip install graphviz. to_mermaid and explain work without it")
        raise
    plan = _plan_of(reading_service)
    parts, sources = _split(dp, plan)
    names = {id(each): f"p{number}" for number, each in enumerate(list_pipes(dp), start=1)}
    graph = graphviz.Digraph(node_attr={"shape": "box", "fontname": "sans-serif"})
    for number, (title, pipes, _) in enumerate(_sections(parts, plan), start=1):
        with graph.subgraph(name=f"cluster{number}", graph_attr={"label": title}) as box:
            for each in pipes:
                box.node(names[id(each)], graphviz.escape(describe(each) if debug else type(each).__name__))
    for number, name in names.items():
        for source in sources[number]:
            graph.edge(names[id(source)], name)
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


def _split(pipe: Any, plan: _Plan) -> tuple[Parts, dict[int, list[Any]]]:
    """Return what runs where, and the pipes that each pipe reads, by `id`."""
    pipes = list_pipes(pipe)
    if plan.num_workers <= 0:
        return Parts(pipe, None, None, (), (), tuple(pipes)), wiring_of(pipe, [])
    parts, hoists = split_graph(pipe), plan_hoists(pipe)
    moved = {id(each) for hoist in hoists for operations in hoist.operations for each in operations}
    moved -= {id(hoist.join) for hoist in hoists}
    parts = replace(
        parts,
        dispatched=tuple(each for each in parts.dispatched if id(each) not in moved),
        replicated=(*(each for each in parts.dispatched if id(each) in moved), *parts.replicated),
    )
    return parts, wiring_of(pipe, hoists)


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


def _escaped(text: str) -> str:
    text = " ".join(text.split())
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;")):
        text = text.replace(character, entity)
    return text
