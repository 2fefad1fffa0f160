"""The orders that need neither lengths nor a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .base import Order, RangeOrder
from .policy import Policy, check_count, set_field


@dataclass(frozen=True)
class Default(Policy):
    """`default`: the order of the corpus."""

    name: ClassVar[str] = "default"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return 0, 1, 2, ..."""
        return RangeOrder(range(num_seqs))

    def __str__(self) -> str:
        return self.option_string()


@dataclass(frozen=True)
class Reverse(Policy):
    """`reverse`: the corpus from its end; lengths play no part."""

    name: ClassVar[str] = "reverse"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return num_seqs - 1, num_seqs - 2, ..."""
        return RangeOrder(range(num_seqs - 1, -1, -1))

    def __str__(self) -> str:
        return self.option_string()


@dataclass(frozen=True)
class EveryN(Policy):
    """`default_every_n:K`: K contiguous blocks of the corpus, interleaved.

    Position `j * n + i` is corpus index `i * (num_seqs // n) + j`. The `num_seqs % n` sequences at the end of the
    corpus do not come at all; a planner's report counts them.

    Args:
        n: Number of blocks, at least 1.
    """

    n: int
    name: ClassVar[str] = "default_every_n"
    is_exhaustive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check `n`."""
        set_field(self, "n", check_count(self.name, "n", self.n, minimum=1))

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the interleaved blocks, in O(1) memory."""
        return InterleavedOrder(self.n, num_seqs // self.n)

    def __str__(self) -> str:
        return self.option_string(str(self.n))


class InterleavedOrder(Order):
    """The first items of all blocks, then all second ones, ...: no memory.

    Args:
        num_blocks: Number of blocks, at least 1.
        block_size: Items in each.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._positions = range(num_blocks * block_size)

    def __len__(self) -> int:
        return len(self._positions)

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`."""
        part = self._positions[start:stop]
        in_block, which_block = np.divmod(np.arange(part.start, part.stop, dtype=np.int64), self._num_blocks)
        return which_block * self._block_size + in_block

    def slice(self, start: int, stop: int) -> InterleavedOrder:
        """Return positions start..stop as an order."""
        part = InterleavedOrder(self._num_blocks, self._block_size)
        part._positions = self._positions[start:stop]
        return part
