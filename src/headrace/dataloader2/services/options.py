"""The options of reading services, checked when a service is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.engine import EngineOptions, Raising
from headrace.engine.process.start import StartMethod
from headrace.errors import ConfigError

# Tickets that a worker may have queued, whatever `worker_prefetch_cnt` is: more of them only cost memory.
_MAX_TICKETS = 64
# While the consumer works on an item, its worker makes the next one.
_MIN_TICKETS = 2
_IS_LOST = Raising("its dispatched items are lost: resume from a state, or begin the epoch again")


def check_start_method(context: Any) -> str | None:
    """Return the start method that `multiprocessing_context` names.

    Args:
        context: None, a name, or a context of `multiprocessing`.

    Raises:
        ConfigError: There is no such start method.
    """
    if context is None or isinstance(context, str):
        name = context
    else:
        name = getattr(context, "get_start_method", lambda: None)()
        if not isinstance(name, str):
            raise ConfigError(f"multiprocessing_context is {context!r}", fix="give the name of a start method, or None")
    StartMethod.parse(name)
    return name


def check_function(option: str, function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return a function that a user gave, or None.

    Raises:
        ConfigError: It is neither.
    """
    if function is not None and not callable(function):
        raise ConfigError(f"{option} must be a function, got {function!r}")
    return function


def plan_look_ahead(
    options: EngineOptions, num_workers: int, worker_prefetch_cnt: int, main_prefetch_cnt: int, *, may_restart: bool
) -> EngineOptions:
    """Return the engine's options for the two counts.

    Args:
        options: The user's, for all else.
        num_workers: At least 1.
        worker_prefetch_cnt: How many groups a worker may be ahead, but at least one while the consumer works.
        main_prefetch_cnt: How many more may wait in the main process.
        may_restart: Whether a dead worker can be replaced.
    """
    of_worker = min(max(worker_prefetch_cnt, _MIN_TICKETS), _MAX_TICKETS)
    more = min(main_prefetch_cnt, _MAX_TICKETS)
    return EngineOptions(
        # With its part of what waits in the main process: while the consumer works, nobody gives a worker more.
        tickets_per_worker=of_worker - (-more // num_workers),
        look_ahead=num_workers * of_worker + more,
        on_death=options.on_death if may_restart else _IS_LOST,
        on_stall=options.on_stall if may_restart else _IS_LOST,
        warn_seconds=options.warn_seconds,
        stall_seconds=options.stall_seconds,
        start_seconds=options.start_seconds,
    )
