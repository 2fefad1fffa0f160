"""The workers of a `DistributeFilesDataset` read ranges of positions of a sub-epoch.

A ticket is a call of a method of `SubEpochReader`, and carries its sub-epoch, so any worker may do it, and do it again:
what it needs it opens itself. Invariant: the stream is the order of the sub-dataset, however it is cut into tickets.

An answer of bytes is an encoded `Failure`, raised in the trainer. It is no error of the ticket, because a policy that
skips failed items must not skip sequences that were not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.engine import Failure, WorkerInfo, note_item
from headrace.errors import ConfigError
from headrace.files.cache.entry import replace_cached_files
from headrace.files.locations import is_url

from ..corpus import StoredCounts
from ..wrap.runs import RunResult, result_of
from .shared import Shared
from .shelf import CacheOptions, OpenSubEpoch, Shelf, SubEpochFiles, opened_in_place
from .sub_dataset import SubDataset, SubEpochLayout, SubEpochPlan, SubEpochSpec, cannot_share

_T = TypeVar("_T")

ReadRange = tuple[RunResult, int | None, int | None, SubEpochLayout | None]
"""What was read; where the sub-epoch ends, as far as that is known; how many sequences it has, if its dataset knows;
and what they are like, if the plan did not say it."""
EntryCounts = tuple[int, int, int]
"""Of one entry of the file list: the sequences that a sub-dataset of it alone delivers, those in its files, and the
frames of the first data key in its files. The latter two are -1 where they are unknown."""


class SubEpochWork:
    """The setup of the workers; in this process (threads, inline) it also closes what they opened.

    Args:
        cache: Where cached files come from.
        skips: Whether sequences that fail are left out.
    """

    def __init__(self, cache: CacheOptions, skips: bool) -> None:
        self._options = cache, skips
        self._readers: dict[int, SubEpochReader] = {}

    def __call__(self, info: WorkerInfo) -> Callable[[Ticket], Any]:
        """Get a worker ready; opens nothing yet. What an earlier life of it has open here is closed."""
        earlier = self._readers.pop(info.worker_idx, None)
        if earlier is not None:
            earlier.close()
        reader = self._readers[info.worker_idx] = SubEpochReader(*self._options, info)
        return lambda ticket: ticket(reader)

    def __reduce__(self) -> tuple[Any, ...]:
        return SubEpochWork, self._options

    def close(self) -> None:
        """Close what workers in this process opened; they must not be at work. Processes close theirs by ending."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()


class SubEpochReader:
    """One worker: does tickets, one after the other.

    Args:
        cache: Where cached files come from.
        skips: Whether sequences that fail are left out.
        info: Who it is.
    """

    def __init__(self, cache: CacheOptions, skips: bool, info: WorkerInfo) -> None:
        self._cache, self._skips, self._info = cache, skips, info
        self._shelf = Shelf(SubEpochFiles(cache), beats=info.runs_in != "caller")
        self._plan_number: int | None = None
        self._plan: SubEpochPlan | None = None
        self._failure: bytes | None = None  # of this plan: it is not tried again for each ticket

    def close(self) -> None:
        """Close all datasets, release all files."""
        self._shelf.close()

    def _open(self, shared: Shared) -> OpenSubEpoch:
        """Open the sub-epoch that comes first in a plan."""
        if self._plan_number != shared.number:
            self._plan_number, self._plan, self._failure = shared.number, None, None
        if self._plan is None:
            plan: SubEpochPlan = shared.load()
            self._shelf.arrange(plan.specs, plan.layout)
            self._plan = plan
        opened = self._shelf.take(self._plan.specs[0], lambda: shared.is_current)
        if self._info.num_workers > 1 and not opened.dataset.supports_jumps:
            raise cannot_share(opened.dataset, self._info.num_workers, opened.spec.where)
        return opened

    def read(self, shared: Shared, start: int, stop: int) -> ReadRange | bytes:
        """Read sequences `start <= position < stop` of the sub-epoch that comes first in a plan."""
        if self._failure is not None and self._plan_number == shared.number:
            return self._failure
        opened = _attempt(lambda: self._open(shared))
        if isinstance(opened, bytes):
            self._failure = opened
            return opened
        assert self._plan is not None
        begun = time.perf_counter()
        (tags, _, fracs, columns), failed = opened.reader.read(start, stop, skips=self._skips)
        parts = tags, None, fracs, columns  # without corpus indices: they are those of these files alone
        layout = self._shelf.layout if self._plan.layout is None else None
        return result_of(parts, failed, begun, self._info), opened.reader.end, opened.reader.num_seqs, layout

    def ask(self, shared: Shared, method: str) -> Any:
        """Return what a method of the dataset of the sub-epoch that comes first in a plan returns."""
        return _attempt(lambda: getattr(self._open(shared).dataset, method)())

    def count(self, spec: SubEpochSpec, names: list[str]) -> EntryCounts | bytes:
        """Count the sequences of a sub-dataset of one entry of the file list.

        Args:
            spec: The sub-dataset.
            names: The files of the entry.
        """
        return _attempt(lambda: self._count(spec, names))

    def _count(self, spec: SubEpochSpec, names: list[str]) -> EntryCounts:
        note_item(f"(counting {spec.files})")
        with opened_in_place(spec.dataset, self._cache, lambda: note_item(f"(fetching {spec.files})")) as dataset:
            num_seqs = OpenSubEpoch(spec, dataset, ()).reader.num_seqs
            if num_seqs is None:
                raise ConfigError(
                    f"{type(dataset).__name__} does not know its number of sequences, so they cannot be counted",
                    where=spec.files,
                )
            stored = dataset.get_corpus().stored_counts()
            if stored is None or not _are_read(_files_of(spec.dataset, stored), names):
                return num_seqs, -1, -1
            return num_seqs, stored.num_seqs, stored.num_frames


Ticket = Callable[[SubEpochReader], Any]


def _attempt(function: Callable[[], _T]) -> _T | bytes:
    """Return what a function returns, or an encoded `Failure`, raised in the trainer whatever the policy on errors."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - raised in the trainer
        return Failure.of(error, num_own_frames=2).to_bytes()


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
