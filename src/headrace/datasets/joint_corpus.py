"""Several corpora, one after the other, as one: nothing is copied, tags are looked up where they are.

Invariant: joint corpus index = first index of the part + corpus index in the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.index import CorpusIndex, Tags
from headrace.index.storage import About
from headrace.index.tags import check_indices


class JointTags(Tags):
    """The tags of several corpora, one after the other.

    Args:
        parts: Their tags.
    """

    def __init__(self, parts: Sequence[Tags]) -> None:
        self._parts = tuple(parts)
        self._starts = starts_of([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[type[JointTags], tuple[tuple[Tags, ...]]]:
        return JointTags, (self._parts,)

    def block(self, start: int, stop: int) -> list[str]:
        """Return the tags of corpus indices start..stop."""
        found: list[str] = []
        for part, first in zip(self._parts, self._starts.tolist(), strict=False):
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                found += part.block(low, high)
        return found

    def take(self, indices: ArrayLike) -> list[str]:
        """Return the tags at the given corpus indices."""
        wanted = check_indices(indices, len(self))
        owners = owners_of(self._starts, wanted)
        if len(wanted) and owners[0] == owners[-1] and (owners == owners[0]).all():
            return self._parts[int(owners[0])].take(wanted - self._starts[owners[0]])
        found: NDArray[Any] = np.empty(len(wanted), dtype=object)
        for number in np.unique(owners).tolist():
            is_own = owners == number
            found[is_own] = self._parts[number].take(wanted[is_own] - self._starts[number])
        tags: list[str] = found.tolist()
        return tags

    def update_digest(self, digest: xxhash.xxh3_128) -> None:
        """Feed the tags of each part."""
        digest.update(f"joint {len(self._parts)} ".encode())
        for part in self._parts:
            part.update_digest(digest)


class JointCorpus:
    """Several corpora as one.

    Args:
        indices: The index of each.

    Attributes:
        starts: `int64[K + 1]`: the joint corpus index at which each begins, and the end.
    """

    def __init__(self, indices: Sequence[CorpusIndex]) -> None:
        self.indices = tuple(indices)
        self.starts = starts_of([len(index) for index in indices])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def index(self) -> CorpusIndex:
        """The tags of all; lengths stay with the parts."""
        return CorpusIndex(JointTags([index.tags for index in self.indices]), {}, {}, about=About("", {}, ()))

    def owners_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which part each joint corpus index belongs to, `int64[n]`."""
        return owners_of(self.starts, indices)


def starts_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return where each of several parts begins, and the end, `int64[K + 1]`."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def owners_of(starts: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of each index: the last one that begins at or before it, so never an empty one."""
    return np.searchsorted(starts, indices, side="right") - 1
