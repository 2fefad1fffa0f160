"""From tags to corpus indices: a sorted table of hashes that can be searched in the mapped file.

A hash only proposes: every answer is checked against the tags themselves, so that colliding hashes cost time and change
nothing. Invariant of the table: sorted by (hash, corpus index).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import SourceError

from .storage import REBUILD
from .tags import GeneratedTags, Tags

_MAX_TAGS_FOR_HINT = 5_000  # the search for a similar tag takes some 10 us a tag


@dataclass(frozen=True, slots=True, eq=False)
class TagTable:
    """Hashes of all tags, sorted, with the corpus index of each.

    Attributes:
        tags: The tags.
        hashes: `uint64[N]`, ascending.
        indices: `int32[N]` or `int64[N]`: the corpus index that each hash belongs to.
        hash_tag: The hash function that made the table.
        where: For errors: the file that the table comes from.
    """

    tags: Tags
    hashes: NDArray[np.uint64]
    indices: NDArray[np.int32] | NDArray[np.int64]
    hash_tag: Callable[[bytes], int] = xxhash.xxh3_64_intdigest
    where: str | None = None

    @classmethod
    def build(cls, tags: Tags, hash_tag: Callable[[bytes], int] = xxhash.xxh3_64_intdigest) -> TagTable:
        """Hash and sort all tags: O(N log N), about 2 s for 10 M."""
        hashes = np.empty(len(tags), dtype=np.uint64)
        for start, block in tags.blocks():
            hashes[start : start + len(block)] = _hash_all(block, hash_tag)
        order = np.argsort(hashes, kind="stable")
        indices = order if len(order) > np.iinfo(np.int32).max else order.astype(np.int32)
        return cls(tags, hashes[order], indices, hash_tag)

    def find(self, queries: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last corpus index with each tag, `int64[n]` twice; -1 if no sequence has it."""
        hashes = _hash_all(queries, self.hash_tag)
        # Sorted, neighbouring searches touch the same pages of a mapped table.
        order = np.argsort(hashes)
        lows, highs = np.empty((2, len(hashes)), dtype=np.int64)
        lows[order] = np.searchsorted(self.hashes, hashes[order], side="left")
        highs[order] = np.searchsorted(self.hashes, hashes[order], side="right")
        firsts = np.full(len(hashes), -1, dtype=np.int64)
        found = np.flatnonzero(highs > lows)
        firsts[found] = self.indices[lows[found]]
        lasts = firsts.copy()
        candidates = self._tags_at(firsts[found])
        ends: dict[str, tuple[int, int]] = {}  # of tags whose hash occurs more than once, or belongs to another tag
        for position, candidate in zip(found.tolist(), candidates, strict=True):
            query = queries[position]
            if candidate != query or highs[position] - lows[position] > 1:
                if query not in ends:
                    ends[query] = self._ends_of(query, self.indices[lows[position] : highs[position]])
                firsts[position], lasts[position] = ends[query]
        return firsts, lasts

    def _ends_of(self, query: str, run: NDArray[Any]) -> tuple[int, int]:
        """Return the first and last corpus index in `run` whose tag is `query`, or -1 twice."""
        same = [i for i, tag in zip(run.tolist(), self._tags_at(run), strict=True) if tag == query]
        return (same[0], same[-1]) if same else (-1, -1)

    def _tags_at(self, indices: NDArray[Any]) -> list[str]:
        """Return the tags at corpus indices of the table, which are wrong in a damaged file."""
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self.tags):
            ends = f"{indices.min()}..{indices.max()}"
            what = f"the look-up table points to sequences {ends} of {len(self.tags)}: the index is damaged"
            raise SourceError(what, where=self.where, fix=REBUILD)
        return self.tags.take(indices)

    def groups(self) -> NDArray[np.int64]:
        """Return `int64[N]`: for each sequence the smallest corpus index with the same tag. O(N)."""
        groups = np.arange(len(self.tags), dtype=np.int64)
        if not len(groups):
            return groups
        same_as_before = np.zeros(len(groups), dtype=bool)
        np.equal(self.hashes[1:], self.hashes[:-1], out=same_as_before[1:])
        in_run = same_as_before.copy()
        in_run[:-1] |= same_as_before[1:]
        in_runs = np.flatnonzero(in_run)
        first_of: dict[str, int] = {}
        for start in range(0, len(in_runs), 65_536):
            part = self.indices[in_runs[start : start + 65_536]]
            # Within a run of equal hashes the corpus indices ascend, so the first with a tag is the smallest.
            for corpus_idx, tag in zip(part.tolist(), self._tags_at(part), strict=True):
                groups[corpus_idx] = first_of.setdefault(tag, corpus_idx)
        return groups


def find_tags(
    tags: Tags, table: Callable[[], TagTable], queries: Sequence[str], where: str | None
) -> NDArray[np.int64]:
    """Return the corpus index of each query, `int64[n]`.

    Args:
        tags: The tags of the corpus.
        table: Returns the table of these tags; called only if they are not made by a rule.
        queries: The tags to look up.
        where: For errors: which corpus.

    Raises:
        SourceError: A tag is unknown, or several sequences have it.
    """
    if isinstance(queries, str):
        raise SourceError(f"cannot look up {queries!r}: not a list of tags", where=where, fix="give a list of str")
    for tag in queries:
        if not isinstance(tag, str):
            raise SourceError(f"cannot look up {tag!r}: a tag is a string", where=where)
    if isinstance(tags, GeneratedTags):
        found = [tags.find(tag) for tag in queries]
        firsts = np.array([-1 if corpus_idx is None else corpus_idx for corpus_idx in found], dtype=np.int64)
        lasts = firsts
    else:
        firsts, lasts = table().find(queries)
    unknown = np.flatnonzero(firsts < 0)
    if len(unknown):
        raise _unknown(tags, [queries[position] for position in unknown.tolist()], len(queries), where)
    twice = np.flatnonzero(firsts != lasts)
    if len(twice):
        tag, first, last = queries[twice[0]], firsts[twice[0]], lasts[twice[0]]
        raise SourceError(
            f"the tag {tag!r} is not unique: sequences {first} and {last} both have it",
            where=where,
            fix="make the tags unique, or address the sequences by corpus index",
        )
    return firsts


def _unknown(tags: Tags, unknown: list[str], num_queries: int, where: str | None) -> SourceError:
    what = f"the corpus of {len(tags)} sequences has no tag {unknown[0]!r}"
    if num_queries > 1:
        what += f" ({len(unknown)} of the {num_queries} tags looked up are unknown)"
    close = get_close_matches(unknown[0], tags, n=1) if 0 < len(tags) <= _MAX_TAGS_FOR_HINT else []
    fix = f"did you mean {close[0]!r}?" if close else "check that tags and corpus belong together"
    return SourceError(what, where=where, fix=fix)


def _hash_all(tags: Sequence[str], hash_tag: Callable[[bytes], int]) -> NDArray[np.uint64]:
    encoded = [tag.encode("utf-8", "surrogatepass") for tag in tags]
    return np.fromiter(map(hash_tag, encoded), dtype=np.uint64, count=len(encoded))
