"""From a `Batch` to zero-padded arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import slice_pad_zeros

from .batches import Batch

if TYPE_CHECKING:
    from .base import Dataset


def shapes_for_batches(
    batches: Sequence[Batch], *, data_keys: Sequence[str], dataset: Dataset, enforce_min_len1: bool = False
) -> dict[str, list[int]] | None:
    """Return data key -> shape of the array that holds the rows of all batches, `None` if there are no rows.

    Args:
        batches: The batches that go into one array.
        data_keys: The keys to hold.
        dataset: Says what a frame of each key looks like.
        enforce_min_len1: Make the time axis at least 1.
    """
    num_rows = sum(batch.num_slices for batch in batches)
    if not num_rows:
        return None
    shapes = {}
    for key in data_keys:
        longest = max(int(batch.max_num_frames_per_slice[key]) for batch in batches if batch.num_slices)
        frame = [int(size) for size in dataset.get_data_shape(key) if size is not None]
        shapes[key] = [num_rows, max(longest, 1) if enforce_min_len1 else longest, *frame]
    return shapes


def batch_to_raw_dict(
    batch: Batch, *, dataset: Dataset, data_keys: Sequence[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Read the sequences of a batch into zero-padded arrays.

    Args:
        batch: Rows of the current epoch.
        dataset: Where they come from.
        data_keys: The keys to read; all if `None`.

    Returns:
        For each key k: `k` as `dtype[B, T, ...]` and `k_seq_lens` as `int32[B]`; also `seq_idx` as `int32[B]` and
        `seq_tag` as `str[B]` (of the first sequence in a row), and `batch_dim`, the number of rows.
    """
    keys = dataset.get_data_keys() if data_keys is None else list(data_keys)
    num_rows = batch.num_slices
    arrays: dict[str, NDArray[Any]] = {}
    lengths = {key: np.zeros(num_rows, dtype=np.int32) for key in keys}
    seq_idx = np.full(num_rows, -1, dtype=np.int32)
    tags = [""] * num_rows
    if batch.seqs:
        dataset.load_seqs(int(batch.start_seq or 0), int(batch.end_seq or 0))
    for part in batch.seqs:
        row = part.batch_slice
        if seq_idx[row] < 0:
            seq_idx[row], tags[row] = part.seq_idx, dataset.get_tag(part.seq_idx)
        for key in keys:
            start, end = int(part.seq_start_frame[key]), int(part.seq_end_frame[key])
            data = dataset.get_data(part.seq_idx, key)
            frames = slice_pad_zeros(np.atleast_1d(data), start, end)
            if key not in arrays:
                longest = int(batch.max_num_frames_per_slice[key])
                arrays[key] = np.zeros((num_rows, longest, *frames.shape[1:]), dtype=frames.dtype)
            offset = int(part.batch_frame_offset[key])
            arrays[key][row, offset : offset + end - start] = frames
            lengths[key][row] = offset + end - start
    result = dict(arrays)
    result.update({f"{key}_seq_lens": lengths[key] for key in keys})
    result["seq_idx"] = seq_idx
    result["seq_tag"] = np.array(tags, dtype=str)
    result["batch_dim"] = np.array(num_rows, dtype=np.int32)
    return result
