"""`ConcatSeqsDataset`: several sequences of another dataset in a row, as one.

A text file says which. The joined sequences are a corpus of their own, with tags and lengths, so all that a corpus with
random access offers works: orders, sub-epochs, shards, resuming. Their parts are asked of the inner dataset by its
corpus indices, as a whole order, so that its workers can be ahead.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, OptionalNotImplementedError, SourceError, check_count, did_you_mean
from headrace.files import read_seq_lens
from headrace.files.lists.tag_list import read_text
from headrace.index import CorpusIndex
from headrace.order import ArrayOrder, RangeOrder, occurrences
from headrace.sources import SORT_LENGTHS, Source
from headrace.specs import DataSpec

from ..cached import CachedDataset, SourceCorpus
from ..checks import absolute_name, check_flag, check_path
from ..configs import DatasetConfig
from ..corpus import Corpus
from ..digests import digest_text
from ..parts import check_tags, open_corpus, tags_of
from ..reading.loaded import OrderCursor
from ..reading.reader import Features, Reader, ReadRequest
from ..reading.source import Finishing
from ..seq import DatasetSeq, count_frames

_LOGGER = logging.getLogger("headrace.datasets")
_TAGS_AT_ONCE = 4096  # looked up together; one by one only where one is missing


class ConcatSeqsDataset(CachedDataset):
    """Sequences that are several of another dataset, one after the other.

    Lengths are known without reading where those of the inner dataset are. Sequences are sorted by the sums of the
    lengths in `seq_len_file`, or without it by those of the first data key.

    Args:
        dataset: Config of the inner dataset. Its own order counts for nothing.
        seq_list_file: Text file: on each line the tags of one sequence, with `seq_tag_delim` in between. The line is
            the tag of the joined sequence; empty lines are skipped.
        seq_len_file: File (JSON or Python literal) with the length of each single tag, for sorting.
        seq_tag_delim: See `seq_list_file`.
        remove_in_between_postfix: Data key -> the label that each sequence ends with. It is taken off where another
            sequence follows.
        repeat_in_between_last_frame_up_to_multiple_of: Data key -> m: where another sequence follows, the last frame is
            repeated until the number of frames is a multiple of m.
        pad_narrow_data_to_multiple_of_target_len: Data key -> (target key, m): where another sequence follows, it is
            cut, or its last frame repeated, until it has m times as many frames as the target has.
        use_cache_manager: Without effect: the files are small, and read where they are.
        **kwargs: See `Dataset`, and `transform` of `CachedDataset`.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing or truncated; a tag is not in the inner dataset, twice in it, or has no length.
    """

    supports_frame_shuffling = False

    def __init__(
        self,
        dataset: DatasetConfig,
        seq_list_file: str | os.PathLike[str],
        seq_len_file: str | os.PathLike[str] | None = None,
        seq_tag_delim: str = ";",
        remove_in_between_postfix: Mapping[str, Any] | None = None,
        repeat_in_between_last_frame_up_to_multiple_of: Mapping[str, int] | None = None,
        pad_narrow_data_to_multiple_of_target_len: Mapping[str, tuple[str, int]] | None = None,
        use_cache_manager: bool = False,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("cache_byte_size"):
            raise ConfigError("cache_byte_size has no effect here", fix="give it to the inner dataset")
        super().__init__(**kwargs)
        check_flag("use_cache_manager", use_cache_manager)
        offset = self.random_seed_offset
        inner = open_corpus(dataset, {"random_seed_offset": offset} if offset else None, owner=self)
        self.seq_list_file = absolute_name(check_path("seq_list_file", seq_list_file))
        lens_file = check_path("seq_len_file", seq_len_file)
        self.seq_len_file = None if lens_file is None else absolute_name(lens_file)
        specs = _specs_of(inner)
        joining = {
            "remove_in_between_postfix": remove_in_between_postfix,
            "repeat_in_between_last_frame_up_to_multiple_of": repeat_in_between_last_frame_up_to_multiple_of,
            "pad_narrow_data_to_multiple_of_target_len": pad_narrow_data_to_multiple_of_target_len,
        }
        check_tags(inner)
        joining_options = Joining.of(joining, list(specs))
        source = JoinedSource(inner, specs, joining_options, self.seq_list_file, seq_tag_delim, self.seq_len_file)
        self._set_source(source, JoinedSeqsCorpus, [inner], None if lens_file is None else SORT_LENGTHS)
        if inner.orders.seq_ordering != "default" or inner.orders.recipe.num_sub_epochs > 1:
            _LOGGER.warning(
                "inner dataset %r of a ConcatSeqsDataset: seq_ordering=%r, partition_epoch=%d have no effect: give "
                "them to the outer one",
                inner.name,
                inner.orders.seq_ordering,
                inner.orders.recipe.num_sub_epochs,
            )


class JoinedSeqsCorpus(SourceCorpus):
    """The corpus of joined sequences."""

    @property
    def _joined(self) -> JoinedSource:
        source = self.source
        assert isinstance(source, JoinedSource)
        return source.over(self.parts[0])

    def digest_text(self) -> str:
        """Return a digest of the tags, of how sequences are joined, and of the inner corpus."""
        inner = self.parts[0]
        num_parts = inner.orders.recipe.num_sub_epochs
        told = "" if num_parts == 1 else f" {num_parts} sub-epochs"  # no order, but what a transform draws
        return digest_text(f"{self.index.digest} {self._joined.joining} {inner.digest_text()}{told}")

    def reader(self) -> Reader:
        """Return a reader that joins what it reads of the inner corpus."""
        return JoinedReader(self._joined, self.finishing())

    def can_give_stored(self) -> bool:
        """Whether the inner corpus does."""
        return self._joined.has_stored()

    def stored(self, corpus_idx: int) -> DatasetSeq:
        """Return any joined sequence, of what the inner corpus has stored."""
        if not self.can_give_stored():
            self._not_offered("get_corpus_seq")
        joined = self._joined
        return DatasetSeq(
            corpus_idx, joined.read_seq(corpus_idx), seq_tag=joined.tag(corpus_idx), corpus_idx=corpus_idx
        )


class JoinedSource(Source):
    """The corpus of joined sequences: a text file with a line for each, the tags that it is made of.

    Args:
        inner: The corpus that has these tags.
        specs: Its layout.
        joining: How they are joined.
        path: The file.
        delimiter: What stands between tags.
        lens_file: Lengths by tag, for sorting.

    Raises:
        ConfigError: The delimiter is empty.
        SourceError: A file is missing or truncated; a tag is empty, not in the dataset, twice in it, or has no length.
    """

    def __init__(
        self,
        inner: Corpus,
        specs: Mapping[str, DataSpec],
        joining: Joining,
        path: str,
        delimiter: str,
        lens_file: str | None,
    ) -> None:
        if not isinstance(delimiter, str) or not delimiter:
            raise ConfigError(f"seq_tag_delim must be text, got {delimiter!r}")
        self.inner, self.specs, self.labels, self.joining = inner, specs, inner.labels, joining
        self._path = path
        lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
        tags = [line for line in lines if line]
        self._lines = np.array([number for number, line in enumerate(lines, 1) if line], np.int64)
        by_line = [line.split(delimiter) for line in tags]
        sizes = np.array([len(parts) for parts in by_line], np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])  # where those of each line start
        parts = [tag for parts in by_line for tag in parts]
        if "" in parts:
            raise SourceError(
                "an empty tag",
                where=self._where(parts.index("")),
                fix=f"write tags with {delimiter!r} between them only, or choose another seq_tag_delim",
            )
        known = tags_of(inner)
        self._indices = None if known is None else self._find(known, parts)  # corpus index of each tag of the file
        self._tags: Sequence[str] = parts if known is None else known.tags
        lengths = {}
        for key in specs:
            try:
                lengths[key] = self._sums(joining.lengths(self._lengths_of, key, self._are_last()))
            except NotImplementedError:
                continue
        if lens_file is not None:
            lengths[SORT_LENGTHS] = self._sums(self._lengths_of_file(lens_file, parts))
        self._index = CorpusIndex.from_columns(tags=tags, lengths=lengths)

    def over(self, inner: Corpus) -> JoinedSource:
        """Return the same sequences of another object for the inner corpus, such as one for another thread."""
        if inner is self.inner:
            return self
        made = copy.copy(self)
        made.inner = inner
        return made

    def for_another_reader(self) -> JoinedSource:
        """Return this one: `over` says what is read."""
        return self

    def _where(self, part: int) -> str:
        """Return where a tag stands."""
        return f"{self._path}, line {self._lines[np.searchsorted(self._starts, part, 'right') - 1]}"

    def _find(self, index: CorpusIndex, parts: list[str]) -> NDArray[np.int64]:
        """Return the corpus index of each tag, `int64[M]`."""
        found = np.empty(len(parts), np.int64)
        for start in range(0, len(found), _TAGS_AT_ONCE):
            tags = parts[start : start + _TAGS_AT_ONCE]
            try:
                found[start : start + len(tags)] = index.find_tags(tags)
            except SourceError:
                for part, tag in enumerate(tags, start):
                    try:
                        index.find_tags([tag])
                    except SourceError as error:
                        what = f"{error.what} (inner dataset {self.inner.name!r})"
                        raise SourceError(what, where=self._where(part), fix=error.fix) from None
                raise
        return found

    def _lengths_of(self, key: str) -> NDArray[Any]:
        """Return how many frames of a data key each tag has, `int[M]`."""
        inner = self.inner
        found = inner.lengths(key, False) if inner.is_indexed and inner.has_fixed_lengths else None
        if found is None or self._indices is None:
            raise OptionalNotImplementedError(f"the lengths of {key!r} are not known")
        return found(self._indices)

    def _lengths_of_file(self, path: str, parts: list[str]) -> NDArray[Any]:
        lengths = read_seq_lens(path)
        try:
            return np.array([lengths[tag] for tag in parts])
        except KeyError as error:
            tag = error.args[0]
            raise SourceError(
                f"no length for the tag {tag!r}, which stands in {self._where(parts.index(tag))}",
                where=f"seq_len_file {path} ({len(lengths)} lengths)",
                fix="give a length for each single tag of seq_list_file",
            ) from None

    def _sums(self, of_parts: NDArray[Any]) -> NDArray[Any]:
        """Return for each line the sum over its tags, `int64[N]` or `float[N]`."""
        totals: NDArray[Any] = np.zeros(len(of_parts) + 1, np.result_type(of_parts, np.int64))
        np.cumsum(of_parts, out=totals[1:])
        sums: NDArray[Any] = totals[self._starts[1:]] - totals[self._starts[:-1]]
        return sums

    def _are_last(self) -> NDArray[np.bool_]:
        """Return for each tag whether it is the last one of its line, `bool[M]`."""
        found = np.zeros(int(self._starts[-1]), bool)
        found[self._starts[1:] - 1] = True
        return found

    @property
    def index(self) -> CorpusIndex:
        """Tags and lengths."""
        return self._index

    @property
    def runs_user_code(self) -> bool:
        """Yes, as the dataset inside may."""
        return True

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, as it is stored."""
        return self.read_seq(corpus_idx)[data_key]

    def has_stored(self) -> bool:
        """Whether the dataset gives any sequence as it is stored."""
        return self._indices is not None and self.inner.can_give_stored()

    def read_seq(self, corpus_idx: int) -> Features:
        """Return all data keys of one sequence, as they are stored."""
        assert self._indices is not None
        parts = self._indices[self._starts[corpus_idx] : self._starts[corpus_idx + 1]]
        return self.join(corpus_idx, [self.inner.stored(part).features for part in parts.tolist()])

    def join(self, corpus_idx: int, seqs: list[Features], *, are_own: bool = False) -> Features:
        """Return a joined sequence.

        Args:
            corpus_idx: Which.
            seqs: Its parts.
            are_own: Whether their arrays are not shared: a function inside may return the same ones each time.
        """
        if len(seqs) == 1:
            return seqs[0] if are_own else {key: array.copy(order="K") for key, array in seqs[0].items()}
        first = int(self._starts[corpus_idx])
        return self.joining.join(
            seqs, lambda number: f"tag {self._tag_of(first + number)!r} in {self._where(first + number)}"
        )

    def _tag_of(self, part: int) -> str:
        return self._tags[part if self._indices is None else int(self._indices[part])]

    def request(self, wanted: ReadRequest) -> tuple[ReadRequest, NDArray[np.int64]]:
        """Return the request to the dataset, and where the parts of each joined sequence start, `int64[n + 1]`."""
        lines, corpus = wanted.indices, self.inner
        sizes = self._starts[lines + 1] - self._starts[lines]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        parts = np.arange(starts[-1]) + np.repeat(self._starts[lines] - starts[:-1], sizes)
        if self._indices is None or not corpus.is_indexed:
            tags = [self._tag_of(part) for part in parts.tolist()]
            return ReadRequest(wanted.epoch, RangeOrder(range(len(tags))), tags=tags), starts
        indices, counted = self._indices[parts], None
        if corpus.draws_by_occurrence:
            # Equal parts in one epoch differ by where they stand in the file, and by how often their line came before.
            repeats = np.zeros(len(lines), np.int64) if wanted.occurrences is None else wanted.occurrences
            before, totals = occurrences(ArrayOrder(self._indices)), np.bincount(self._indices)
            counted = before[parts] + totals[indices] * np.repeat(repeats, sizes)
        return ReadRequest.of(wanted.epoch, indices, counted), starts


class JoinedReader(Reader):
    """Reads the parts of sequences, and joins them.

    The dataset is asked for the parts of all that is wanted, so that its workers can be ahead.

    Args:
        source: The sequences.
        finishing: What is done to them.
    """

    is_sequential = False

    def __init__(self, source: JoinedSource, finishing: Finishing) -> None:
        self._source, self._finishing = source, finishing
        is_changed = finishing.transform is not None or source.inner.may_change_lengths
        self._knows_lengths = not is_changed and all(map(source.index.has_lengths, source.specs))
        self._inner = source.inner.reader()
        self.start(ReadRequest.of(None, np.zeros(0, np.int64)))

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order)
        self._starts: NDArray[np.int64] | None = None  # of the parts of each sequence, once they were asked for

    def tags(self) -> list[str]:
        """Look up the tags."""
        return self._source.tags_of(self._wanted.indices)

    def read(self, number: int) -> DatasetSeq:
        """Read and join a sequence."""
        corpus_idx = self._cursor[number]
        return DatasetSeq.made_of(number, self.features(number), self._source.tag(corpus_idx), None, corpus_idx)

    def features(self, number: int) -> Features:
        """Read and join all arrays of a sequence."""
        corpus_idx, wanted = self._cursor[number], self._wanted
        get_tag = partial(self._source.tag, corpus_idx)
        try:
            if self._starts is None:
                request, starts = self._source.request(wanted)
                self._inner.start(request)
                self._starts = starts
            parts = range(int(self._starts[number]), int(self._starts[number + 1]))
            seqs = [self._inner.features(part) for part in parts]
            joined = self._source.join(corpus_idx, seqs, are_own=self._inner.gives_own)
            occurrence = 0 if wanted.occurrences is None else int(wanted.occurrences[number])
            return self._finishing.apply(joined, wanted.epoch, corpus_idx, occurrence, get_tag)
        except Exception as error:
            self._finishing.add_note(error, wanted.epoch, get_tag, corpus_idx)
            raise

    def known_frames(self, number: int) -> NumbersDict | None:
        """Ask the index, unless they are not known, or may be others."""
        if not self._knows_lengths:
            return None
        corpus_idx, index = self._cursor[number], self._source.index
        return NumbersDict({key: int(index.lengths(key)[corpus_idx]) for key in self._source.specs})


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
        for name, value in options.items():
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{name} is a dict by data key, got {value!r}")
            for key in value or ():
                _check_key(name, key, data_keys)
        postfixes, multiples, targets = (dict(value or {}) for value in options.values())
        _, second, third = options
        for key, multiple in multiples.items():
            multiples[key] = check_count(f"{second}[{key!r}]", multiple, minimum=1)
        for key, value in targets.items():
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ConfigError(f"{third}[{key!r}] is {value!r}", fix='write {"data": ("classes", 6)}')
            _check_key(third, value[0], data_keys)
            targets[key] = (str(value[0]), check_count(f"{third}[{key!r}]", value[1], minimum=1))
        return cls(postfixes, multiples, targets)

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


def _check_key(name: str, key: Any, data_keys: Sequence[str]) -> None:
    if key not in data_keys:
        raise ConfigError(f"{name} names the data key {key!r}", fix=did_you_mean(str(key), data_keys))


def _specs_of(inner: Corpus) -> dict[str, DataSpec]:
    """Return the layout of a corpus; what it does not say is learnt from a sequence.

    Raises:
        ConfigError: It has none.
    """
    known = {key: spec for key, spec in (inner.layout() or {}).items() if spec is not None}
    if known and inner.knows_dtypes and len(known) == len(inner.layout() or ()):
        return known
    first = next(inner.stream(1), None)
    if first is None:
        raise ConfigError(
            "the layout of the inner dataset is not known before its first sequence, and it has none",
            where=f"inner dataset {inner.name!r}",
        )
    return {
        key: replace(known[key], dtype=array.dtype.name) if key in known else DataSpec.of_array(array)
        for key, array in first.features.items()
    }
