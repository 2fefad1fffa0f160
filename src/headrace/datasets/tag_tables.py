"""What an order needs to know of the corpus, taken from tags and files only when a recipe asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import read_seq_lens, read_tag_list


def mask_of_tags(tags: Sequence[str], filter_file: str | Path) -> NDArray[np.bool_]:
    """Return `bool[N]`: whether each tag stands in the file. The file may name tags that the corpus lacks."""
    wanted = set(read_tag_list(filter_file))
    return np.fromiter((tag in wanted for tag in tags), dtype=bool, count=len(tags))


def lengths_of_tags(tags: Sequence[str], lens_file: str | Path) -> NDArray[np.int64]:
    """Return `int64[N]`: the length that the file gives for each tag.

    Raises:
        SourceError: A tag of the corpus is not in the file.
    """
    lens = read_seq_lens(lens_file)
    try:
        return np.fromiter((lens[tag] for tag in tags), dtype=np.int64, count=len(tags))
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
    """Return `int[N]` from a function corpus index -> length, or from an array of lengths."""
    if callable(get_seq_len):
        return np.fromiter((get_seq_len(i) for i in range(num_seqs)), dtype=np.int64, count=num_seqs)
    return np.asarray(get_seq_len)
