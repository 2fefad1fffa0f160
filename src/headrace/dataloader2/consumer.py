"""The pipe that represents the workers in the main process: their items in turn, skipping ended workers.

Groups of items are requested from the workers, round by round. All groups of a round have the same size, so the start
of each is known in advance, and the order of the items does not depend on the sizes. One item per ticket, with 64
tickets under way for each worker, costs this process 15 us an item instead of 1 with 1 KiB, and 18 instead of 4 with
64 KiB; the workers 20 instead of 1.2, and 28 instead of 17. Invariants: before each item that is delivered, `_counts`
and `_turn` hold the position of the iteration after it (between two items of a round of equal groups, with
`_num_even`); a worker's start file holds its newest snapshot, which is never beyond its remaining work.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from traceback import clear_frames
from typing import Annotated, Any

import msgspec

from headrace.engine import Engine
from headrace.engine.codec import by_value
from headrace.engine.group_size import MAX_ITEMS, GroupSize
from headrace.engine.memory.arena import MemoryHeldError, ValueTooLargeError
from headrace.errors import HeadraceError, ResumeError, WorkerDiedError
from headrace.pipes import IterPipe

from .dispatch.client import DispatchLostError
from .dispatch.process import Dispatch
from .plain_data import OptionalList
from .replica import Group, ReplicaRequest
from .transport.epoch_start import Snapshot, StartFile

# A group that was too large is requested again with this many times fewer items.
_FEWER = 8

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _WorkerPosition(msgspec.Struct, forbid_unknown_fields=True):
    """The position of one worker, in a state."""

    item: _Count
    has_ended: bool
    snapshot_item: _Count | None
    snapshot: list[Any] | None


@dataclasses.dataclass(frozen=True)
class _Death:
    """The death of a worker that is fatal, and the item of this worker at which it is raised."""

    item: int
    error: WorkerDiedError


class _ConsumerState(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a `WorkerConsumer`."""

    workers: list[_WorkerPosition]
    turn: _Count


class WorkerConsumer(IterPipe[Any]):
    """Yields the workers' items.

    Args:
        engine: An engine with `Replica`s in its workers.
        num_workers: At least 1.
        dispatch: The dispatching process, if there is one.
        alone: Whether each item is requested alone.
        group_bytes: How much of a worker's shared memory a group of items should take.
        name: What the workers run, for messages.
        length: The number of items of an epoch; None: unknown.
    """

    is_fed_elsewhere = True

    def __init__(
        self,
        engine: Engine,
        num_workers: int,
        dispatch: Dispatch | None,
        *,
        alone: bool,
        group_bytes: int,
        name: str,
        length: int | None,
    ) -> None:
        self._engine = engine
        self._num_workers = num_workers
        self._dispatch = dispatch
        self._alone = alone
        self._group_bytes = group_bytes
        self._name = name
        self._epoch = 0
        self._starts: list[bytes] = []
        self._dispatch_start = b""
        self._files = [StartFile() for _ in range(num_workers)]
        self._length = length
        self.reset()

    def __repr__(self) -> str:
        return f"WorkerConsumer({self._num_workers} x {self._name})"

    def __len__(self) -> int:
        return super().__len__() if self._length is None else self._length

    def begin_epoch(self, starts: list[bytes], dispatch_start: bytes) -> None:
        """Set how the next iteration begins.

        Args:
            starts: The encoded `EpochStart` of each worker.
            dispatch_start: That of the dispatching process; empty if there is no such process.
        """
        self._starts, self._dispatch_start = starts, dispatch_start

    # --- position ---

    def reset(self) -> None:
        """Go to the start of an epoch."""
        self._counts = [0] * self._num_workers  # delivered items, except those of `_even`
        self._ended = [False] * self._num_workers
        self._turn = 0
        self._even: list[int] = []  # during a round of equal groups: the workers, in turn
        self._num_even = 0  # items of that round that were delivered
        self._snapshots: list[list[Snapshot]] = [[] for _ in range(self._num_workers)]

    def state(self) -> dict[str, Any]:
        """Return the position of each worker, with its newest snapshot that is not beyond that position."""
        workers: list[dict[str, Any]] = []
        for worker_id, count in enumerate(self._counts_now()):
            snapshot = self._newest_snapshot(worker_id, count)
            workers.append(
                {
                    "item": count,
                    "has_ended": self._ended[worker_id],
                    "snapshot_item": None if snapshot is None else snapshot.item,
                    "snapshot": None if snapshot is None else OptionalList(pickle.loads(snapshot.data)),  # noqa: S301 - ours
                }
            )
        return {"workers": workers, "turn": self._turn_now()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ResumeError: It was with another number of workers, or is damaged.
        """
        try:
            saved = msgspec.convert(state, _ConsumerState)
        except msgspec.ValidationError as error:
            raise ResumeError(f"the state of the workers is damaged: {error}") from error
        workers = saved.workers
        if len(workers) != self._num_workers:
            raise ResumeError(
                f"the state was saved with {len(workers)} workers, and there are {self._num_workers}",
                fix=f"give num_workers={len(workers)}",
            )
        if saved.turn >= self._num_workers:
            raise ResumeError(
                f"the state of the workers is damaged: the next item is that of worker {saved.turn}, and there are "
                f"{self._num_workers}"
            )
        self.reset()
        self._turn = saved.turn
        for worker_id, worker in enumerate(workers):
            self._counts[worker_id], self._ended[worker_id] = worker.item, worker.has_ended
            if worker.snapshot is not None and worker.snapshot_item is not None:
                if worker.snapshot_item > worker.item:
                    raise ResumeError(
                        f"the state of worker {worker_id} is damaged: it is at item {worker.item}, and its snapshot "
                        f"at item {worker.snapshot_item}, which comes later"
                    )
                data = by_value.dumps(tuple(worker.snapshot))
                self._snapshots[worker_id] = [Snapshot(worker.snapshot_item, data)]

    def _settle(self) -> None:
        """Have the next iteration begin after the delivered items."""
        self._counts, self._turn = self._counts_now(), self._turn_now()
        self._even, self._num_even = [], 0
        for worker_id, count in enumerate(self._counts):
            snapshot = self._newest_snapshot(worker_id, count)
            self._snapshots[worker_id] = [] if snapshot is None else [snapshot]

    def _turn_now(self) -> int:
        return self._even[self._num_even % len(self._even)] if self._even else self._turn

    def _counts_now(self) -> list[int]:
        counts = list(self._counts)
        rounds, rest = divmod(self._num_even, max(len(self._even), 1))
        for number, worker_id in enumerate(self._even):
            counts[worker_id] += rounds + (number < rest)
        return counts

    def _prune(self, worker_id: int, count: int) -> None:
        """Drop snapshots that are older than another one not beyond `count`."""
        snapshots = self._snapshots[worker_id]
        while len(snapshots) > 1 and snapshots[1].item <= count:
            del snapshots[0]

    def _newest_snapshot(self, worker_id: int, count: int) -> Snapshot | None:
        """Return the newest snapshot that is not beyond `count`, if there is one."""
        self._prune(worker_id, count)
        return next((snapshot for snapshot in self._snapshots[worker_id] if snapshot.item <= count), None)

    # --- the iteration ---

    def __iter__(self) -> Iterator[Any]:
        """Return the items, from the current position."""
        max_items = 1 if self._alone else MAX_ITEMS
        self._deaths: dict[int, _Death] = {}
        while True:
            size = GroupSize(max_bytes=self._group_bytes, max_items=max_items)
            try:
                with closing(self._iterate(size)) as pieces:
                    yield from itertools.chain.from_iterable(pieces)
            except (ValueTooLargeError, MemoryHeldError) as error:
                # An item that is too large is the user's error; a group that is too large is not.
                if size.most == 1:
                    raise
                max_items = max(size.most // _FEWER, 1) if isinstance(error, ValueTooLargeError) else 1
                clear_frames(error.__traceback__)  # their variables hold items, and so the memory that is needed
                self._settle()
            except WorkerDiedError as error:
                if not self._is_raised_later(error):
                    raise
                clear_frames(error.__traceback__)
                self._settle()
            else:
                return

    def _is_raised_later(self, error: WorkerDiedError) -> bool:
        """Tell whether items that come before a death are not here yet: these are made first, in another run.

        A death is one of the item at which the worker was, as far as that is known, else of the first of its group.
        """
        if error.ticket is None or any(error is death.error for death in self._deaths.values()):
            return False
        asked = self._asked.get(error.ticket)
        if asked is None or self._dispatch is not None:  # what a dispatching process gave is not given again
            return False
        worker_id, item = error.ticket % self._num_workers, asked.start + (error.item_number or 0)
        before = self._deaths.get(worker_id)
        if before is not None and before.item <= item:  # each new run comes closer, so there is an end of them
            return False
        self._deaths[worker_id] = _Death(item, error)
        return item > self._counts_now()[worker_id] or self._turn_now() != worker_id

    def _iterate(self, size: GroupSize) -> Generator[Iterable[Any], None, None]:
        """Yield the items of an engine's run, in pieces."""
        self._epoch += 1
        for worker_id, file in enumerate(self._files):
            file.write(self._starts[worker_id], next(iter(self._snapshots[worker_id]), None))
        if self._dispatch is not None:
            self._dispatch.begin(self._epoch, self._dispatch_start)
        self._asked: dict[int, range] = {}  # tickets that are not here: the numbers of the items of their round
        run = self._engine.run(self._requests(size), in_turns=True)
        self._waiting: list[deque[Group]] = [deque() for _ in range(self._num_workers)]
        try:
            while not all(self._ended):
                yield from self._round(run)
        finally:
            self._waiting = []
            run.close()

    def _requests(self, size: GroupSize) -> Iterator[ReplicaRequest]:
        """Yield the requests to the workers, in turn."""
        self._size = size
        firsts = list(self._counts)
        paths = [file.path for file in self._files]
        epoch, deaths, tickets = self._epoch, self._deaths, itertools.count()
        while True:
            count = size.choose()
            for worker_id, path in enumerate(paths):
                first, wanted = firsts[worker_id], 0 if self._ended[worker_id] else count
                if worker_id in deaths:
                    wanted = max(min(wanted, deaths[worker_id].item - first), 0)
                self._asked[next(tickets)] = range(first, first + count)
                yield ReplicaRequest(epoch, first, wanted, path)
                firsts[worker_id] += count

    def _round(self, run: Any) -> Iterator[Iterable[Any]]:
        """Yield the items of one group of each worker, in pieces: an item passes through no generator but its piece."""
        first = self._turn
        workers = [(first + number) % self._num_workers for number in range(self._num_workers)]
        groups: dict[int, Group] = {}
        for worker_id in workers:  # the first item of each as soon as it has arrived
            if not self._ended[worker_id]:
                group = groups[worker_id] = self._fetch(run, worker_id)
                if group.items:
                    self._count(worker_id)
                    yield group.items[:1]
                else:
                    self._end(worker_id, group)
        workers = [worker_id for worker_id in workers if not self._ended[worker_id]]
        if any(groups[worker_id].is_last for worker_id in workers):
            yield self._uneven_round(workers, groups)
        elif workers:
            lists = [groups[worker_id].items for worker_id in workers]
            groups.clear()
            del group
            yield self._even_round(workers, lists)
        self._turn = first

    def _even_round(self, workers: list[int], lists: list[list[Any]]) -> Iterator[Any]:
        """Yield the rest of a round in which all groups have the same number of items."""
        items = itertools.islice(itertools.chain.from_iterable(zip(*lists, strict=True)), len(workers), None)
        self._even, self._num_even = workers, 0
        lists.clear()
        for self._num_even, item in enumerate(items, 1):
            yield item
        self._counts = self._counts_now()
        self._even, self._num_even = [], 0

    def _uneven_round(self, workers: list[int], groups: dict[int, Group]) -> Iterator[Any]:
        """Yield the rest of a round in which some workers come to their end."""
        for column in range(1, max(len(groups[worker_id].items) for worker_id in workers) + 1):
            for worker_id in workers:
                group = groups[worker_id]
                if column < len(group.items):
                    self._count(worker_id)
                    yield group.items[column]
                elif group.is_last and not self._ended[worker_id]:
                    self._end(worker_id, group)

    def _count(self, worker_id: int) -> None:
        """Count an item of a worker as delivered."""
        self._counts[worker_id] += 1
        self._turn = (worker_id + 1) % self._num_workers

    def _end(self, worker_id: int, group: Group) -> None:
        """Handle the end of a worker's items.

        Raises:
            Exception: What its pipes raised.
        """
        if group.error is not None:
            error = group.error.raisable()
            if self._dispatch is not None and isinstance(error, DispatchLostError):
                raise self._dispatch.exit_error() from None
            raise error
        death = self._deaths.get(worker_id)
        if death is not None and self._counts[worker_id] >= death.item:
            raise death.error
        self._ended[worker_id] = True

    def _fetch(self, run: Any, worker_id: int) -> Group:
        """Return the next group of a worker; groups of others that arrive meanwhile are kept."""
        waiting = self._waiting[worker_id]
        while not waiting:
            delivered = next(run, None)
            if delivered is None:
                raise HeadraceError("the workers were ended during an iteration", fix="begin a new iteration")
            group = Group.of_tuple(delivered.value)
            self._note(delivered.worker_idx, group)
            death, asked = self._deaths.get(delivered.worker_idx), self._asked.pop(delivered.ticket)
            if death is not None and death.item in asked:
                group = dataclasses.replace(group, has_ended=True)
            if not self._ended[delivered.worker_idx]:
                self._waiting[delivered.worker_idx].append(group)
        return waiting.popleft()

    def _note(self, worker_id: int, group: Group) -> None:
        self._size.note(len(group.items), group.seconds, group.item_bytes)
        if group.snapshot is not None:
            self._prune(worker_id, self._counts_now()[worker_id])
            self._snapshots[worker_id].append(group.snapshot)
            self._files[worker_id].write(self._starts[worker_id], group.snapshot)

    def close(self) -> None:
        """Release its resources."""
        for file in self._files:
            file.close()
