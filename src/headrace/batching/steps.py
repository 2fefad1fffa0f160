"""Where a batch of an epoch is, in which window and at which step of which rank.

All of it is arithmetic, without communication.

The batches of an epoch are numbered 0..N-1 over all ranks. From position b, step s on rank r of R is batch `b + s *
R + r`. A position is the number of batches that all ranks together have done, so it does not depend on R: an epoch can
be continued from it with any other number of ranks, and the rest comes exactly once. A prefix table of the number of
batches in each window (8 bytes for 65 thousand sequences) finds any of them in O(log windows).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order.policy import set_field


def num_windows(num_seqs: int, window_seqs: int) -> int:
    """Return the number of windows of an epoch; window w starts at position `w * window_seqs`."""
    return -(-num_seqs // window_seqs)


def window_bounds(window: int, num_seqs: int, window_seqs: int) -> tuple[int, int]:
    """Return the first position of a window, and the one after its last."""
    return window * window_seqs, min((window + 1) * window_seqs, num_seqs)


class BatchTable:
    """The batches of an epoch, by window. Immutable.

    Args:
        batches_of_windows: Number of batches in each window, `int[W]`; a window may have none.

    Raises:
        ConfigError: A number is negative, or not an integer.
    """

    def __init__(self, batches_of_windows: NDArray[Any]) -> None:
        counts = np.asarray(batches_of_windows)
        if counts.ndim != 1 or (len(counts) and (counts.dtype.kind not in "iu" or counts.min() < 0)):
            raise ConfigError(f"a batch table needs one number of batches for each window, got {batches_of_windows!r}")
        self._ends = np.cumsum(counts, dtype=np.int64)

    @property
    def num_windows(self) -> int:
        """Number of windows of the epoch."""
        return len(self._ends)

    @property
    def num_batches(self) -> int:
        """Number of batches of the epoch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def first_batch(self, window: int) -> int:
        """Return the number, in the epoch, of the first batch of a window."""
        return int(self._ends[window - 1]) if window else 0

    def locate(self, batch: int) -> tuple[int, int]:
        """Return the window of a batch of the epoch, and its number there."""
        if not 0 <= batch < self.num_batches:
            raise IndexError(f"batch {batch} is outside an epoch of {self.num_batches} batches")
        window = int(np.searchsorted(self._ends, batch, side="right"))
        return window, batch - self.first_batch(window)


_Remainder = Literal["drop", "pad", "keep"]


@dataclass(frozen=True)
class Steps:
    """The steps of one rank, from a position of an epoch to its end.

    The remainder is the last batches, where these are fewer than ranks: `"drop"` drops it, `"pad"` repeats
    batches from the start of the epoch, so that all ranks have as many steps, and `"keep"` gives it to the first ranks:
    the others have one step less, which breaks a training with a collective operation in each step.

    Args:
        num_batches: Batches of the epoch, on all ranks.
        rank: Which rank, from 0.
        world_size: How many there are.
        position: Batches of the epoch that are done, on all ranks.
        remainder: `"drop"`, `"pad"` or `"keep"`.

    Raises:
        ConfigError: An argument is wrong.
    """

    num_batches: int
    rank: int = 0
    world_size: int = 1
    position: int = 0
    remainder: _Remainder = "drop"

    def __post_init__(self) -> None:
        """Check all arguments."""
        set_field(self, "num_batches", check_count("Steps: num_batches", self.num_batches, minimum=0))
        set_field(self, "world_size", check_count("Steps: world_size", self.world_size, minimum=1))
        set_field(self, "rank", check_count("Steps: rank", self.rank, minimum=0, maximum=self.world_size - 1))
        position = check_count("Steps: position", self.position, minimum=0, maximum=self.num_batches)
        set_field(self, "position", position)
        if self.remainder not in get_args(_Remainder):
            raise ConfigError(f'Steps: remainder must be "drop", "pad" or "keep", got {self.remainder!r}')

    def __len__(self) -> int:
        """Return the number of steps that are left for this rank."""
        left = self.num_batches - self.position
        if self.remainder == "drop":
            return left // self.world_size
        return -(-(left - (self.rank if self.remainder == "keep" else 0)) // self.world_size)

    def batch_at(self, step: int) -> int:
        """Return the number of the batch of a step, from 0; repeated ones are taken from the start of the epoch."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is outside the {len(self)} steps of rank {self.rank}")
        return self._number(step) % self.num_batches

    def is_repeat(self, step: int) -> bool:
        """Tell whether the batch of a step is one that pads the remainder, and was or will be delivered anyway."""
        return self._number(step) >= self.num_batches

    def position_after(self, num_steps: int) -> int:
        """Return the position after a number of steps; the same on all ranks.

        At the end of the epoch it is `num_batches`, also if a remainder was dropped.
        """
        if num_steps >= self.num_steps_longest:
            return self.num_batches
        return self.position + num_steps * self.world_size

    @property
    def num_steps_longest(self) -> int:
        """Steps of rank 0, the most that any rank has."""
        return len(replace(self, rank=0))

    @property
    def num_dropped(self) -> int:
        """Batches that no rank gets."""
        return (self.num_batches - self.position) % self.world_size if self.remainder == "drop" else 0

    @property
    def num_repeated(self) -> int:
        """Batches that come twice, on all ranks together."""
        return -(self.num_batches - self.position) % self.world_size if self.remainder == "pad" else 0

    def resume(self, position: int, rank: int, world_size: int) -> Steps:
        """Return the steps of a rank of another world, from a position on."""
        return replace(self, position=position, rank=rank, world_size=world_size)

    def _number(self, step: int) -> int:
        return self.position + step * self.world_size + self.rank
