"""What the workers of a loader do: read the sequences of a batch, transform them, and lay them out in shared memory.

A task names everything that its batch depends on, so any worker can do it, and do it again. Invariant: nothing here
depends on which worker it is, or on what it did before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.batching import (
    Batching,
    Column,
    CopyingItemStack,
    ItemStack,
    LayoutOptions,
    ReuseCheck,
    TextColumn,
    gather_columns,
    pack_columns,
    pad_columns,
)
from headrace.batching.data_key import data_key_of_item, texts_of
from headrace.datasets.reading.chunks import Cutter, chunks_by_seq
from headrace.engine import NumberedTags, WorkerInfo, empty, note_item, skip_item
from headrace.errors import CacheError, TransformError, takes_note
from headrace.rng import derive_rng, wants_rng
from headrace.rng.process import kept_globals, seed_globals

from .batch import ITEM_TAG, Made, pack_made
from .reading import ITEM_NAME, BatchReader, BatchRequest, FailedSeq, Reading

Transform = Callable[..., Any]
Collate = Callable[[list[Any]], Any]


CarriedTask = tuple[Any, ...]  # a `Task` on its way to a worker
_NUM_CARRIED = 3  # values of a plain task: epoch, number, indices
_INDEX_BYTES = 8


class Task(msgspec.Struct, frozen=True):
    """A batch that a worker is to make.

    Attributes:
        epoch: The epoch.
        number: Number of the batch in the epoch.
        indices: Corpus index of each member, `int64[n]`.
        occurrences: How often each came before, `int64[n]`; None if never.
        rows: Row of each, `int32[n]`, where several share one.
        chunk_starts: First frame of each, `int64[n]`; None if all are whole.
        chunk_frames: Frames of each, `int64[n]`.
        seq_frames: Frames of each sequence, or of the one that each is cut from, as planned, `int64[n]`; None where
            it has these anyway.
        seqs: Tag and data of each, where the trainer reads a stream itself; the indices are then positions in it.
    """

    epoch: int
    number: int
    indices: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None = None
    rows: NDArray[np.int32] | None = None
    chunk_starts: NDArray[np.int64] | None = None
    chunk_frames: NDArray[np.int64] | None = None
    seq_frames: NDArray[np.int64] | None = None
    seqs: list[tuple[str, Any]] | None = None

    def carried(self) -> CarriedTask:
        """Return it as plain values, whose pickle takes a third of the time that one of arrays takes."""
        is_whole = self.chunk_starts is None and self.chunk_frames is None and self.seq_frames is None
        if is_whole and self.occurrences is None and self.rows is None and self.seqs is None:
            return self.epoch, self.number, self.indices.tobytes()
        arrays = self.occurrences, self.rows, self.chunk_starts, self.chunk_frames, self.seq_frames
        rest = [None if array is None else (array.dtype.char, array.tobytes()) for array in arrays]
        return self.epoch, self.number, self.indices.tobytes(), self.seqs, rest

    @classmethod
    def of(cls, carried: CarriedTask) -> Task:
        """Return the task that is carried by these values; its arrays are read-only."""
        epoch, number, indices = carried[0], carried[1], np.frombuffer(carried[2], np.int64)
        if len(carried) == _NUM_CARRIED:
            return cls(epoch, number, indices)
        arrays: list[Any] = [None if one is None else np.frombuffer(one[1], one[0]) for one in carried[4]]
        occurrences, rows, chunk_starts, chunk_frames, seq_frames = arrays
        return cls(epoch, number, indices, occurrences, rows, chunk_starts, chunk_frames, seq_frames, carried[3])


@dataclass(frozen=True)
class WorkOptions:
    """The options of making a batch.

    Attributes:
        seed: Seed of the loader.
        transform: The user's, or None.
        collate: The user's, or None.
        pad_values: Pad values by data key.
        pad_multiple: Frames of padded arrays are rounded up to a multiple.
        data_key: The key that is cut by; None: the one that `batching` counts the frames of, by the layout of an item.
        batching: How batches are planned.
        seeds_globals: Whether to seed the global generators for each batch in which user code takes part.
    """

    seed: int
    transform: Transform | None
    collate: Collate | None
    pad_values: Mapping[str, Any]
    pad_multiple: int
    data_key: str | None
    batching: Batching
    seeds_globals: bool


@dataclass(frozen=True)
class BatchWork:
    """Opens the data in a worker; returns the function carried task -> batch.

    Attributes:
        reading: How sequences are read.
        options: What is done to them.
    """

    reading: Reading
    options: WorkOptions

    def __call__(self, info: WorkerInfo) -> Callable[[CarriedTask], Any]:
        """Get ready in a worker."""
        in_process = info.runs_in == "process"
        keeps_globals = self.options.seeds_globals and not in_process
        with kept_globals() if keeps_globals else nullcontext():  # a dataset may read a sequence to learn its layout
            reader = self.reading.open(info)
        maker = _BatchMaker(reader, self.reading, self.options, in_process=in_process)
        if not maker.seeds_globals:
            return maker.make
        return maker.make_seeded if in_process else maker.make_kept


@dataclass(slots=True)
class _Members:
    """The sequences of a batch that were read, and the errors of the others with their numbers and tags.

    Tags of items that have none of their own are made when they are asked for.
    """

    stack: ItemStack
    tags: Sequence[str] = field(default_factory=list)
    failures: list[tuple[int, str, Exception]] = field(default_factory=list)


class _BatchMaker:
    def __init__(
        self,
        reader: BatchReader,
        reading: Reading,
        options: WorkOptions,
        *,
        in_process: bool,
    ) -> None:
        self._reader = reader
        self._options = options
        self._is_by_key = reading.is_by_key
        is_plain = options.transform is None and options.collate is None
        self._reads_at_once = is_plain and reader.has_columns
        self._stacks_items = not reading.is_by_key and options.collate is None
        self._read = reader.read
        self._reads_items = options.transform is None and reader.reads_items
        self._reuse = None if reader.is_all_ours and options.transform is None else ReuseCheck()
        # What is made in a worker process is copied out of it at once, so a user's item itself can be the batch.
        self._gives_alone = is_plain and in_process and reader.reads_alone
        self.seeds_globals = options.seeds_globals and not (is_plain and reader.is_all_ours)
        self._wants_rng = options.transform is not None and wants_rng(options.transform)
        self._cutter = Cutter(
            options.data_key,
            partial(data_key_of_item, options.batching, texts=texts_of(reading.specs)),
            options.batching.whole_keys,
            are_own=options.transform is not None,
        )
        self._layout = LayoutOptions(reading.specs, options.pad_values, options.pad_multiple)

    def make_kept(self, carried: CarriedTask) -> Any:
        """Do as `make_seeded`, and leave the global generators as they were."""
        with kept_globals():
            return self.make_seeded(carried)

    def make_seeded(self, carried: CarriedTask) -> Any:
        """Seed the global generators, from which user code may draw, and make the batch of a task."""
        seed_globals(self._options.seed, "global generators", epoch=carried[0], number=carried[1])
        return self.make(carried)

    def make(self, carried: CarriedTask) -> Any:
        """Make the batch of a task: the result of `pack_made`, or of a collate function."""
        if self._gives_alone and len(carried) == _NUM_CARRIED and len(carried[2]) == _INDEX_BYTES:
            corpus_idx = int.from_bytes(carried[2], sys.byteorder)
            item = self._reader.read_alone(carried[0], corpus_idx)
            if not _is_plain(item):
                return self._make_of(Task.of(carried), ((ITEM_TAG.format(corpus_idx), item),))
            return item[np.newaxis]
        task = Task.of(carried)
        if self._reads_at_once and task.chunk_starts is None:
            made = self._make_at_once(task)
            if made is not None:
                return made
        if task.chunk_starts is not None:
            return self._make_of(task, self._read_chunks(task))
        if self._reads_items and task.seq_frames is None:
            return self._make_of(task, None)
        return self._make_of(task, self._read(BatchRequest(task.epoch, task.indices, task.occurrences, task.seqs)))

    def _make_of(self, task: Task, found: Iterable[tuple[str, Any]] | None) -> Any:
        """Make the batch of a task.

        Args:
            task: The sequences of the batch, in order.
            found: The tag of each member, and what was read, or a `FailedSeq`; None: items, which are read here.
        """
        reuse, allocate = self._reuse, _allocate if self._stacks_items else None
        num_items = len(task.indices)
        stack = ItemStack(num_items, allocate) if reuse is None else CopyingItemStack(num_items, allocate, reuse)
        members = _Members(stack)
        if found is None:
            self._take_items(task, members)
        else:
            self._take(task, found, members)
        if reuse is not None:
            reuse.look()
            self._reuse = reuse if reuse.copies else None
        for _, tag, error in members.failures:
            note_item(tag, task.epoch)
            if len(members.failures) == len(task.indices):
                raise error
            skip_item(error)
        if self._stacks_items and not isinstance(stack.items[0], Mapping):
            return self._collate(task, members, lambda _: stack.stacked())
        note_item(f"(laying out batch {task.number})", task.epoch)
        if self._options.collate is not None:
            return self._collate(task, members, self._options.collate)
        kept = None
        if members.failures:
            kept = np.delete(np.arange(len(task.indices)), [number for number, _, _ in members.failures])
        return self._lay_out(task, members.tags, gather_columns(stack.items, self._layout, members.tags), kept)

    def _make_at_once(self, task: Task) -> Made | None:
        """Read the sequences straight into the batch; None if that fails, and they have to be read one by one."""
        try:
            tags, columns = self._reader.columns(BatchRequest(task.epoch, task.indices, task.occurrences, task.seqs))
            if not columns.keys() >= self._layout.pad_values.keys():
                return None
            return self._lay_out(task, tags, columns, None)
        except CacheError:  # no room for them: they would not take less one by one
            raise
        except Exception:  # noqa: BLE001 - they are read one by one next, to find out which of them fails
            return None

    def _take(self, task: Task, found: Iterable[tuple[str, Any]], members: _Members) -> None:
        """Collect the sequences of a task as they are read, transformed.

        Args:
            task: The sequences of the batch, in order.
            found: The tag of each, and what was read, or a `FailedSeq`.
            members: Gets them.
        """
        is_changed = self._options.transform is not None or task.seq_frames is not None
        tags, failures, stack = list[str](), members.failures, members.stack
        members.tags = tags
        for number, (tag, seq) in enumerate(found):
            if is_changed and type(seq) is not FailedSeq:
                try:
                    seq = self._changed(task, number, tag, seq)
                except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                    failures.append((number, tag, error))
                    continue
            if type(seq) is FailedSeq:
                failures.append((number, tag, seq.error))
            else:
                tags.append(tag)
                stack.add(seq)

    def _take_items(self, task: Task, members: _Members) -> None:
        """Collect the items of a task as `_take` does, without transform and without tags."""
        numbers = task.indices
        failures = self._reader.take_items(BatchRequest(task.epoch, numbers, task.occurrences), members.stack)
        if failures:
            members.failures += [(number, ITEM_NAME.format(numbers[number]), error) for number, error in failures]
            numbers = np.delete(numbers, [number for number, _ in failures])
        members.tags = NumberedTags(ITEM_TAG, numbers.tolist())

    def _changed(self, task: Task, number: int, tag: str, seq: Any) -> Any:
        """Return a sequence as it goes into the batch: checked and transformed."""
        if task.seq_frames is not None and task.chunk_starts is None:
            self._check_length(int(task.seq_frames[number]), tag, seq)
        return seq if self._options.transform is None else self._transform(task, number, tag, seq)

    def _read_chunks(self, task: Task) -> Iterator[tuple[str, Any]]:
        """Yield the tag of each member of a task and its chunk, or a `FailedSeq`; each sequence is read once."""
        wanted, seq_of = _each_once(task)
        assert task.chunk_starts is not None
        assert task.chunk_frames is not None
        assert task.seq_frames is not None
        chunks, members = chunks_by_seq(seq_of, task.chunk_starts, task.chunk_frames, task.seq_frames)
        seqs = list(self._reader.read_chunks(wanted, chunks, self._cutter))
        for seq, number in members:
            tag, found = seqs[seq]
            note_item(tag, task.epoch)  # in the order of the plan, not in that of reading
            yield tag, found if isinstance(found, FailedSeq) else found[number]

    def _check_length(self, planned: int, tag: str, seq: Any) -> None:
        """Refuse a sequence that is longer than its batch was planned for.

        Raises:
            TransformError: It is longer.
        """
        key = self._options.data_key
        if key in seq and len(seq[key]) > planned:
            raise TransformError(
                f"{key!r} has {len(seq[key])} frames, and {planned} in the index, by which the batches were planned",
                where=f"sequence {tag!r}",
                fix="make sequences longer in the transform of the loader, whose budgets count them before it; or use "
                "FixedCount(n), which counts no frames",
            )

    def _transform(self, task: Task, number: int, tag: str, seq: Any) -> Any:
        transform = self._options.transform
        assert transform is not None
        if self._wants_rng:
            purpose = "loader transform"
            if task.chunk_starts is not None:
                purpose += f" from {task.chunk_starts[number]}"
            rng = derive_rng(
                self._options.seed,
                purpose,
                epoch=task.epoch,
                corpus_idx=int(task.indices[number]),
                occurrence=0 if task.occurrences is None else int(task.occurrences[number]),
            )
            result = transform(seq, rng=rng)
        else:
            result = transform(seq)
        what = None
        if self._is_by_key and type(result) is not dict and not isinstance(result, Mapping):
            what = f"a transform returns a mapping data key -> array, got {type(result).__name__}"
        elif self._options.collate is None:
            what = _what_is_no_array(result)
        if what is not None:
            name = getattr(transform, "__qualname__", type(transform).__qualname__)
            raise TransformError(
                what,
                where=f"transform {name}, sequence {tag!r}, epoch {task.epoch}",
                fix="return all features as arrays (with a collate of your own, anything that it accepts)",
            )
        return result

    def _collate(self, task: Task, members: _Members, collate: Collate) -> Any:
        try:
            result = collate(members.stack.items)
        except Exception as error:
            note_item(f"(laying out batch {task.number})", task.epoch)
            takes_note(error, f"headrace: in collate, over batch {task.number} of epoch {task.epoch}: {members.tags!r}")
            raise
        key = _find_ragged(result)
        if key is not None:
            raise TransformError(
                f"collate returned an array of Python objects{key}: sequences of different lengths, most likely",
                where=f"batch {task.number} of epoch {task.epoch}",
                fix="pad them to one length, or return a list of arrays",
            )
        return result

    def _lay_out(
        self,
        task: Task,
        tags: Sequence[str],
        columns: Mapping[str, Column | TextColumn],
        kept: NDArray[np.int64] | None,
    ) -> Made:
        told = None if type(tags) is NumberedTags else list(tags)
        if task.rows is None:
            padded = pad_columns(columns, self._layout, _allocate)
            return pack_made(told, kept, padded.arrays, padded.lengths)
        rows = task.rows if kept is None else _without_gaps(task.rows[kept])
        packed = pack_columns(
            columns, self._options.batching.row_layout(rows), self._layout, allocate=_allocate, tags=tags
        )
        packing = (packed.segment_ids, packed.positions, packed.rows, packed.starts)
        return pack_made(told, kept, packed.arrays, packed.lengths, packing)


def _is_plain(item: Any) -> bool:
    """Tell whether an item is a contiguous array of numbers, which can be a row of a batch without conversion."""
    return type(item) is np.ndarray and item.flags.c_contiguous and item.dtype.isnative and item.dtype.kind in "biufc"


def _allocate(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    del name
    return empty(shape, dtype)


def _each_once(task: Task) -> tuple[BatchRequest, NDArray[np.intp]]:
    """Return the distinct sequences of the chunks of a task, and for each chunk the number of its sequence."""
    occurrences = np.zeros(len(task.indices), np.int64) if task.occurrences is None else task.occurrences
    pairs = np.stack([task.indices, occurrences], axis=1)
    unique, firsts, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    seqs = None if task.seqs is None else [task.seqs[first] for first in firsts.tolist()]
    counted = None if task.occurrences is None else unique[:, 1]
    return BatchRequest(task.epoch, np.ascontiguousarray(unique[:, 0]), counted, seqs), inverse.reshape(-1)


def _what_is_no_array(result: Any) -> str | None:
    """Describe what is wrong with the result of a transform: None, or a value that is no array; None if nothing."""
    if result is None:
        return "the transform returned None"
    for key, value in result.items() if type(result) is dict or isinstance(result, Mapping) else ():
        if type(value) is np.ndarray and not value.dtype.hasobject:
            continue
        try:
            is_array = not np.asarray(value).dtype.hasobject
        except (TypeError, ValueError, RuntimeError):  # lists of unequal lengths, tensors that need a gradient
            is_array = False
        if not is_array:
            return f"the transform returned no array for the data key {key!r}, but {type(value).__name__}"
    return None


def _without_gaps(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.unique(rows, return_inverse=True)[1].reshape(-1).astype(np.int32)


_PLAIN = frozenset((str, bytes, bool, int, float, complex, type(None)))


def _find_ragged(value: Any, path: str = "") -> str | None:
    """Return where an array of objects is in the result of a collate, None if nowhere; looks two levels deep."""
    if isinstance(value, np.ndarray):
        return path if value.dtype.hasobject else None
    if path.count("[") > 1:
        return None
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, tuple | list) and not _PLAIN.issuperset(map(type, value)):
        items = list(enumerate(value))
    found = (_find_ragged(item, f"{path} [{key!r}]") for key, item in items)
    return next((where for where in found if where is not None), None)
