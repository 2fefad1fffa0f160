"""How many items all workers together give, where the pipes know."""

from __future__ import annotations

from typing import Any

from headrace.pipes import IterPipe
from headrace.pipes.graph import Parts, replace
from headrace.pipes.sharding import SHARDING_PRIORITIES, apply_sharding

from .copying import copy_graph


def length_over_workers(parts: Parts, num_workers: int) -> int | None:
    """Return the sum of the lengths of the workers' graphs; None if they do not know.

    Args:
        parts: What runs where; not changed.
        num_workers: How many workers there are.
    """
    try:
        dealt = None if parts.dispatch_root is None else len(parts.dispatch_root)
        return sum(_length_of(parts, worker_id, num_workers, dealt) for worker_id in range(num_workers))
    except Exception:  # noqa: BLE001 - user code: a length is a courtesy, and what is wrong will be told by the workers
        return None


def _length_of(parts: Parts, worker_id: int, num_workers: int, dealt: int | None) -> int:
    graph: Any
    graph, dispatch_root = copy_graph((parts.worker_root, parts.dispatch_root))
    inert = []
    if dealt is not None:
        share = _Share((dealt + num_workers - 1 - worker_id) // num_workers)
        graph = replace(graph, dispatch_root, share)
        inert.append(share)
    apply_sharding(graph, num_workers, worker_id, SHARDING_PRIORITIES.MULTIPROCESSING, inert_after=inert)
    length: int = len(graph)
    return length


class _Share(IterPipe[Any]):
    """As long as one worker's share of what is dispatched."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length
