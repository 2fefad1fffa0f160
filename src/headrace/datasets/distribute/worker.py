"""The workers of a `DistributeFilesDataset` read ranges of positions of a sub-epoch.

A ticket names its sub-epoch by a reference, so any worker may do it, and do it again: what it needs it opens itself.
Invariant: the stream is the order of the sub-dataset, however it is cut into tickets.

What a reference refers to (`Shared`) is pickled once and read once by each worker. In this process (threads, inline)
the reference is the object itself. For worker processes the object lies in an unnamed memory file of this process,
which a worker opens through `/proc`; so a worker that is started again finds it too, and nothing is left behind by
anybody who is killed. Invariant: the file lives as long as the `Shared` object, which must live as long as tickets that
refer to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.engine import Failure, WorkerInfo, note_place
from headrace.engine.process.channel import read_memfd, write_memfd
from headrace.engine.user.ship import ship, unship
from headrace.errors import ConfigError, HeadraceError
from headrace.files.cache.entry import replace_cached_files
from headrace.files.places import is_url

from ..base import Dataset
from ..files.hdf import HDFDataset
from ..parts import open_part
from .files import CacheOptions, SubEpochFiles
from .shelf import Shelf
from .sub_epoch import OpenSubEpoch, ReadPart, SubDataset, SubEpochPlan, SubEpochSpec, num_seqs_of, read_in_place


class Shared:
    """The owner's side; unpickled in a worker it is a `Reference` with the same members, but for the owner's.

    Args:
        number: Tells this object from others of the same owner.
        value: What is shared; it must not change.
        what: What the user calls it, in an error about something that cannot be carried to a worker.
    """

    def __init__(self, number: int, value: Any, what: str) -> None:
        self.number = number
        self._value = value
        self._what = what
        self._fd = -1
        self._pid = os.getpid()
        self._is_retired = False

    @property
    def is_current(self) -> bool:
        """Whether anybody still waits for tickets that refer to it."""
        return not self._is_retired

    def retire(self) -> None:
        """Say that nobody waits for tickets that refer to it any more: whoever does one may give up."""
        self._is_retired = True
        self._close()

    def load(self) -> Any:
        """Return the object."""
        return self._value

    def put_into_memory_file(self) -> None:
        """Pickle it now, so that what cannot be carried is said at once; otherwise with the first ticket.

        Raises:
            ConfigError: Something in it cannot be carried to a worker.
        """
        if self._fd < 0:
            self._fd = write_memfd("headrace-shared", ship(self._value, what=self._what))

    def __reduce__(self) -> tuple[Any, ...]:
        self.put_into_memory_file()
        status = os.fstat(self._fd)
        return Reference, (self.number, f"/proc/{self._pid}/fd/{self._fd}", (status.st_dev, status.st_ino))

    def __deepcopy__(self, memo: Any) -> Shared:
        return self

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0 and self._pid == os.getpid():
            os.close(fd)


class Reference:
    """The worker's side.

    Args:
        number: See `Shared`.
        path: Where the memory file can be opened.
        identity: Device and inode of it: the owner may have closed it and opened something else under its number.
    """

    def __init__(self, number: int, path: str, identity: tuple[int, int]) -> None:
        self.number = number
        self._path = path
        self._identity = identity

    @property
    def is_current(self) -> bool:
        """Whether the owner lives and waits for tickets that refer to it, as far as can be seen. One system call."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return (status.st_dev, status.st_ino) == self._identity

    def load(self) -> Any:
        """Read the object anew.

        Raises:
            HeadraceError: Its owner is gone, or is done with it: whoever waits for this ticket is gone, too.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise HeadraceError(
                f"a worker cannot read what its trainer shares: {error.strerror}",
                where=self._path,
                fix="if the trainer lives: its /proc may be closed to others (PR_SET_DUMPABLE); use executor='thread'",
            ) from error
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != self._identity or not stat.S_ISREG(status.st_mode):
                raise HeadraceError(f"this ticket is stale: {self._path} is something else now")
            return unship(read_memfd(fd))
        finally:
            os.close(fd)


SharedPlan = Shared | Reference


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read sequences `start <= place < stop` of the sub-epoch that comes first in a plan. Answer: `ReadPart`."""

    plan: SharedPlan
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class AskDataset:
    """Call a method of the dataset of the sub-epoch that comes first in a plan. `Answer`: what it returns."""

    plan: SharedPlan
    method: str


@dataclass(frozen=True, slots=True)
class CountSeqs:
    """Count the sequences of a sub-dataset of one entry of the file list. `Answer`: `Counted`.

    Attributes:
        spec: The sub-dataset.
        names: The files of the entry.
    """

    spec: SubEpochSpec
    names: list[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question.

    Attributes:
        value: The answer.
        failure: An encoded `Failure` in its place, as in `ReadPart`.
    """

    value: Any = None
    failure: bytes | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers of one entry of the file list.

    Attributes:
        num_seqs: Sequences that a sub-dataset of it alone delivers.
        num_stored: Sequences in its files; -1 if unknown.
        num_stored_frames: Frames of the first data key in its files; -1 if unknown.
    """

    num_seqs: int
    num_stored: int
    num_stored_frames: int


Ticket = ReadRange | AskDataset | CountSeqs


class RangeTickets(Iterator[ReadRange]):
    """The ranges of one pass over a sub-epoch, from a place on, for as long as its end is not known or not reached.

    The first one is a single sequence, and each is twice as long as the one before: the reader need not wait long for
    the first, however slow they are.

    Attributes:
        max_size: Sequences in a range, at most.
        end: Behind the last place, once it is known.
    """

    def __init__(self, plan: SharedPlan, place: int, max_size: int) -> None:
        self._plan = plan
        self._place = place
        self._size = 1
        self.max_size = max_size
        self.end: int | None = None

    def __next__(self) -> ReadRange:
        """Return the next range."""
        start, size = self._place, min(self._size, self.max_size)
        if self.end is not None and start >= self.end:
            raise StopIteration
        self._size = 2 * size
        self._place = start + size if self.end is None else min(start + size, self.end)
        return ReadRange(self._plan, start, self._place)


class SubEpochWork:
    """The setup of the workers; in this process (threads, inline) it also closes what they opened.

    Args:
        cache: Where cached files come from.
    """

    def __init__(self, cache: CacheOptions) -> None:
        self._cache = cache
        self._readers: dict[int, SubEpochReader] = {}

    def __call__(self, info: WorkerInfo) -> Callable[[Ticket], Any]:
        """Get a worker ready; opens nothing yet. What an earlier life of it has open here is closed."""
        earlier = self._readers.pop(info.worker_idx, None)
        if earlier is not None:
            earlier.close()
        reader = self._readers[info.worker_idx] = SubEpochReader(self._cache, info)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        return SubEpochWork, (self._cache,)

    def close(self) -> None:
        """Close what workers in this process opened; they must not be at work. Processes close theirs by ending."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()


class SubEpochReader:
    """One worker: does tickets, one after the other.

    Args:
        cache: Where cached files come from.
        info: Who it is.
    """

    def __init__(self, cache: CacheOptions, info: WorkerInfo) -> None:
        self._cache = cache
        self._num_workers = info.num_workers
        self._shelf = Shelf(SubEpochFiles(cache), beats=info.runs_in != "caller")
        self._plan_number: int | None = None
        self._plan: SubEpochPlan | None = None
        self._failure: bytes | None = None  # of this plan: it is not tried again for each ticket

    def __call__(self, ticket: Ticket) -> ReadPart | Answer:
        """Do one ticket."""
        if isinstance(ticket, ReadRange):
            return self._read(ticket)
        try:
            if isinstance(ticket, CountSeqs):
                return Answer(self._count(ticket))
            return Answer(getattr(self._open(ticket.plan).dataset, ticket.method)())
        except Exception as error:  # noqa: BLE001 - raised in the trainer, whatever the policy on errors is
            return Answer(failure=Failure.of(error).to_bytes())

    def close(self) -> None:
        """Close all datasets, release all files."""
        self._shelf.close()

    def _open(self, reference: SharedPlan) -> OpenSubEpoch:
        if self._plan_number != reference.number:
            self._plan_number, self._plan, self._failure = reference.number, None, None
        if self._plan is None:
            plan: SubEpochPlan = reference.load()
            self._shelf.arrange(plan.specs, plan.layout)
            self._plan = plan
        opened = self._shelf.take(self._plan.specs[0], lambda: reference.is_current)
        if self._num_workers > 1 and not opened.dataset.supports_jumps:
            raise cannot_share(opened.dataset, self._num_workers, opened.spec.where)
        return opened

    def _read(self, ticket: ReadRange) -> ReadPart:
        if self._failure is not None and self._plan_number == ticket.plan.number:
            return ReadPart(failure=self._failure)
        try:
            opened = self._open(ticket.plan)
        except Exception as error:  # noqa: BLE001 - raised in the trainer, whatever the policy on errors is
            self._failure = Failure.of(error).to_bytes()
            return ReadPart(failure=self._failure)
        seqs, is_last = opened.read(ticket.start, ticket.stop)
        assert self._plan is not None
        layout = self._shelf.layout() if self._plan.layout is None else None
        return ReadPart(seqs, opened.num_seqs, is_last, layout)

    def _count(self, ticket: CountSeqs) -> Counted:
        spec = ticket.spec
        note_place(f"(counting {spec.files})")
        with SubEpochFiles(self._cache) as files:
            config, _ = files.fetch(read_in_place(spec.dataset), lambda: note_place(f"(fetching {spec.files})"))
            dataset = open_part(config)
            try:
                dataset.init_seq_order(epoch=spec.full_epoch)
                num_seqs = num_seqs_of(dataset)
                if num_seqs is None:
                    raise ConfigError(
                        f"{type(dataset).__name__} does not know its number of sequences, so they cannot be counted",
                        where=spec.files,
                    )
                return Counted(num_seqs, *(_num_stored(dataset) if _reads(spec.dataset, ticket.names) else (-1, -1)))
            finally:
                dataset.finish_epoch(free_resources=True)


def cannot_share(dataset: Dataset, num_workers: int, where: str) -> ConfigError:
    """Return the error about a sub-dataset that several workers cannot share."""
    return ConfigError(
        f"{num_workers} workers cannot share a {type(dataset).__name__}, which gives its sequences one after the "
        "other: each of them would have to read all",
        where=where,
        fix="set num_workers=1; or, if it can give any sequence at once, set the class attribute supports_jumps = True",
    )


def _reads(config: SubDataset, names: list[str]) -> bool:
    """Whether a sub-dataset reads just these files: only then do they have what it counts."""
    given: Any = config.files if isinstance(config, HDFDataset) else None
    if isinstance(config, Mapping):
        given = replace_cached_files(config.get("files"), lambda file: file.filename)
    if isinstance(given, str | os.PathLike):
        given = [given]
    return isinstance(given, list | tuple) and sorted(map(_full_name, given)) == sorted(map(_full_name, names))


def _full_name(name: Any) -> str:
    text: str = os.fspath(name)
    return text if is_url(text) else os.path.abspath(text)


def _num_stored(dataset: Dataset) -> tuple[int, int]:
    """Return how many sequences, and frames of the first data key, the files hold, whatever options make of them."""
    if not isinstance(dataset, HDFDataset):
        return -1, -1
    index = dataset.source.index
    key = next(iter(dataset.source.specs), None)
    return len(index), 0 if key is None else int(index.lengths(key).sum(dtype=np.int64))
