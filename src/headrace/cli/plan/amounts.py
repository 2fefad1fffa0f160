"""How much each rank reads in each sub-epoch, and how even that is. Pure.

Invariant: a number is exact or unknown (-1); an amount that is unknown in one bin is omitted from every figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
_DRAWN_BY = ("bytes", "frames", "sequences")  # bars show the first of them that is known


@dataclass(frozen=True, eq=False)
class Amounts:
    """What the bins hold: one bin for each rank in each of some sub-epochs.

    Attributes:
        epochs: The sub-epochs, E of them.
        by_name: "files", "bytes", "sequences", "frames", where meaningful -> `int64[E, R]`, -1 where
            unknown.
    """

    epochs: range
    by_name: Mapping[str, NDArray[np.int64]]

    @property
    def num_ranks(self) -> int:
        """R."""
        return int(next(iter(self.by_name.values())).shape[1])

    def is_known(self, name: str) -> bool:
        """Whether an amount is known for every bin."""
        return name in self.by_name and bool((self.by_name[name] != UNKNOWN).all())

    @property
    def shown(self) -> list[str]:
        """The amounts that are known for one bin at least."""
        return [name for name, amounts in self.by_name.items() if (amounts != UNKNOWN).any()]

    @property
    def balanced(self) -> list[str]:
        """The amounts whose balance is known: all that are known everywhere, but for the number of files."""
        return [name for name in self.by_name if name != "files" and self.is_known(name)]

    @property
    def drawn(self) -> str:
        """The amount that bars show."""
        return next(name for name in _DRAWN_BY if self.is_known(name))

    @property
    def lost_by(self) -> str:
        """The amount that shows best what is lost when ranks drop their remainder: they end by sequences."""
        return "sequences" if self.is_known("sequences") else self.drawn

    def balance(self, name: str) -> Balance:
        """Return how even an amount is; it must be known everywhere."""
        return derive_balance(self.epochs, self.by_name[name])


@dataclass(frozen=True)
class Balance:
    """How even one amount is.

    Attributes:
        among_ranks: The fullest rank of a sub-epoch against the mean of its ranks, in the sub-epoch where that is most.
        worst_epoch: That sub-epoch.
        worst_rank: That rank.
        among_epochs: The fullest sub-epoch against the mean of all.
        lost: What is not read if all ranks stop with the one that has the least.
        total: The whole amount.
    """

    among_ranks: float
    worst_epoch: int
    worst_rank: int
    among_epochs: float
    lost: int
    total: int

    @property
    def lost_share(self) -> float:
        """The lost share of the total, 0 to 1."""
        return self.lost / self.total if self.total else 0.0


def derive_balance(epochs: range, amounts: NDArray[np.int64]) -> Balance:
    """Return how even `int64[E, R]` amounts are, all of them known."""
    ratios = _max_over_mean(amounts)
    worst = int(ratios.argmax())
    return Balance(
        among_ranks=float(ratios[worst]),
        worst_epoch=epochs[worst],
        worst_rank=int(amounts[worst].argmax()),
        among_epochs=float(_max_over_mean(amounts.sum(axis=1)[None])[0]),
        lost=int(amounts.sum() - amounts.min(axis=1).sum() * amounts.shape[1]),
        total=int(amounts.sum()),
    )


def _max_over_mean(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the largest number of each row over their mean; 1 where all are 0."""
    means = rows.mean(axis=1)
    ratios: NDArray[np.float64] = np.divide(rows.max(axis=1), means, out=np.ones(len(rows)), where=means > 0)
    return ratios
