"""The options of a run: how far to look ahead, and what to do about errors, deaths and stalls.

Everything here is checked when it is built, before a worker starts. `ErrorPolicy` and `AccidentPolicy` apply what was
chosen for errors, and for deaths and stalls.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from headrace.errors import CacheError, ConfigError, StalledError, WorkerDiedError

from .events import Exited, Raise, Skip, Warn
from .quarantine import check_quarantine
from .user.failure import Failure

# What a worker may have before it where the number of tickets is not given; more, see `Executor.adaptive_ahead`.
_MIN_TICKETS = 8


@dataclass(frozen=True, slots=True)
class Raising:
    """Policy: raise the error at the consumer.

    Attributes:
        advice: The fix that its error names, where it is not enough to say that the worker may be restarted.

    Examples:
        >>> import headrace as hr
        >>> from headrace.engine import Raising
        >>> options = hr.EngineOptions(on_death=Raising())  # a worker that dies ends the training
    """

    advice: str = ""


@dataclass(frozen=True, slots=True)
class Restarting:
    """Policy: restart the worker and do its tickets again.

    Attributes:
        budget: How often in one run, over all workers; after that it is raised.

    Examples:
        >>> import headrace as hr
        >>> from headrace.engine import Restarting
        >>> options = hr.EngineOptions(on_stall=Restarting(budget=2), stall_seconds=60)
    """

    budget: int = 8

    def __post_init__(self) -> None:
        _check_at_least("budget of restarts", self.budget, 0)


@dataclass(frozen=True, slots=True)
class Skipping:
    """Policy: leave out the ticket, or the one item of it that failed; count it, and write it down.

    Attributes:
        budget: How many in one run; after that the error is raised.
        quarantine: A file to which one line of JSON is appended for each, in the order of the stream.
    """

    budget: int = 100
    quarantine: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _check_at_least("budget of skips", self.budget, 0)
        if self.quarantine is not None:
            check_quarantine(self.quarantine)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an engine, the same for all executors.

    Attributes:
        tickets_per_worker: How many tickets a worker has before it at a time, at most. Fewer than 8 leave it idle
            between small ones. `None`: 8, and more while that many are quick and small: up to 128 of them, 8 ms
            and 4 MiB (more on a Ray cluster), because tickets that travel together share what a message costs.
        look_ahead: How many tickets may be in flight or waiting for the consumer, in all. `None`: as many as all
            workers have before them.
        on_death: What to do about a worker that ends.
        on_stall: What to do about a worker that the consumer waits for in vain.
        on_error: What to do about an exception in user code.
        warn_seconds: After how long a wait for one worker without a sign of life a warning is logged; 0: never.
        stall_seconds: After how long `on_stall` comes into force; 0: never. Time counts only while the consumer waits.
        start_seconds: The same for a worker that is not ready yet: it imports modules, gets its copy of the job, sets
            it up. `None`: `stall_seconds`.
    """

    tickets_per_worker: int | None = None
    look_ahead: int | None = None
    on_death: Raising | Restarting = field(default_factory=Restarting)
    on_stall: Raising | Restarting = field(default_factory=Raising)
    on_error: Raising | Skipping = field(default_factory=Raising)
    warn_seconds: float = 60.0
    stall_seconds: float = 600.0
    start_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.tickets_per_worker is not None:
            _check_at_least("tickets_per_worker", self.tickets_per_worker, 1)
        if self.look_ahead is not None:
            _check_at_least("look_ahead", self.look_ahead, 1)
        _check_at_least("warn_seconds", self.warn_seconds, 0)
        _check_at_least("stall_seconds", self.stall_seconds, 0)
        if self.start_seconds is not None:
            _check_at_least("start_seconds", self.start_seconds, 0)

    def seconds_to_stall(self, *, is_ready: bool) -> float:
        """Return after how long a worker that is waited for is taken as stalled; 0: never."""
        return self.stall_seconds if is_ready or self.start_seconds is None else self.start_seconds

    @property
    def min_tickets(self) -> int:
        """How many tickets a worker may always have queued."""
        return _MIN_TICKETS if self.tickets_per_worker is None else self.tickets_per_worker


class ErrorPolicy:
    """Applies the policy for errors in one run.

    Args:
        policy: The policy that was chosen.
    """

    def __init__(self, policy: Raising | Skipping) -> None:
        self._policy = policy
        self._num_skipped = 0

    def decide(self, ticket: int, worker_idx: int, failure: Failure) -> Skip | Raise:
        """Skip the error of a ticket, or raise it; say why it is not skipped where the policy is to skip."""
        policy = self._policy
        is_of_options = isinstance(failure.exception, ConfigError)
        if isinstance(policy, Raising):
            return Raise(failure.raisable(ticket, worker_idx))
        if not (failure.ends_stream or is_of_options) and self._num_skipped < policy.budget:
            self._num_skipped += 1
            return Skip(ticket, worker_idx, failure)
        error = failure.raisable(ticket, worker_idx)
        if is_of_options:
            why = "because an option is wrong, and not a sequence"
        elif failure.ends_stream and isinstance(error, CacheError):
            why = "because which sequences it hits depends on how many results the training keeps"
        elif isinstance(error, KeyboardInterrupt):
            why = "because it ends the run"
        elif failure.ends_stream:
            why = "because a generator cannot go on after it has raised"
        else:
            why = f"because the budget of {policy.budget} skips is used up"
        error.add_note(f"headrace: not skipped, {why}")
        return Raise(error)


class AccidentPolicy:
    """Applies the policies for deaths and stalls in one run.

    Args:
        on_death: What was chosen for deaths.
        on_stall: What was chosen for stalls.
    """

    def __init__(self, on_death: Raising | Restarting, on_stall: Raising | Restarting) -> None:
        self._on_death, self._on_stall = on_death, on_stall
        self._num_deaths = self._num_stalls = 0
        self._last_accident: int | None = None
        self._deaths_at: Counter[str] = Counter()

    def decide_death(self, event: Exited, ticket: str) -> Warn | Raise:
        """Restart a worker that has ended, with a warning, or raise its death.

        Args:
            event: Its end.
            ticket: What it was at, as text.
        """
        if event.accident is None or event.accident != self._last_accident:
            self._num_deaths += 1
        self._last_accident = event.accident
        item = str(event.item or "")
        self._deaths_at[item] += 1
        where = f"{item}, {ticket}" if item else ticket
        error = WorkerDiedError(f"worker {event.worker_idx} {event.cause}", where=where)
        error.item_number = None if event.item is None else event.item.number
        advice = _why_not_restarted(self._on_death, self._num_deaths, "on_death")
        if advice is None:
            return Warn(f"{error.what}; it is restarted")
        number = self._deaths_at[item]
        again = f"{number} workers died at {item}: num_workers=0 shows why" if item and number > 1 else ""
        error.fix = "; ".join(filter(None, (event.advice, advice, again)))
        return Raise(error)

    def decide_stall(self, worker_idx: int, quiet_seconds: float, ticket: str) -> Warn | Raise:
        """Restart a worker that has stalled, with a warning, or raise that; in both cases with its stack.

        Args:
            worker_idx: The worker.
            quiet_seconds: For how long the consumer has waited for it in vain.
            ticket: What it is at, as text.
        """
        self._num_stalls += 1
        what = f"worker {worker_idx} has shown no sign of life for {quiet_seconds:.0f} s of waiting for it"
        advice = _why_not_restarted(self._on_stall, self._num_stalls, "on_stall")
        if advice is None:
            return Warn(f"{what}; it is restarted", worker_idx)
        error = StalledError(what, where=ticket, fix=advice)
        error.seconds = quiet_seconds
        return Raise(error, worker_idx)


def _why_not_restarted(policy: Raising | Restarting, count: int, option: str) -> str | None:
    """Say why a worker is not restarted, or how it would be; None: it is."""
    if isinstance(policy, Raising):
        return policy.advice or f"{option}=Restarting() restarts it and does its tickets again"
    if count > policy.budget:
        return f"it was number {count} of this run and {option} allows {policy.budget}"
    return None


def _check_at_least(name: str, value: float, smallest: int) -> None:
    if not value >= smallest:  # written so that NaN is refused
        raise ConfigError(f"{name} is {value}", fix=f"give {smallest} or more")
