"""The sequences of a `MetaDataset`, and where each of them is in each sub-dataset; the files that say so.

A corpus index of the `MetaDataset` is one of its base: of the dataset that controls the order, else a position in the
lists of tags, else a corpus index of the default dataset. From there the way to a sub-dataset leads over the lists, if
there are some, and from the tags there to its own. Tags are joined through the indices, so no data are read; mismatches
are found here. The files hold data only: nothing of them is executed.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import read_tag_list
from headrace.index import AMBIGUOUS, CorpusIndex, open_or_join

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


class TagStep:
    """Leads from each sequence of `start` to the one of `end` that has the same tag.

    Args:
        start: Where it begins.
        end: Where it ends.
        fix: What to do if a tag is missing.
    """

    def __init__(self, start: Tagged, end: Tagged, fix: str) -> None:
        self.start, self.end, self.fix = start, end, fix
        self.join = open_or_join(start.index, end.index)

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


class TagJoins:
    """The joined corpus.

    Args:
        where: The dataset, for messages.
        indices: Sub-dataset -> its tags; `None` where they are not known: then it is asked by tags, and not checked.
        control: The sub-dataset that gives the order, if one does.
        default: The sub-dataset whose sequences they are, if neither a control nor lists say it.
        lists: Sub-dataset -> tags, of one length, if there are lists.

    Attributes:
        index: The tags of the base.
        is_checked: Whether `check` found nothing wrong.

    Raises:
        ConfigError: The tags of the base are not known.
        SourceError: An index is damaged.
    """

    def __init__(
        self,
        where: str,
        indices: Mapping[str, CorpusIndex | None],
        *,
        control: str | None,
        default: str,
        lists: Mapping[str, CorpusIndex] | None,
    ) -> None:
        self.where, self.is_checked = where, False
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
        self.index = base.index
        to_list = [TagStep(base, listed[control], _FIX_NOT_LISTED)] if control and listed else []
        fix = _FIX_LISTED if listed else _FIX_MISSING
        self._tags = {name: base if base is known.get(name) else listed.get(name, base) for name in indices}
        # From the base to where a sub-dataset has tags for sequences, and from there to its own
        self._to_tags = {name: [] if tags.index is base.index else to_list for name, tags in self._tags.items()}
        self._to_corpus = {name: TagStep(self._tags[name], end, fix) for name, end in known.items() if end is not base}

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
        for step in self._way(name):
            indices = step.of(indices, self.where)
        return indices

    def tags(self, name: str, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags by which a sub-dataset calls sequences of this corpus.

        Raises:
            SourceError: The lists of tags do not name one of them.
        """
        for step in self._to_tags[name]:
            indices = step.of(indices, self.where)
        return self._tags[name].index.tags.take(indices)

    def _way(self, name: str) -> list[TagStep]:
        """Return the steps from the base to a sub-dataset."""
        return [*self._to_tags[name], *([self._to_corpus[name]] if name in self._to_corpus else [])]

    def check(self, kept: NDArray[np.bool_] | None = None) -> None:
        """Check that each sequence, or each that is kept, has one counterpart in each sub-dataset. O(1) if all have.

        Args:
            kept: `bool[N]`.

        Raises:
            SourceError: One has none, or several.
        """
        steps = [step for name in self._tags for step in self._way(name)]
        if not all(step.join.is_complete for step in steps):
            self.check_these(np.arange(len(self.index)) if kept is None else np.flatnonzero(kept))
        self.is_checked = True

    def check_these(self, indices: NDArray[np.int64]) -> None:
        """Check that each of these sequences has one counterpart in each sub-dataset.

        Raises:
            SourceError: One has none, or several.
        """
        for name in self._tags:
            if not all(step.join.is_complete for step in self._way(name)):
                for start in range(0, len(indices), _BLOCK):
                    self.part_indices(name, indices[start : start + _BLOCK])


SeqListFile = str | os.PathLike[str] | Mapping[str, "str | os.PathLike[str]"]

_JSON_ENDINGS = (".json", ".json.gz")
_PICKLE_ENDINGS = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz")


def read_seq_lists(seq_list_file: SeqListFile, names: Sequence[str]) -> dict[str, CorpusIndex]:
    """Return the tags of some sub-datasets; entries at the same index of all lists belong together.

    Args:
        seq_list_file: A text file (a tag a line) or JSON list: the same tags in all sub-datasets; a JSON dict
            sub-dataset -> list; or a mapping sub-dataset -> file. JSON files end in `.json`, all may be packed (`.gz`).
        names: The sub-datasets.

    Raises:
        ConfigError: There is no list for one of them.
        SourceError: A file is missing, truncated, a pickle, or holds something else; or the lists differ in length.
    """
    are_files = isinstance(seq_list_file, Mapping)
    given: Any = seq_list_file if are_files else _read_lists(seq_list_file)  # type: ignore[arg-type]
    if isinstance(given, list):
        return dict.fromkeys(names, CorpusIndex.from_columns(tags=given, lengths={}))
    lists: dict[str, list[str]] = {}
    for name in names:
        if name not in given:
            raise ConfigError(
                f"no list of tags for the sub-dataset {name!r}, only for {sorted(given)}",
                where="seq_list_file" if are_files else str(seq_list_file),
                fix="give one for each sub-dataset that is used; they may be the same file",
            )
        tags = _read_lists(given[name]) if are_files else given[name]
        if not isinstance(tags, list):
            raise SourceError("a dict of lists where the list of one sub-dataset is expected", where=str(given[name]))
        lists[name] = tags
        first, first_tags = next(iter(lists.items()))
        if len(tags) != len(first_tags):
            raise SourceError(
                f"the lists differ in length: {len(first_tags)} tags for {first!r}, {len(tags)} for {name!r}",
                where=f"seq_list_file={seq_list_file!r}",
                fix="write one tag for each sequence into each list; the n-th ones belong together",
            )
    return {name: CorpusIndex.from_columns(tags=tags, lengths={}) for name, tags in lists.items()}


def read_key_lengths(path: str, tags: Sequence[str], data_key: str) -> NDArray[np.int64]:
    """Return the length of one data key for each tag, `int64[N]`, from JSON tag -> data key -> length.

    Raises:
        SourceError: The file is missing, truncated or something else, or has no length for a tag.
    """
    lengths = _read_json(path, dict[str, dict[str, int]], '{"tag": {"data": 123, ...}, ...}')
    try:
        return np.array([lengths[tag][data_key] for tag in tags], dtype=np.int64)
    except KeyError:
        tag = next(tag for tag in tags if data_key not in lengths.get(tag, {}))
        what = f"no length of {data_key!r} for the tag {tag!r}"
        raise SourceError(what, where=path, fix="give one for each sequence in seq_lens_file") from None


def _read_lists(path: str | os.PathLike[str]) -> list[str] | dict[str, list[str]]:
    name = os.fspath(path)
    if name.endswith(_PICKLE_ENDINGS):
        opener = "gzip.open" if name.endswith(".gz") else "open"
        target = name.removesuffix(".gz").rpartition(".")[0] + ".json"
        code = f"import gzip, json, pickle; json.dump(pickle.load({opener}({name!r}, 'rb')), open({target!r}, 'w'))"
        raise SourceError(
            "pickle files are refused: reading one can run any code that it contains",
            where=name,
            fix=f"if you trust the file, convert it once in Python: {code}",
        )
    if name.endswith(_JSON_ENDINGS):
        content: list[str] | dict[str, list[str]]
        content = _read_json(name, list[str] | dict[str, list[str]], '["tag", ...] or {"sub-dataset": ["tag", ...]}')
        return content
    return read_tag_list(path)


def _read_json(path: str, form: Any, example: str) -> Any:
    try:
        data = Path(path).read_bytes()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        what = f"the gzip data are truncated or wrong: {error}"
        raise SourceError(what, where=path, fix="write the file again") from error
    except OSError as error:
        raise SourceError(f"cannot read the file: {error.strerror}", where=path, fix="check the path") from error
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"this is not what is expected here: {error}", where=path, fix=f"write {example}") from error
