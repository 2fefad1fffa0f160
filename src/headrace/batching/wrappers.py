"""Batchings around another one that drop sequences, or cut them into chunks, before it groups them.

`LimitLengths` drops what is too long or too short, and counts it. `Chunks` cuts every sequence into chunks, with
context frames around each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order.policy import set_field

from .base import Batching, check_batching
from .packed_layout import RowLayout
from .pieces import MAX_FRAMES, Pieces
from .plan import WINDOW_SEQS, Groups, WindowKey


class Around(Batching):
    """Base of the batchings around another one; it delegates to that.

    Attributes:
        batching: The other one.
    """

    batching: Batching

    @property
    def data_key(self) -> str | None:
        """The data key of the other batching."""
        return self.batching.data_key

    @property
    def keeps_order(self) -> bool:
        """Delegate to the other batching."""
        return self.batching.keeps_order

    @property
    def shares_rows(self) -> bool:
        """Delegate to the other batching."""
        return self.batching.shares_rows

    def row_layout(self, rows: NDArray[np.int32]) -> RowLayout:
        """Delegate to the other batching."""
        return self.batching.row_layout(rows)

    def fullness(self, frames: NDArray[np.int64]) -> float:
        """Return the result of the other batching."""
        return self.batching.fullness(frames)

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:
        """Group with the other batching."""
        return self.batching.group(frames, key)


@dataclass(frozen=True)
class LimitLengths(Around):
    """Another batching, without the sequences that are too short or too long. They are counted, see `PlanCounts`.

    Args:
        batching: The batching of the remaining sequences.
        min_frames: Frames that a sequence must have.
        max_frames: Frames that a sequence may have; None for any number.

    Raises:
        ConfigError: An option is wrong.
    """

    batching: Batching
    min_frames: int = 0
    max_frames: int | None = None

    def __post_init__(self) -> None:
        """Check all options."""
        check_batching("LimitLengths", self.batching)
        lowest = check_count("LimitLengths: min_frames", self.min_frames, minimum=0, maximum=MAX_FRAMES)
        set_field(self, "min_frames", lowest)
        if self.max_frames is not None:
            highest = check_count("LimitLengths: max_frames", self.max_frames, minimum=0, maximum=MAX_FRAMES)
            set_field(self, "max_frames", highest)
            if highest < lowest:
                raise ConfigError(f"LimitLengths: min_frames = {lowest} is above max_frames = {highest}")

    @property
    def whole_keys(self) -> tuple[str, ...]:
        """The whole keys of the other batching."""
        return self.batching.whole_keys

    def window_seqs(self, target: int = WINDOW_SEQS) -> int:
        """Return the window size of the other batching."""
        return self.batching.window_seqs(target)

    def cut(self, pieces: Pieces) -> Pieces:
        """Drop what is not within the limits."""
        return self.batching.cut(self._keep(pieces))

    def _keep(self, pieces: Pieces) -> Pieces:
        is_short = pieces.frames < self.min_frames
        is_long = pieces.frames > (MAX_FRAMES if self.max_frames is None else self.max_frames)
        too_short, too_long = int(is_short.sum()), int(is_long.sum())
        return pieces.keep(~(is_short | is_long), too_short=too_short, too_long=too_long)


@dataclass(frozen=True)
class Chunks(Around):
    """Another batching, over chunks of the sequences.

    Chunk j of a sequence is frames `j * step` to `min(j * step + frames, T)`. After the first, one is made only if more
    than `min_frames` frames are left for it (RETURNN's rule for `chunking`); frames that no chunk holds because of
    that are counted. `context` adds frames to both sides, which are zeros outside of the sequence, and count as frames
    in budgets and costs.

    Args:
        batching: The batching of the chunks.
        frames: Length of a chunk.
        step: From the start of a chunk to the start of the next, at most `frames`; None is `frames`: no overlap.
        min_frames: A remainder of at most this many frames is dropped, unless it is the whole sequence.
        context: Frames (left, right) of each chunk.
        whole_keys: Data keys that are given in full with each chunk. The others must have as many frames as the
            reference, or at most one.

    Raises:
        ConfigError: An option is wrong.
    """

    batching: Batching
    frames: int
    step: int | None = None
    min_frames: int = 0
    context: tuple[int, int] = (0, 0)
    whole_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check all options."""
        check_batching("Chunks", self.batching)
        frames = check_count("Chunks: frames", self.frames, minimum=1, maximum=MAX_FRAMES)
        step = frames if self.step is None else check_count("Chunks: step", self.step, minimum=1)
        if step > frames:
            raise ConfigError(
                f"Chunks: with step = {step} and frames = {frames}, some frames would be in no chunk",
                fix="make the step at most as long as a chunk",
            )
        set_field(self, "frames", frames)
        set_field(self, "step", step)
        set_field(self, "min_frames", check_count("Chunks: min_frames", self.min_frames, minimum=0))
        if not isinstance(self.context, tuple | list) or len(self.context) != 2:
            raise ConfigError(f"Chunks: context must be (left, right), got {self.context!r}")
        sides = tuple(check_count("Chunks: context", side, minimum=0, maximum=MAX_FRAMES) for side in self.context)
        set_field(self, "context", sides)
        if isinstance(self.whole_keys, str) or not all(isinstance(key, str) for key in self.whole_keys):
            raise ConfigError(f"Chunks: whole_keys must be a tuple of data keys, got {self.whole_keys!r}")
        set_field(self, "whole_keys", tuple(self.whole_keys))

    def cut(self, pieces: Pieces) -> Pieces:
        """Cut all sequences, then let the other batching drop or cut."""
        return self.batching.cut(self._chunks_of(pieces))

    def _chunks_of(self, pieces: Pieces) -> Pieces:
        step = self.frames if self.step is None else self.step
        num_chunks = np.maximum(-(-(pieces.frames - self.min_frames) // step), 1)
        covered = np.minimum((num_chunks - 1) * step + self.frames, pieces.frames)
        left, right = self.context

        def cut(parents: NDArray[np.int64], numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            starts = numbers * step
            return starts - left, np.minimum(self.frames, pieces.frames[parents] - starts) + left + right

        return pieces.split(num_chunks, cut, rest=int((pieces.frames - covered).sum()))
