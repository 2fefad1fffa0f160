"""`shuffle_frames_of_nseqs`: permute the frames of each group of N consecutive sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError


def shuffle_group_frames(
    group: Sequence[dict[str, NDArray[Any]]], first_seq_idx: int, *, where: str
) -> list[dict[str, NDArray[Any]]]:
    """Permute the frames of several sequences among each other; lengths stay.

    The permutation is that of `RandomState(first_seq_idx)` (the documented seed) over all frames of the group, the same
    for each data key, so that a frame keeps its label.

    Args:
        group: Sequences as data key -> `dtype[T, ...]`.
        first_seq_idx: Place of the first one in the current order.
        where: For the error text.

    Raises:
        SourceError: The data keys of a sequence differ in length, so that frames do not correspond.
    """
    lengths = []
    for features in group:
        by_key = {key: len(array) if array.ndim else None for key, array in features.items()}
        if len(set(by_key.values())) > 1:
            raise SourceError(
                f"frames cannot be shuffled: data keys of one sequence differ in length (None: no time): {by_key}",
                where=where,
                fix="leave shuffle_frames_of_nseqs at 0 for data without one label a frame",
            )
        lengths.append(next(iter(by_key.values()), 0) or 0)
    permutation = np.random.RandomState(first_seq_idx).permutation(sum(lengths))
    borders = np.cumsum(lengths)[:-1]
    shuffled: list[dict[str, NDArray[Any]]] = [{} for _ in group]
    for key in group[0]:
        frames = np.concatenate([features[key] for features in group])[permutation]
        for features, part in zip(shuffled, np.split(frames, borders), strict=True):
            features[key] = part.copy()  # not a view: one kept sequence must not hold the whole group
    return shuffled
