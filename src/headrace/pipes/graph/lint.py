"""Finds likely mistakes in a graph: duplicated or lost items, shards without shuffling, filters without effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.naming import class_name, describe
from ..core.torch_classes import is_torch_pipe
from ..core.walk import list_pipes, sources_of
from ..sharding import SHARDING_PRIORITIES, find_double_sharding, is_sharding_pipe, reacts_to
from .seeds import is_random_pipe
from .split import Parts, is_dispatch_point

_BATCHERS = ("Batcher", "BucketBatcher", "MaxTokenBucketizer", "Grouper", "BatchMapper")


def find_warnings(parts: Parts, num_workers: int) -> list[str]:
    """Return warnings about likely mistakes, as texts for the user.

    Args:
        parts: What runs where.
        num_workers: How many workers run the replicated part; 0: everything runs in the main process.
    """
    every = list_pipes(parts.end)
    warnings = [*_double_sharding(every)]
    if num_workers > 0 and parts.worker_root is not None:
        warnings += [
            f"{describe(pipe)} has no effect after {describe(parts.dispatch_root)}, whose items are already dealt out "
            "to the workers. Remove it, or put it before the dispatch point to shard over training processes."
            for pipe in _inert_filters(parts)
        ]
        warnings += _late_joins(parts)
        if num_workers > 1:
            warnings += find_copies(parts, num_workers)
            warnings += find_own_orders(parts)
            warnings += _batches_of_shares(parts)
    warnings += _unshuffled(every, parts)
    warnings += find_frozen_orders(every)
    return warnings


def find_copies(parts: Parts, num_workers: int) -> Iterator[str]:
    """Yield a warning for each source that every worker would read completely, for lack of sharding after it."""
    waiting, seen = [parts.worker_root], {id(parts.dispatch_root)}
    while waiting:
        pipe = waiting.pop()
        if id(pipe) in seen or (is_sharding_pipe(pipe) and reacts_to(pipe, SHARDING_PRIORITIES.MULTIPROCESSING)):
            continue
        seen.add(id(pipe))
        sources = sources_of(pipe)
        waiting += sources
        if not sources:
            yield (
                f"nothing shards the items of {describe(pipe)}: each of the {num_workers} workers reads all of them, "
                f"so every item is delivered {num_workers} times. Put .sharding_filter() after it or, if only one "
                "process may read it, .sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)."
            )


def find_own_orders(parts: Parts) -> Iterator[str]:
    """Yield a warning for each shuffle of torch's that workers read again within an epoch, each in another order."""
    for pipe in parts.replicated:
        if class_name(pipe) == "Cycler":
            for source in list_pipes(pipe)[:-1]:
                if is_random_pipe(source) and is_torch_pipe(type(source)):
                    yield (
                        f"{describe(pipe)} reads {describe(source)} several times in an epoch. Torch's shuffle has a "
                        "seed for the first time only: then each worker has another order, and sharding after it "
                        "loses items and repeats others. Take the pipes of headrace.pipes.iter, or cycle before you "
                        "shuffle."
                    )


def find_frozen_orders(pipes: list[Any]) -> Iterator[str]:
    """Yield a warning for each cache in memory that is filled in a random order, and so repeats that order.

    Args:
        pipes: The pipes of a whole graph, sources first.
    """
    for pipe in pipes:
        if class_name(pipe) == "InMemoryCacheHolder" and any(map(is_random_pipe, list_pipes(pipe)[:-1])):
            yield (
                f"{describe(pipe)} keeps the order of its first epoch, and repeats it in all later ones. "
                "Put .shuffle() after it, not before."
            )


def _inert_filters(parts: Parts) -> Iterator[Any]:
    shares = {id(parts.dispatch_root)}
    for pipe in parts.replicated:
        if any(id(source) in shares for source in sources_of(pipe)):
            shares.add(id(pipe))
            if is_sharding_pipe(pipe):
                yield pipe


def _late_joins(parts: Parts) -> Iterator[str]:
    if parts.dispatch_root is None or is_dispatch_point(parts.dispatch_root):
        return
    points = [pipe for pipe in parts.dispatched if is_dispatch_point(pipe)]
    upstream = {id(each) for point in points for each in list_pipes(point)}
    joins = {id(pipe) for pipe in parts.dispatched if len(sources_of(pipe)) > 1}
    late = [describe(pipe) for pipe in parts.dispatched if id(pipe) not in upstream | joins]
    if late:
        yield (
            f"the items that {', '.join(map(describe, points))} deals out are joined again by "
            f"{describe(parts.dispatch_root)}: so {', '.join(late)} cannot run in the workers, only in the single "
            "dispatching process. Join before you dispatch, and put expensive operations after the dispatch point."
        )


def _batches_of_shares(parts: Parts) -> Iterator[str]:
    shares = {id(parts.dispatch_root)}
    for pipe in parts.replicated:
        if is_sharding_pipe(pipe) or any(id(source) in shares for source in sources_of(pipe)):
            shares.add(id(pipe))
            if class_name(pipe) in _BATCHERS:
                yield (
                    f"{describe(pipe)} makes batches of one worker's share: which items share a batch depends on the "
                    "number of workers, and each worker may end with a short batch. Put it before the sharding to "
                    "have the same batches for any number of workers."
                )


def _double_sharding(pipes: list[Any]) -> Iterator[str]:
    for group in (SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING):
        for earlier, pipe in find_double_sharding(pipes, group):
            yield (
                f"{describe(pipe)} shards what {describe(earlier)} leaves, both for {group.name}: items would be lost, "
                "so this will be an error. Give them different groups, or remove one."
            )


def _unshuffled(pipes: list[Any], parts: Parts) -> Iterator[str]:
    inert = {id(pipe) for pipe in _inert_filters(parts)}
    shuffled: set[int] = set()
    for pipe in pipes:
        if is_random_pipe(pipe) or any(id(source) in shuffled for source in sources_of(pipe)):
            shuffled.add(id(pipe))
        elif is_sharding_pipe(pipe) and id(pipe) not in inert:
            yield (
                f"nothing is shuffled before {describe(pipe)}: each worker gets the same items in each epoch. "
                "If that is not intended, put .shuffle() before it; all workers then shuffle in the same way."
            )
