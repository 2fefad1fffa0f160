"""Leave out what is too long or too short, and count it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order.policy import check_count, set_field

from .base import Batching, check_batching, sample_lengths
from .pieces import MAX_FRAMES, Pieces
from .plan import WINDOW_SEQS, Groups, WindowKey

_MAX_SAMPLE = 2**20  # lengths that `fit` looks at


@dataclass(frozen=True)
class LimitLengths(Batching):
    """Another batching, without the sequences that are too short or too long. They are counted, see `PlanCounts`.

    Args:
        batching: What plans the rest.
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
        lowest = check_count("LimitLengths", "min_frames", self.min_frames, minimum=0, maximum=MAX_FRAMES)
        set_field(self, "min_frames", lowest)
        if self.max_frames is not None:
            highest = check_count("LimitLengths", "max_frames", self.max_frames, minimum=0, maximum=MAX_FRAMES)
            set_field(self, "max_frames", highest)
            if highest < lowest:
                raise ConfigError(f"LimitLengths: min_frames = {lowest} is above max_frames = {highest}")

    @property
    def data_key(self) -> str | None:
        """The data key of the other batching."""
        return self.batching.data_key

    @property
    def whole_keys(self) -> tuple[str, ...]:
        """The whole keys of the other batching."""
        return self.batching.whole_keys

    def fit(self, lengths: NDArray[Any]) -> LimitLengths:
        """Fit the other batching to the sequences that are within the limits."""
        pieces = self._keep(Pieces.of_lengths(sample_lengths(lengths, _MAX_SAMPLE)))
        return replace(self, batching=self.batching.fit(pieces.frames))

    def window_seqs(self, wanted: int = WINDOW_SEQS) -> int:
        """Return what the other batching wants."""
        return self.batching.window_seqs(wanted)

    def cut(self, pieces: Pieces) -> Pieces:
        """Leave out what is not within the limits."""
        return self.batching.cut(self._keep(pieces))

    def _keep(self, pieces: Pieces) -> Pieces:
        is_short = pieces.frames < self.min_frames
        is_long = pieces.frames > (MAX_FRAMES if self.max_frames is None else self.max_frames)
        too_short, too_long = int(is_short.sum()), int(is_long.sum())
        return pieces.keep(~(is_short | is_long), too_short=too_short, too_long=too_long)

    def fullness(self, frames: NDArray[np.int64]) -> float:
        """Return what the other batching says."""
        return self.batching.fullness(frames)

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:
        """Group with the other batching."""
        return self.batching.group(frames, key)
