"""From a `Batch` to zero-padded arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import slice_pad_zeros
from headrace.errors import ConfigError

from .batch import Batch

if TYPE_CHECKING:
    from .base import Dataset


def index_shape_for_batches(batches: Sequence[Batch], data_key: str = "data") -> tuple[int, int]:
    """Return (frames of the longest row, number of rows) of all batches together, (0, 0) if there are no rows.

    Args:
        batches: The batches that go into one array.
        data_key: The key whose frames are meant.

    Raises:
        ConfigError: The batches were made without that key.
    """
    rows = [batch for batch in batches if batch.num_slices]
    for batch in rows:
        if not _has(batch, data_key):
            raise ConfigError(
                f"a batch was made without the data key {data_key!r}, for {sorted(batch.seqs[0].seq_end_frame.keys())}",
                fix="name it in the used_data_keys of generate_batches",
            )
    longest = max((int(batch.max_num_frames_per_slice[data_key]) for batch in rows), default=0)
    return longest, sum(batch.num_slices for batch in rows)


def shapes_for_batches(
    batches: Sequence[Batch], *, data_keys: Sequence[str], dataset: Dataset, enforce_min_len1: bool = False
) -> dict[str, list[int]] | None:
    """Return data key -> shape of the array that holds the rows of all batches, `None` if there are no rows.

    Args:
        batches: The batches that go into one array.
        data_keys: The keys to hold.
        dataset: Says what a frame of each key looks like.
        enforce_min_len1: Make the time axis at least 1.

    Raises:
        ConfigError: A frame has a free axis, whose size is not known before it is read.
    """
    shapes = {}
    for key in data_keys:
        longest, num_rows = index_shape_for_batches(batches, key)
        if not num_rows:
            return None
        shapes[key] = [num_rows, max(longest, 1) if enforce_min_len1 else longest, *_frame_shape(dataset, key)]
    return shapes or None


def _has(batch: Batch, key: str) -> bool:
    return batch.seqs[0].seq_end_frame.get(key) is not None


def _frame_shape(dataset: Dataset, key: str) -> list[int]:
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


def batch_to_raw_dict(
    batch: Batch, *, dataset: Dataset, data_keys: Sequence[str] | None = None
) -> dict[str, NDArray[Any]]:
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
    """
    if batch.start_seq is None or batch.end_seq is None:
        raise ConfigError("an empty batch has no arrays", where=f"dataset {dataset.name!r}")
    keys = [key for key in dataset.get_data_keys() if _has(batch, key)] if data_keys is None else data_keys
    longest = {key: index_shape_for_batches([batch], key)[0] for key in keys}
    dataset.load_seqs(batch.start_seq, batch.end_seq)
    result: dict[str, NDArray[Any]] = {}
    for key in keys:
        result[key], result[f"{key}_seq_lens"] = _padded(batch, dataset, key, longest[key])
    seq_idx = np.full(batch.num_slices, -1, dtype=np.int32)
    tags = [""] * batch.num_slices
    for part in batch.seqs:
        if seq_idx[part.batch_slice] < 0:
            seq_idx[part.batch_slice], tags[part.batch_slice] = part.seq_idx, dataset.get_tag(part.seq_idx)
    result["seq_idx"] = seq_idx
    result["seq_tag"] = np.array(tags, dtype=str)
    result["batch_dim"] = np.array(batch.num_slices, dtype=np.int32)
    return result


def _padded(batch: Batch, dataset: Dataset, key: str, longest: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
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
        places: list[slice] = [slice(offset, offset + len(piece)), *(slice(size) for size in piece.shape[1:])]
        array[row][tuple(places)] = piece
        lengths[row] = offset + len(piece)
    return array, lengths
