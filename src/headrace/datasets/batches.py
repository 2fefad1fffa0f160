"""Batches on the level of a dataset: the documented `Batch` and its generator.

A `Batch` says which frames of which sequences go where; it holds no data. `plan_batches` is a generator of them, so
that batches of an epoch whose end is unknown can be made.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.batching import NumbersDict
from headrace.errors import ConfigError
from headrace.rng import derive_seed

if TYPE_CHECKING:
    from .base import Dataset


@dataclass(frozen=True, slots=True)
class BatchSeqCopyPart:
    """Some frames of a sequence, and their place in a batch.

    Attributes:
        seq_idx: Place of the sequence in the current order.
        seq_start_frame: First frame by data key; negative where context reaches before the sequence.
        seq_end_frame: Behind the last frame by data key; may exceed the sequence likewise.
        batch_slice: Row of the batch.
        batch_frame_offset: First frame in that row, by data key.
    """

    seq_idx: int
    seq_start_frame: NumbersDict
    seq_end_frame: NumbersDict
    batch_slice: int
    batch_frame_offset: NumbersDict

    @property
    def frame_length(self) -> NumbersDict:
        """Number of frames by data key."""
        return self.seq_end_frame - self.seq_start_frame


class Batch:
    """Rows ("slices") of frames.

    Attributes:
        seqs: The parts, in the order in which they were added.
        max_num_frames_per_slice: Length of the longest row, by data key.
        num_slices: Number of rows.
    """

    def __init__(self) -> None:
        self.seqs: list[BatchSeqCopyPart] = []
        self.max_num_frames_per_slice = NumbersDict(0)
        self.num_slices = 0

    def __repr__(self) -> str:
        return f"<Batch sequences {self.start_seq}..{self.end_seq}, {self.num_slices} rows>"

    @property
    def start_seq(self) -> int | None:
        """The smallest sequence index, `None` if the batch is empty."""
        return min((part.seq_idx for part in self.seqs), default=None)

    @property
    def end_seq(self) -> int | None:
        """Behind the largest sequence index, `None` if the batch is empty."""
        return max((part.seq_idx + 1 for part in self.seqs), default=None)

    def get_num_seqs(self) -> int:
        """Return the number of sequences from the first to the last."""
        return 0 if self.start_seq is None or self.end_seq is None else self.end_seq - self.start_seq

    def get_total_num_frames(self) -> NumbersDict:
        """Return the frames without padding, by data key."""
        return _sum(part.frame_length for part in self.seqs)

    def get_all_slices_num_frames(self) -> NumbersDict:
        """Return the frames with padding, by data key."""
        return self.max_num_frames_per_slice * self.num_slices

    def try_sequence_as_slice(self, length: NumbersDict) -> tuple[NumbersDict, int]:
        """Return (longest row, number of rows) as they would be with one more row of this length."""
        return NumbersDict.max([self.max_num_frames_per_slice, length]), self.num_slices + 1

    def add_sequence_as_slice(
        self,
        seq_idx: int,
        seq_start_frame: NumbersDict,
        length: NumbersDict,
        *,
        seq_end_frame: NumbersDict | None = None,
    ) -> None:
        """Add frames of a sequence as a new row."""
        self.max_num_frames_per_slice, self.num_slices = self.try_sequence_as_slice(length)
        end = seq_start_frame + length if seq_end_frame is None else seq_end_frame
        self.seqs.append(
            BatchSeqCopyPart(seq_idx, seq_start_frame, end, self.num_slices - 1, NumbersDict.constant_like(0, length))
        )

    def add_frames(self, seq_idx: int, seq_start_frame: NumbersDict, length: NumbersDict) -> None:
        """Append frames of a sequence to the one row."""
        offset = self.max_num_frames_per_slice if self.seqs else NumbersDict.constant_like(0, length)
        self.max_num_frames_per_slice = length if not self.seqs else self.max_num_frames_per_slice + length
        self.num_slices = 1
        self.seqs.append(BatchSeqCopyPart(seq_idx, seq_start_frame, seq_start_frame + length, 0, offset))

    def init_with_one_full_sequence(self, seq_idx: int, dataset: Dataset) -> None:
        """Make this the batch of one whole sequence, its context window included.

        Raises:
            ConfigError: The batch holds something already.
        """
        if self.seqs:
            raise ConfigError(f"the batch is not empty: {self!r}", fix="make a new Batch")
        start, end = dataset.get_start_end_frames_full_seq(seq_idx)
        self.add_sequence_as_slice(seq_idx, start, end - start)


class BatchSetGenerator:
    """The batches of one epoch, with a look ahead.

    Args:
        dataset: For the progress.
        generator: The batches.
        shuffle_batches: Shuffle them on `reset`. The shuffle is keyed by the epoch and the number of resets; Python's
            global generator is not touched. (RETURNN seeds it.)
    """

    def __init__(self, dataset: Dataset, generator: Iterator[Batch], shuffle_batches: bool = False) -> None:
        self._dataset = dataset
        self._generator = generator
        self._shuffle = shuffle_batches
        self._keeps_all = dataset.batch_set_generator_cache_whole_epoch()
        self._kept: list[Batch] = []
        self._ahead: list[Batch] = []
        self._num_resets = 0
        self._batch_idx = 0
        self._last_seq_idx = -1

    def _read_ahead(self, num_batches: int) -> None:
        for batch in itertools.islice(self._generator, max(num_batches - len(self._ahead), 0)):
            self._ahead.append(batch)
            if self._keeps_all:
                self._kept.append(batch)

    def has_more(self) -> bool:
        """Whether a batch is left. May load."""
        self._read_ahead(1)
        return bool(self._ahead)

    def peek_next_n(self, num_batches: int) -> list[Batch]:
        """Return up to n next batches without passing them."""
        self._read_ahead(num_batches)
        return self._ahead[:num_batches]

    def advance(self, num_batches: int) -> None:
        """Pass n batches.

        Raises:
            ConfigError: Fewer are left.
        """
        self._read_ahead(num_batches)
        if len(self._ahead) < num_batches:
            raise ConfigError(f"advance({num_batches}), but only {len(self._ahead)} batches are left")
        for batch in self._ahead[:num_batches]:
            self._last_seq_idx = max(self._last_seq_idx, (batch.end_seq or 0) - 1)
        del self._ahead[:num_batches]
        self._batch_idx += num_batches

    def reset(self) -> None:
        """Go back to the first batch, in a new order if batches are shuffled.

        Raises:
            ConfigError: The dataset does not allow batches to be kept.
        """
        if not self._keeps_all:
            raise ConfigError(
                f"{type(self._dataset).__name__} reads in order, so its batches cannot be reset",
                fix="start the epoch again and call generate_batches",
            )
        self._kept.extend(self._generator)  # all of them: a reset in mid-epoch must not lose the rest
        self._num_resets += 1
        self._ahead = list(self._kept)
        if self._shuffle:
            seed = derive_seed(self._num_resets, "shuffle_batches", epoch=int(self._dataset.epoch))
            random.Random(seed).shuffle(self._ahead)  # noqa: S311 (an order, not a secret)
        self._generator = iter(())
        self._batch_idx, self._last_seq_idx = 0, -1

    def get_current_batch_idx(self) -> int:
        """Return how many batches were passed."""
        return self._batch_idx

    def completed_frac(self) -> float:
        """Return how much of the epoch was passed, in [0, 1]."""
        if self._keeps_all and self._num_resets:
            return self._batch_idx / max(len(self._kept), 1)
        if self._last_seq_idx < 0:
            return 0.0
        return self._dataset.get_complete_frac(self._last_seq_idx) or 0.0


@dataclass(frozen=True, slots=True)
class _Limits:
    """What fits into a batch."""

    batch_size: NumbersDict | None
    packed_batch_size: NumbersDict | None
    max_seqs: float
    max_pad_size: NumbersDict | None

    def admits(self, batch: Batch, packed: NumbersDict, length: NumbersDict) -> bool:
        longest, rows = batch.try_sequence_as_slice(length)
        if rows > self.max_seqs:
            return False
        if self.packed_batch_size is not None and _exceeds(packed + length, self.packed_batch_size):
            return False
        if self.batch_size is not None and _exceeds(longest * rows, self.batch_size):
            return False
        padding = longest * rows - (packed + length)
        return self.max_pad_size is None or not _exceeds(padding, self.max_pad_size)


def plan_batches(
    dataset: Dataset,
    *,
    recurrent_net: bool = True,
    batch_size: int | Mapping[str, int] | NumbersDict | None = None,
    max_seqs: int = -1,
    max_seq_length: int | Mapping[str, int] | NumbersDict | None = sys.maxsize,
    max_pad_size: int | Mapping[str, int] | NumbersDict | None = None,
    min_seq_length: int | Mapping[str, int] | NumbersDict = 0,
    pruning: float = 0.0,
    seq_drop: float = 0.0,
    max_total_num_seqs: int = -1,
    used_data_keys: Sequence[str] | None = None,
    packed_batch_size: int | Mapping[str, int] | NumbersDict | None = None,
) -> Iterator[Batch]:
    """Group the chunks of the current epoch into batches, in order.

    Recurrent: a chunk is a row, and a batch is closed before the row that would break a limit; a single row beyond the
        limits is a
    batch of its own, never cut. Otherwise: all frames in one row, cut into batches of exactly `batch_size` frames.

    Args:
        dataset: Must have an active epoch.
        recurrent_net: See above.
        batch_size: Frames with padding: longest row * rows; a number for each key, or by key. Needed unless
            `packed_batch_size` is given.
        max_seqs: Rows; no limit if -1.
        max_seq_length: Longer chunks are left out; a negative number limits "classes" only; 0 or `None` is no limit.
        max_pad_size: Frames of padding in a batch.
        min_seq_length: Shorter chunks are left out.
        pruning: Only 0 is accepted.
        seq_drop: Probability that a chunk is left out, drawn from the epoch's generator.
        max_total_num_seqs: Stop after so many sequences; no limit if -1. (RETURNN gives one more.)
        used_data_keys: The keys that count; all if `None`.
        packed_batch_size: Frames without padding.

    Raises:
        ConfigError: A limit is missing or not positive.
    """
    if pruning:
        raise ConfigError(f"pruning={pruning} is not offered", fix="leave it at 0")
    limits = _Limits(
        batch_size=_positive("batch_size", batch_size),
        packed_batch_size=_positive("packed_batch_size", packed_batch_size),
        max_seqs=max_seqs if max_seqs > 0 else float("inf"),
        max_pad_size=None if max_pad_size is None else NumbersDict(max_pad_size),
    )
    if limits.batch_size is None and limits.packed_batch_size is None:
        raise ConfigError(
            "no batch size", fix="give batch_size (frames with padding) or packed_batch_size (frames without)"
        )
    if isinstance(max_seq_length, int) and max_seq_length < 0:
        max_seq_length = {"classes": -max_seq_length}
    longest = NumbersDict(max_seq_length) if max_seq_length else None
    chunks = _kept_chunks(
        dataset,
        recurrent_net=recurrent_net,
        used_data_keys=used_data_keys,
        longest=longest,
        shortest=NumbersDict(min_seq_length),
        seq_drop=seq_drop,
        max_total_num_seqs=max_total_num_seqs,
    )
    if recurrent_net:
        return _rows(chunks, limits)
    if limits.batch_size is None:
        raise ConfigError("recurrent_net=False cuts frames into batches of batch_size", fix="give batch_size")
    return _one_row(chunks, limits.batch_size)


def _kept_chunks(
    dataset: Dataset,
    *,
    recurrent_net: bool,
    used_data_keys: Sequence[str] | None,
    longest: NumbersDict | None,
    shortest: NumbersDict,
    seq_drop: float,
    max_total_num_seqs: int,
) -> Iterator[tuple[int, NumbersDict, NumbersDict]]:
    """Yield (seq_idx, start, length) of the chunks that count, the context window included."""
    left, right = dataset.context_window
    seen: set[int] = set()
    for seq_idx, start, end in dataset.iterate_seqs(recurrent_net=recurrent_net, used_data_keys=used_data_keys):
        if max_total_num_seqs > 0 and seq_idx not in seen and len(seen) >= max_total_num_seqs:
            return
        seen.add(seq_idx)
        keys = [key for key, _ in start.items() if used_data_keys is None or key in used_data_keys]
        start = NumbersDict({key: start[key] - (left.get(key, 0) or 0) for key in keys})
        length = NumbersDict({key: end[key] + (right.get(key, 0) or 0) - start[key] for key in keys})
        if longest is not None and _exceeds(length, longest):
            continue
        if any((shortest.get(key, 0) or 0) > length[key] for key in keys):
            continue
        if seq_drop and dataset.rnd_seq_drop.random() < seq_drop:
            continue
        yield seq_idx, start, length


def _rows(chunks: Iterator[tuple[int, NumbersDict, NumbersDict]], limits: _Limits) -> Iterator[Batch]:
    batch, packed = Batch(), NumbersDict(0)
    for seq_idx, start, length in chunks:
        if batch.seqs and not limits.admits(batch, packed, length):
            yield batch
            batch, packed = Batch(), NumbersDict(0)
        batch.add_sequence_as_slice(seq_idx, start, length)
        packed = packed + length
    if batch.seqs:
        yield batch


def _one_row(chunks: Iterator[tuple[int, NumbersDict, NumbersDict]], batch_size: NumbersDict) -> Iterator[Batch]:
    batch = Batch()
    for seq_idx, start, length in chunks:
        while length.max_value() > 0:
            room = batch_size - batch.max_num_frames_per_slice if batch.seqs else batch_size
            part = NumbersDict({key: min(frames, room.get(key, frames) or 0) for key, frames in length.items()})
            if part.max_value() <= 0:
                yield batch
                batch = Batch()
                continue
            batch.add_frames(seq_idx, start, part)
            start, length = start + part, length - part
    if batch.seqs:
        yield batch


def _exceeds(numbers: NumbersDict, limit: NumbersDict) -> bool:
    return any(limit.get(key) is not None and number > limit[key] for key, number in numbers.items())


def _positive(name: str, value: Any) -> NumbersDict | None:
    if not value:
        return None
    numbers = NumbersDict(value)
    if numbers.min_value() <= 0:
        raise ConfigError(f"{name} must be > 0: {value}")
    return numbers


def _sum(numbers: Iterator[NumbersDict]) -> NumbersDict:
    total: NumbersDict | None = None
    for number in numbers:
        total = number if total is None else total + number
    return NumbersDict({}) if total is None else total
