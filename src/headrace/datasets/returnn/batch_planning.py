"""Grouping the chunks of an epoch into batches; what is left out is counted, and logged once.

`plan_batches` checks the limits and returns a `BatchPlan`, which makes batches one by one, so that an epoch whose end
is unknown can be batched. Invariant: once the last chunk was seen, at most one batch is still to come, and the call
that saw it returns that batch. Limits such as `max_seq_length` are meant to leave something out; how much that is must
not stay unknown.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, did_you_mean

from .batch import Batch
from .walk import Chunk, ChunkWalk, epoch_rng

Kind = Literal["too_long", "too_short", "dropped", "alone"]
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


Frames = tuple[int, NumbersDict, NumbersDict]  # (seq_idx, start, length), with context


class BatchPlan(Iterator[Batch]):
    """The batches of an epoch, made one by one.

    Attributes:
        report: What was left out of them so far; the first of each kind is also logged.
        at_end: Whether all chunks of the epoch were seen.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.batches: Iterator[Batch] = iter(())
        self.report = BatchReport()
        self.at_end = False

    def __next__(self) -> Batch:
        """Make the next batch. May load.

        Raises:
            ConfigError: An earlier error ended the plan, which must not look like the end of the epoch.
        """
        for batch in self.batches:
            return batch
        if not self.at_end:
            raise ConfigError("an error ended these batches", fix="repair what it named, and call generate_batches")
        raise StopIteration

    def count(self, kind: Kind, seq_idx: int, what: str) -> None:
        """Count a chunk of a sequence that is loaded now; `what` says what becomes of it, and why."""
        number: int = getattr(self.report, f"num_{kind}") + 1
        setattr(self.report, f"num_{kind}", number)
        if number == 1:
            _logger.warning(
                "dataset %r, epoch %d: sequence %r %s; more of this kind are only counted, see "
                "BatchSetGenerator.report",
                self._dataset.name,
                int(self._dataset.epoch),
                self._dataset.get_tag(seq_idx),
                what,
            )


@dataclass(frozen=True, slots=True)
class _Limits:
    """What fits into a batch; `max_seq_length`, `min_seq_length` and `seq_drop` say what gets there at all."""

    batch_size: NumbersDict | None
    packed_batch_size: NumbersDict | None
    max_seqs: float
    max_pad_size: NumbersDict | None
    max_seq_length: NumbersDict | None
    min_seq_length: NumbersDict
    seq_drop: float
    max_total_num_seqs: int

    def admit(self, batch: Batch, packed: NumbersDict, length: NumbersDict) -> bool:
        """Tell whether one more row fits."""
        longest, rows = batch.try_sequence_as_slice(length)
        if rows > self.max_seqs:
            return False
        if _excess(packed + length, self.packed_batch_size) or _excess(longest * rows, self.batch_size):
            return False
        return not _excess(longest * rows - (packed + length), self.max_pad_size)

    def excess_of_row(self, length: NumbersDict) -> str | None:
        """Say why a row is too much even if it is alone; `None` if it is not."""
        for name, limit in (("batch_size", self.batch_size), ("packed_batch_size", self.packed_batch_size)):
            key = _excess(length, limit)
            if key is not None and limit is not None:
                return f"{length[key]} frames of {key!r}, {name}={limit[key]}"
        return None


def plan_batches(
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
) -> BatchPlan:
    """Group the chunks of the current epoch into batches, in order.

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

    Raises:
        ConfigError: A limit is missing or out of range. While iterating: a limit is for keys that do not exist, keys
            cannot be cut together, or another epoch was started.
    """
    if pruning:
        raise ConfigError(f"pruning={pruning} is not offered", fix="leave it at 0")
    if max_seqs == 0 or max_seqs < -1:
        raise ConfigError(f"max_seqs must be > 0: {max_seqs}", fix="-1 is no limit")
    if not 0 <= seq_drop <= 1:
        raise ConfigError(f"seq_drop must be a probability, in 0..1: {seq_drop}")
    if isinstance(max_seq_length, int) and max_seq_length < 0:
        max_seq_length = {"classes": -max_seq_length}
    limits = _Limits(
        batch_size=_positive("batch_size", batch_size),
        packed_batch_size=_positive("packed_batch_size", packed_batch_size),
        max_seqs=max_seqs if max_seqs > 0 else float("inf"),
        max_pad_size=None if max_pad_size is None else NumbersDict(max_pad_size),
        max_seq_length=NumbersDict(max_seq_length) if max_seq_length else None,
        min_seq_length=NumbersDict(min_seq_length),
        seq_drop=seq_drop,
        max_total_num_seqs=max_total_num_seqs,
    )
    if limits.batch_size is None and limits.packed_batch_size is None:
        raise ConfigError(
            "no batch size", fix="give batch_size (frames with padding) or packed_batch_size (frames without)"
        )
    if not recurrent_net and limits.packed_batch_size is not None:
        raise ConfigError(
            "packed_batch_size counts whole sequences, but recurrent_net=False cuts them",
            fix="give batch_size alone, or use recurrent_net=True",
        )
    plan = BatchPlan(dataset)
    walk = dataset.iterate_seqs(recurrent_net=recurrent_net, used_data_keys=used_data_keys)
    frames = _frames(dataset, walk, used_data_keys, limits, plan)
    if recurrent_net:
        rng = walk.rng if isinstance(walk, ChunkWalk) else epoch_rng(dataset)
        plan.batches = _rows(_kept(frames, limits, rng.random, plan), limits, plan)
    else:
        plan.batches = _one_row(dataset, frames, limits)
    return plan


def _frames(
    dataset: Any,
    walk: Iterator[Chunk],
    used_data_keys: Sequence[str] | None,
    limits: _Limits,
    plan: BatchPlan,
) -> Iterator[Frames]:
    """Yield the frames of each chunk, in the keys that count and with their context."""
    left, right = dataset.context_window
    num_seqs, last_seq_idx = 0, -1
    for seq_idx, chunk_start, chunk_end in walk:
        if seq_idx != last_seq_idx:
            if 0 < limits.max_total_num_seqs == num_seqs:
                break
            if num_seqs == 0:
                _check_keys(dataset, chunk_end, used_data_keys, limits)
            num_seqs, last_seq_idx = num_seqs + 1, seq_idx
        keys = list(chunk_end.keys()) if used_data_keys is None else used_data_keys
        start = {key: chunk_start[key] - (left.get(key, 0) or 0) for key in keys}
        length = {key: chunk_end[key] + (right.get(key, 0) or 0) - start[key] for key in keys}
        yield seq_idx, NumbersDict(start), NumbersDict(length)
    plan.at_end = True


def _check_keys(dataset: Any, chunk_end: NumbersDict, used_data_keys: Sequence[str] | None, limits: _Limits) -> None:
    """Check the names of data keys, which are only known for sure when there is a sequence."""
    where = f"dataset {dataset.name!r}"
    known = sorted(chunk_end.keys())
    keys = known if used_data_keys is None else used_data_keys
    if not keys:
        raise ConfigError(f"no data keys to batch; a chunk has {known}", where=where)
    unknown = [key for key in keys if key not in known]
    if unknown:
        fix = did_you_mean(unknown[0], known)
        raise ConfigError(f"used_data_keys names {unknown[0]!r}, but a chunk has {known}", where=where, fix=fix)
    for name, limit in (("batch_size", limits.batch_size), ("packed_batch_size", limits.packed_batch_size)):
        if limit is not None and all(limit.get(key) is None for key in keys):
            named = sorted(limit.keys())
            fix = did_you_mean(named[0], keys)
            raise ConfigError(f"{name} limits only {named}, but a batch has {sorted(keys)}", where=where, fix=fix)


def _kept(frames: Iterator[Frames], limits: _Limits, draw: Callable[[], float], plan: BatchPlan) -> Iterator[Frames]:
    """Leave out what is too long, too short or drawn by lot, and count it."""
    for seq_idx, start, length in frames:
        key = _excess(length, limits.max_seq_length)
        if key is not None and limits.max_seq_length is not None:
            limit = limits.max_seq_length[key]
            plan.count("too_long", seq_idx, f"is left out: {length[key]} frames of {key!r}, max_seq_length={limit}")
            continue
        key = next((key for key, number in length.items() if (limits.min_seq_length.get(key, 0) or 0) > number), None)
        if key is not None:
            limit = limits.min_seq_length[key]
            plan.count("too_short", seq_idx, f"is left out: {length[key]} frames of {key!r}, min_seq_length={limit}")
            continue
        if draw() < limits.seq_drop:  # drawn even if it is 0, as in RETURNN: the next varied chunk depends on it
            plan.count("dropped", seq_idx, f"is left out at random: seq_drop={limits.seq_drop}")
            continue
        yield seq_idx, start, length


def _rows(frames: Iterator[Frames], limits: _Limits, plan: BatchPlan) -> Iterator[Batch]:
    batch, packed = Batch(), NumbersDict(0)
    for seq_idx, start, length in frames:
        if batch.seqs and not limits.admit(batch, packed, length):
            yield batch
            batch, packed = Batch(), NumbersDict(0)
        if not batch.seqs:
            excess = limits.excess_of_row(length)
            if excess is not None:
                plan.count("alone", seq_idx, f"is a batch of its own: {excess}")
        batch.add_sequence_as_slice(seq_idx, start, length)
        packed = packed + length
    if batch.seqs:
        yield batch


def _one_row(dataset: Any, frames: Iterator[Frames], limits: _Limits) -> Iterator[Batch]:
    assert limits.batch_size is not None
    batch = Batch()
    for seq_idx, start, rest in frames:
        _check_common_length(dataset, seq_idx, rest)
        row_size = int(min(limits.batch_size.get(key) or sys.maxsize for key, _ in rest.items()))
        while rest.max_value() > 0:
            is_full = batch.max_num_frames_per_slice.max_value() >= row_size
            if is_full or (batch.seqs and batch.seqs[-1].seq_idx - batch.seqs[0].seq_idx >= limits.max_seqs):
                yield batch
                batch = Batch()
            filled = batch.max_num_frames_per_slice
            part = NumbersDict({key: min(number, row_size - filled[key]) for key, number in rest.items()})
            batch.add_frames(seq_idx, start, part)
            start, rest = start + part, rest - part
    if batch.seqs:
        yield batch


def _check_common_length(dataset: Any, seq_idx: int, length: NumbersDict) -> None:
    """Refuse keys that do not have the same number of frames, the context window aside."""
    left, right = dataset.context_window
    own = {key: number - (left.get(key, 0) or 0) - (right.get(key, 0) or 0) for key, number in length.items()}
    reference = next(iter(own))
    for key, number in own.items():
        if number != own[reference]:
            raise ConfigError(
                f"recurrent_net=False cuts all keys at the same frames, but there are {own[reference]} frames of "
                f"{reference!r} and {number} of {key!r}",
                where=f"dataset {dataset.name!r}, sequence {dataset.get_tag(seq_idx)!r}",
                fix="leave one of them out of used_data_keys, or use recurrent_net=True",
            )


def _excess(numbers: NumbersDict, limit: NumbersDict | None) -> str | None:
    """Return a key whose number is above its limit, if there is one."""
    if limit is None:
        return None
    for key, number in numbers.items():
        highest = limit.get(key)
        if highest is not None and number > highest:
            return key
    return None


def _positive(name: str, value: Any) -> NumbersDict | None:
    if not value:
        return None
    numbers = NumbersDict(value)
    if numbers.min_value() <= 0:
        raise ConfigError(f"{name} must be > 0: {value}")
    return numbers
