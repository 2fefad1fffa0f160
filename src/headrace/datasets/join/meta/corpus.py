"""The sequences of a `MetaDataset`, and where each of them is in each sub-dataset.

A corpus index of the `MetaDataset` is one of its base: of the dataset that controls the order, else a position in the
lists of tags, else a corpus index of the default dataset. From there a `Route` leads to each sub-dataset. Tags are
joined through the indices, so no data are read; mismatches are found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.index import AMBIGUOUS, CorpusIndex, TagJoin, open_or_join

_BLOCK = 1 << 20  # sequences checked at a time
_MAX_TAGS_FOR_HINT = 5_000  # the search for a similar tag takes some 10 us a tag

_FIX_MISSING = (
    "leave out what is not in all sub-datasets by seq_list_filter_file, or let the sub-dataset with the fewest "
    "sequences be the seq_order_control_dataset"
)
_FIX_NOT_LISTED = "name each sequence of the seq_order_control_dataset in seq_list_file, or filter it"
_FIX_LISTED = "correct seq_list_file: each tag must be one of its sub-dataset"


@dataclass(frozen=True, eq=False)
class Tagged:
    """Some sequences with tags.

    Attributes:
        name: What they are, for messages: "sub-dataset 'a'" or "the list for 'a'".
        index: Their tags.
    """

    name: str
    index: CorpusIndex


@dataclass(frozen=True, eq=False)
class TagStep:
    """From each sequence of `start` to the one of `end` that has the same tag."""

    start: Tagged
    end: Tagged
    join: TagJoin
    fix: str

    @classmethod
    def between(cls, start: Tagged, end: Tagged, fix: str) -> TagStep:
        """Join two, or open their join if it was kept."""
        return cls(start, end, open_or_join(start.index, end.index), fix)

    def of(self, indices: NDArray[np.int64], where: str) -> NDArray[np.int64]:
        """Return the corpus indices at the end, `int64[n]`.

        Raises:
            SourceError: A tag is missing there, or is not unique.
        """
        found = self.join.of(indices)
        if not self.join.is_complete and found.size and found.min() < 0:
            raise self._error(indices, found, where)
        return found

    def _error(self, indices: NDArray[np.int64], found: NDArray[np.int64], where: str) -> SourceError:
        wrong = np.flatnonzero(found < 0)
        tag = self.start.index.tags[int(indices[wrong[0]])]
        if found[wrong[0]] == AMBIGUOUS:
            what = f"{self.end.name} has the tag {tag!r} more than once: which belongs to that of {self.start.name}?"
            return SourceError(what, where=where, fix=f"make the tags of {self.end.name} unique")
        what = f"{self.end.name} has no tag {tag!r}, which {self.start.name} has"
        if len(wrong) > 1:
            what += f" ({len(wrong)} of {len(indices)} tags are missing)"
        return SourceError(what, where=where, fix=self._hint(tag) or self.fix)

    def _hint(self, tag: str) -> str | None:
        """Say what may be meant, if no tag at all was found, or there is one that is nearly the same."""
        others = self.end.index.tags
        if self.join.num_missing == self.join.num_seqs and len(others):
            return f"the tags there look like {others[0]!r}: say in seq_list_file which tags belong together"
        close = get_close_matches(tag, others, n=1, cutoff=0.9) if len(others) <= _MAX_TAGS_FOR_HINT else []
        return f"did you mean {close[0]!r}? Else {self.fix}" if close else None


@dataclass(frozen=True, eq=False)
class Route:
    """The way from the base to one sub-dataset.

    Attributes:
        to_list: From the base to its index in the lists of tags, where both are given.
        tags: The source of the tags that the sub-dataset has for sequences; at the same indices as the base or the
            lists.
        to_corpus: From that tag to the corpus index of the sub-dataset; `None` if it is the base, or is not known.
    """

    to_list: TagStep | None
    tags: Tagged
    to_corpus: TagStep | None

    def tag_indices(self, indices: NDArray[np.int64], where: str) -> NDArray[np.int64]:
        """Return the indices in `tags` of corpus indices of the base."""
        return indices if self.to_list is None else self.to_list.of(indices, where)

    def part_indices(self, indices: NDArray[np.int64], where: str) -> NDArray[np.int64]:
        """Return the corpus indices in the sub-dataset of corpus indices of the base."""
        found = self.tag_indices(indices, where)
        return found if self.to_corpus is None else self.to_corpus.of(found, where)

    @property
    def is_complete(self) -> bool:
        """Whether each sequence of the base has exactly one counterpart."""
        return all(step is None or step.join.is_complete for step in (self.to_list, self.to_corpus))


class MetaCorpus:
    """The joined corpus.

    Args:
        where: The dataset, for messages.
        base: Whose corpus indices count.
        routes: Sub-dataset -> the way there.
    """

    def __init__(self, where: str, base: Tagged, routes: Mapping[str, Route]) -> None:
        self.where = where
        self.index = base.index
        self._routes = dict(routes)

    def __len__(self) -> int:
        return len(self.index)

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of sequences of this corpus."""
        return self.index.tags.take(indices)

    def part_indices(self, name: str, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the corpus indices in a sub-dataset of sequences of this corpus, `int64[n]`.

        Raises:
            SourceError: One has no counterpart, or several.
        """
        return self._routes[name].part_indices(indices, self.where)

    def tags(self, name: str, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags by which a sub-dataset calls sequences of this corpus.

        Raises:
            SourceError: The lists of tags do not name one of them.
        """
        route = self._routes[name]
        return route.tags.index.tags.take(route.tag_indices(indices, self.where))

    def check(self, kept: NDArray[np.bool_] | None = None) -> None:
        """Check that each sequence, or each that is kept, has one counterpart in each sub-dataset. O(1) if all have.

        Args:
            kept: `bool[N]`.

        Raises:
            SourceError: One has none, or several.
        """
        if not all(route.is_complete for route in self._routes.values()):
            self.check_these(np.arange(len(self.index)) if kept is None else np.flatnonzero(kept))

    def check_these(self, indices: NDArray[np.int64]) -> None:
        """Check that each of these sequences has one counterpart in each sub-dataset.

        Raises:
            SourceError: One has none, or several.
        """
        for route in self._routes.values():
            if not route.is_complete:
                for start in range(0, len(indices), _BLOCK):
                    route.part_indices(indices[start : start + _BLOCK], self.where)

    def num_unused(self) -> dict[str, int]:
        """Return for each sub-dataset how many of its sequences belong to none of this corpus."""
        return {name: route.to_corpus.join.num_unused for name, route in self._routes.items() if route.to_corpus}


def join_corpora(
    where: str,
    indices: Mapping[str, CorpusIndex | None],
    *,
    control: str | None,
    default: str,
    lists: Mapping[str, CorpusIndex] | None,
) -> MetaCorpus:
    """Join sub-datasets by their tags.

    Args:
        where: The dataset, for messages.
        indices: Sub-dataset -> its tags; `None` where they are not known: then it is asked by tags, and not checked.
        control: The sub-dataset that gives the order, if one does.
        default: The sub-dataset whose sequences they are, if neither a control nor lists say it.
        lists: Sub-dataset -> tags, of one length, if there are lists.

    Raises:
        ConfigError: The tags of the base are not known.
        SourceError: An index is damaged.
    """
    known = {name: Tagged(f"sub-dataset {name!r}", index) for name, index in indices.items() if index is not None}
    listed = {name: Tagged(f"the list for {name!r}", index) for name, index in (lists or {}).items()}
    first = control or default
    base = known.get(first) if control or lists is None else listed[default]
    if base is None:
        raise ConfigError(
            f"the sub-dataset {first!r} does not tell its tags, by which the others are found",
            where=where,
            fix="choose another seq_order_control_dataset, or let it define get_all_tags",
        )
    to_list = TagStep.between(base, listed[control], _FIX_NOT_LISTED) if control and lists is not None else None
    routes = {}
    for name in indices:
        if base is known.get(name):
            routes[name] = Route(None, base, None)
            continue
        named_by = listed.get(name, base)
        fix = _FIX_MISSING if lists is None else _FIX_LISTED
        to_corpus = TagStep.between(named_by, known[name], fix) if name in known else None
        routes[name] = Route(to_list, named_by, to_corpus)
    return MetaCorpus(where, base, routes)
