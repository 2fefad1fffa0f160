"""Functions for user code in a worker: `get_worker_info` to learn which worker it is, `note_item` to report progress.

Invariant: what is said here is seen by the worker that says it only. Thread and inline workers share a process, and are
known by their thread; a worker process is one worker with all of its threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, overload

_Item = TypeVar("_Item")

RunsIn = Literal["caller", "thread", "process"]
"""Where a worker runs: in the consumer's thread, in another thread of its process, or in a process of its own."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The identity of a worker.

    Attributes:
        worker_idx: 0 .. num_workers - 1.
        num_workers: How many workers share the work; 1 where the consumer's own thread does it (`num_workers=0`).
            Where they come and go, how many there were at the start, or `worker_idx + 1`, if that is more.
        executor: `"inline"`, `"thread"`, `"process"`, or the name of another executor.
        seed: A seed of this worker's own, for foreign code that wants one: data that depend on it depend on the number
            of workers. A worker that is started again has the same seed.
        runs_in: What it shares with the consumer: with a "thread", objects that were not carried to it are everybody's.
        handed: Descriptors that the executor's `hand_over` gave to this worker process; the code that uses them owns
            them.

    Examples:
        >>> import headrace as hr
        >>> def prepare(info):
        ...     print(f"worker {info.worker_idx} of {info.num_workers}")
        >>> with hr.DataLoader(range(2), batch_size=2, worker_init=prepare, num_workers=0) as loader:
        ...     batches = list(loader)
        worker 0 of 1
    """

    worker_idx: int
    num_workers: int
    executor: str
    seed: int
    runs_in: RunsIn = "thread"
    handed: tuple[int, ...] = ()


_MIN_NUMBER, _MAX_NUMBER = -(2**63), 2**63 - 1  # that fit into the word by which they are published


@dataclass(frozen=True, slots=True)
class CurrentItem:
    """Where in the data a worker is: named in errors, in the quarantine file, and when a worker dies.

    Attributes:
        tag: Tag of the sequence; or in parentheses what else the worker does, such as "(laying out batch 3)".
        epoch: The epoch.
        number: Its number among those of a run, see `note_items`; None: it is of none, or all of them are meant.
    """

    tag: str | None = None
    epoch: int | None = None
    number: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        parts = []
        if self.tag is not None:
            parts.append(self.tag if self.tag.startswith("(") else f"tag {self.tag!r}")
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch}")
        return ", ".join(parts)


class NumberedTags(Sequence[str]):
    """Tags that are made of numbers when they are looked at.

    Args:
        form: How, such as "(item {})".
        numbers: At least one, each of 64 bits.
    """

    __slots__ = ("form", "numbers")

    def __init__(self, form: str, numbers: Sequence[int]) -> None:
        self.form, self.numbers = form, numbers

    @overload
    def __getitem__(self, idx: int) -> str: ...
    @overload
    def __getitem__(self, idx: slice) -> list[str]: ...
    def __getitem__(self, idx: int | slice) -> str | list[str]:
        if isinstance(idx, slice):
            return [self.form.format(number) for number in self.numbers[idx]]
        return self.form.format(self.numbers[idx])

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return repr(list(self))


def item_of_run(tags: Sequence[str], epoch: int | None, number: int) -> CurrentItem:
    """Return an item of a run; for the number -1, one that names the first and the last."""
    return CurrentItem(tags[number], epoch, number) if number >= 0 else CurrentItem(_first_and_last(tags), epoch)


def _first_and_last(tags: Sequence[str]) -> str:
    return tags[0] if len(tags) == 1 else f"{tags[0]} .. {tags[-1]}"


class WorkerScope:
    """The mutable side of a worker's identity: made by `worker.Worker`, of no use to others.

    Args:
        info: What `get_worker_info` answers.
        on_item: Called with the tag and the epoch of each item: how a worker process publishes it to the trainer.

    Attributes:
        noted: What was noted last in this ticket: tag and epoch, with a number that the tag is made of if it is a form,
            or the run; None: nothing.
        skipped: Errors given to `skip_item` in this ticket, each with its item.
        on_items: Called with the tags and the epoch of a run: publishes them, and returns the cursor by which the
            worker moves on in it (see `ItemRun`), or `None` if each item has to be published by itself.
        on_number: Called with the form, the number and the epoch of an item that `note_number` names; None: it is
            published as others are.
    """

    __slots__ = ("_num_items", "info", "noted", "on_item", "on_items", "on_number", "skipped")

    def __init__(self, info: WorkerInfo, on_item: Callable[[str | None, int | None], None] | None = None) -> None:
        self.info = info
        self.on_item = on_item
        self.on_items: Callable[[Sequence[str], int | None], MutableSequence[int] | None] | None = None
        self.on_number: Callable[[str, int, int | None], None] | None = None
        self.skipped: list[tuple[Exception, CurrentItem | None]] = []
        self.noted: tuple[str | None, int | None] | tuple[str, int | None, int] | ItemRun | None = None
        self._num_items = 0

    @property
    def item(self) -> CurrentItem | None:
        """The item last noted, or the current one of a run."""
        item = self.noted
        if item is None:
            return None
        if isinstance(item, ItemRun):
            return item.current
        return CurrentItem(*item) if len(item) == 2 else CurrentItem(item[0].format(item[2]), item[1])

    def begin_ticket(self) -> None:
        """Forget the item, and what was skipped."""
        if type(self.noted) is ItemRun:
            self.note_run(None)
        self.noted = None
        if self.skipped:
            self.skipped.clear()

    def note_run(self, items: ItemRun | None) -> None:
        """Note a run, whose cursor it has published; None: the item is not known."""
        before, self.noted = self.noted, items
        if type(before) is ItemRun:
            self._num_items += max(before.cursor[0], 0)
        if items is not None:
            self._num_items += 1

    def note(self, tag: str | None, epoch: int | None) -> None:
        """Note one item."""
        if type(self.noted) is ItemRun:
            self.note_run(None)
        self.noted = tag, epoch
        self._num_items += 1
        if self.on_item is not None:
            self.on_item(tag, epoch)

    def note_number(self, form: str, number: int, epoch: int | None) -> None:
        """Note one item, whose tag is made of a number when it is looked at."""
        if self.on_number is None or not _MIN_NUMBER <= number <= _MAX_NUMBER:
            self.note(form.format(number), epoch)
            return
        if type(self.noted) is ItemRun:
            self.note_run(None)
        self.noted = form, epoch, number
        self._num_items += 1
        self.on_number(form, number, epoch)

    @property
    def num_items(self) -> int:
        """How many items there were, or more: grows as long as the worker makes progress."""
        item = self.noted
        return self._num_items + (max(item.cursor[0], 0) if isinstance(item, ItemRun) else 0)


class ItemRun:
    """The items of a run of sequences, and which of them is worked on: what `note_items` notes.

    Where it is published, the number of the current one, the cursor, is a word of shared memory.

    Args:
        tags: Their tags, at least one.
        epoch: The epoch.
        scope: Scope of the worker.

    Attributes:
        cursor: The number of the current one; -1: all of them.
    """

    __slots__ = ("_epoch", "_is_published", "_scope", "_tags", "cursor")

    def __init__(self, tags: Sequence[str], epoch: int | None, scope: WorkerScope) -> None:
        self._tags = tags
        self._epoch = epoch
        self._scope = scope
        self._begin()

    def _begin(self) -> None:
        scope = self._scope
        cursor: MutableSequence[int] | None = [0]
        if scope.on_item is not None:
            scope.note_run(None)  # the items of an earlier run are counted before its cursor is used again
            cursor = None if scope.on_items is None else scope.on_items(self._tags, self._epoch)
        self._is_published = cursor is not None
        if cursor is not None:
            self.cursor = cursor
            scope.note_run(self)

    @property
    def current(self) -> CurrentItem:
        """The current item."""
        return item_of_run(self._tags, self._epoch, self.cursor[0])

    def go_to(self, number: int) -> None:
        """Make an item the current one."""
        if not self._is_published:  # the run cannot be published as a whole
            item = item_of_run(self._tags, self._epoch, number)
            self._scope.note(item.tag, item.epoch)
            return
        if self._scope.noted is not self:  # another item was noted meanwhile
            self._begin()
        self.cursor[0] = number

    def each(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield items, each of which becomes the current one when it is handed out; in the end, all of them are."""
        scope, cursor = self._scope, None
        for number, item in enumerate(items):
            if cursor is None or scope.noted is not self:
                self.go_to(number)
                cursor = self.cursor if self._is_published else None  # it may be a new one
            else:
                cursor[0] = number
            yield item
        self.go_to(-1)


class _OfThisThread(threading.local):
    """Which worker the calling thread is.

    No context variable: a run that is no longer referenced is ended by the garbage collector, which may run within a
    `ContextVar.set`, and one that is set there in turn makes CPython read freed memory.
    """

    scope: WorkerScope | None = None


_of_this_thread = _OfThisThread()
_of_this_process: WorkerScope | None = None


def current_scope() -> WorkerScope | None:
    """Return the scope of the worker that calls, or `None` outside of workers."""
    scope = _of_this_thread.scope
    return _of_this_process if scope is None else scope


@contextlib.contextmanager
def worker_scope(scope: WorkerScope) -> Iterator[None]:
    """Be this worker for the length of a block, in the thread that calls."""
    before, _of_this_thread.scope = _of_this_thread.scope, scope
    try:
        yield
    finally:
        _of_this_thread.scope = before


def set_process_scope(scope: WorkerScope | None) -> None:
    """Make this whole process, with all threads it starts, one worker: for worker processes only."""
    global _of_this_process
    _of_this_process = scope


def get_worker_info() -> WorkerInfo | None:
    """Return who the calling worker is, or `None` outside of workers."""
    scope = current_scope()
    return None if scope is None else scope.info


def note_item(tag: str | None = None, epoch: int | None = None) -> None:
    """Tell which sequence is worked on now: a sign of life, and named if the next thing that happens is an error.

    What has no tag is told in parentheses, and named as it is: "(laying out batch 3)". Outside of workers it does
    nothing. About 0.5 us.

    Examples:
        >>> from headrace.engine import note_item
        >>> def convert(names):
        ...     for name in names:
        ...         note_item(name)  # an error, or a death, from here on names it
        ...         yield name.upper()
        >>> list(convert(["a", "b"]))
        ['A', 'B']
    """
    scope = current_scope()
    if scope is not None:
        scope.note(tag, epoch)


def note_number(form: str, number: int, epoch: int | None = None) -> None:
    """Do as `note_item`, for the tag `form.format(number)`, which is made when it is looked at; in half the time."""
    scope = current_scope()
    if scope is not None:
        scope.note_number(form, number, epoch)


def note_items(tags: Sequence[str], epoch: int | None = None) -> Callable[[int], None]:
    """Tell which sequences are worked on next; `note_item` for many of them.

    Args:
        tags: Their tags. They must stay as they are. `NumberedTags` cost the least.
        epoch: The epoch.

    Returns:
        What to call with the number of each, 0 .. len(tags) - 1, when it is begun (about 0.1 us), or with -1 if all of
        them are worked on together: the item then names the first and the last. It may be called until the next run.
    """
    scope = current_scope()
    return ItemRun(tags, epoch, scope).go_to if scope is not None and tags else _go_nowhere


def note_each(items: Sequence[_Item], tags: Sequence[str], epoch: int | None = None) -> Iterator[_Item]:
    """Yield items, each of which is worked on from then on: as `note_items` tells it, in half the time.

    After the last one, all of them are worked on together.
    """
    scope = current_scope()
    return iter(items) if scope is None or not tags else ItemRun(tags, epoch, scope).each(items)


def note_together(tags: Sequence[str], epoch: int | None = None) -> None:
    """Tell that sequences are worked on together now: as `note_item`, by the tags of the first and the last."""
    scope = current_scope()
    if scope is not None and tags:
        scope.note(_first_and_last(tags), epoch)


def _go_nowhere(number: int) -> None:
    del number


def skip_item(exception: Exception) -> None:
    """Leave one item out of a ticket of many: tell its error and go on with the rest.

    It counts as a skip (budget, quarantine file); under `on_error=Raising()` it is raised at the consumer instead.
    Outside of workers the exception is raised here.

    Examples:
        >>> from headrace.engine import skip_item
        >>> def parse_all(texts):
        ...     for text in texts:
        ...         try:
        ...             yield int(text)
        ...         except ValueError as error:
        ...             skip_item(error)
        >>> list(parse_all(["1", "2"]))
        [1, 2]
    """
    scope = current_scope()
    if scope is None:
        raise exception
    scope.skipped.append((exception, scope.item))
