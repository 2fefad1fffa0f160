"""Which sequences a `ConcatSeqsDataset` is made of: a text file with one line for each, whose tags are joined."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import read_seq_lens
from headrace.files.lists import read_text
from headrace.index import CorpusIndex
from headrace.order import ArrayOrder, occurrences

_TAGS_AT_ONCE = 4096  # looked up together; one by one only where one is missing
_FROM_PICKLE = "open({target!r} + '.txt', 'w').write('\\n'.join({data}))"


@dataclass(frozen=True)
class SeqParts:
    """Joined sequences, and the tags that each is made of.

    Attributes:
        path: The file.
        tags: Of the joined sequences: its lines.
        lines: Number of each line in the file, `int64[N]`.
        part_tags: All tags, line by line.
        starts: Where the tags of each line start, and the end, `int64[N + 1]`.
    """

    path: str
    tags: list[str]
    lines: NDArray[np.int64]
    part_tags: list[str]
    starts: NDArray[np.int64]

    @classmethod
    def read(cls, path: str, delimiter: str) -> SeqParts:
        """Read a file; empty lines are skipped.

        Raises:
            ConfigError: The delimiter is empty.
            SourceError: The file is missing or torn, or has an empty tag.
        """
        if not isinstance(delimiter, str) or not delimiter:
            raise ConfigError(f"seq_tag_delim must be text, got {delimiter!r}")
        lines = [line.removesuffix("\r") for line in read_text(path, _FROM_PICKLE).split("\n")]
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line]
        parts = [line.split(delimiter) for _, line in numbered]
        for (number, line), tags in zip(numbered, parts, strict=True):
            if "" in tags:
                raise SourceError(
                    f"an empty tag in {line!r}",
                    where=f"{path}, line {number}",
                    fix=f"write tags with {delimiter!r} between them only, or choose another seq_tag_delim",
                )
        starts = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(tags) for tags in parts], out=starts[1:])
        return cls(
            path,
            [line for _, line in numbered],
            np.array([number for number, _ in numbered], np.int64),
            [tag for tags in parts for tag in tags],
            starts,
        )

    def without_tags(self) -> SeqParts:
        """Return what is needed once the tags were found."""
        return replace(self, tags=[], part_tags=[])

    def where(self, part: int) -> str:
        """Return where a tag stands."""
        return f"{self.path}, line {self.lines[np.searchsorted(self.starts, part, 'right') - 1]}"

    def find(self, index: CorpusIndex, name: str) -> NDArray[np.int64]:
        """Return the corpus index of each tag, `int64[M]`.

        Raises:
            SourceError: One is missing, or not unique.
        """
        found = np.empty(len(self.part_tags), np.int64)
        for start in range(0, len(found), _TAGS_AT_ONCE):
            tags = self.part_tags[start : start + _TAGS_AT_ONCE]
            try:
                found[start : start + len(tags)] = index.find_tags(tags)
            except SourceError as error:
                raise self._not_found(index, range(start, start + len(tags)), name) or error from None
        return found

    def _not_found(self, index: CorpusIndex, parts: range, name: str) -> SourceError | None:
        """Return what is wrong with the first tag that cannot be found."""
        for part in parts:
            try:
                index.find_tags([self.part_tags[part]])
            except SourceError as error:
                return SourceError(f"{error.what} ({name})", where=self.where(part), fix=error.fix)
        return None

    def lengths_of_file(self, path: str | os.PathLike[str]) -> NDArray[np.int64]:
        """Return the sum of the lengths in a file of the tags of each line, `int64[N]`.

        Raises:
            SourceError: It has no length for a tag.
        """
        lengths = read_seq_lens(path)
        try:
            of_parts = np.array([lengths[tag] for tag in self.part_tags], np.int64)
        except KeyError as error:
            tag = error.args[0]
            raise SourceError(
                f"no length for the tag {tag!r}, which stands in {self.where(self.part_tags.index(tag))}",
                where=f"seq_len_file {os.fspath(path)} ({len(lengths)} lengths)",
                fix="give a length for each single tag of seq_list_file",
            ) from None
        return self.sums(of_parts)

    def sums(self, of_parts: NDArray[Any]) -> NDArray[np.int64]:
        """Return for each line the sum over its tags, `int64[N]`."""
        totals = np.zeros(len(of_parts) + 1, np.int64)
        np.cumsum(of_parts, out=totals[1:])
        return totals[self.starts[1:]] - totals[self.starts[:-1]]

    def is_last(self) -> NDArray[np.bool_]:
        """Return for each tag whether it is the last one of its line, `bool[M]`."""
        found = np.zeros(int(self.starts[-1]), bool)
        found[self.starts[1:] - 1] = True
        return found

    def parts_of(self, corpus_indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places among all tags of those of some lines, one after the other, and where each line starts."""
        sizes = self.starts[corpus_indices + 1] - self.starts[corpus_indices]
        starts = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        offsets = np.repeat(self.starts[corpus_indices] - starts[:-1], sizes)
        return np.arange(starts[-1]) + offsets, starts


def occurrences_of_parts(
    indices: NDArray[np.int64], parts: NDArray[np.int64], repeats: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return a number for each part by which equal sequences in one epoch differ, `int64[m]`.

    It is a function of where the part stands in the file and of how often its line came before, not of the order.

    Args:
        indices: Corpus index of each tag of the file, `int64[M]`.
        parts: Places among these of those that are asked for, `int64[m]`.
        repeats: How often the line of each came before in the epoch, `int64[m]`.
    """
    before = occurrences(ArrayOrder(indices))
    totals = np.bincount(indices)
    return before[parts] + totals[indices[parts]] * repeats
