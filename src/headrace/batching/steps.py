"""Which batch each rank gets at each step: arithmetic, without any communication.

The batches of an epoch are numbered 0..N-1, whoever gets them. From position b, step s on rank r of R is batch
`b + s * R + r`. A position is the number of batches that all ranks together are done with, so it says nothing of R: an
epoch can be continued from it with any other number of ranks, and what is left comes exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from headrace.errors import ConfigError
from headrace.order.policy import check_count, set_field

_Remainder = Literal["drop", "pad", "keep"]


@dataclass(frozen=True)
class Steps:
    """The steps of one rank, from a position of an epoch to its end.

    The remainder is what is left when fewer batches than ranks are left: `"drop"` leaves it out, `"pad"` repeats
    batches from the start of the epoch, so that all ranks have as many steps, and `"keep"` gives it to the first ranks:
    the others have one step less, which a training with a collective in each step does not survive.

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
        set_field(self, "num_batches", check_count("Steps", "num_batches", self.num_batches, minimum=0))
        set_field(self, "world_size", check_count("Steps", "world_size", self.world_size, minimum=1))
        set_field(self, "rank", check_count("Steps", "rank", self.rank, minimum=0, maximum=self.world_size - 1))
        position = check_count("Steps", "position", self.position, minimum=0, maximum=self.num_batches)
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
        """Return the position when so many steps are done; the same on all ranks.

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
