"""Tells the sharding pipes of a graph which share of the items is theirs."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.errors import check_count

from .core.walk import list_pipes, sources_of


class SHARDING_PRIORITIES(enum.IntEnum):
    """Which processes the items are shared among, under torch's names: a rank's share is split among its workers."""

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
        sharding_group: Among which processes: ranks, or the workers of a rank.
        inert_after: Pipes whose items are already one worker's share: sharding pipes downstream of them are left alone.

    Returns:
        The pipe.

    Raises:
        RuntimeError: Two pipes on one path shard for the same group, so that items would be lost.
        ConfigError: The numbers are wrong (a `ValueError` too).
    """
    check_count("num_of_instances", num_of_instances, minimum=1)
    check_count("instance_id", instance_id, maximum=num_of_instances - 1)
    inert = {id(each) for each in inert_after}
    pipes = []
    for each in list_pipes(pipe):
        if id(each) in inert or any(id(source) in inert for source in sources_of(each)):
            inert.add(id(each))
        else:
            pipes.append(each)
    for earlier, each in find_double_sharding(pipes, sharding_group):
        raise RuntimeError(
            "Sharding twice on a single pipeline loses data: "
            f"{each!r} would shard what {earlier!r} leaves, both for {sharding_group.name}. "
            "Remove one of them, or give them different groups: sharding_filter(sharding_group_filter=...)."
        )
    for each in pipes:
        if is_sharding_pipe(each) and reacts_to(each, sharding_group):
            _apply(each, num_of_instances, instance_id, sharding_group)
    return pipe


def length_of_share(num_items: int, num_shares: int, share: int) -> int:
    """Return how many items a share has if items are given to the shares in turn."""
    return (num_items + num_shares - 1 - share) // num_shares


def find_double_sharding(pipes: list[Any], sharding_group: SHARDING_PRIORITIES) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of sharding pipes of which the second shards, for the same group, what the first leaves.

    Args:
        pipes: The pipes of a graph, sources first.
        sharding_group: The group.
    """
    before: dict[int, Any] = {}  # of each pipe, the last sharding pipe at it or upstream of it
    for pipe in pipes:
        earlier = next((before[id(source)] for source in sources_of(pipe) if id(source) in before), None)
        if is_sharding_pipe(pipe) and reacts_to(pipe, sharding_group):
            if earlier is not None:
                yield earlier, pipe
            earlier = pipe
        if earlier is not None:
            before[id(pipe)] = earlier


def reacts_to(pipe: Any, sharding_group: SHARDING_PRIORITIES) -> bool:
    """Tell whether a sharding pipe shards for a group: without a `sharding_group_filter` it does for every group."""
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
