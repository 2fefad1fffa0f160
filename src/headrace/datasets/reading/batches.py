"""The epoch API's chunks and batches, by their RETURNN-compatible names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.batching import NumbersDict

from ..epoch import EpochApi
from ..returnn.batch import index_shape_for_batches
from ..returnn.batch_generator import Batch, BatchSetGenerator, plan_batches
from ..returnn.walk import iterate_chunks


class BatchApi(EpochApi):
    """What the current epoch is cut and grouped into by RETURNN's own trainers."""

    def iterate_seqs(
        self, recurrent_net: bool = True, used_data_keys: Sequence[str] | None = None
    ) -> Iterator[tuple[int, NumbersDict, NumbersDict]]:
        """Walk through the epoch by chunks.

        Args:
            recurrent_net: If false, chunking is ignored; a function is asked all the same, and told so.
            used_data_keys: The keys that count for chunking; all if `None`.

        Yields:
            (seq_idx, start, end): the frames start..end (exclusive) by data key.
        """
        return iterate_chunks(self, recurrent_net=recurrent_net, used_data_keys=used_data_keys)

    def get_start_end_frames_full_seq(self, seq_idx: int) -> tuple[NumbersDict, NumbersDict]:
        """Return start and end frames of a whole sequence, the context window included."""
        left, right = self.context_window
        end = self.get_seq_length(seq_idx)
        return NumbersDict.constant_like(0, end) - left, end + right

    def generate_batches(self, shuffle_batches: bool = False, **kwargs: Any) -> BatchSetGenerator:
        """Group the current epoch into batches, see `plan_batches` for the arguments.

        Args:
            shuffle_batches: Shuffle the kept batches on `reset` (only where the whole epoch is kept).
            **kwargs: Passed to `plan_batches`.
        """
        return BatchSetGenerator(self, plan_batches(self, **kwargs), shuffle_batches=shuffle_batches)

    def _generate_batches(self, recurrent_net: bool, batch_size: Any, **kwargs: Any) -> Iterator[Batch]:
        """Yield the batches of the current epoch, see `plan_batches`."""
        return plan_batches(self, recurrent_net=recurrent_net, batch_size=batch_size, **kwargs)

    def batch_set_generator_cache_whole_epoch(self) -> bool:
        """Whether a batch generator keeps its batches, so that it can be reset."""
        return False

    def index_shape_for_batches(self, batches: Sequence[Batch], data_key: str = "data") -> tuple[int, int]:
        """Return (longest row, number of rows) of several batches."""
        return index_shape_for_batches(batches, data_key)
