"""The main process's side of the dispatching process: one engine with one worker, and a connection to it.

Every connection is a pair of sockets that is made here. One end goes to the dispatching process, the other to its peer
when that is started: nothing listens anywhere, so no other process can connect.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

from headrace.engine import Engine, EngineOptions, Job, Raising
from headrace.engine.process.channel import Channel
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import HeadraceError, WorkerDiedError

from ..transport.wire import BeginEpoch, Join, send_message
from .server import WHERE, DispatchSetup


class Dispatch:
    """Starts the process, begins its epochs, and ends it. Not thread-safe.

    Args:
        graph: The end of the part that the dispatching process runs.
        num_workers: How many workers share its items.
        start_method: Start method of the process.
        max_bytes: Limit on the items that wait in it for one worker.
    """

    def __init__(self, graph: Any, num_workers: int, start_method: str | None, max_bytes: int) -> None:
        self._engine = Engine(
            Job(DispatchSetup(graph, num_workers, max_bytes)),
            num_workers=1,
            executor=ProcessExecutor(start_method=start_method, hand_over=self._make_line),
            options=EngineOptions(tickets_per_worker=2, on_death=Raising()),
        )
        self._run: Any = None
        self._line: Channel | None = None
        self._is_ready = False

    def start(self) -> None:
        """Start the process."""
        self._run = self._engine.run(["begin", "serve"])

    def _make_line(self, worker_idx: int) -> list[int]:
        """Make the connection to the process, which is being started; return its end."""
        del worker_idx  # there is one
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = Channel(ours)  # blocking: if the process ends, the wait ends too
        return [theirs.detach()]

    def connect_worker(self, worker_id: int) -> list[int]:
        """Connect a worker that is being started with the process; return the worker's end of the connection.

        Raises:
            WorkerDiedError: The process has ended.
        """
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one:
            try:
                self._send(Join(worker_id), [one.fileno()])
            except BaseException:
                other.close()
                raise
        return [other.detach()]

    def wait_until_ready(self) -> None:
        """Wait until the process has been set up.

        Raises:
            WorkerDiedError: It has ended.
        """
        if self._is_ready:
            return
        try:
            next(self._run)
        except WorkerDiedError as error:
            raise _named(error) from None
        self._is_ready = True

    def _send(self, message: Join | BeginEpoch, fds: Sequence[int] = ()) -> None:
        assert self._line is not None
        try:
            send_message(self._line, message, fds)
        except OSError:
            raise self.exit_error() from None

    def begin(self, epoch: int, start: bytes) -> None:
        """Make it begin an epoch, whatever it was doing.

        Args:
            epoch: A new number.
            start: A parcel with an `EpochStart`.

        Raises:
            WorkerDiedError: The process is gone.
        """
        self.wait_until_ready()
        self._send(BeginEpoch(epoch, start))

    def exit_error(self) -> HeadraceError:
        """Return the error that says why the process has ended."""
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
        """Close the connection; the process then ends, and workers stop waiting for it. Any thread may call this."""
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
        fix="its items cannot be given out again in the middle of an epoch: begin a new one with a new loader",
    )
