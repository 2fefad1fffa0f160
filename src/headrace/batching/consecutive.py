"""Batches of consecutive sequences, a fixed number of them or as many as fit into a budget of frames.

The arithmetic of budgets is shared with the buckets. *Caps* limit what a batch may hold: the cap of a piece is the
number of pieces in a batch of which it is the longest. A batch of n pieces is allowed if no member has a cap below n. A
padded budget, a number of sequences, a quadratic cost and budgets by bucket are all caps. The end of a batch is
computed for every possible start at once; then a walk from end to end, one step a batch, gives the batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order.policy import set_field

from .base import Batching, check_data_key
from .pieces import Pieces, TooLong, apply_too_long, check_too_long
from .plan import WINDOW_SEQS, Groups, WindowKey


def ends_by_caps(caps: NDArray[np.int64], limits: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return for each piece where a batch that starts with it ends, `int64[n]`.

    Doubling over a table of range minima: O(n log(largest cap)) time, about 0.1 us a piece, and as many int32 of
    memory.

    Args:
        caps: `int64[n]`, each at least 1.
        limits: Where the batch must end at the latest, `int64[n]`, each above its index; None: at n.
    """
    num = len(caps)
    if num == 0:
        return np.zeros(0, np.int64)
    table = [np.minimum(caps, num).astype(np.int32)]
    largest = int(table[0].max())
    while 2 * (width := 2 ** (len(table) - 1)) <= largest:
        table.append(np.minimum(table[-1][:-width], table[-1][width:]))  # minimum of the 2 * width caps from here on
    firsts = np.arange(num, dtype=np.int32)
    last_ends = np.full(num, num, np.int32) if limits is None else limits.astype(np.int32)
    ends = firsts.copy()
    lowest = np.full(num, num, np.int32)
    for level in reversed(range(len(table))):
        minima = table[level]
        wider = np.minimum(minima[np.minimum(ends, len(minima) - 1)], lowest)
        new_ends = ends + np.int32(2**level)
        fits = (new_ends - firsts <= wider) & (new_ends <= last_ends)
        np.copyto(ends, new_ends, where=fits)
        np.copyto(lowest, wider, where=fits)
    return ends.astype(np.int64)


def ends_by_sum(costs: NDArray[np.int64], budget: int, max_seqs: int | None) -> NDArray[np.int64]:
    """Return for each piece where a batch that starts with it ends, `int64[n]`, if costs add up.

    Args:
        costs: `int64[n]`; one that is over the budget is a batch of its own.
        budget: What the sum of a batch must not exceed.
        max_seqs: Maximum number of pieces of a batch.
    """
    sums = np.zeros(len(costs) + 1, np.int64)
    np.cumsum(costs, out=sums[1:])
    firsts = np.arange(len(costs))
    ends = np.searchsorted(sums, sums[:-1] + budget, side="right") - 1
    if max_seqs is not None:
        ends = np.minimum(ends, firsts + max_seqs)
    return np.maximum(ends, firsts + 1)


def follow(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Walk from end to end, starting at 0; return where the batches start, and the end, `int64[B + 1]`."""
    nexts = ends.tolist()
    starts = [0]
    while starts[-1] < len(nexts):
        starts.append(nexts[starts[-1]])
    return np.array(starts, np.int64)


_Last = Literal["keep", "drop"]
_MAX_SEQS = 2**31 - 1


@dataclass(frozen=True)
class FixedCount(Batching):
    """`num_seqs` consecutive sequences a batch, whatever their lengths.

    A window is a multiple of `num_seqs`, so that only the last batch of an epoch is smaller (and that of each window
    from which sequences were dropped before).

    Args:
        num_seqs: Sequences of a batch.
        last: What to do with a last batch that is not full: `"keep"` or `"drop"` (which is counted).
        data_key: The data key whose lengths are the costs; None for the main key of the dataset.

    Raises:
        ConfigError: An option is wrong.
    """

    num_seqs: int
    last: _Last = "keep"
    data_key: str | None = None

    def __post_init__(self) -> None:
        """Check all options."""
        count = check_count("FixedCount: num_seqs", self.num_seqs, minimum=1, maximum=_MAX_SEQS)
        set_field(self, "num_seqs", count)
        if self.last not in get_args(_Last):
            raise ConfigError(f'FixedCount: last must be "keep" or "drop", got {self.last!r}')
        check_data_key("FixedCount", self.data_key)

    @property
    def needs_lengths(self) -> bool:
        """Lengths are costs only."""
        return False

    @property
    def keeps_order(self) -> bool:
        """They are consecutive."""
        return True

    def window_seqs(self, target: int = WINDOW_SEQS) -> int:
        """Return the largest multiple of `num_seqs` that is not above `target`, at least one batch."""
        return max(target // self.num_seqs, 1) * self.num_seqs

    def count_batches(self, num_seqs: int) -> int:
        """Return the number of batches of a window of `num_seqs` sequences."""
        return num_seqs // self.num_seqs if self.last == "drop" else -(-num_seqs // self.num_seqs)

    def fullness(self, frames: NDArray[np.int64]) -> float:
        """Return the number of pieces in batches."""
        return len(frames) / self.num_seqs

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:  # noqa: ARG002
        """Group consecutive pieces."""
        num_batches = self.count_batches(len(frames))
        starts = np.minimum(np.arange(num_batches + 1) * self.num_seqs, len(frames))
        pieces = np.arange(starts[-1])
        longest = np.maximum.reduceat(frames, starts[:-1]) if num_batches else np.zeros(0, np.int64)
        return Groups(pieces, starts, self.costs_of(longest) * np.diff(starts))

    def caps(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many sequences fit into a batch whose longest has these frames, `int64[n]`."""
        return np.full(len(frames), self.num_seqs, np.int64)

    def costs_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cost of one sequence that is padded to these frames; an empty one counts as one frame."""
        return np.maximum(frames, 1)


_MAX_BUDGET = 2**31 - 1  # frames; its square fits into 64 bits


@dataclass(frozen=True)
class FrameBudget(Batching):
    """Consecutive sequences, until one more would exceed a budget of frames.

    The cost of a batch is its number of sequences times the frames of the longest: what it is with its padding. With
    `padded=False` it is the sum of the frames, for models that take the frames of a batch without padding. For little
    padding, use an order that keeps similar lengths together, such as `laplace`, or `Buckets`.

    A batch ends only because the next sequence would exceed the budget or `max_seqs`, or because the window ends. (The
    same rule as RETURNN's `batch_size` and `max_seqs`.) An empty sequence counts as one frame.

    Args:
        max_frames: The budget, in frames, at most 2**31 - 1.
        max_seqs: Maximum number of sequences of a batch.
        padded: Whether padding counts.
        data_key: The data key whose lengths count; None for the main key of the dataset.
        too_long: What to do with a sequence that exceeds the budget by itself: `"alone"`, a batch of its own, over the
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
                set_field(self, name, check_count(f"FrameBudget: {name}", value, minimum=1, maximum=_MAX_BUDGET))
        if not isinstance(self.padded, bool):
            raise ConfigError(f"FrameBudget: padded must be True or False, got {self.padded!r}")
        check_data_key("FrameBudget", self.data_key)
        check_too_long("FrameBudget", self.too_long)
        if self.longest == 0:
            raise ConfigError("FrameBudget: with quadratic_length a single frame costs 2, so max_frames must be over 1")

    @property
    def keeps_order(self) -> bool:
        """They are consecutive."""
        return True

    @property
    def longest(self) -> int:
        """Frames of the longest sequence that the budget allows, at least 1."""
        if self.quadratic_length is None:
            return self.max_frames
        # T + ceil(T**2 / q) <= B if and only if (2 * T + q)**2 <= q * (q + 4 * B), all of them integers
        length = self.quadratic_length
        return (math.isqrt(length * (length + 4 * self.max_frames)) - length) // 2

    def cut(self, pieces: Pieces) -> Pieces:
        """Apply `too_long` to sequences that are too long."""
        return apply_too_long(pieces, self.longest, self.too_long, self)

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
        """Return how many sequences fit into a padded batch whose longest has these frames, `int64[n]`, at least 1."""
        caps = self.max_frames // self.costs_of(frames)
        return np.clip(caps, 1, self.max_seqs)

    def costs_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cost of one sequence that is padded to these frames, `int64[n]`."""
        costs = np.maximum(frames, 1)
        if self.quadratic_length is not None:
            squares = np.minimum(costs, _MAX_BUDGET) ** 2  # longer ones are over any budget as it is
            costs = costs - (-squares // self.quadratic_length)
        return costs
