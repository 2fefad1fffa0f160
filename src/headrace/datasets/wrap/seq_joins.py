"""Which sequences a `ConcatSeqsDataset` joins into one, and how.

The list is a text file with one line for each new sequence, whose tags are joined. `Joining` says how
sequences that others follow are changed, and what that does to lengths.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count, did_you_mean
from headrace.files import read_seq_lens
from headrace.files.lists.tag_list import read_text
from headrace.index import CorpusIndex
from headrace.order import ArrayOrder, occurrences

from ..seq import count_frames

_TAGS_AT_ONCE = 4096  # looked up together; one by one only where one is missing


@dataclass(frozen=True)
class SeqParts:
    """Joined sequences, and the tags that each is made of.

    Attributes:
        path: The file.
        tags: Tags of the joined sequences: its lines.
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
            SourceError: The file is missing or truncated, or has an empty tag.
        """
        if not isinstance(delimiter, str) or not delimiter:
            raise ConfigError(f"seq_tag_delim must be text, got {delimiter!r}")
        lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
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
        """Return a copy without the tags, for use once they were found."""
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

    def lengths_of_file(self, path: str | os.PathLike[str]) -> NDArray[Any]:
        """Return the sum of the lengths in a file of the tags of each line, `int[N]` or `float[N]`.

        Raises:
            SourceError: It has no length for a tag.
        """
        lengths = read_seq_lens(path)
        try:
            of_parts = np.array([lengths[tag] for tag in self.part_tags])
        except KeyError as error:
            tag = error.args[0]
            raise SourceError(
                f"no length for the tag {tag!r}, which stands in {self.where(self.part_tags.index(tag))}",
                where=f"seq_len_file {os.fspath(path)} ({len(lengths)} lengths)",
                fix="give a length for each single tag of seq_list_file",
            ) from None
        return self.sums(of_parts)

    def sums(self, of_parts: NDArray[Any]) -> NDArray[Any]:
        """Return for each line the sum over its tags, `int64[N]` or `float[N]`."""
        totals = np.zeros(len(of_parts) + 1, np.result_type(of_parts, np.int64))
        np.cumsum(of_parts, out=totals[1:])
        return totals[self.starts[1:]] - totals[self.starts[:-1]]

    def is_last(self) -> NDArray[np.bool_]:
        """Return for each tag whether it is the last one of its line, `bool[M]`."""
        found = np.zeros(int(self.starts[-1]), bool)
        found[self.starts[1:] - 1] = True
        return found

    def parts_of(self, corpus_indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices among all tags of those of some lines, one after the other, and where each line starts."""
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
        parts: Indices among these of the requested ones, `int64[m]`.
        repeats: How often the line of each came before in the epoch, `int64[m]`.
    """
    before = occurrences(ArrayOrder(indices))
    totals = np.bincount(indices)
    return before[parts] + totals[indices[parts]] * repeats


Features = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Joining:
    """What is done to each sequence but the last one, in this order.

    Attributes:
        postfixes: Data key -> the label that it must end with, which is taken off.
        multiples: Data key -> m: its last frame is repeated until the number of frames is a multiple of m.
        targets: Data key -> (target key, m): it is cut, or its last frame repeated, until it has m times as many frames
            as the target had.
    """

    postfixes: Mapping[str, Any] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any], data_keys: Sequence[str]) -> Joining:
        """Check the options, in RETURNN's order: each a dict by data key, or `None`.

        Raises:
            ConfigError: One is something else, or names a data key that there is not.
        """
        names, (postfixes, multiples, targets) = list(options), options.values()
        first = _by_key(names[0], postfixes, data_keys)
        second = {
            key: check_count(f"{names[1]}[{key!r}]", m, minimum=1)
            for key, m in _by_key(names[1], multiples, data_keys).items()
        }
        name, third = names[2], {}
        for key, value in _by_key(name, targets, data_keys).items():
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ConfigError(f"{name}[{key!r}] is {value!r}", fix='write {"data": ("classes", 6)}')
            _check_key(name, value[0], data_keys)
            third[key] = (str(value[0]), check_count(f"{name}[{key!r}]", value[1], minimum=1))
        return cls(first, second, third)

    def lengths(self, lengths_of: Callable[[str], NDArray[Any]], key: str, is_last: NDArray[np.bool_]) -> NDArray[Any]:
        """Return how many frames of a data key each sequence adds, `int64[M]`.

        Args:
            lengths_of: Data key -> frames of each sequence, `int64[M]`.
            key: The data key.
            is_last: Whether no other follows, `bool[M]`.
        """
        whole = lengths_of(key).astype(np.int64)
        between = np.maximum(whole - 1, 0) if key in self.postfixes else whole
        if key in self.multiples:
            between = -(-between // self.multiples[key]) * self.multiples[key]
        if key in self.targets:
            target, multiple = self.targets[key]
            between = lengths_of(target).astype(np.int64) * multiple
        return np.where(is_last, whole, between)

    def join(self, seqs: Sequence[Features], where: Callable[[int], str]) -> Features:
        """Return one sequence made of several.

        Args:
            seqs: Data key -> array of each.
            where: Tells what the n-th is, for messages.

        Raises:
            SourceError: One does not end as it should, or has no axis to be joined along.
        """
        if len(seqs) == 1:
            return seqs[0]
        joined = {}
        for key in seqs[0]:
            arrays = [self._between(key, seq, partial(where, number)) for number, seq in enumerate(seqs[:-1])]
            arrays.append(seqs[-1][key])
            for number, array in enumerate(arrays):
                if array.ndim == 0 or array.shape[1:] != arrays[-1].shape[1:]:
                    raise SourceError(
                        f"{key!r} has the shape {array.shape}, and {arrays[-1].shape} follows: they cannot be joined",
                        where=where(number),
                        fix="leave this data key out of the inner dataset",
                    )
            joined[key] = np.concatenate(arrays)
        return joined

    def _between(self, key: str, seq: Features, where: Callable[[], str]) -> NDArray[Any]:
        """Return the frames of a data key of a sequence that is not the last one."""
        array = seq[key]
        if key in self.postfixes:
            postfix = self.postfixes[key]
            if not array.ndim or not len(array) or not np.all(array[-1] == postfix):
                end = f"ends with {array[-1].tolist()!r}" if array.ndim and len(array) else "is empty"
                raise SourceError(
                    f"{key!r} {end}, and not with the postfix {postfix!r}",
                    where=where(),
                    fix="correct remove_in_between_postfix, or the data",
                )
            array = array[:-1]
        if key in self.multiples and array.ndim:
            array = _padded(array, -(-len(array) // self.multiples[key]) * self.multiples[key], key, where)
        if key in self.targets and array.ndim:
            target, multiple = self.targets[key]
            num_frames = count_frames(seq[target]) * multiple
            array = _padded(array[:num_frames], num_frames, key, where)
        return array


def _padded(array: NDArray[Any], num_frames: int, key: str, where: Callable[[], str]) -> NDArray[Any]:
    missing = num_frames - len(array)
    if missing <= 0:
        return array
    if not len(array):
        raise SourceError(f"{key!r} has no frame that could be repeated {num_frames} times", where=where())
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def _by_key(name: str, value: Any, data_keys: Sequence[str]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is a dict by data key, got {value!r}")
    for key in value:
        _check_key(name, key, data_keys)
    return dict(value)


def _check_key(name: str, key: Any, data_keys: Sequence[str]) -> None:
    if key not in data_keys:
        raise ConfigError(f"{name} names the data key {key!r}", fix=did_you_mean(str(key), data_keys))
