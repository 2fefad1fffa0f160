"""The orders that are drawn from the legacy generator without looking at lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .base import ArrayOrder, Order
from .policy import Policy, legacy_rng


@dataclass(frozen=True)
class Random(Policy):
    """`random[:n][:seed=K]`: a uniform shuffle, O(N) memory (`permute` needs none).

    Args:
        num_epochs: Keep the same shuffle for so many full epochs. It is not a seed; 0 means 1.
        seed: A seed of your own. Orders with different seeds are independent of each other in every epoch, because seed
            and epoch are hashed, not added. Without it the documented seed rule holds, bit for bit.
    """

    num_epochs: int = 1
    seed: int | None = None
    name: ClassVar[str] = "random"
    is_random: ClassVar[bool] = True

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the order."""
        return ArrayOrder(legacy_rng(rng_seed).permutation(num_seqs), may_repeat=False)

    def __str__(self) -> str:
        return self.option_string(*epochs_part(self.num_epochs))


@dataclass(frozen=True)
class RandomSample(Policy):
    """`random_sample[:n][:seed=K]`: as many draws as there are sequences, with replacement.

    Some sequences come more than once and about 37 % not at all; a planner's report counts both.

    Args:
        num_epochs: As in `Random`.
        seed: As in `Random`.
    """

    num_epochs: int = 1
    seed: int | None = None
    name: ClassVar[str] = "random_sample"
    is_exhaustive: ClassVar[bool] = False
    is_random: ClassVar[bool] = True

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the draws."""
        # randint refuses an empty range, even for no draws
        return ArrayOrder(legacy_rng(rng_seed).randint(0, max(num_seqs, 1), size=num_seqs, dtype=np.int64))

    def __str__(self) -> str:
        return self.option_string(*epochs_part(self.num_epochs))


def epochs_part(num_epochs: int) -> tuple[str, ...]:
    """Return the part of an option string that tells `num_epochs`, none for 1."""
    return () if num_epochs == 1 else (str(num_epochs),)
