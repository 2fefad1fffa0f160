"""The workers of a `DistributeFilesDataset` read ranges of positions of a sub-epoch.

A ticket names its sub-epoch by a reference, so any worker may do it, and do it again: what it needs it opens itself.
Invariant: the stream is the order of the sub-dataset, however it is cut into tickets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.engine import Failure, WorkerInfo, note_item
from headrace.errors import ConfigError
from headrace.files.cache.entry import replace_cached_files
from headrace.files.locations import is_url

from ..corpus import StoredCounts
from ..wrap.blockwise import FailedSeqs, Parts, encoded
from ..wrap.runs import ReadSeqs, bytes_of
from .shared import Carried, Reference, Shared
from .shelf import CacheOptions, OpenSubEpoch, Shelf, SubEpochFiles, opened_in_place
from .sub_dataset import SubDataset, SubEpochLayout, SubEpochPlan, SubEpochSpec, cannot_share

SharedPlan = Shared | Reference | Carried


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read sequences `start <= position < stop` of the sub-epoch that comes first in a plan. Answer: `ReadPart`."""

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
    """Count the sequences of a sub-dataset of one entry of the file list. `Answer`: `EntryCounts`.

    Attributes:
        spec: The sub-dataset.
        names: The files of the entry.
    """

    spec: SubEpochSpec
    names: list[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Attributes:
        value: The answer.
        failure: An encoded `Failure` instead, as in `ReadPart`.
    """

    value: Any = None
    failure: bytes | None = None


EntryCounts = tuple[int, int, int]
"""Of one entry of the file list: the sequences that a sub-dataset of it alone delivers, those in its files, and the
frames of the first data key in its files. The latter two are -1 where they are unknown."""


@dataclass(slots=True)
class ReadPart:
    """A part of a sub-epoch, as it comes back from a worker.

    Attributes:
        parts: The sequences, in order, as the parts of a `SeqBlock`.
        num_seqs: How many the sub-epoch has, if its dataset knows.
        is_last: Whether the sub-epoch ends with this part, or before it.
        layout: What the sequences are like, if the plan did not say it.
        failed: The sequences that failed, each with an encoded `Failure`.
        seconds: What it took to read them.
        seq_bytes: How many bytes a sequence has.
        failure: An encoded `Failure`: the sub-epoch cannot be opened, and there are no sequences. It is no error of the
            ticket, because a policy that skips failed items must not skip sequences that were not counted.
    """

    parts: Parts = field(default_factory=lambda: ReadSeqs().parts())
    num_seqs: int | None = None
    is_last: bool = False
    layout: SubEpochLayout | None = None
    failed: FailedSeqs = field(default_factory=list)
    seconds: float = 0.0
    seq_bytes: float = 0.0
    failure: bytes | None = None


Ticket = ReadRange | AskDataset | CountSeqs


class SubEpochWork:
    """The setup of the workers; in this process (threads, inline) it also closes what they opened.

    Args:
        cache: Where cached files come from.
        skips: Whether sequences that fail are left out.
    """

    def __init__(self, cache: CacheOptions, *, skips: bool) -> None:
        self._cache, self._skips = cache, skips
        self._readers: dict[int, SubEpochReader] = {}

    def __call__(self, info: WorkerInfo) -> Callable[[Ticket], Any]:
        """Get a worker ready; opens nothing yet. What an earlier life of it has open here is closed."""
        earlier = self._readers.pop(info.worker_idx, None)
        if earlier is not None:
            earlier.close()
        reader = self._readers[info.worker_idx] = SubEpochReader(self._cache, info, skips=self._skips)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SubEpochWork, skips=self._skips), (self._cache,)

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
        skips: Whether sequences that fail are left out.
    """

    def __init__(self, cache: CacheOptions, info: WorkerInfo, *, skips: bool) -> None:
        self._cache, self._skips = cache, skips
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
        begun = time.perf_counter()
        parts, failed, is_last = opened.read(ticket.start, ticket.stop, skips=self._skips)
        assert self._plan is not None
        layout = self._shelf.layout() if self._plan.layout is None else None
        tags, _, fracs, columns = parts  # without corpus indices: they are those of these files alone
        seq_bytes = bytes_of(parts) / max(len(tags), 1)
        seconds = time.perf_counter() - begun
        return ReadPart(
            (tags, None, fracs, columns), opened.num_seqs, is_last, layout, encoded(failed), seconds, seq_bytes
        )

    def _count(self, ticket: CountSeqs) -> EntryCounts:
        spec = ticket.spec
        note_item(f"(counting {spec.files})")
        with opened_in_place(spec.dataset, self._cache, lambda: note_item(f"(fetching {spec.files})")) as dataset:
            num_seqs = OpenSubEpoch(spec, dataset, ()).num_seqs
            if num_seqs is None:
                raise ConfigError(
                    f"{type(dataset).__name__} does not know its number of sequences, so they cannot be counted",
                    where=spec.files,
                )
            stored = dataset.stored_counts()
            if stored is None or not _are_read(_files_of(spec.dataset, stored), ticket.names):
                return num_seqs, -1, -1
            return num_seqs, stored.num_seqs, stored.num_frames


def _files_of(config: SubDataset, stored: StoredCounts) -> Any:
    """Return the files of a sub-dataset by the names that the user knows, not by those of local copies."""
    if isinstance(config, Mapping):
        return replace_cached_files(config.get("files"), lambda file: file.filename)
    return stored.files


def _are_read(given: Any, names: list[str]) -> bool:
    """Whether a sub-dataset reads just these files: only then do they have what it counts."""
    if isinstance(given, str | os.PathLike):
        given = [given]
    return isinstance(given, list | tuple) and sorted(map(_full_name, given)) == sorted(map(_full_name, names))


def _full_name(name: Any) -> str:
    text: str = os.fspath(name)
    return text if is_url(text) else os.path.abspath(text)
