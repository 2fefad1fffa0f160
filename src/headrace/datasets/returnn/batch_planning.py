"""Grouping the chunks of an epoch into batches; what is left out is counted, and logged once.

A `BatchPlan` makes batches one by one, so that an epoch whose end is unknown can be batched. Invariant: once the last
chunk was seen, at most one batch is still to come, and the call that saw it returns that batch. Limits such as
`max_seq_length` are meant to leave something out; how much that is must not stay unknown.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import gt, lt
from typing import Any

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, did_you_mean

from .batch import Batch
from .walk import Chunk, epoch_rng

_logger = logging.getLogger("headrace.datasets")


@dataclass(slots=True)
class BatchReport:
    """What happened to chunks (whole sequences, if there is no chunking) that are not in a batch like any other.

    Attributes:
        num_too_long: Left out by `max_seq_length`.
        num_too_short: Left out by `min_seq_length`.
        num_dropped: Left out by `seq_drop`.
        num_alone: In a batch of their own, because one row is more than `batch_size` or `packed_batch_size`.
    """

    num_too_long: int = 0
    num_too_short: int = 0
    num_dropped: int = 0
    num_alone: int = 0

    @property
    def num_left_out(self) -> int:
        """Chunks that are in no batch."""
        return self.num_too_long + self.num_too_short + self.num_dropped


class BatchPlan(Iterator[Batch]):
    """Groups the chunks of the current epoch into batches, in order, one by one.

    Recurrent: a chunk is a row, and a batch is closed before the row that would break a limit; a single row beyond the
    limits is a batch of its own, never cut. Otherwise: all frames of all sequences in one row, cut into batches of
    exactly `batch_size` frames. All keys must be equally long then. A key with context frames fills its own row sooner,
    so it is cut at other frames than the keys without them, as in RETURNN.

    Args:
        dataset: Must have an active epoch.
        recurrent_net: See above.
        batch_size: Frames with padding: longest row * rows; a number for each key, or by key (keys that are not named
            have no limit of their own). Needed unless `packed_batch_size` is given.
        max_seqs: Rows; no limit if -1. Not recurrent: a batch is closed after the sequence that makes it span more
            than this, so it has one more (as in RETURNN).
        max_seq_length: Longer chunks are left out; a negative number limits "classes" only; 0 or `None` is no limit.
            Recurrent only, as are the next two, `seq_drop` and `packed_batch_size`.
        max_pad_size: Frames of padding in a batch.
        min_seq_length: Shorter chunks are left out.
        pruning: Only 0 is accepted.
        seq_drop: Probability that a chunk is left out, drawn from a generator seeded for the epoch.
        max_total_num_seqs: Stop after this number of sequences; no limit if -1. (RETURNN gives one more.)
        used_data_keys: The keys that count and that batches are made of; all if `None`.
        packed_batch_size: Frames without padding.

    Attributes:
        report: What was left out of the batches so far; the first of each kind is also logged.
        at_end: Whether all chunks of the epoch were seen.

    Raises:
        ConfigError: A limit is missing or out of range. While iterating: a limit is for keys that do not exist, keys
            cannot be cut together, or another epoch was started.
    """

    def __init__(
        self,
        dataset: Any,
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
    ) -> None:
        if pruning:
            raise ConfigError(f"pruning={pruning} is not offered", fix="leave it at 0")
        if max_seqs == 0 or max_seqs < -1:
            raise ConfigError(f"max_seqs must be > 0: {max_seqs}", fix="-1 is no limit")
        if not 0 <= seq_drop <= 1:
            raise ConfigError(f"seq_drop must be a probability, in 0..1: {seq_drop}")
        if isinstance(max_seq_length, int) and max_seq_length < 0:
            max_seq_length = {"classes": -max_seq_length}
        self._sizes: dict[str, NumbersDict] = {}
        for name, value in (("batch_size", batch_size), ("packed_batch_size", packed_batch_size)):
            size = self._sizes[name] = NumbersDict(value or None)
            if size.has_values() and size.min_value() <= 0:
                raise ConfigError(f"{name} must be > 0: {value}")
        if not any(size.has_values() for size in self._sizes.values()):
            fix = "give batch_size (frames with padding) or packed_batch_size (frames without)"
            raise ConfigError("no batch size", fix=fix)
        if not recurrent_net and self._sizes["packed_batch_size"].has_values():
            raise ConfigError(
                "packed_batch_size counts whole sequences, but recurrent_net=False cuts them",
                fix="give batch_size alone, or use recurrent_net=True",
            )
        self._dataset, self._keys = dataset, used_data_keys
        self._max_seqs = max_seqs if max_seqs > 0 else sys.maxsize
        self._max_total_num_seqs, self._seq_drop = max_total_num_seqs, seq_drop
        self._max_pad_size, self._min_seq_length = NumbersDict(max_pad_size), NumbersDict(min_seq_length)
        self._max_seq_length = NumbersDict(max_seq_length or None)
        self.report, self.at_end = BatchReport(), False
        walk = dataset.iterate_seqs(recurrent_net=recurrent_net, used_data_keys=used_data_keys)
        frames = self._frames(walk)
        if recurrent_net:
            self._batches = self._rows(frames, (getattr(walk, "rng", None) or epoch_rng(dataset)).random)
        else:
            self._batches = self._one_row(frames)

    def __next__(self) -> Batch:
        """Make the next batch. May load.

        Raises:
            ConfigError: An earlier error ended the plan, which must not look like the end of the epoch.
        """
        for batch in self._batches:
            return batch
        if not self.at_end:
            raise ConfigError("an error ended these batches", fix="repair what it named, and call generate_batches")
        raise StopIteration

    def _frames(self, walk: Iterator[Chunk]) -> Iterator[Chunk]:
        """Yield (seq_idx, start, length) of each chunk, in the keys that count and with their context."""
        left, right = self._dataset.context_window
        num_seqs, last_seq_idx = 0, -1
        for seq_idx, chunk_start, chunk_end in walk:
            if seq_idx != last_seq_idx:
                if 0 < self._max_total_num_seqs == num_seqs:
                    break
                if num_seqs == 0:
                    self._check_keys(sorted(chunk_end.keys()))
                num_seqs, last_seq_idx = num_seqs + 1, seq_idx
            keys = chunk_end.keys() if self._keys is None else self._keys
            start = {key: chunk_start[key] - (left.get(key) or 0) for key in keys}
            length = {key: chunk_end[key] + (right.get(key) or 0) - start[key] for key in keys}
            yield seq_idx, NumbersDict(start), NumbersDict(length)
        self.at_end = True

    def _check_keys(self, known: list[str]) -> None:
        """Check the names of data keys, which are only known for sure when there is a sequence."""
        where = f"dataset {self._dataset.name!r}"
        keys = known if self._keys is None else self._keys
        if not keys:
            raise ConfigError(f"no data keys to batch; a chunk has {known}", where=where)
        unknown = [key for key in keys if key not in known]
        if unknown:
            fix = did_you_mean(unknown[0], known)
            raise ConfigError(f"used_data_keys names {unknown[0]!r}, but a chunk has {known}", where=where, fix=fix)
        for name, size in self._sizes.items():
            if size.has_values() and not any(map(size.has_value_for, keys)):
                named = sorted(size.keys())
                fix = did_you_mean(named[0], keys)
                raise ConfigError(f"{name} limits only {named}, but a batch has {sorted(keys)}", where=where, fix=fix)

    def _rows(self, frames: Iterator[Chunk], draw: Callable[[], float]) -> Iterator[Batch]:
        batch, packed = Batch(), NumbersDict(0)
        for seq_idx, start, length in frames:
            if self._leaves_out(seq_idx, length, draw):
                continue
            if batch.seqs and self._closes(batch, packed, length):
                yield batch
                batch, packed = Batch(), NumbersDict(0)
            if not batch.seqs:
                found = (_excess(name, length, size) for name, size in self._sizes.items())
                self._count("alone", seq_idx, "is a batch of its own", next(filter(None, found), None))
            batch.add_sequence_as_slice(seq_idx, start, length)
            packed = packed + length
        if batch.seqs:
            yield batch

    def _leaves_out(self, seq_idx: int, length: NumbersDict, draw: Callable[[], float]) -> bool:
        """Tell whether a chunk is too long, too short or drawn by lot, and count it."""
        count = partial(self._count, seq_idx=seq_idx, becomes="is left out")
        return (
            count("too_long", why=_excess("max_seq_length", length, self._max_seq_length))
            or count("too_short", why=_excess("min_seq_length", length, self._min_seq_length, lt))
            # Drawn even if seq_drop is 0, as in RETURNN: the next varied chunk depends on it
            or count("dropped", why=f"by lot, seq_drop={self._seq_drop}" if draw() < self._seq_drop else None)
        )

    def _closes(self, batch: Batch, packed: NumbersDict, length: NumbersDict) -> bool:
        """Tell whether one more row is too much for a batch."""
        longest, rows = batch.try_sequence_as_slice(length)
        packed, padded = packed + length, longest * rows
        return bool(
            rows > self._max_seqs
            or _excess("", packed, self._sizes["packed_batch_size"])
            or _excess("", padded, self._sizes["batch_size"])
            or _excess("", padded - packed, self._max_pad_size)
        )

    def _one_row(self, frames: Iterator[Chunk]) -> Iterator[Batch]:
        batch = Batch()
        for seq_idx, start, rest in frames:
            self._check_common_length(seq_idx, rest)
            row_size = int(min(self._sizes["batch_size"].get(key) or sys.maxsize for key, _ in rest.items()))
            while rest.max_value() > 0:
                is_full = batch.max_num_frames_per_slice.max_value() >= row_size
                if is_full or (batch.seqs and batch.seqs[-1].seq_idx - batch.seqs[0].seq_idx >= self._max_seqs):
                    yield batch
                    batch = Batch()
                filled = batch.max_num_frames_per_slice
                part = NumbersDict({key: min(number, row_size - filled[key]) for key, number in rest.items()})
                batch.add_frames(seq_idx, start, part)
                start, rest = start + part, rest - part
        if batch.seqs:
            yield batch

    def _check_common_length(self, seq_idx: int, length: NumbersDict) -> None:
        """Refuse keys that do not have the same number of frames, the context window aside."""
        left, right = self._dataset.context_window
        own = {key: number - (left.get(key) or 0) - (right.get(key) or 0) for key, number in length.items()}
        reference = next(iter(own))
        for key, number in own.items():
            if number != own[reference]:
                raise ConfigError(
                    f"recurrent_net=False cuts all keys at the same frames, but there are {own[reference]} frames of "
                    f"{reference!r} and {number} of {key!r}",
                    where=f"dataset {self._dataset.name!r}, sequence {self._dataset.get_tag(seq_idx)!r}",
                    fix="leave one of them out of used_data_keys, or use recurrent_net=True",
                )

    def _count(self, kind: str, seq_idx: int, becomes: str, why: str | None) -> bool:
        """Count a chunk of a sequence that is loaded now, if there is a reason for what becomes of it."""
        if why is None:
            return False
        number = getattr(self.report, f"num_{kind}") + 1
        setattr(self.report, f"num_{kind}", number)
        if number == 1:
            _logger.warning(
                "dataset %r, epoch %d: sequence %r %s: %s; more of this kind are only counted, see "
                "BatchSetGenerator.report",
                self._dataset.name,
                int(self._dataset.epoch),
                self._dataset.get_tag(seq_idx),
                becomes,
                why,
            )
        return True


plan_batches = BatchPlan


def _excess(
    name: str, numbers: NumbersDict, limit: NumbersDict, is_beyond: Callable[[float, float], bool] = gt
) -> str | None:
    """Say which of some numbers is beyond its limit, if one is."""
    for key, number in numbers.items():
        bound = limit.get(key)
        if bound is not None and is_beyond(number, bound):
            return f"{number} frames of {key!r}, {name}={bound}"
    return None
