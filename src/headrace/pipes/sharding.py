"""Tells the sharding pipes of a graph which share of how many is theirs."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable
from typing import Any

from headrace.errors import check_count

from .core.walk import list_pipes, sources_of


class SHARDING_PRIORITIES(enum.IntEnum):
    """Who shards, under torch's names: shares of training processes are split among their workers."""

    DEFAULT = 1
    DISTRIBUTED = 2
    MULTIPROCESSING = 3


def is_sharding_pipe(pipe: Any) -> bool:
    """Tell whether a pipe takes a share of its source's items: whether it has a method `apply_sharding`."""
    return callable(getattr(type(pipe), "apply_sharding", None))


def apply_sharding(
    pipe: Any,
    num_of_instances: int,
    instance_id: int,
    sharding_group: SHARDING_PRIORITIES = SHARDING_PRIORITIES.DEFAULT,
    *,
    inert_after: Iterable[Any] = (),
) -> Any:
    """Tell each sharding pipe of a graph its share.

    Args:
        pipe: The end of the graph.
        num_of_instances: How many shares there are.
        instance_id: Which of them, from 0.
        sharding_group: Who shards.
        inert_after: Pipes whose items are shares already: sharding pipes downstream of them stay as they are.

    Returns:
        The pipe.

    Raises:
        RuntimeError: Two pipes on one path would shard for the same group, so that items were lost.
        ConfigError: The numbers are wrong (a `ValueError` too).
    """
    check_count("num_of_instances", num_of_instances, minimum=1)
    check_count("instance_id", instance_id, maximum=num_of_instances - 1)
    placed = {id(each) for each in inert_after}
    inert: set[int] = set()
    before: dict[int, Any] = {}  # of each pipe, the last sharding pipe at it or upstream of it
    for each in list_pipes(pipe):
        sources = sources_of(each)
        if id(each) in placed or any(id(source) in inert for source in sources):
            inert.add(id(each))
            continue
        earlier = next((before[id(source)] for source in sources if id(source) in before), None)
        if is_sharding_pipe(each) and reacts_to(each, sharding_group):
            if earlier is not None:
                raise RuntimeError(
                    "Sharding twice on a single pipeline loses data: "
                    f"{each!r} would shard what is left by {earlier!r}, both for {sharding_group.name}. "
                    "Remove one of them, or give them different groups: sharding_filter(sharding_group_filter=...)."
                )
            _apply(each, num_of_instances, instance_id, sharding_group)
            earlier = each
        if earlier is not None:
            before[id(each)] = earlier
    return pipe


def reacts_to(pipe: Any, sharding_group: SHARDING_PRIORITIES) -> bool:
    """Tell whether a sharding pipe shards for a group: one without `sharding_group_filter` does for all."""
    only = getattr(pipe, "sharding_group_filter", None)
    return only is None or only == sharding_group


def _apply(pipe: Any, num_of_instances: int, instance_id: int, sharding_group: SHARDING_PRIORITIES) -> None:
    parameters = inspect.signature(pipe.apply_sharding).parameters
    if "sharding_group" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        pipe.apply_sharding(num_of_instances, instance_id, sharding_group=sharding_group)
    elif len(parameters) > 2:
        pipe.apply_sharding(num_of_instances, instance_id, sharding_group)
    else:  # written before there were groups
        pipe.apply_sharding(num_of_instances, instance_id)
