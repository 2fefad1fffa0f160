"""Gathering of an index part by part: files, or stretches of one, which several processes may read side by side.

The result is the same as from one process. Sources do not import the engine, which has the workers: a module that knows
both offers them here (`offer_workers`), and until then everything is done in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from headrace.errors import check_count
from headrace.show.watched import watched_progress

_MAX_WORKERS = 32  # unless more are asked for: this process joins what they found
MIN_SHARED_BYTES = 4 << 30  # of files of which only little is read; this many take some seconds
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
Tell = Callable[[int, int], None]


# Calls a function for each part in as many worker processes, and yields the results in order.
PartWorkers = Callable[[Callable[[Any], Any], Sequence[Any], int], Iterator[Any]]


# What was asked for by `gathering`: number of processes, and progress callback.
_wish: ContextVar[tuple[int | None, Tell | None]] = ContextVar("headrace_gathering", default=(None, None))
_offered: list[PartWorkers] = []


def offer_workers(workers: PartWorkers) -> None:
    """Let `map_parts` use worker processes from now on."""
    _offered[:] = [workers]


@contextmanager
def gathering(*, num_workers: int | None = None, tell: Tell | None = None) -> Iterator[None]:
    """Set, for a `with` block, how sources gather an index: the number of processes, and a progress callback.

    Args:
        num_workers: Processes; 0 or 1: none but this one. `None`: as many as there are cores, where that pays.
        tell: Called with how many parts are done, and of how many.

    Raises:
        ConfigError: `num_workers` is negative, or no number.
    """
    if num_workers is not None:
        num_workers = check_count("num_workers", num_workers, minimum=0)
    token = _wish.set((num_workers, tell))
    try:
        yield
    finally:
        _wish.reset(token)


def count_workers(num_parts: int, *, pays: bool) -> int:
    """Return how many processes should share `num_parts` parts; 0 for none.

    Args:
        num_parts: How many there are at most.
        pays: Whether it is worth starting processes, if the number is not given.
    """
    wanted = _wish.get()[0]
    if wanted is None:
        wanted = _num_cores() if pays else 0
    wanted = min(wanted, num_parts)
    return wanted if _offered and wanted > 1 else 0


def _num_cores() -> int:
    """Return how many cores there are for this process: ranks that torchrun started on a machine share them."""
    num_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    num_cores = len(os.sched_getaffinity(0))
    return min(num_cores // max(int(num_ranks), 1) if num_ranks.isdecimal() else num_cores, _MAX_WORKERS)


def map_parts(
    function: Callable[[_Part], _Result], parts: Sequence[_Part], *, num_workers: int
) -> Generator[_Result, None, None]:
    """Yield what a function makes of each part, in order.

    Args:
        function: It keeps nothing from one part to the next. What it raises ends the iteration.
        parts: Small: each is carried to a process.
        num_workers: See `count_workers`.
    """
    wished = _wish.get()[1]
    with watched_progress("indexing", "part") if wished is None else nullcontext(wished) as tell:
        found = _offered[0](function, parts, num_workers) if num_workers else map(function, parts)
        for number, result in enumerate(found, 1):
            if tell is not None:
                tell(number, len(parts))
            yield result


def are_large(paths: Sequence[str], num_bytes: int = MIN_SHARED_BYTES) -> bool:
    """Whether files have at least `num_bytes` together; the default pays where only little of them is read."""
    return sum(map(os.path.getsize, filter(os.path.isfile, paths))) >= num_bytes
