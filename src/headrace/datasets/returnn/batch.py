"""Which frames of which sequences go where in a batch, and the zero-padded arrays that are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict, slice_pad_zeros
from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchSeqCopyPart:
    """Some frames of a sequence, and their location in a batch.

    Attributes:
        seq_idx: Position of the sequence in the current order.
        seq_start_frame: First frame by data key; negative where context reaches before the sequence.
        seq_end_frame: Behind the last frame by data key; may exceed the sequence likewise.
        batch_slice: Row of the batch.
        batch_frame_offset: First frame in that row, by data key.

    Examples:
        >>> import headrace as hr
        >>> with hr.StaticDataset([{"data": [1.0, 2.0]}, {"data": [3.0]}]) as dataset:
        ...     started = dataset.init_seq_order(epoch=1)
        ...     batches = dataset.generate_batches(batch_size=10, max_seqs=2)
        ...     batch = next(iter(batches.peek_next_n(1)))
        ...     batch.seqs[0].seq_idx, batch.seqs[0].batch_slice, batch.seqs[0].frame_length["data"]
        (0, 0, 2)
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

    Examples:
        >>> import headrace as hr
        >>> with hr.StaticDataset([{"data": [1.0, 2.0]}, {"data": [3.0]}]) as dataset:
        ...     started = dataset.init_seq_order(epoch=1)
        ...     (batch,) = dataset.generate_batches(batch_size=10, max_seqs=2).peek_next_n(1)
        ...     print(batch.start_seq, batch.end_seq, batch.get_total_num_frames()["data"])
        0 2 3
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
        """One after the largest sequence index, `None` if the batch is empty."""
        return max((part.seq_idx + 1 for part in self.seqs), default=None)

    def get_num_seqs(self) -> int:
        """Return the number of sequences from the first to the last."""
        return (self.end_seq or 0) - (self.start_seq or 0)

    def get_total_num_frames(self) -> NumbersDict:
        """Return the frames without padding, by data key."""
        return sum((part.frame_length for part in self.seqs), NumbersDict())

    def get_all_slices_num_frames(self) -> NumbersDict:
        """Return the frames with padding, by data key."""
        return self.max_num_frames_per_slice * self.num_slices

    def try_sequence_as_slice(self, length: NumbersDict) -> tuple[NumbersDict, int]:
        """Return (longest row, number of rows) as they would be with one more row of this length."""
        return NumbersDict.max([self.max_num_frames_per_slice, length]), self.num_slices + 1

    def add_sequence_as_slice(self, seq_idx: int, seq_start_frame: NumbersDict, length: NumbersDict) -> None:
        """Add frames of a sequence as a new row."""
        self.max_num_frames_per_slice, self.num_slices = self.try_sequence_as_slice(length)
        end, offset = seq_start_frame + length, NumbersDict.constant_like(0, length)
        self.seqs.append(BatchSeqCopyPart(seq_idx, seq_start_frame, end, self.num_slices - 1, offset))

    def add_frames(self, seq_idx: int, seq_start_frame: NumbersDict, length: NumbersDict) -> None:
        """Append frames of a sequence to the one row: all keys behind the longest one."""
        longest = self.max_num_frames_per_slice.max_value() if self.seqs else 0
        offset = NumbersDict.constant_like(longest, length)
        self.max_num_frames_per_slice = offset + length
        self.num_slices = 1
        self.seqs.append(BatchSeqCopyPart(seq_idx, seq_start_frame, seq_start_frame + length, 0, offset))

    def init_with_one_full_sequence(self, seq_idx: int, dataset: Any) -> None:
        """Make this the batch of one whole sequence, its context window included.

        Raises:
            ConfigError: The batch holds something already.
        """
        if self.seqs:
            raise ConfigError(f"the batch is not empty: {self!r}", fix="make a new Batch")
        start, end = dataset.get_start_end_frames_full_seq(seq_idx)
        self.add_sequence_as_slice(seq_idx, start, end - start)


def index_shape_for_batches(batches: Sequence[Batch], data_key: str = "data") -> tuple[int, int]:
    """Return (frames of the longest row, number of rows) of all batches together, (0, 0) if there are no rows.

    Args:
        batches: The batches that go into one array.
        data_key: The key whose frames are meant.

    Raises:
        ConfigError: The batches were made without that key.

    Examples:
        >>> from headrace.datasets import index_shape_for_batches
        >>> import headrace as hr
        >>> with hr.StaticDataset([{"data": [1.0, 2.0]}, {"data": [3.0]}]) as dataset:
        ...     started = dataset.init_seq_order(epoch=1)
        ...     batches = dataset.generate_batches(batch_size=10, max_seqs=2)
        ...     batch = next(iter(batches.peek_next_n(1)))
        ...     index_shape_for_batches([batch])
        (2, 2)
    """
    rows = [batch for batch in batches if batch.num_slices]
    for batch in rows:
        if not batch.seqs[0].seq_end_frame.has_value_for(data_key):
            raise ConfigError(
                f"a batch was made without the data key {data_key!r}, for {sorted(batch.seqs[0].seq_end_frame.keys())}",
                fix="name it in the used_data_keys of generate_batches",
            )
    longest = max((int(batch.max_num_frames_per_slice[data_key]) for batch in rows), default=0)
    return longest, sum(batch.num_slices for batch in rows)


def shapes_for_batches(
    batches: Sequence[Batch], *, data_keys: Sequence[str], dataset: Any, enforce_min_len1: bool = False
) -> dict[str, list[int]] | None:
    """Return data key -> shape of the array that holds the rows of all batches, `None` if there are no rows.

    Args:
        batches: The batches that go into one array.
        data_keys: The keys to hold.
        dataset: Says what a frame of each key looks like.
        enforce_min_len1: Make the time axis at least 1.

    Raises:
        ConfigError: A frame has a free axis, whose size is not known before it is read.

    Examples:
        >>> from headrace.datasets import shapes_for_batches
        >>> import headrace as hr
        >>> with hr.StaticDataset([{"data": [1.0, 2.0]}, {"data": [3.0]}]) as dataset:
        ...     started = dataset.init_seq_order(epoch=1)
        ...     batches = dataset.generate_batches(batch_size=10, max_seqs=2)
        ...     batch = next(iter(batches.peek_next_n(1)))
        ...     shapes_for_batches([batch], data_keys=["data"], dataset=dataset)
        {'data': [2, 2]}
    """
    shapes = {}
    for key in data_keys:
        longest, num_rows = index_shape_for_batches(batches, key)
        if not num_rows:
            return None
        shapes[key] = [num_rows, max(longest, 1) if enforce_min_len1 else longest, *_frame_shape(dataset, key)]
    return shapes or None


def _frame_shape(dataset: Any, key: str) -> list[int]:
    shape = dataset.get_data_shape(key)
    if key == "data" and dataset.window > 1 and not shape:
        return [dataset.window]  # a window makes a vector of scalar frames
    sizes = [int(size) for size in shape if size is not None]
    if len(sizes) < len(shape):
        raise ConfigError(
            f"frames of {key!r} have a free axis: {list(shape)}",
            where=f"dataset {dataset.name!r}",
            fix="read them with batch_to_raw_dict, which pads each axis to the largest size",
        )
    return sizes


def batch_to_raw_dict(batch: Batch, *, dataset: Any, data_keys: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read the sequences of a batch into zero-padded arrays.

    Args:
        batch: Rows of the current epoch.
        dataset: Where they come from.
        data_keys: The keys to read; all keys of the batch if `None`.

    Returns:
        For each key k: `k` as `dtype[B, T, ...]`, every axis padded to its largest size, and `k_seq_lens` as
        `int32[B]`; also `seq_idx` as `int32[B]` and `seq_tag` as `str[B]` (of the first sequence in a row), and
        `batch_dim`, the number of rows.

    Raises:
        ConfigError: The batch is empty, or its frames are not those of a key.

    Examples:
        >>> from headrace.datasets import batch_to_raw_dict
        >>> import headrace as hr
        >>> with hr.StaticDataset([{"data": [1.0, 2.0]}, {"data": [3.0]}]) as dataset:
        ...     started = dataset.init_seq_order(epoch=1)
        ...     batches = dataset.generate_batches(batch_size=10, max_seqs=2)
        ...     batch = next(iter(batches.peek_next_n(1)))
        ...     batch_to_raw_dict(batch, dataset=dataset)["data"].tolist()
        [[1.0, 2.0], [3.0, 0.0]]
    """
    if batch.start_seq is None or batch.end_seq is None:
        raise ConfigError("an empty batch has no arrays", where=f"dataset {dataset.name!r}")
    keys = data_keys
    if keys is None:
        keys = list(filter(batch.seqs[0].seq_end_frame.has_value_for, dataset.get_data_keys()))
    longest = {key: index_shape_for_batches([batch], key)[0] for key in keys}
    dataset.load_seqs(batch.start_seq, batch.end_seq)
    result: dict[str, NDArray[Any]] = {}
    for key in keys:
        result[key], result[f"{key}_seq_lens"] = _padded(batch, dataset, key, longest[key])
    first_seqs = {part.batch_slice: part.seq_idx for part in reversed(batch.seqs)}
    seq_idx = [first_seqs[row] for row in range(batch.num_slices)]
    result["seq_idx"] = np.array(seq_idx, dtype=np.int32)
    result["seq_tag"] = np.array([dataset.get_tag(each) for each in seq_idx], dtype=str)
    result["batch_dim"] = np.array(batch.num_slices, dtype=np.int32)
    return result


def _padded(batch: Batch, dataset: Any, key: str, longest: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return the rows of one key, `dtype[B, T, ...]`, and their lengths, `int32[B]`."""
    pieces = []
    for part in batch.seqs:
        data = np.atleast_1d(dataset.get_data(part.seq_idx, key))
        pieces.append(slice_pad_zeros(data, int(part.seq_start_frame[key]), int(part.seq_end_frame[key])))
    if len({piece.ndim for piece in pieces}) > 1:
        raise ConfigError(
            f"sequences of {key!r} have different numbers of axes: {sorted({piece.ndim for piece in pieces})}",
            where=f"dataset {dataset.name!r}",
        )
    frame = [max(sizes) for sizes in zip(*(piece.shape[1:] for piece in pieces), strict=True)]
    dtype = np.result_type(*(piece.dtype for piece in pieces))  # of strings: the longest
    array = np.zeros((batch.num_slices, longest, *frame), dtype=dtype)
    lengths = np.zeros(batch.num_slices, dtype=np.int32)
    for part, piece in zip(batch.seqs, pieces, strict=True):
        row, offset = part.batch_slice, int(part.batch_frame_offset[key])
        lengths[row] = offset + len(piece)
        array[row][(slice(offset, lengths[row]), *map(slice, piece.shape[1:]))] = piece
    return array, lengths
