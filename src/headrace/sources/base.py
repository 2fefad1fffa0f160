"""The contract of a source, which gives sequence i, by data key, in any order.

It also has what all sources share, so that they report wrong arguments in the same way: checks of indices, data keys
and frames, and `fill_rows`, which writes several sequences into one array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError, did_you_mean
from headrace.index import CorpusIndex
from headrace.show.card import Card, Shown, layout_of
from headrace.specs import DataSpec

SORT_LENGTHS = "seq_len"  # name of the column of lengths that only sort; not a data key


def check_corpus_idx(corpus_idx: int, num_seqs: int) -> int:
    """Return the index of a sequence, or raise `IndexError`: negative ones do not count from the end."""
    if not 0 <= corpus_idx < num_seqs:
        raise IndexError(f"sequence {corpus_idx} of a corpus of {num_seqs}")
    return corpus_idx


def check_data_key(data_key: str, specs: Mapping[str, DataSpec]) -> str:
    """Return a data key of a source, or raise `SourceError`."""
    if data_key not in specs:
        raise SourceError(f"the corpus has no data key {data_key!r}", fix=did_you_mean(data_key, specs))
    return data_key


def slice_frames(array: NDArray[Any], spec: DataSpec, start: int, end: int) -> NDArray[Any]:
    """Return a view of frames start..end of an array, or raise `IndexError`: they must lie within it.

    An array without a time axis is one frame, and is returned whole.
    """
    if not 0 <= start <= end <= num_frames_of(array, spec):
        raise IndexError(f"frames {start}..{end} of a sequence of {num_frames_of(array, spec)} frames")
    return array[start:end] if spec.has_time else array


def num_frames_of(array: NDArray[Any], spec: DataSpec) -> int:
    """Return the length of an array along time; 1 without a time axis."""
    return len(array) if spec.has_time else 1


_MAX_JOINED_BYTES = 4096  # on average. Below, `bytes.join` and one more copy take a third of NumPy's time


def fill_rows(out: NDArray[Any], arrays: Sequence[NDArray[Any]]) -> None:
    """Copy arrays into the rows of one array, one after the other.

    Args:
        out: `dtype[N, ...]` in C order.
        arrays: `dtype[n, ...]`, whose n add up to N; or N arrays `dtype[...]`, with one axis less. That their dtype is
            that of `out`, and their shapes are alike, is for the caller to know.

    Raises:
        ValueError: They do not fit.

    Examples:
        >>> import numpy as np
        >>> from headrace.sources import fill_rows
        >>> rows = np.empty(3, np.int64)
        >>> fill_rows(rows, [np.array([1, 2]), np.array([3])])
        >>> rows.tolist()
        [1, 2, 3]
    """
    if not out.dtype.hasobject and out.nbytes <= len(arrays) * _MAX_JOINED_BYTES:
        try:
            data = b"".join(arrays)  # type: ignore[arg-type]  # an array is a buffer
        except (BufferError, TypeError, ValueError):  # one is not in C order, or of a dtype that no buffer has
            data = b""
        if len(data) == out.nbytes:
            out.reshape(-1).view(np.uint8)[...] = np.frombuffer(data, np.uint8)
            return
    if not arrays:
        raise ValueError(f"there are no arrays for {len(out)} rows")
    join = np.stack if arrays[0].ndim < out.ndim else np.concatenate
    join(arrays, out=out, casting="no")


class Source(Shown, ABC):
    """Random access to the sequences of a corpus.

    Attributes:
        specs: Data key -> layout, in the order in which keys are reported; known without reading a sequence. Values of
            a sparse key with a known dim are 0..dim - 1; without one, they may be any integers.
        labels: Data key -> class labels, for the keys that have some; none, unless a sub-class says so.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> class Ramps(hr.Source):
        ...     specs = {"data": hr.DataSpec("float32", ())}
        ...     index = hr.CorpusIndex.from_columns(tags=["a", "b"], lengths={"data": [2, 3]})
        ...
        ...     def read(self, corpus_idx, data_key):
        ...         return np.arange(2 + corpus_idx, dtype=np.float32)
        >>> with hr.SourceDataset(Ramps(), seq_ordering="sorted_reverse") as corpus:
        ...     print([seq["data"].tolist() for seq in corpus.epoch(1)])
        [[0.0, 1.0, 2.0], [0.0, 1.0]]
    """

    specs: Mapping[str, DataSpec]
    labels: Mapping[str, Sequence[str]] = {}

    @property
    @abstractmethod
    def index(self) -> CorpusIndex:
        """Tags, lengths and locators of all sequences; the first access may build it."""

    @abstractmethod
    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, `dtype[T, ...]`.

        The array is the caller's own: nothing else will write to it.

        Raises:
            SourceError: The stored data cannot be read or do not match the index.
        """

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key, `dtype[end - start, ...]`, as a new array.

        A key without a time axis has one frame, and is returned as it is.

        Raises:
            IndexError: There is no such sequence, or not 0 <= start <= end <= its length.
            SourceError: As for `read`.
        """
        array = self.read(corpus_idx, data_key)
        return slice_frames(array, self.specs[data_key], start, end).copy()

    @property
    def runs_user_code(self) -> bool:
        """Whether reading runs code of users, which might draw from the generators of the process each time.

        What such a source gives is not kept to be given again, and the generators are seeded before it is read.
        """
        return not type(self).__module__.startswith("headrace.")

    @property
    def encodes_texts(self) -> bool:
        """Whether each reading encodes texts by a vocabulary, as gathering the index did: a conversion stores them."""
        return False

    @property
    def vocabularies_text(self) -> str:
        """A text that identifies the vocabularies that encode texts; "" without any. Part of a loader's state.

        Lengths do not tell it: other vocabularies may make as many classes of each text.
        """
        return ""

    def reads_slices(self, data_key: str) -> bool:  # noqa: ARG002 (a contract)
        """Tell whether `read_slice` of a data key reads hardly more than the frames that are asked for."""
        return False

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one sequence."""
        return {data_key: self.read(corpus_idx, data_key) for data_key in self.specs}

    @property
    def has_fast_rows(self) -> bool:
        """Whether `read_rows` and `read_into` can be called, and are faster than reading one by one."""
        return False

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array, one after the other.

        If it fails, the content of the array is arbitrary, and the error need not name the sequence.

        Args:
            corpus_indices: `int64[n]`.
            data_key: One whose frames have a shape without free axes.
            out: `dtype[N, ...]` in C order: N is the sum of the lengths in the index; n for a key without a time axis.
        """
        start = 0
        for corpus_idx in corpus_indices.tolist():
            array = self.read(corpus_idx, data_key)
            stop = start + (len(array) if self.specs[data_key].has_time else 1)
            out[start:stop] = array
            start = stop
        if start != len(out):
            raise SourceError(f"{data_key!r} has {start} frames in all, but the index says {len(out)}")

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own, such as a row of a padded batch.

        If it fails, the content of the arrays is arbitrary, and the error need not name the sequence.

        Args:
            corpus_indices: `int64[n]`.
            data_key: One with time, whose frames have a shape without free axes.
            outs: n arrays `dtype[T, ...]` in C order; T is the length in the index.
        """
        for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True):
            array = self.read(corpus_idx, data_key)
            if (array.shape, array.dtype) != (out.shape, out.dtype):
                raise SourceError(f"{data_key!r} of sequence {corpus_idx} is {array.dtype} of the shape {array.shape}")
            out[...] = array

    def __len__(self) -> int:
        """Return the number of sequences in the corpus."""
        return self.index.num_seqs

    def tag(self, corpus_idx: int) -> str:
        """Return the tag of one sequence."""
        return self.index.tags[corpus_idx]

    def tags_of(self, corpus_indices: NDArray[Any]) -> list[str]:
        """Return the tags of several sequences, `int[n]` corpus indices."""
        return self.index.tags.take(corpus_indices)

    def seq_lengths(self, corpus_idx: int) -> dict[str, int]:
        """Return data key -> number of frames of one sequence (1 for a key without a time axis)."""
        return {data_key: int(self.index.lengths(data_key)[corpus_idx]) for data_key in self.specs}

    def _card(self) -> Card:
        index = getattr(self, "_index", None)  # where it was built already: `index` may build it
        if isinstance(index, CorpusIndex):
            return index.card(type(self).__name__, self.specs)
        return Card(type(self).__name__, keys={key: layout_of(spec) for key, spec in self.specs.items()})

    def for_another_reader(self) -> Source | None:
        """Return a source of the same corpus that may be closed, and read in another thread, without this one.

        No file is opened or looked at. One without files and without memory of what was read may return itself.
        `None`, as here, if there is no such way: another one has to be made by the constructor.
        """
        return None

    def close(self) -> None:
        """Release files; a later read opens them again. Harmless when called twice."""
