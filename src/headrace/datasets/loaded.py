"""The sequences that a dataset has read and not yet handed out.

Each array is handed out once, and from then on is its reader's: asked for again, it is read again. So what a reader
does to an array never shows in a later read, whether the sequence came from a cache or from its source.
"""

from __future__ import annotations

import heapq
from typing import Any

from numpy.typing import NDArray

Features = dict[str, NDArray[Any]]


class LoadedSeqs:
    """Sequences by place in the current order: the window that was loaded, and the last ones that were asked for alone.

    Memory does not grow with random access: of what lies outside of the window only the last sequence, or group of
    sequences that are read together, is kept.
    """

    def __init__(self) -> None:
        self._window: dict[int, Features] = {}
        self._places: list[int] = []  # a heap of the keys of _window, so that dropping the first ones is cheap
        self._alone: dict[int, Features] = {}

    def __contains__(self, seq_idx: object) -> bool:
        return seq_idx in self._window or seq_idx in self._alone

    def __len__(self) -> int:
        return len(self._window) + len(self._alone)

    def put_window(self, seqs: dict[int, Features]) -> None:
        """Keep sequences until `drop_before` passes them."""
        for seq_idx, features in seqs.items():
            if seq_idx not in self._window:
                heapq.heappush(self._places, seq_idx)
            self._window[seq_idx] = features

    def put_alone(self, seqs: dict[int, Features]) -> None:
        """Keep sequences until others are asked for alone."""
        self._alone = seqs

    def get(self, seq_idx: int) -> Features | None:
        """Return what is left of a sequence, `None` if it is not held."""
        features = self._window.get(seq_idx)
        return self._alone.get(seq_idx) if features is None else features

    def drop_before(self, start: int) -> None:
        """Forget the places of the window that lie before `start`."""
        while self._places and self._places[0] < start:
            del self._window[heapq.heappop(self._places)]

    def clear(self) -> None:
        """Forget everything."""
        self._window, self._places, self._alone = {}, [], {}
