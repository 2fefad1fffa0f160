"""`Batch`: which frames of which sequences go where. It holds no data, see `batch_arrays` for that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.batching import NumbersDict
from headrace.errors import ConfigError

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


def _sum(numbers: Iterator[NumbersDict]) -> NumbersDict:
    total: NumbersDict | None = None
    for number in numbers:
        total = number if total is None else total + number
    return NumbersDict({}) if total is None else total
