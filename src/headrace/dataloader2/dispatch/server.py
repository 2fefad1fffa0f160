"""The dispatching process: runs the part of a graph that must not be replicated, and deals its items out in turn.

Item k of an epoch goes to worker k mod W. Items are made only while some worker waits for one; those for other workers
are kept here until requested. If a worker needs many items for each one that it gives (it filters, it batches), many
items are kept for the others: up to a limit in bytes, beyond which the epoch ends with an error. One thread, no
polling: it sleeps while there are no requests.

Invariants: a worker has at most one request in flight, and each is answered once; an epoch begins on a message of the
main process, and requests of past epochs get an empty answer; the process serves until the main process closes the
connection. Only processes with a channel from the main process can send requests.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.batching import ReuseCheck
from headrace.engine import WorkerInfo as EngineWorkerInfo
from headrace.engine.group_size import GroupSize
from headrace.engine.process.channel import Channel, close_all
from headrace.engine.user.ship import unship
from headrace.errors import CacheError
from headrace.pipes.core.base import read, stop
from headrace.pipes.graph import list_pipes
from headrace.pipes.graph.seeds import SeedGenerator, note_seeds_of_globals, set_datapipes_seed

from ..interface import checked_pipe
from ..transport.epoch_start import EpochStart, seed_globals_from
from ..transport.item_bytes import estimate_bytes
from ..transport.wire import FROM_MAIN, FROM_WORKER, BeginEpoch, ItemsRequest, Join, encode_items
from ..transport.worker_error import CarriedError, is_of_the_engine

WHERE = "dispatching process"
# Seconds after which a group is sent with the items in it.
_FLUSH_SECONDS = 0.005
# The minimum that an item counts toward the limit.
_MIN_ITEM_BYTES = 64


@dataclass(frozen=True)
class DispatchSetup:
    """The `setup` of the dispatching process.

    Attributes:
        graph: The end of the part that it runs.
        num_workers: How many workers there are.
        max_bytes: Approximate limit on the items that wait for one worker.
    """

    graph: Any
    num_workers: int
    max_bytes: int

    def __call__(self, info: EngineWorkerInfo) -> Callable[[str], Any]:
        """Set the process up, with the line to the main process that was handed to it."""
        return DispatchServer(self.graph, self.num_workers, Channel.of_fd(*info.handed), self.max_bytes)


@dataclass(slots=True, eq=False)
class _Client:
    """One worker, from the server's view.

    Attributes:
        items: Items that wait for it.
        request: Its unanswered request.
        size: How many items it gets at once.
    """

    channel: Channel | None = None
    items: deque[Any] = field(default_factory=deque)
    request: ItemsRequest | None = None
    size: GroupSize = field(default_factory=GroupSize)


class DispatchServer:
    """Does two tickets: `"begin"` reports that it is ready, `"serve"` ends when the main process hangs up.

    Args:
        graph: The graph to run.
        num_workers: How many shares there are.
        main: The line to the main process.
        max_bytes: Approximate limit on the items that wait for one worker.
    """

    def __init__(self, graph: Any, num_workers: int, main: Channel, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._initial = self._graph = graph
        self._clients = [_Client() for _ in range(num_workers)]
        self._main = main
        self._by_fd: dict[int, _Client] = {}
        self._poll = select.poll()
        self._poll.register(main, select.POLLIN)
        self._is_over = False
        self._epoch = -1
        self._iterator: Iterator[Any] | None = None
        self._reuse = ReuseCheck()
        self._error: CarriedError | None = None
        self._num_dealt = 0

    def __call__(self, ticket: str) -> Any:
        """Do a ticket."""
        if ticket == "begin":
            return None
        try:
            self._serve()
        finally:
            self._close()
        return None

    def _serve(self) -> None:
        while not self._is_over:
            busy = self._iterator is not None and any(self._is_waiting(client) for client in self._clients)
            for fd, _ in self._poll.poll(0 if busy else None):
                self._handle(fd)
            if self._iterator is not None:
                self._produce()
            for client in self._clients:
                self._answer(client)

    # --- receiving ---

    def _handle(self, fd: int) -> None:
        client = self._by_fd.get(fd)
        channel = self._main if fd == self._main.fileno() else None if client is None else client.channel
        if channel is None:  # replaced after the poll reported it
            return
        received = channel.receive(block=False)
        if received is None:
            return
        packet, fds = received
        if client is not None:
            close_all(fds)
            if packet:
                client.request = FROM_WORKER.decode(packet)
            else:
                self._drop(client)
        elif packet:
            self._handle_main(FROM_MAIN.decode(packet), fds)
        else:
            self._is_over = True

    def _handle_main(self, message: Join | BeginEpoch, fds: list[int]) -> None:
        if isinstance(message, BeginEpoch):
            self._begin(message)
            return
        client = self._clients[message.worker_id]
        self._drop(client)
        client.channel = Channel.of_fd(*fds)
        self._by_fd[client.channel.fileno()] = client
        self._poll.register(client.channel, select.POLLIN)

    def _drop(self, client: _Client) -> None:
        channel, client.channel, client.request = client.channel, None, None
        if channel is not None:
            del self._by_fd[channel.fileno()]
            self._poll.unregister(channel)
            channel.close()

    def _begin(self, begin: BeginEpoch) -> None:
        self._leave()
        self._epoch, self._error, self._num_dealt = begin.epoch, None, 0
        for client in self._clients:
            client.items.clear()
            client.size = GroupSize()
        try:
            start: EpochStart = unship(begin.start)
            self._reseed(start)
            self._iterator = read(self._graph)
        except BaseException as error:  # user code: it goes on as data
            if is_of_the_engine(error):
                raise
            self._error = CarriedError.of(error, WHERE)

    def _reseed(self, start: EpochStart) -> None:
        """Seed everything from shared seeds: what runs here runs once for all workers."""
        seeds: SeedGenerator = start.seeds
        seed_globals_from(seeds, shared=True)
        pipes = list_pipes(self._initial)
        note_seeds_of_globals(pipes, seeds, is_shared=True)
        set_datapipes_seed(pipes, seeds, True)
        self._graph = self._initial
        if start.reset_fn is not None:
            self._graph = checked_pipe(start.reset_fn(self._graph), "iter_reset_fn")

    def _leave(self) -> None:
        self._iterator = None
        stop(self._graph)

    # --- making and sending items ---

    def _is_waiting(self, client: _Client) -> bool:
        request = client.request
        return (
            request is not None and request.epoch == self._epoch and len(client.items) < self._limit_of(client, request)
        )

    @staticmethod
    def _limit_of(client: _Client, request: ItemsRequest) -> int:
        return 1 if request.alone else client.size.choose()

    def _produce(self) -> None:
        """Make items until no worker waits, or for a while."""
        assert self._iterator is not None
        iterator, clients, num_workers = self._reuse.kept(self._iterator), self._clients, len(self._clients)
        num_waiting = sum(self._is_waiting(client) for client in clients)
        start = time.perf_counter()
        num_before = self._num_dealt
        item: Any = None
        try:
            while num_waiting:
                item = next(iterator)
                client = clients[self._num_dealt % num_workers]
                self._num_dealt += 1
                was_waiting = self._is_waiting(client)
                client.items.append(item)
                if not was_waiting:
                    self._check_waiting(client)
                elif not self._is_waiting(client):
                    num_waiting -= 1
                    self._answer(client)  # at once: the next item may take long
                if time.perf_counter() - start > _FLUSH_SECONDS:
                    break
        except StopIteration:
            self._iterator = None
        except BaseException as error:  # user code: it goes on as data
            if is_of_the_engine(error):
                raise
            self._iterator, self._error = None, CarriedError.of(error, WHERE)
        self._reuse.look()
        num_items = self._num_dealt - num_before
        for client in clients:
            client.size.note(num_items, time.perf_counter() - start, estimate_bytes(item))

    def _check_waiting(self, client: _Client) -> None:
        """Check the limit, whenever twice as many items wait, or some more.

        Raises:
            CacheError: It is reached.
        """
        num_waiting = len(client.items)
        if num_waiting & (num_waiting - 1) and num_waiting % 1024:
            return
        num_bytes = num_waiting * max(estimate_bytes(client.items[-1]), _MIN_ITEM_BYTES)
        if num_bytes > self._max_bytes:
            worker = self._clients.index(client)
            reading = ", ".join(str(number) for number, other in enumerate(self._clients) if self._is_waiting(other))
            raise CacheError(
                f"{num_waiting} items (about {num_bytes >> 20} MiB) wait for worker {worker}, because worker {reading} "
                "reads item after item without giving one, and workers are read in turn",
                where=f"the limit is {self._max_bytes} bytes for each worker",
                fix="filter before sharding_round_robin_dispatch, use fewer workers, or give a larger max_bytes",
            )

    def _answer(self, client: _Client) -> None:
        """Answer a request, if there is something to send."""
        request, channel = client.request, client.channel
        if request is None or channel is None or request.epoch > self._epoch:
            return
        if request.epoch < self._epoch:
            self._send(client, channel, *encode_items(request.epoch, [], has_ended=True, error=None))
            return
        is_over = self._iterator is None
        if not client.items and not is_over:
            return
        limit = min(len(client.items), self._limit_of(client, request))
        items = [client.items.popleft() for _ in range(limit)]
        is_last = is_over and not client.items
        error = self._error if is_last else None
        try:
            answer = encode_items(request.epoch, items, has_ended=is_last, error=error)
        except Exception as failure:  # noqa: BLE001 - pickling runs user code: it is passed on as data
            carried = CarriedError.of(failure, WHERE)
            answer = encode_items(request.epoch, _before_failure(items), has_ended=True, error=carried)
        self._send(client, channel, *answer)

    def _send(self, client: _Client, channel: Channel, packet: bytes, fd: int | None) -> None:
        client.request = None
        try:
            with contextlib.suppress(OSError):  # a worker that is gone is reported by the main process
                channel.send(packet, () if fd is None else (fd,))
        finally:
            if fd is not None:
                close_all((fd,))

    def _close(self) -> None:
        self._leave()
        for client in self._clients:
            if client.channel is not None:
                client.channel.shut_down()
                self._drop(client)
        self._main.shut_down()
        self._main.close()


def _before_failure(items: list[Any]) -> list[Any]:
    """Return the items before the first one that cannot be sent."""
    for number, item in enumerate(items):
        try:
            _, fd = encode_items(0, [item], has_ended=False, error=None)
        except Exception:  # noqa: BLE001 - pickling runs user code
            return items[:number]
        if fd is not None:
            close_all((fd,))
    return []  # each can be sent alone
