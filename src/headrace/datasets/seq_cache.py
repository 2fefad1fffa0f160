"""A bounded in-memory cache of whole sequences: least recently used goes first.

Invariant: the bytes held never exceed the limit. A hit returns copies, because a reader owns what it gets and may write
to it: what a cached epoch delivers cannot depend on what a reader did to its arrays.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OVERHEAD_BYTES = 200  # of one array object and its place in the tables, roughly


class SeqCache:
    """Corpus index -> arrays by data key.

    Args:
        max_bytes: The limit: 0 keeps nothing, -1 is unlimited.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._seqs: OrderedDict[int, tuple[dict[str, NDArray[Any]], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seqs)

    def __contains__(self, corpus_idx: object) -> bool:
        return corpus_idx in self._seqs

    def get(self, corpus_idx: int) -> dict[str, NDArray[Any]] | None:
        """Return copies of the arrays of one sequence, or `None` if it is not held."""
        held = self._seqs.get(corpus_idx)
        if held is None:
            return None
        self._seqs.move_to_end(corpus_idx)
        return {data_key: array.copy() for data_key, array in held[0].items()}

    def put(self, corpus_idx: int, features: dict[str, NDArray[Any]]) -> None:
        """Keep copies of a sequence, dropping the least recently used ones; one larger than the limit is not kept."""
        num_bytes = sum(array.nbytes + _OVERHEAD_BYTES for array in features.values())
        if corpus_idx in self._seqs or (self.max_bytes >= 0 and num_bytes > self.max_bytes):
            return
        while self.max_bytes >= 0 and self.num_bytes + num_bytes > self.max_bytes:
            _, (_, freed) = self._seqs.popitem(last=False)
            self.num_bytes -= freed
        self._seqs[corpus_idx] = ({key: np.array(array) for key, array in features.items()}, num_bytes)
        self.num_bytes += num_bytes

    def clear(self) -> None:
        """Drop everything."""
        self._seqs.clear()
        self.num_bytes = 0
