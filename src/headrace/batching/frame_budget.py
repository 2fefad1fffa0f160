"""As many sequences in a batch as fit into a number of frames."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order.policy import check_count, set_field

from .base import Batching, check_data_key
from .greedy import ends_by_caps, ends_by_sum, follow
from .pieces import Pieces, TooLong, apply_too_long, check_too_long
from .plan import Groups, WindowKey

_MAX_BUDGET = 2**31 - 1  # frames; its square fits into 64 bits


@dataclass(frozen=True)
class FrameBudget(Batching):
    """Consecutive sequences, until one more would exceed a budget of frames.

    The cost of a batch is its number of sequences times the frames of the longest: what it is with its padding. With
    `padded=False` it is the sum of the frames, for models that get the frames of a batch without padding. Little
    padding needs an order that keeps like lengths together, such as `laplace`, or `Buckets`.

    A batch ends only because the next sequence would exceed the budget or `max_seqs`, or because the window ends. (The
    same rule as RETURNN's `batch_size` and `max_seqs`.) An empty sequence counts as one frame.

    Args:
        max_frames: The budget, in frames, at most 2**31 - 1.
        max_seqs: Most sequences of a batch.
        padded: Whether padding counts.
        data_key: The data key whose lengths count; None for the main key of the dataset.
        too_long: What becomes of a sequence that exceeds the budget by itself: `"alone"`, a batch of its own, over the
            budget; `"drop"`; `"chunk"`, cut into the fewest chunks that fit, of equal length; or `"error"`. All are
            counted.
        quadratic_length: Add `frames**2 / quadratic_length` to the frames of each sequence, rounded up: the length at
            which attention, say, costs as much as all that is linear in the length.

    Raises:
        ConfigError: An option is wrong.
    """

    max_frames: int
    max_seqs: int | None = None
    padded: bool = True
    data_key: str | None = None
    too_long: TooLong = "alone"
    quadratic_length: int | None = None

    def __post_init__(self) -> None:
        """Check all options."""
        for name in ("max_frames", "max_seqs", "quadratic_length"):
            value = getattr(self, name)
            if value is not None or name == "max_frames":
                set_field(self, name, check_count("FrameBudget", name, value, minimum=1, maximum=_MAX_BUDGET))
        if not isinstance(self.padded, bool):
            raise ConfigError(f"FrameBudget: padded must be True or False, got {self.padded!r}")
        check_data_key("FrameBudget", self.data_key)
        check_too_long("FrameBudget", self.too_long)
        if self.longest == 0:
            raise ConfigError("FrameBudget: with quadratic_length a single frame costs 2, so max_frames must be over 1")

    @property
    def longest(self) -> int:
        """Frames of the longest sequence that the budget allows, at least 1."""
        if self.quadratic_length is None:
            return self.max_frames
        # T + ceil(T**2 / q) <= B if and only if (2 * T + q)**2 <= q * (q + 4 * B), all of them integers
        length = self.quadratic_length
        return (math.isqrt(length * (length + 4 * self.max_frames)) - length) // 2

    def cut(self, pieces: Pieces) -> Pieces:
        """Treat what is too long."""
        return apply_too_long(pieces, self.longest, self.too_long, str(self))

    def fullness(self, frames: NDArray[np.int64]) -> float:
        """Return the share of a batch that each piece takes, added up."""
        shares = np.minimum(self.costs_of(frames) / self.max_frames, 1)
        return float(np.maximum(shares, 0 if self.max_seqs is None else 1 / self.max_seqs).sum())

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:  # noqa: ARG002
        """Group consecutive pieces."""
        costs = self.costs_of(frames)
        if self.padded:
            starts = follow(ends_by_caps(self.caps(frames)))
        else:
            starts = follow(ends_by_sum(costs, self.max_frames, self.max_seqs))
        if len(frames) == 0:
            return Groups(np.zeros(0, np.int64), starts, np.zeros(0, np.int64))
        if self.padded:
            batch_costs = np.maximum.reduceat(costs, starts[:-1]) * np.diff(starts)
        else:
            batch_costs = np.add.reduceat(costs, starts[:-1])
        return Groups(np.arange(len(frames)), starts, batch_costs)

    def caps(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of sequences of a padded batch whose longest has so many frames, `int64[n]`, at least 1."""
        caps = self.max_frames // self.costs_of(frames)
        return np.clip(caps, 1, self.max_seqs)

    def costs_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cost of one sequence that is padded to so many frames, `int64[n]`."""
        costs = np.maximum(frames, 1)
        if self.quadratic_length is not None:
            squares = np.minimum(costs, _MAX_BUDGET) ** 2  # longer ones are over any budget as it is
            costs = costs - (-squares // self.quadratic_length)
        return costs
