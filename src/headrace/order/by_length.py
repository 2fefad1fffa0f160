"""The orders by length alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from .base import ArrayOrder, Order
from .length_sort import argsort_lengths
from .policy import Policy, check_lengths


@dataclass(frozen=True)
class Sorted(Policy):
    """`sorted`: shortest first; equal lengths in the order of the corpus."""

    name: ClassVar[str] = "sorted"
    needs_lengths: ClassVar[bool] = True

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the order, O(N log N)."""
        indices = argsort_lengths(check_lengths(self, num_seqs, lengths), descending=False)
        return ArrayOrder(indices, may_repeat=False)

    def __str__(self) -> str:
        return self.option_string()


@dataclass(frozen=True)
class SortedReverse(Policy):
    """`sorted_reverse`: longest first; equal lengths still in the order of the corpus."""

    name: ClassVar[str] = "sorted_reverse"
    needs_lengths: ClassVar[bool] = True

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the order, O(N log N)."""
        indices = argsort_lengths(check_lengths(self, num_seqs, lengths), descending=True)
        return ArrayOrder(indices, may_repeat=False)

    def __str__(self) -> str:
        return self.option_string()
