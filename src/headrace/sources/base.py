"""The contract of a source: it gives sequence i, by data key, in any order.

A source knows nothing of epochs, orders or processes. It may be pickled: the copy opens its files again when it first
reads. It is not thread-safe. Everything that can be known without reading a sequence (tags, lengths, locators) is in
`source.index`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from .arguments import slice_frames


class Source(ABC):
    """Random access to the sequences of a corpus.

    Attributes:
        specs: Data key -> layout, in the order in which keys are reported; known without reading a sequence. Values of
            a sparse key with a known dim are 0..dim - 1; without one, they may be any integers.
        labels: Data key -> class labels, for the keys that have some.
    """

    specs: Mapping[str, DataSpec]
    labels: Mapping[str, Sequence[str]]

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

        A key without time has one frame, and is returned as it is.

        Raises:
            IndexError: There is no such sequence, or not 0 <= start <= end <= its length.
            SourceError: As for `read`.
        """
        array = self.read(corpus_idx, data_key)
        return slice_frames(array, self.specs[data_key], start, end).copy()

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
            out: `dtype[N, ...]` in C order: N is the sum of the lengths in the index; n for a key without time.
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
        """Return data key -> number of frames of one sequence (1 for a key without time)."""
        return {data_key: int(self.index.lengths(data_key)[corpus_idx]) for data_key in self.specs}

    def close(self) -> None:  # noqa: B027 (a source without files has nothing to release)
        """Release files; a later read opens them again. Harmless when called twice."""
