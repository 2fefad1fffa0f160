"""The pipe in a worker that represents the dispatching process: its items are this worker's share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.engine.process.channel import Channel
from headrace.errors import ConfigError, WorkerDiedError
from headrace.pipes import IterPipe

from ..transport.wire import Items, ItemsRequest, decode_items, send_message


class DispatchLostError(WorkerDiedError):
    """The dispatching process is gone; the main process reports why."""


class DispatchClient(IterPipe[Any]):
    """Reads one worker's share of the dispatched items.

    The next group of items is requested as soon as one arrives, so that it is made while this one is processed. No more
    than one request is in flight, so that memory is bounded.

    Args:
        alone: Whether each item is requested singly, and only when it is needed.
        name: What the dispatching process runs, for errors.

    Attributes:
        worker_id: The share; set in the worker.
        epoch: The iteration; set at its start.
    """

    is_fed_elsewhere = True

    def __init__(self, *, alone: bool, name: str) -> None:
        self._alone = alone
        self._name = name
        self._channel: Any = None  # set in the worker
        self._is_requested = False
        self._requested_epoch = -1  # the last epoch with a request
        self.worker_id = 0
        self.epoch = 0

    def attach(self, worker_id: int, channel: Channel) -> None:
        """Set the worker that this pipe is in, and its channel to the dispatching process."""
        self.worker_id, self._channel = worker_id, channel

    def __repr__(self) -> str:
        return f"DispatchClient({self._name})"

    def __iter__(self) -> Iterator[Any]:
        """Return the items of the epoch."""
        epoch = self.epoch
        if self._requested_epoch == epoch:
            raise ConfigError(
                "dispatched items are read a second time in one epoch, but each is given to one worker, once",
                where=self._name,
                fix="put .cycle() or .repeat() before .sharding_round_robin_dispatch(), not after it",
            )
        self._is_requested = False
        while True:
            if not self._is_requested:
                self._request(epoch)
            answer, items = self._receive(epoch)
            self._is_requested = False
            is_last = answer.has_ended or answer.error is not None
            if not self._alone and not is_last:
                self._request(epoch)
            yield from items
            if answer.error is not None:
                raise answer.error.raisable()
            if answer.has_ended:
                return

    def _request(self, epoch: int) -> None:
        try:
            send_message(self._channel, ItemsRequest(epoch, self._alone))
        except OSError:
            raise self._lost() from None
        self._is_requested = True
        self._requested_epoch = epoch

    def _receive(self, epoch: int) -> tuple[Items, list[Any]]:
        """Return the next answer for this epoch; answers for abandoned epochs are dropped."""
        while True:
            received = self._channel.receive()
            if received is None:
                continue  # a signal
            packet, fds = received
            if not packet:
                raise self._lost()
            answer, items = decode_items(packet, fds)
            if answer.epoch == epoch:
                return answer, items

    def _lost(self) -> DispatchLostError:
        return DispatchLostError("the dispatching process is gone", where=f"it ran {self._name}")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_channel": None}
