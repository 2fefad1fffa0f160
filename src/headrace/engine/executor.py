"""The contract between the engine and what carries tickets to workers, and how an executor is made by its name.

It is small, so that there can be many executors. An executor decides how a ticket gets to a worker and an outcome back;
which worker does what, and what happens after a death, is up to the supervisor. Calls come from one thread, the
consumer's. None of them runs user code, except in the inline executor. Between `start` and `close` there are exactly
`num_workers` workers, and those that were added, without those that were removed; some may have ended. Promises to the
engine:

* each submitted ticket of the current run is answered by one `Done` or `Failed`, unless its worker exits first
  (`Exited` comes then, and nothing more of that worker until `restart`), cannot be set up (`SetupFailed`), or its
  stream ends (`StreamEnded`, once, or a `Failed` whose `ends_stream` is set; later tickets of it stay unanswered);
* a worker does its tickets one after another, in the order in which they were submitted, and its events come in that
  order; what it had finished before it died is reported before its `Exited`;
* `Exited` comes exactly once for each life of a worker, also between runs, and is never lost to a cancelled run;
* a worker for which there is no place yet may be said to be `Unreachable`, in each run until it is `Ready`.

A worker is implemented by `worker.Worker`: an executor moves payloads to it and its events back. `local/thread.py` is
the one to read first; `headrace.testing.check_executor` checks one.
"""

from __future__ import annotations

import importlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from headrace.errors import ConfigError, did_you_mean

from .events import Event
from .group_size import GroupSize
from .memory.lease import MemoryWatcher
from .user.job import Job, Mode
from .user.worker_info import CurrentItem, RunsIn

__all__ = ["Executor", "make_executor", "may_be_elsewhere", "where_runs"]


# With 128 tickets of 1 KiB before a worker, all processors need a fifth less time for each than with 64. The results of
# so many fit into its ring of records if they have up to 2 KiB; with 4 KiB, it makes no difference.
_AHEAD_SECONDS, _AHEAD_TICKETS = 0.008, 128
# As many as hide what a message costs: with 64 tickets of 64 KiB, all processors need two thirds of the time for each
# that they need with 16.
_AHEAD_BYTES = 4 << 20


class Executor(ABC):
    """Carries tickets to workers and outcomes back.

    Any exception that comes out of a method, `KeyboardInterrupt` included, makes the engine call `close`; it may call
    `start` again later.

    Attributes:
        name: The value of `get_worker_info().executor`.
        runs_in: Where its workers run, and so what they share with the trainer.
        may_be_elsewhere: Whether its workers may be on other machines, which see nothing of this one but what is sent.
        is_resizable: Whether workers can be added and removed after `start`.
        max_look_ahead: An upper bound of `EngineOptions.look_ahead`; with 1, work begins when a ticket is wanted and
            not before. `None`: no bound.
        used_by: The workers of the one engine that uses it; written by these.
        awaited_worker_idx: The worker whose ticket the consumer waits for, or `None`: set by the engine before `wait`.
            If it has no memory left for it, none will become free.
    """

    name: ClassVar[str]
    runs_in: ClassVar[RunsIn] = "thread"
    may_be_elsewhere: ClassVar[bool] = False
    is_resizable: ClassVar[bool] = False
    max_look_ahead: ClassVar[int | None] = None
    used_by: weakref.ref[Any] | None = None
    awaited_worker_idx: int | None = None

    def prepare(self, job: Job) -> None:  # noqa: B027 - most executors start at once
        """Begin slow parts of `start` that need no workers: `start` may follow, and `close` has to.

        Must not wait, nor raise: what is wrong is for `start` to say.
        """

    def another(self) -> Executor:
        """Return an executor with the same options for another engine; by default a built-in that runs where this does.

        Its `hand_over`, if there is one, is this one's alone.
        """
        return make_executor(next(name for name, where in _RUNS_IN.items() if where == self.runs_in))

    def adaptive_ahead(self) -> GroupSize:
        """Return an object that adapts how many tickets a worker may have before it, where the number is not given."""
        return GroupSize(max_seconds=_AHEAD_SECONDS, max_bytes=_AHEAD_BYTES, max_items=_AHEAD_TICKETS)

    @abstractmethod
    def start(self, job: Job, num_workers: int) -> None:
        """Start the workers; need not wait until they are ready. May be called again after `close`.

        Raises:
            ConfigError: If the job cannot be carried to the workers, or this machine has no such workers.
        """

    @abstractmethod
    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        """Make a run the current one, for all workers, those that are restarted later included.

        An earlier run is cancelled first, if it was not yet.

        Args:
            run_id: Larger than all before.
            mode: Whether tickets are tasks, or items of one iterator in each worker.
            payload: What the iterators are made of in stream mode; `None` in task mode.
        """

    def pack(self, payload: Any) -> Any:
        """Return a payload as `submit` wants it: as it is now, whatever becomes of the object later.

        A ticket may have to be submitted again long after its payload was pulled, and the user's iterator may fill the
        same array anew for each.

        Raises:
            ConfigError: The payload cannot be carried to a worker.
        """
        return payload

    @abstractmethod
    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: Any) -> None:
        """Give a worker one more ticket; must not block, nor raise because the worker has died.

        Args:
            worker_idx: Index of the worker.
            run_id: The current run.
            ticket: Its number; they grow, but for those of a worker that is `Unreachable`, which this one does as well.
            payload: In task mode, what to work on, as `pack` returned it; in stream mode `None`: the next item.
        """

    def submit_burst(self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[Any]) -> None:
        """Give a worker some tickets at once, see `submit`: for executors to which a message costs more than a ticket.

        Args:
            worker_idx: Index of the worker.
            run_id: The current run.
            tickets: At least one.
            payloads: One for each.
        """
        for ticket, payload in zip(tickets, payloads, strict=True):
            self.submit(worker_idx, run_id, ticket, payload)

    @abstractmethod
    def cancel(self, run_id: int) -> None:
        """Abandon a run: tickets not yet started are dropped, outcomes of the others are discarded, streams are closed.

        Must not wait for what is being worked on. Events of this run may still come from `wait`.
        """

    @abstractmethod
    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        """Wait until something has happened, and return all that has; nothing after the timeout, or earlier.

        Interruptible by signals. With a timeout of 0 it does not wait.
        """

    @abstractmethod
    def restart(self, worker_idx: int, first_item: int) -> None:
        """Replace a worker by a new one with the same index, after its `Exited` or instead of waiting for one.

        What the old one had been given is forgotten (the engine submits it again); if it lives it is ended, and no
        event of it comes any more. Results of it that were reported before stay valid.

        Args:
            worker_idx: Index of the worker.
            first_item: In stream mode, how many items its new iterator passes over.
        """

    def add_worker(self, worker_idx: int) -> None:
        """Start one more worker, for the current run if there is one; need not wait until it is ready.

        Args:
            worker_idx: Its number: that of none that is there.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot add worker {worker_idx}")

    def remove_worker(self, worker_idx: int) -> None:
        """End a worker soon; must not wait for it. What it has made stays valid, and no event of it comes any more.

        In a run, it has answered all that it was given, has exited, or is `Unreachable`; between runs, it may be at
        work.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot remove worker {worker_idx}")

    @abstractmethod
    def stack_of(self, worker_idx: int) -> str | None:
        """Return the Python stack of a worker as text, if it can be had within a second."""

    def item_of(self, worker_idx: int) -> CurrentItem | None:
        """Return the last sequence that a worker noted, where that is known; does not block."""
        del worker_idx
        return None

    def watch_memory(self, watcher: MemoryWatcher | None) -> None:  # noqa: B027 - most executors share no memory
        """Tell a watcher of the memory that results of other processes come in, also after `close` and `start`."""

    @abstractmethod
    def close(self) -> None:
        """End all workers within 2 s, silently, whatever they are doing; harmless when closed, and in a forked child.

        Results that were handed over stay valid.
        """


_CLASS_OF = {
    "inline": ("local.inline", "InlineExecutor"),
    "process": ("process.executor", "ProcessExecutor"),
    "ray": ("ray.executor", "RayExecutor"),
    "thread": ("local.thread", "ThreadExecutor"),
}
_RUNS_IN: dict[str, RunsIn] = {"inline": "caller", "process": "process", "ray": "process", "thread": "thread"}


def where_runs(executor: str | Executor) -> RunsIn:
    """Return where the workers of an executor run; its module is not imported for that.

    Raises:
        ConfigError: There is none of this name.
    """
    if isinstance(executor, Executor):
        return executor.runs_in
    check_executor_name(executor)
    return _RUNS_IN[executor]


def may_be_elsewhere(executor: str | Executor) -> bool:
    """Tell whether the workers of an executor may be on other machines."""
    return executor == "ray" if isinstance(executor, str) else executor.may_be_elsewhere


def check_executor_name(name: str) -> None:
    """Refuse an unknown name of an executor.

    Raises:
        ConfigError: There is no executor of this name.
    """
    if name not in _CLASS_OF:
        raise ConfigError(f"there is no executor {name!r}", fix=did_you_mean(name, _CLASS_OF))


def make_executor(name: str) -> Executor:
    """Make an executor by name; its module is imported when it is first asked for.

    Raises:
        ConfigError: There is none of this name.
    """
    check_executor_name(name)
    module, class_name = _CLASS_OF[name]
    executor = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)()
    assert isinstance(executor, Executor)
    return executor
