"""Checks of what callers ask a source for, so that all sources answer a wrong question in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from headrace.errors import SourceError, did_you_mean
from headrace.specs import DataSpec


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

    An array without time is one frame, and is returned whole.
    """
    if not 0 <= start <= end <= num_frames_of(array, spec):
        raise IndexError(f"frames {start}..{end} of a sequence of {num_frames_of(array, spec)} frames")
    return array[start:end] if spec.has_time else array


def num_frames_of(array: NDArray[Any], spec: DataSpec) -> int:
    """Return the length of an array along time; 1 without time."""
    return len(array) if spec.has_time else 1
