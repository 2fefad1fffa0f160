"""What can be known of a dataset's corpus without reading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.index import CorpusIndex

LengthsOf = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Returns the lengths of sequences, `int[n]`, by corpus index, `int64[n]`."""


def num_left_out(kept: NDArray[np.bool_]) -> tuple[int, int]:
    """Return how many sequences a filter leaves out, and of how many, by what it keeps, `bool[N]`."""
    return len(kept) - int(np.count_nonzero(kept)), len(kept)


@dataclass(frozen=True)
class CorpusFacts:
    """What is known of a corpus. Functions are called only when their answer is needed.

    Datasets made of others need it: which tags there are and under which corpus index, what is sorted by, what repeats.

    Attributes:
        index: The tags by corpus index; `init_seq_order(seq_order=...)` takes these numbers.
        sort_lengths: Returns `int[N]`: what sequences are sorted by.
        kept: Returns `bool[N]`: what the dataset's own filter keeps, `None` if it has no filter.
        draws_by_occurrence: Whether what is read depends on how often a sequence came before in the epoch.
        occurrences: Returns `int64[n]`: how often each sequence of the current order came before.
    """

    index: CorpusIndex
    sort_lengths: Callable[[], NDArray[Any]]
    kept: Callable[[], NDArray[np.bool_] | None]
    draws_by_occurrence: bool
    occurrences: Callable[[], NDArray[np.int64]]
