"""Endless streams mixed by weights, in closed form.

Position p of the mixture draws from one lane; the lane's draws are numbered from 0. `Mixture.locate` returns both for
any position, without going through those before it. `MixedOrder` is the order that results: each corpus goes through
epochs of its own, one after the other.

The lanes are the leaves of a binary tree. At each node the first q positions give round(q w / W) to the left and the
rest to the right, where w / W is the left side's share: rounding of a line, as in J. E. Bresenham, "Algorithm for
computer control of a digital plotter" (1965), at every node. So after any p positions a lane has been drawn from within
1 + log2(number of lanes) of its share, and the numbers are integers: nothing drifts, up to position 2**62.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.rng import derive_seed

from .base import ComputedOrder, Order
from .permutation import Permutation

MAX_UNITS = 2**30  # of the sum of weights, so that a product of two of them fits into 64 bits
_SHUFFLED_BLOCK = 4096  # positions that are shuffled among each other: a table, see `Permutation`
_MAX_DENOMINATOR = 10**6  # floats such as 0.3 and 1/3 are taken as these exact ratios


class Mixture:
    """An endless mixture of lanes.

    Args:
        weights: Weight of each lane, not negative, not all 0; only their ratios count. Ratios of small whole numbers,
            also when they are written as floats, are exact; others are rounded to one part in 2**30.
        shuffle_seed: Shuffle which lane comes when within blocks of 4096 positions, keyed by this seed; the shares of
            a block stay what they are, and the draws of a lane still come in their order. `None` keeps them evenly
            spread: 2 : 1 gives A B A, A B A, ...

    Raises:
        ConfigError: A weight is negative or not finite, or all are 0.
    """

    def __init__(self, weights: Sequence[float], *, shuffle_seed: int | None = None) -> None:
        self.units = _whole_weights(weights)
        self._shuffle_seed = shuffle_seed
        self._lanes = np.flatnonzero(self.units)
        self._sums = np.concatenate([[0], np.cumsum(self.units[self._lanes])])
        self._last_block: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None  # see `_block`

    @property
    def num_lanes(self) -> int:
        """Number of lanes."""
        return len(self.units)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lane that each position draws from, and the number of the draw in it, both `int64[n]`.

        The draws of a lane are numbered in the order of the positions. O(n log lanes); shuffled ones cost a table for
        each block of 4096 positions that is touched.
        """
        positions = np.asarray(positions, np.int64)
        return self._locate_evenly(positions) if self._shuffle_seed is None else self._locate_shuffled(positions)

    def _locate_evenly(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lanes = np.empty(len(positions), np.int64)
        draws = np.empty(len(positions), np.int64)
        # Parts of the tree still to be walked: which of the positions, their numbers within the part, its leaves.
        parts = [(np.arange(len(positions)), positions, 0, len(self._lanes))]
        while parts:
            chosen, numbers, first, last = parts.pop()
            if last - first == 1:
                lanes[chosen], draws[chosen] = self._lanes[first], numbers
                continue
            middle = (first + last) // 2
            on_left = self._num_left(numbers, first, middle, last)
            is_left = self._num_left(numbers + 1, first, middle, last) > on_left
            parts.append((chosen[is_left], on_left[is_left], first, middle))
            parts.append((chosen[~is_left], (numbers - on_left)[~is_left], middle, last))
        return lanes, draws

    def num_draws(self, position: int) -> NDArray[np.int64]:
        """Return how often each lane is drawn from before a position, `int64[lanes]`: the number of its next draw."""
        block, offset = divmod(position, _SHUFFLED_BLOCK)
        if self._shuffle_seed is None or not offset:
            return self._num_even_draws(position)
        lanes, _ = self._block(block)
        return self._num_even_draws(position - offset) + np.bincount(lanes[:offset], minlength=self.num_lanes)

    def first_position_with(self, num_draws: Sequence[int], *, reached_by: str) -> int:
        """Return the first position before which lanes have reached given numbers of draws, O(log position) look-ups.

        Args:
            num_draws: Number of draws of each lane. Lanes of weight 0 are ignored.
            reached_by: "any" or "all" of the lanes.
        """
        reached = np.any if reached_by == "any" else np.all
        goal, lanes = np.asarray(num_draws, np.int64)[self._lanes], self._lanes

        def is_reached(position: int) -> bool:
            return bool(reached(self.num_draws(position)[lanes] >= goal))

        high = 1
        while not is_reached(high):
            high *= 2
        low = 0
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_reached(middle) else (middle + 1, high)
        return low

    def _num_even_draws(self, position: int) -> NDArray[np.int64]:
        counts = np.zeros(self.num_lanes, np.int64)
        parts = [(position, 0, len(self._lanes))]
        while parts:
            number, first, last = parts.pop()
            if last - first == 1:
                counts[self._lanes[first]] = number
                continue
            middle = (first + last) // 2
            on_left = int(self._num_left(np.array([number], np.int64), first, middle, last)[0])
            parts += [(on_left, first, middle), (number - on_left, middle, last)]
        return counts

    def _num_left(self, numbers: NDArray[np.int64], first: int, middle: int, last: int) -> NDArray[np.int64]:
        """Return round(numbers * left / whole) for the node over some leaves, in whole numbers below 2**63."""
        left, whole = int(self._sums[middle] - self._sums[first]), int(self._sums[last] - self._sums[first])
        quotients, rests = np.divmod(numbers, whole)
        rounded: NDArray[np.int64] = quotients * left + (rests * left + whole // 2) // whole
        return rounded

    def _locate_shuffled(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        blocks, offsets = np.divmod(positions, _SHUFFLED_BLOCK)
        lanes = np.empty(len(positions), np.int64)
        draws = np.empty(len(positions), np.int64)
        by_block = np.argsort(blocks, kind="stable")
        for here in np.split(by_block, np.flatnonzero(np.diff(blocks[by_block])) + 1):
            if len(here):
                lanes_of_block, draws_of_block = self._block(int(blocks[here[0]]))
                lanes[here], draws[here] = lanes_of_block[offsets[here]], draws_of_block[offsets[here]]
        return lanes, draws

    def _block(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lane and the number of the draw of each position of a shuffled block.

        Only the turns of the lanes are shuffled. The draws that a lane has in the block are then assigned to its turns
        in ascending order: if they were shuffled too, a corpus would start again before all of it has come.
        """
        last = self._last_block
        if last is not None and last[0] == block:
            return last[1], last[2]
        assert self._shuffle_seed is not None
        shuffle = Permutation(_SHUFFLED_BLOCK, derive_seed(self._shuffle_seed, "mixture", occurrence=block, bits=63))
        start = block * _SHUFFLED_BLOCK
        lanes, draws = self._locate_evenly(start + shuffle.at(np.arange(_SHUFFLED_BLOCK, dtype=np.int64)))
        by_lane = np.argsort(lanes, kind="stable")
        draws[by_lane] = draws[np.lexsort((draws, lanes))]
        self._last_block = block, lanes, draws  # one assignment: threads may ask at once
        return lanes, draws


def _whole_weights(weights: Sequence[float]) -> NDArray[np.int64]:
    """Return whole numbers in the ratios of the weights, with a sum of at most `MAX_UNITS`."""
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float | Fraction | np.integer | np.floating):
            raise ConfigError(f"a weight is a number, not {weight!r}", fix="give numbers such as 0.7 and 0.3")
        if not math.isfinite(weight) or weight < 0:
            raise ConfigError(f"a weight must be finite and not negative, got {weight}", fix="0 leaves a source out")
    if not any(weight > 0 for weight in weights):
        raise ConfigError(f"all {len(weights)} weights are 0", fix="give at least one source a positive weight")
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    meant = [(part / total).limit_denominator(_MAX_DENOMINATOR) for part in exact]
    scale = math.lcm(*(part.denominator for part in meant))
    is_whole = sum(meant) == 1 and all(bool(kept) == bool(part) for kept, part in zip(meant, exact, strict=True))
    if is_whole and scale <= MAX_UNITS:
        return np.array([int(part * scale) for part in meant], np.int64)
    room = MAX_UNITS - len(exact)  # since rounding up to 1 can add one for each
    return np.array([max(round(part / total * room), int(part > 0)) for part in exact], np.int64)


class Lane:
    """The endless stream of one corpus: its epochs in a row.

    Args:
        epoch_sizes: `int[n]`: number of sequences of each of its epochs; the sizes repeat after n epochs; at least one.
        order_of: Returns the order of one of its epochs, from 1; cheap, since it is asked again and again.
        offset: Added to its corpus indices.
    """

    def __init__(self, epoch_sizes: Sequence[int], order_of: Callable[[int], Order], offset: int) -> None:
        self._starts = np.concatenate([[0], np.cumsum(np.asarray(epoch_sizes, np.int64))])
        self.size = int(self._starts[-1])
        self.offset = offset
        self._order_of = order_of

    def take(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the corpus indices of some draws in the joint corpus, `int64[n]` -> `int64[n]`."""
        epochs, positions = self._locate(draws)
        result = np.empty(len(draws), np.int64)
        by_epoch = np.argsort(epochs, kind="stable")  # not a mask for each: a small corpus has very many
        for here in np.split(by_epoch, np.flatnonzero(np.diff(epochs[by_epoch])) + 1):
            if not len(here):
                continue
            asked, first = positions[here], int(positions[here].min())
            order = self._order_of(int(epochs[here[0]]))
            result[here] = order.block(first, int(asked.max()) + 1)[asked - first]
        result += self.offset
        return result

    def epochs_of(self, first: int, last: int) -> range:
        """Return which of its epochs the draws first..last (exclusive) are in."""
        if last <= first:
            return range(0)
        (start, stop), _ = self._locate(np.array([first, last - 1], np.int64))
        return range(int(start), int(stop) + 1)

    def may_repeat_within(self, first: int, last: int) -> bool:
        """Tell whether the draws first..last (exclusive) may give one sequence twice."""
        epochs = self.epochs_of(first, last)
        return len(epochs) > 1 or any(self._order_of(epoch).may_repeat for epoch in epochs)

    def _locate(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the epoch of each draw, from 1, and the position in it."""
        rounds, rests = np.divmod(draws, self.size)
        in_round = np.searchsorted(self._starts, rests, side="right") - 1
        return rounds * (len(self._starts) - 1) + in_round + 1, rests - self._starts[in_round]


class MixedOrder(ComputedOrder):
    """Positions of a mixture of lanes.

    Args:
        mixture: Which lane each position draws from.
        lanes: The corpora. Only those of weight 0 may be empty.
        positions: Which positions of the mixture, in a row.

    `may_repeat` of a slice is that of the whole: repetitions are counted over all sub-epochs of a full epoch.
    """

    def __init__(self, mixture: Mixture, lanes: Sequence[Lane], positions: range) -> None:
        super().__init__(positions)
        self._mixture, self._lanes = mixture, lanes
        bounds = zip(mixture.num_draws(positions.start), mixture.num_draws(positions.stop), strict=True)
        self.may_repeat = len(positions) > 0 and any(
            lane.may_repeat_within(int(first), int(last)) for lane, (first, last) in zip(lanes, bounds, strict=True)
        )

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`, in indices of the joint corpus."""
        lanes, draws = self._mixture.locate(self._positions_in(start, stop))
        result = np.empty(len(draws), np.int64)
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            result[here] = self._lanes[lane].take(draws[here])
        return result
