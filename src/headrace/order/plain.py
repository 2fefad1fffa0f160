"""The orders that look at no lengths (as in the corpus, reversed, every n-th, shuffled).

`random` draws a permutation from the legacy generator and keeps it; `permute` computes one, without memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import check_count

from .base import ArrayOrder, ComputedOrder, Order, RangeOrder
from .permutation import Permutation
from .policy import Policy, legacy_rng, set_field


@dataclass(frozen=True)
class Default(Policy):
    """`default`: the order of the corpus.

    Examples:
        >>> from headrace.order import Default
        >>> Default().plan(4, rng_seed=1, lengths=None).block(0, 4).tolist()
        [0, 1, 2, 3]
    """

    name: ClassVar[str] = "default"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return 0, 1, 2, ..."""
        return RangeOrder(range(num_seqs))

    def __str__(self) -> str:
        return self.option_string()


@dataclass(frozen=True)
class Reverse(Policy):
    """`reverse`: the corpus from its end; lengths play no part.

    Examples:
        >>> from headrace.order import Reverse
        >>> Reverse().plan(4, rng_seed=1, lengths=None).block(0, 4).tolist()
        [3, 2, 1, 0]
    """

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

    Examples:
        >>> from headrace.order import EveryN
        >>> EveryN(2).plan(4, rng_seed=1, lengths=None).block(0, 4).tolist()
        [0, 2, 1, 3]
    """

    n: int
    name: ClassVar[str] = "default_every_n"
    is_exhaustive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check `n`."""
        set_field(self, "n", check_count(f"{self.name}: n", self.n, minimum=1))

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the interleaved blocks, in O(1) memory."""
        return InterleavedOrder(self.n, num_seqs // self.n)

    def __str__(self) -> str:
        return self.option_string(str(self.n))


class InterleavedOrder(ComputedOrder):
    """The first items of all blocks, then all second ones, ...: no memory.

    Args:
        num_blocks: Number of blocks, at least 1.
        block_size: Items in each.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(range(num_blocks * block_size))
        self._num_blocks = num_blocks
        self._block_size = block_size

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`."""
        in_block, which_block = np.divmod(self._positions_in(start, stop), self._num_blocks)
        return which_block * self._block_size + in_block


@dataclass(frozen=True)
class Shuffled(Policy):
    """Base of the shuffles of the whole corpus."""

    num_epochs: int = 1
    seed: int | None = None
    is_random: ClassVar[bool] = True

    def __str__(self) -> str:
        return self.option_string(*(() if self.num_epochs == 1 else (str(self.num_epochs),)))


@dataclass(frozen=True)
class Random(Shuffled):
    """`random[:n][:seed=K]`: a uniform shuffle, O(N) memory (`permute` needs none).

    Args:
        num_epochs: Number of full epochs that keep the same shuffle. It is not a seed; 0 means 1.
        seed: A seed of your own. Orders with different seeds are independent of each other in every epoch, because seed
            and epoch are hashed, not added. Without it RETURNN's seed rule holds, bit for bit.
    """

    name: ClassVar[str] = "random"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the order."""
        return ArrayOrder(legacy_rng(rng_seed).permutation(num_seqs), may_repeat=False)


@dataclass(frozen=True)
class RandomSample(Shuffled):
    """`random_sample[:n][:seed=K]`: as many draws as there are sequences, with replacement.

    Some sequences come more than once and about 37 % not at all; a planner's report counts both.

    Args:
        num_epochs: As in `Random`.
        seed: As in `Random`.

    Examples:
        >>> from headrace.order import RandomSample
        >>> RandomSample().plan(4, rng_seed=1, lengths=None).block(0, 4).tolist()
        [1, 3, 0, 0]
    """

    name: ClassVar[str] = "random_sample"
    is_exhaustive: ClassVar[bool] = False

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the draws."""
        # randint refuses an empty range, even for no draws
        return ArrayOrder(legacy_rng(rng_seed).randint(0, max(num_seqs, 1), size=num_seqs, dtype=np.int64))


@dataclass(frozen=True)
class Permute(Shuffled):
    """`permute[:n][:seed=K]`: a shuffle of any size up to 2**62, with O(1) memory and random access.

    RETURNN has no such order. Its key is hashed from the number that RETURNN's seed rule gives.

    Args:
        num_epochs: Number of full epochs that keep the same shuffle; 0 means 1.
        seed: A seed of your own; seed and epoch are hashed together, so that different seeds are independent in every
            epoch.
    """

    name: ClassVar[str] = "permute"

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> PermutedOrder:  # noqa: ARG002
        """Return the order, O(1)."""
        return PermutedOrder(Permutation(num_seqs, rng_seed))


class PermutedOrder(ComputedOrder):
    """A keyed permutation as an order: indices are computed when asked for.

    A block costs less than 0.1 us an index, a single position about 0.2 ms: ask for blocks.
    """

    def __init__(self, permutation: Permutation) -> None:
        super().__init__(range(permutation.size))
        self._permutation = permutation

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`."""
        return self._permutation.at(self._positions_in(start, stop))

    def position_of(self, corpus_idx: int) -> int | None:
        """Return the position of a corpus index in this order, None if it is not in this slice."""
        position = int(self._permutation.position_of(np.array([corpus_idx], dtype=np.int64))[0])
        return position - self._positions.start if position in self._positions else None
