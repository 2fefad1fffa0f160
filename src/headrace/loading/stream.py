"""Streams: datasets that do not say beforehand which sequences an epoch has, or how long they are.

The trainer reads the stream itself (a dataset such as `DistributeFilesDataset` has workers of its own), a window of
some hundred sequences at a time, and plans the batches of the window as those of any other. So the number of batches is
known at the end only, a rank of several that share one stream reads all of it, and a resume begins with the window of
the position: at once, where the dataset can jump there, else by passing over what comes before.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import PlanCounts, WindowKey, WindowPlan
from headrace.datasets import Dataset, DistributeFilesDataset, MultiProcDataset
from headrace.datasets.sub_epoch import can_jump
from headrace.engine import WorkerInfo, get_worker_info
from headrace.errors import ConfigError, HeadraceError
from headrace.files import FileTree, map_leaves, tree_key, tree_leaves
from headrace.ranks import Ranks

from .known import recipe_text, specs_of
from .plan import PlanRecipe
from .reading import Reader, Reading, Wish
from .state import digest_text
from .subject import EpochOrder, Subject, Wanted
from .work import Task

STREAM_WINDOW_SEQS = 512  # they are in the trainer's memory, so not as many as are planned from an index


class StreamSubject(Subject):
    """A stream, as the trainer reads it."""

    is_stream = True
    is_own = False

    @abstractmethod
    def read_from(self, epoch: int, place: int) -> Iterator[tuple[str, Any]]:
        """Yield the tag and the data of each sequence of an epoch from a place on."""

    def knows_lengths(self, data_key: str | None) -> bool:
        """Sequences are read before they are planned."""
        del data_key
        return True

    def start(self, epoch: int, wanted: Wanted) -> EpochOrder:
        """Not for streams."""
        raise ConfigError("the order of a stream is not known", where=f"{self.name}, epoch {epoch}, {wanted}")


class DatasetStream(StreamSubject):
    """A dataset whose order is not known.

    Args:
        dataset: It is read by the loader alone for as long as an epoch is iterated over.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.name = type(dataset).__name__
        self.data_key = next(iter(dataset.get_data_keys()), None)
        self.reading = StreamReading(specs_of(dataset), is_by_key=True)
        if isinstance(dataset, DistributeFilesDataset):
            self.sharded_by = "distrib_shard_files=True"
        else:
            self.sharded_by = "_num_shards"
        self.num_shards = dataset.num_shards
        self.sharded_by = f"{self.sharded_by} of {self.name}, {self.num_shards} shards"

    def read_from(self, epoch: int, place: int) -> Iterator[tuple[str, Any]]:
        """Read one sequence after the other."""
        dataset = self.dataset
        dataset.init_seq_order(epoch=epoch)
        version = dataset.order_version
        seq_idx = place if can_jump(dataset) else 0
        while dataset.is_less_than_num_seqs(seq_idx):
            if dataset.order_version != version:
                raise HeadraceError(
                    "somebody else has started an epoch of the dataset that a loader is reading",
                    where=f"{self.name}, epoch {epoch}, sequence {seq_idx}",
                    fix="give the loader a dataset of its own",
                )
            dataset.load_seqs(seq_idx, seq_idx + 1)
            if seq_idx >= place:
                seq = dataset.get_seq(seq_idx)
                yield seq.seq_tag, {key: np.array(value) for key, value in seq.features.items()}  # no lease is held
            seq_idx += 1

    def close(self) -> None:
        """Close a dataset that was made for the loader."""
        if self.is_own:
            self.dataset.close()

    def data_digest(self) -> str:
        """Return a digest of the file list, or of the tags where they are known; else of the class only."""
        dataset = self.dataset
        if isinstance(dataset, DistributeFilesDataset):
            return digest_text(f"files {_names_of(dataset.files, dataset)}")
        try:
            return digest_text("\0".join(dataset.get_all_tags()))
        except NotImplementedError:
            return digest_text(self.name)

    def order_text(self, epoch: int) -> str:
        """Return the recipe of the order, with all else that it depends on: the files, or who takes turns."""
        dataset, text = self.dataset, recipe_text(self.dataset._recipe, epoch)
        if isinstance(dataset, DistributeFilesDataset):
            text += f"; files {_names_of(dataset.get_files(epoch), dataset)}"
        if isinstance(dataset, MultiProcDataset):
            text += f"; {dataset.num_workers} workers, buffer_size {dataset.buffer_size}"
        return text


def _names_of(trees: Sequence[FileTree], dataset: DistributeFilesDataset) -> str:
    """Return the names of files without the folder that all files of a dataset are in: it may be another one later."""
    names = [name for tree in dataset.files for name in tree_leaves(tree)]
    root = os.path.commonprefix([os.path.dirname(name) for name in names])  # noqa: RUF071 (any common beginning will do)
    return " ".join(tree_key(map_leaves(tree, lambda name: name[len(root) :])) for tree in trees)


class IterableStream(StreamSubject):
    """Any iterable: each epoch is one pass over it, after its `set_epoch`, if it has one.

    Args:
        iterable: It must give the same items for the same epoch to be resumed.
    """

    def __init__(self, iterable: Any) -> None:
        self.name = type(iterable).__name__
        self._iterable = iterable
        self.reading = StreamReading({}, is_by_key=False)

    def read_from(self, epoch: int, place: int) -> Iterator[tuple[str, Any]]:
        """Iterate, and pass over what comes before the place."""
        set_epoch = getattr(self._iterable, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        for seq_idx, item in enumerate(self._iterable):
            if seq_idx >= place:
                yield f"seq-{seq_idx}", item

    def data_digest(self) -> str:
        """Return a digest of the name: nothing else is known."""
        return digest_text(self.name)

    def order_text(self, epoch: int) -> str:
        """Return that it is its own."""
        del epoch
        return "its own"


@dataclass(frozen=True)
class StreamReading(Reading):
    """Takes the sequences that the task carries; in the trainer only.

    Args:
        specs: What is known of the layout.
        is_by_key: Whether sequences are arrays by data key.
    """

    specs: Any
    is_by_key: bool

    def open(self, info: WorkerInfo) -> Reader:
        """Get ready: there is nothing to be done."""
        assert info.executor == "inline", get_worker_info()
        return _TakenSeqs()


class _TakenSeqs(Reader):
    def read(self, wish: Wish) -> Iterator[tuple[str, Any]]:
        assert wish.seqs is not None
        yield from wish.seqs


@dataclass(frozen=True, slots=True)
class _Window:
    number: int
    first_place: int
    first_batch: int
    seqs: list[tuple[str, Any]]
    lengths: NDArray[np.int64]
    plan: WindowPlan


class StreamPlan:
    """The batches of a stream, window by window, forwards only: what `EpochPlan` is for known orders.

    Args:
        subject: The stream.
        recipe: How its sequences form batches.
        epoch: The epoch.
        start: The window to begin with, and the number of its first batch.
        data_key: Whose lengths count; None if sequences are no arrays by data key.
    """

    def __init__(
        self, subject: StreamSubject, recipe: PlanRecipe, epoch: int, start: tuple[int, int], data_key: str | None
    ) -> None:
        self.epoch = epoch
        self.counts = PlanCounts()
        self.num_planned = 0
        self._recipe = recipe
        self._data_key = data_key
        self._next_window, self.end = start
        self._is_over = False
        self._seqs = subject.read_from(epoch, start[0] * recipe.window_seqs)
        self._windows: list[_Window] = []  # those that the next batches come from

    @property
    def num_windows(self) -> str:
        """How many windows there are, for messages."""
        return str(self._next_window) if self._is_over else "?"

    def has(self, number: int) -> bool:
        """Tell whether there is such a batch; reads on as far as it."""
        while number >= self.end and not self._is_over:
            self._read_window()
        return number < self.end

    def locate(self, number: int) -> tuple[int, int]:
        """Return the window of a batch and the number of its first batch; for one behind the end, the end."""
        if not self.has(number):
            return self._next_window, self.end
        window = self._window_of(number)
        return window.number, window.first_batch

    def task(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        """Return a batch that there is, with its sequences, and their places; earlier windows are given up."""
        window = self._window_of(number)
        self._windows = self._windows[self._windows.index(window) :]
        batch = window.plan[number - window.first_batch]
        places = window.first_place + batch.members.astype(np.int64)
        is_cut = batch.chunk_starts is not None
        task = Task(
            self.epoch,
            number,
            places,
            rows=batch.rows,
            chunk_starts=batch.chunk_starts,
            chunk_frames=batch.chunk_frames,
            seq_frames=window.lengths[batch.members] if is_cut else None,
            seqs=[window.seqs[member] for member in batch.members.tolist()],
        )
        return task, places

    def num_batches(self) -> int:
        """Not known before the end."""
        raise NoLengthError("the number of batches of a stream is not known", fix="give steps_per_epoch=")

    def _window_of(self, number: int) -> _Window:
        return next(window for window in reversed(self._windows) if window.first_batch <= number)

    def _read_window(self) -> None:
        recipe, number = self._recipe, self._next_window
        seqs: list[tuple[str, Any]] = []
        for seq in self._seqs:
            seqs.append(seq)
            if len(seqs) == recipe.window_seqs:
                break
        self._is_over = len(seqs) < recipe.window_seqs
        if not seqs:
            return
        lengths = np.array([self._length_of(*seq) for seq in seqs], np.int64)
        plan = recipe.batching.plan_window(lengths, WindowKey(recipe.seed, self.epoch, number), recipe.batch_order)
        self._windows.append(_Window(number, number * recipe.window_seqs, self.end, seqs, lengths, plan))
        self.counts += plan.counts
        self.num_planned += 1
        self.end += len(plan)
        self._next_window += 1

    def _length_of(self, tag: str, seq: Any) -> int:
        key = self._data_key
        if key is None and isinstance(seq, Mapping):
            key = next(iter(seq), None)
        if key is None or not isinstance(seq, Mapping):
            if self._recipe.batching.needs_lengths:
                raise ConfigError(
                    f"{self._recipe.batching} needs lengths, and the items are not by data key",
                    where=f"{tag}, epoch {self.epoch}",
                    fix="let items be dicts, such as {'data': array}, or use FixedCount(n)",
                )
            return 1
        value = np.asarray(seq[key])
        return len(value) if value.ndim else 1


class NoLengthError(ConfigError, TypeError):
    """The length is not known; a `TypeError`, so that `list(loader)` works."""


def check_stream(num_workers: int, remainder: str, steps_per_epoch: int | None, ranks: Ranks, name: str) -> None:
    """Refuse options that streams cannot keep.

    Raises:
        ConfigError: Workers, repeats at the end, or equal steps of ranks that are not promised by anything.
    """
    if num_workers:
        raise ConfigError(
            f"num_workers={num_workers}, but a stream is read by one process, in its order",
            where=name,
            fix="leave num_workers out, and give workers to the dataset: DistributeFilesDataset and MultiProcDataset "
            "have their own",
        )
    if remainder == "pad":
        raise ConfigError(
            'remainder="pad" repeats the first batches, and a stream cannot go back',
            where=name,
            fix='use remainder="drop"',
        )
    if remainder == "keep" and steps_per_epoch is not None and ranks.world_size > 1:
        raise ConfigError('remainder="keep" allows unequal steps, steps_per_epoch promises equal ones', where=name)
