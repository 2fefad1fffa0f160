"""Says which pipe gets its items from which when joins are moved before operations, without moving them."""

from __future__ import annotations

from typing import Any

from .graph_hoist import Hoist
from .graph_walk import list_pipes, sources_of


def wiring_of(pipe: Any, hoists: list[Hoist]) -> dict[int, list[Any]]:
    """Return of each pipe of a graph, by `id`, those that it gets its items from, once joins have been moved.

    A moved join reads what is dispatched, the first operation of each branch reads the join, and what read the join
    reads the last operations of the branches. (Between them are a few pipes of ours, which are not shown.)

    Args:
        pipe: The end of the graph. It is not changed.
        hoists: What `plan_hoists` returned for it.
    """
    pipes = list_pipes(pipe)
    sources = {id(each): sources_of(each) for each in pipes}
    exits: dict[int, list[Any]] = {}  # of each moved join, what gives on the items that come from it
    for hoist in hoists:
        join, behind = hoist.join, set[int]()
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
                    behind.add(id(reader))
            exits[id(join)] += _put(ends, [base], [join])
        for reader in pipes:
            if id(reader) not in behind:
                sources[id(reader)] = _put(sources[id(reader)], [join], exits[id(join)])
    return sources


def _put(pipes: list[Any], old: list[Any], new: list[Any]) -> list[Any]:
    """Replace some pipes by others, each once."""
    gone = {id(each) for each in old}
    found = [end for each in pipes for end in (new if id(each) in gone else [each])]
    return list({id(each): each for each in found}.values())
