"""`DatasetSeq`: one sequence, as datasets return it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import SourceError, did_you_mean


class DatasetSeq:
    """One sequence: arrays by data key, with its tag, its position and its corpus index.

    Attributes:
        seq_idx: Position in the current order.
        features: Data key -> `dtype[T, ...]`.
        seq_tag: The name of the sequence.
        complete_frac: How much of the epoch is done after it, in (0, 1], or `None`.
        corpus_idx: Index in the corpus, or `None` where the dataset has none.

    Args:
        seq_idx: See above.
        features: An array (data key "data"), or a mapping from data key to array.
        targets: With an array as `features`: an array (data key "classes") or a mapping.
        seq_tag: Default is `seq-<seq_idx>`.
        complete_frac: See above.
        corpus_idx: See above.

    Raises:
        SourceError: A value is not a NumPy array, or targets are given twice.
    """

    __slots__ = ("complete_frac", "corpus_idx", "features", "seq_idx", "seq_tag")

    def __init__(
        self,
        seq_idx: int,
        features: NDArray[Any] | Mapping[str, NDArray[Any]],
        *,
        targets: NDArray[Any] | Mapping[str, NDArray[Any]] | None = None,
        seq_tag: str | None = None,
        complete_frac: float | None = None,
        corpus_idx: int | None = None,
    ) -> None:
        self.seq_idx = int(seq_idx)
        self.seq_tag = seq_tag or f"seq-{seq_idx}"
        self.complete_frac = complete_frac
        self.corpus_idx = corpus_idx
        self.features = _merge(features, targets, self.seq_tag)
        for data_key, value in self.features.items():
            if not isinstance(value, np.ndarray):
                raise SourceError(
                    f"data key {data_key!r} holds a {type(value).__name__}, not a NumPy array",
                    where=f"sequence {self.seq_tag!r}",
                    fix="wrap it with numpy.asarray",
                )

    @classmethod
    def made_of(
        cls,
        seq_idx: int,
        features: dict[str, NDArray[Any]],
        seq_tag: str,
        complete_frac: float | None,
        corpus_idx: int | None,
    ) -> DatasetSeq:
        """Return a sequence made of what a dataset itself has read: kept as it is, and not checked again."""
        seq = object.__new__(cls)
        seq.seq_idx = seq_idx
        seq.features = features
        seq.seq_tag = seq_tag
        seq.complete_frac = complete_frac
        seq.corpus_idx = corpus_idx
        return seq

    @property
    def tag(self) -> str:
        """The name of the sequence, the same as `seq_tag`."""
        return self.seq_tag

    @property
    def num_frames(self) -> NumbersDict:
        """Data key -> number of frames (1 for a scalar)."""
        return NumbersDict({key: count_frames(value) for key, value in self.features.items()})

    def get_data(self, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`.

        Raises:
            SourceError: There is no such data key.
        """
        try:
            return self.features[key]
        except KeyError:
            raise SourceError(
                f"no data key {key!r}", where=f"sequence {self.seq_tag!r}", fix=did_you_mean(key, self.features)
            ) from None

    def get_data_keys(self) -> set[str]:
        """Return the data keys of this sequence."""
        return set(self.features)

    def keys(self) -> Iterator[str]:
        """Return the data keys in order."""
        return iter(self.features)

    def __getitem__(self, key: str) -> NDArray[Any]:
        return self.get_data(key)

    def __contains__(self, key: object) -> bool:
        return key in self.features

    def __repr__(self) -> str:
        layout = ", ".join(f"{key}: {value.dtype.name}{list(value.shape)}" for key, value in self.features.items())
        return f"DatasetSeq({self.seq_idx}, {self.seq_tag!r}, {{{layout}}})"


def count_frames(array: NDArray[Any]) -> int:
    """Return the number of frames of an array, 1 for a scalar."""
    return len(array) if array.ndim else 1


def _merge(
    features: NDArray[Any] | Mapping[str, NDArray[Any]],
    targets: NDArray[Any] | Mapping[str, NDArray[Any]] | None,
    tag: str,
) -> dict[str, NDArray[Any]]:
    if isinstance(features, Mapping):
        if targets is not None:
            raise SourceError("features is a mapping, so targets cannot be given as well", where=f"sequence {tag!r}")
        return dict(features)
    merged = {"data": features}
    if isinstance(targets, Mapping):
        if "data" in targets:
            raise SourceError("'data' is both the features and a target", where=f"sequence {tag!r}")
        merged.update(targets)
    elif targets is not None:
        merged["classes"] = targets
    return merged
