"""The order of several corpora that are mixed: each goes through epochs of its own, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .base import Order
from .mixture import Mixture


class Lane:
    """The endless stream of one corpus: its epochs in a row.

    Args:
        epoch_sizes: `int[n]`: how many sequences its epochs have, which come again after n epochs; at least one.
        order_of: Returns the order of one of its epochs, from 1; cheap, since it is asked again and again.
        offset: Added to its corpus indices.
    """

    def __init__(self, epoch_sizes: Sequence[int], order_of: Callable[[int], Order], offset: int) -> None:
        self._starts = np.concatenate([[0], np.cumsum(np.asarray(epoch_sizes, np.int64))])
        self.size = int(self._starts[-1])
        self.offset = offset
        self._order_of = order_of

    def take(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what some draws give, as indices of the joint corpus, `int64[n]` -> `int64[n]`."""
        epochs, places = self._locate(draws)
        result = np.empty(len(draws), np.int64)
        by_epoch = np.argsort(epochs, kind="stable")  # not a mask for each: a small corpus has very many
        for here in np.split(by_epoch, np.flatnonzero(np.diff(epochs[by_epoch])) + 1):
            if not len(here):
                continue
            wanted, first = places[here], int(places[here].min())
            order = self._order_of(int(epochs[here[0]]))
            result[here] = order.block(first, int(wanted.max()) + 1)[wanted - first]
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
        """Return which of its epochs each draw is in, from 1, and the place there."""
        rounds, rests = np.divmod(draws, self.size)
        in_round = np.searchsorted(self._starts, rests, side="right") - 1
        return rounds * (len(self._starts) - 1) + in_round + 1, rests - self._starts[in_round]


class MixedOrder(Order):
    """Positions of a mixture of lanes.

    Args:
        mixture: Which lane each position draws from.
        lanes: The corpora. Only those of weight 0 may be empty.
        positions: Which positions of the mixture, in a row.

    A slice is said to repeat where the whole does: what comes again is counted over all sub-epochs of a full epoch.
    """

    def __init__(self, mixture: Mixture, lanes: Sequence[Lane], positions: range) -> None:
        self._mixture, self._lanes, self._positions = mixture, lanes, positions
        bounds = zip(mixture.num_draws(positions.start), mixture.num_draws(positions.stop), strict=True)
        self.may_repeat = len(positions) > 0 and any(
            lane.may_repeat_within(int(first), int(last)) for lane, (first, last) in zip(lanes, bounds, strict=True)
        )

    def __len__(self) -> int:
        return len(self._positions)

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`, in indices of the joint corpus."""
        part = self._positions[start:stop]
        lanes, draws = self._mixture.place(np.arange(part.start, part.stop, dtype=np.int64))
        result = np.empty(len(draws), np.int64)
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            result[here] = self._lanes[lane].take(draws[here])
        return result

    def slice(self, start: int, stop: int) -> MixedOrder:
        """Return positions start..stop as an order."""
        part = MixedOrder(self._mixture, self._lanes, range(0))
        part._positions, part.may_repeat = self._positions[start:stop], self.may_repeat
        return part
