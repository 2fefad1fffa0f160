"""What is known of a dataset's corpus without reading it, and what tags and lengths tell an order.

`CorpusFacts` are asked for by datasets made of others. The tags and lengths, of the corpus or of files, are taken only
when an order asks for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import read_seq_lens, read_tag_list
from headrace.index import CorpusIndex

LengthsOf = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Returns the lengths of sequences, `int[n]`, by corpus index, `int64[n]`."""


def num_left_out(kept: NDArray[np.bool_]) -> tuple[int, int]:
    """Return how many sequences a filter leaves out, and of how many, by what it keeps, `bool[N]`."""
    return len(kept) - int(np.count_nonzero(kept)), len(kept)


@dataclass(frozen=True)
class CorpusFacts:
    """What is known of a corpus. Functions are called only when their answer is needed.

    Datasets made of others need it: which tags there are and under which corpus index, what is sorted by, what repeats.

    Attributes:
        index: The tags by corpus index; `init_seq_order(seq_order=...)` takes these numbers.
        sort_lengths: Returns `int[N]`: what sequences are sorted by.
        kept: Returns `bool[N]`: what the dataset's own filter keeps, `None` if it has no filter.
        draws_by_occurrence: Whether what is read depends on how often a sequence came before in the epoch.
        occurrences: Returns `int64[n]`: how often each sequence of the current order came before.
        has_fixed_lengths: Whether lengths, of all data keys and for sorting, are the same in all epochs.
    """

    index: CorpusIndex
    sort_lengths: Callable[[], NDArray[Any]]
    kept: Callable[[], NDArray[np.bool_] | None]
    draws_by_occurrence: bool
    occurrences: Callable[[], NDArray[np.int64]]
    has_fixed_lengths: bool


_LOGGER = logging.getLogger("headrace.datasets")
_filters_warned_of: set[str] = set()  # so that each is said once in a process


def read_wanted_tags(filter_file: str | Path) -> frozenset[str]:
    """Return the tags of a filter file."""
    return frozenset(read_tag_list(filter_file))


def mask_of_tags(tags: Sequence[str], wanted: frozenset[str], *, where: str) -> NDArray[np.bool_]:
    """Return `bool[N]`: whether each tag is wanted. Wanted tags that the corpus lacks are legal, and logged once."""
    mask = np.fromiter((tag in wanted for tag in tags), dtype=bool, count=len(tags))
    num_kept = int(np.count_nonzero(mask))
    if num_kept < len(wanted) and where not in _filters_warned_of:
        _filters_warned_of.add(where)
        _LOGGER.warning(
            "the filter names %d tags, and keeps %d of %d sequences: %s", len(wanted), num_kept, len(tags), where
        )
    return mask


def lengths_of_tags(tags: Sequence[str], lens_file: str | Path) -> NDArray[Any]:
    """Return `int[N]` or `float[N]`: the length that the file gives for each tag.

    Raises:
        SourceError: A tag of the corpus is not in the file.
    """
    lens = read_seq_lens(lens_file)
    try:
        return np.array([lens[tag] for tag in tags]) if len(tags) else np.zeros(0, dtype=np.int64)
    except KeyError as error:
        raise SourceError(
            f"no length for the tag {error.args[0]!r}",
            where=f"{lens_file} ({len(lens)} lengths, the corpus has {len(tags)} sequences)",
            fix="give a length for each tag of the corpus in seq_order_seq_lens_file",
        ) from None


def first_of_tag(tags: Sequence[str]) -> NDArray[np.int64]:
    """Return `int64[N]`: for each sequence the smallest corpus index with the same tag."""
    seen: dict[str, int] = {}
    return np.fromiter((seen.setdefault(tag, i) for i, tag in enumerate(tags)), dtype=np.int64, count=len(tags))


def as_lengths(get_seq_len: Any, num_seqs: int) -> NDArray[Any]:
    """Return `int[N]` or `float[N]` from a function corpus index -> length, or from an array of lengths."""
    if not callable(get_seq_len):
        return np.asarray(get_seq_len)
    return np.array([get_seq_len(i) for i in range(num_seqs)]) if num_seqs else np.zeros(0, dtype=np.int64)
