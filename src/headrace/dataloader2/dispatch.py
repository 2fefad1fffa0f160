"""The main process's side of the dispatching process: one engine with one worker, and a line to it."""

from __future__ import annotations

import contextlib
from typing import Any

from headrace.engine import Engine, EngineOptions, Job, Raising
from headrace.engine.channel import Channel
from headrace.engine.executors.process import ProcessExecutor
from headrace.errors import HeadraceError, WorkerDiedError

from .dispatch_server import WHERE, DispatchSetup
from .dispatch_wire import Begin, connect, draw_address, say


class Dispatch:
    """Starts, begins epochs, and ends. Not thread-safe.

    Args:
        graph: The end of the part that the dispatching process runs.
        num_workers: How many workers share its items.
        start_method: Of the process.
        max_bytes: Limit on what waits in it for one worker.

    Attributes:
        address: Where it listens, once `wait_until_listening` has returned.
    """

    def __init__(self, graph: Any, num_workers: int, start_method: str | None, max_bytes: int) -> None:
        self.address = draw_address()
        self._engine = Engine(
            Job(DispatchSetup(graph, num_workers, self.address, max_bytes)),
            num_workers=1,
            executor=ProcessExecutor(start_method=start_method),
            options=EngineOptions(tickets_per_worker=2, on_death=Raising()),
        )
        self._run: Any = None
        self._line: Channel | None = None

    def start(self) -> None:
        """Start the process."""
        self._run = self._engine.run(["listen", "serve"])

    def wait_until_listening(self) -> None:
        """Wait until workers may connect.

        Raises:
            WorkerDiedError: The process has ended.
        """
        if self._line is not None:
            return
        try:
            next(self._run)
            self._line = connect(self.address, -1)
        except WorkerDiedError as error:
            raise _named(error) from None
        except OSError:
            raise self.why_gone() from None

    def begin(self, epoch: int, start: bytes) -> None:
        """Have it begin an epoch, whatever it was doing.

        Args:
            epoch: A number that is new.
            start: A parcel with an `EpochStart`.

        Raises:
            WorkerDiedError: The process is gone.
        """
        self.wait_until_listening()
        assert self._line is not None
        try:
            say(self._line, Begin(epoch, start))
        except OSError:
            raise self.why_gone() from None

    def why_gone(self) -> HeadraceError:
        """Return the error for a process that has hung up: how it ended."""
        try:
            next(self._run, None)
        except WorkerDiedError as error:
            return _named(error)
        except HeadraceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an error of the process becomes the cause
            failure = WorkerDiedError("the dispatching process has failed")
            failure.__cause__ = error
            return failure
        return WorkerDiedError("the dispatching process has ended")

    def hang_up(self) -> None:
        """Have it end: workers that wait for it wait no more. Any thread may call this."""
        if self._line is not None:
            self._line.shut_down()

    def close(self) -> None:
        """End the process; harmless when it has ended."""
        self.hang_up()
        if self._line is not None:
            self._line.close()
        with contextlib.suppress(HeadraceError):
            self._engine.close()


def _named(error: WorkerDiedError) -> WorkerDiedError:
    """Return the engine's error about its only worker as one about the dispatching process."""
    where = None if error.where is None or "ticket" in error.where else error.where
    return WorkerDiedError(
        error.what.replace("worker 0", f"the {WHERE}"),
        where=where,
        fix="its items cannot be dealt out again in the middle of an epoch: begin a new one with a new loader",
    )
