"""The pipe in a worker that stands for the dispatching process: its items are this worker's share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.engine.process.channel import Channel
from headrace.errors import ConfigError, WorkerDiedError
from headrace.pipes import IterPipe

from ..transport.wire import Items, Want, decode_items, say


class DispatchLostError(WorkerDiedError):
    """The dispatching process is gone: the main process knows why."""


class DispatchClient(IterPipe[Any]):
    """Reads one worker's share of the dispatched items.

    One request is always under way, so that the next group is on its way while this one is worked on; more is never
    asked for, so what waits anywhere is bounded.

    Args:
        alone: Whether each item is asked for alone, when it is needed.
        name: What the dispatching process runs, for errors.

    Attributes:
        worker_id: Which share; set in the worker.
        epoch: Which iteration; set at its beginning.
    """

    is_fed_elsewhere = True

    def __init__(self, *, alone: bool, name: str) -> None:
        self._alone = alone
        self._name = name
        self._channel: Any = None  # the worker's, once it has one
        self._is_asked = False
        self._asked_epoch = -1  # the last epoch of which something was asked
        self.worker_id = 0
        self.epoch = 0

    def join(self, worker_id: int, channel: Channel) -> None:
        """Be a worker's, with the channel that was handed to it."""
        self.worker_id, self._channel = worker_id, channel

    def __repr__(self) -> str:
        return f"DispatchClient({self._name})"

    def __iter__(self) -> Iterator[Any]:
        """Return the items of the epoch."""
        epoch = self.epoch
        if self._asked_epoch == epoch:
            raise ConfigError(
                "what is dispatched was to be read a second time in one epoch, and it is dealt out once",
                where=self._name,
                fix="put .cycle() or .repeat() before .sharding_round_robin_dispatch(), not behind it",
            )
        self._is_asked = False
        while True:
            if not self._is_asked:
                self._ask(epoch)
            answer, items = self._receive(epoch)
            self._is_asked = False
            is_last = answer.has_ended or answer.error is not None
            if not self._alone and not is_last:
                self._ask(epoch)
            yield from items
            if answer.error is not None:
                raise answer.error.raisable()
            if answer.has_ended:
                return

    def _ask(self, epoch: int) -> None:
        try:
            say(self._channel, Want(epoch, self._alone))
        except OSError:
            raise self._lost() from None
        self._is_asked = True
        self._asked_epoch = epoch

    def _receive(self, epoch: int) -> tuple[Items, list[Any]]:
        """Return the next answer of this epoch; those of epochs that were left early are dropped."""
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
