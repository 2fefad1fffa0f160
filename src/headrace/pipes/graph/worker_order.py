"""Decides whether the order of a graph's items depends on the number of workers. Pure.

It does not where each worker gets every W-th item of one order, and makes one item of each: the workers' items, in
turn, are then those of a single process. It is decided by the classes of the pipes, so a pipe that is not known to
keep to this counts as one that does not.
"""

from __future__ import annotations

from ..core.naming import class_name, describe
from ..core.walk import sources_of
from ..sharding import SHARDING_PRIORITIES, is_sharding_pipe, reacts_to
from .seeds import is_random_pipe
from .split import Parts


def explain_worker_order(parts: Parts, counts: tuple[int, int], num_ranks: int) -> str | None:
    """Return why the order of the items differs between two numbers of workers, as a clause; None: it is the same.

    Args:
        parts: What runs where.
        counts: The two numbers. 0: everything runs in the main process, as a single worker does it.
        num_ranks: How many ranks there are, each with so many workers.
    """
    if parts.dispatch_root is not None and 0 in counts and any(map(is_random_pipe, parts.dispatched)):
        return f"the dispatching process shuffles what {describe(parts.dispatch_root)} gives in an order of its own"
    if parts.worker_root is None or max(1, counts[0]) == max(1, counts[1]):
        return None
    shares = set() if parts.dispatch_root is None else {id(parts.dispatch_root)}
    for pipe in parts.replicated:
        if any(id(source) in shares for source in sources_of(pipe)):
            if not getattr(type(pipe), "maps_each", False):
                return f"{describe(pipe)} works on the share of one worker"
            shares.add(id(pipe))
        elif is_sharding_pipe(pipe) and reacts_to(pipe, SHARDING_PRIORITIES.MULTIPROCESSING):
            if class_name(pipe) != "ShardingFilter":
                return f"{describe(pipe)} decides which items a worker gets"
            if num_ranks > 1 and reacts_to(pipe, SHARDING_PRIORITIES.DISTRIBUTED):
                return f"{describe(pipe)} shares the items among the workers of all ranks at once"
            shares.add(id(pipe))
    if id(parts.worker_root) not in shares:
        return f"nothing shards the items of {describe(parts.worker_root)}, so each worker gives all of them"
    return None
