"""Cut a row of pieces into batches, each as long as its budget allows: the arithmetic under all policies.

What a batch may hold is said by *caps*: the cap of a piece is the number of pieces in a batch whose longest it is. A
batch of n pieces is allowed if no member has a cap below n. A padded budget, a number of sequences, a quadratic cost
and budgets by bucket are all caps. The end of a batch is computed for every possible start at once; then a walk from
end to end, one step a batch, gives the batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ends_by_caps(caps: NDArray[np.int64], limits: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return for each piece where a batch that starts with it ends, `int64[n]`.

    Doubling over a table of range minima: O(n log(largest cap)) time, about 0.1 us a piece, and as many int32 of
    memory.

    Args:
        caps: `int64[n]`, each at least 1.
        limits: Where the batch must end at the latest, `int64[n]`, each above its index; None: at n.
    """
    num = len(caps)
    if num == 0:
        return np.zeros(0, np.int64)
    table = [np.minimum(caps, num).astype(np.int32)]
    largest = int(table[0].max())
    while 2 * (width := 2 ** (len(table) - 1)) <= largest:
        table.append(np.minimum(table[-1][:-width], table[-1][width:]))  # minimum of the 2 * width caps from here on
    firsts = np.arange(num, dtype=np.int32)
    last_ends = np.full(num, num, np.int32) if limits is None else limits.astype(np.int32)
    ends = firsts.copy()
    lowest = np.full(num, num, np.int32)
    for level in reversed(range(len(table))):
        minima = table[level]
        wider = np.minimum(minima[np.minimum(ends, len(minima) - 1)], lowest)
        new_ends = ends + np.int32(2**level)
        fits = (new_ends - firsts <= wider) & (new_ends <= last_ends)
        np.copyto(ends, new_ends, where=fits)
        np.copyto(lowest, wider, where=fits)
    return ends.astype(np.int64)


def ends_by_sum(costs: NDArray[np.int64], budget: int, max_seqs: int | None) -> NDArray[np.int64]:
    """Return for each piece where a batch that starts with it ends, `int64[n]`, if costs add up.

    Args:
        costs: `int64[n]`; one that is over the budget is a batch of its own.
        budget: What the sum of a batch must not exceed.
        max_seqs: Most pieces of a batch.
    """
    sums = np.zeros(len(costs) + 1, np.int64)
    np.cumsum(costs, out=sums[1:])
    firsts = np.arange(len(costs))
    ends = np.searchsorted(sums, sums[:-1] + budget, side="right") - 1
    if max_seqs is not None:
        ends = np.minimum(ends, firsts + max_seqs)
    return np.maximum(ends, firsts + 1)


def follow(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Walk from end to end, starting at 0; return where the batches start, and the end, `int64[B + 1]`."""
    nexts = ends.tolist()
    starts = [0]
    while starts[-1] < len(nexts):
        starts.append(nexts[starts[-1]])
    return np.array(starts, np.int64)
