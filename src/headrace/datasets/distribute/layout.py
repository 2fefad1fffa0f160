"""What the sequences of all sub-epochs have in common: learnt once, compared with each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.specs import DataSpec

from ..base import Dataset


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """One data key: what `get_data_dim`, `get_data_dtype`, `is_data_sparse` and `get_data_shape` answer.

    Attributes:
        dim: Size of the last axis, or the number of classes; of a sparse key perhaps only of those that were seen.
        dtype: Name.
        sparse: Whether values are class indices.
        shape: Shape of a frame.
        num_labels: How many classes have names; `None` if none has.
    """

    dim: int
    dtype: str
    sparse: bool
    shape: tuple[int | None, ...]
    num_labels: int | None

    def fits(self, other: KeyLayout) -> bool:
        """Whether data of two such layouts can be read as one key."""
        if None not in (self.num_labels, other.num_labels) and self.num_labels != other.num_labels:
            return False
        return (self.dtype, self.sparse, self.shape) == (other.dtype, other.sparse, other.shape)

    def __str__(self) -> str:
        axes = ", ".join(["T", *("?" if size is None else str(size) for size in self.shape)])
        labels = "" if self.num_labels is None else f" with {self.num_labels} labels"
        return f"{'sparse ' if self.sparse else ''}{self.dtype}[{axes}]{labels}"


@dataclass(frozen=True, slots=True)
class SubEpochLayout:
    """The layout of a sub-dataset, and its data keys.

    Attributes:
        num_inputs: See `Dataset`.
        num_outputs: Likewise.
        labels: Likewise.
        keys: Data key -> layout, in the order of the sub-dataset.
        specs: Data key -> what the corpus of the sub-dataset says of its arrays, which may be more; see `Corpus.specs`.
        source: Which files it was learnt from, for messages.
    """

    num_inputs: int
    num_outputs: dict[str, tuple[int, int]]
    labels: Mapping[str, Sequence[str]]
    keys: dict[str, KeyLayout]
    specs: Mapping[str, DataSpec]
    source: str

    @classmethod
    def of(cls, dataset: Dataset, source: str) -> SubEpochLayout | None:
        """Return the layout of a dataset; `None` if only sequences show it, or if it has none of them and no keys."""
        if not dataset.num_outputs:
            return None
        keys = {
            key: KeyLayout(
                dataset.get_data_dim(key),
                dataset.get_data_dtype(key),
                bool(dataset.is_data_sparse(key)),
                tuple(dataset.get_data_shape(key)),
                len(dataset.labels[key]) if dataset.labels.get(key) else None,
            )
            for key in dataset.get_data_keys()
        }
        outputs = {key: (dim, ndim) for key, (dim, ndim) in dataset.num_outputs.items()}
        labels = {key: list(texts) for key, texts in dataset.labels.items()}
        return cls(dataset.num_inputs, outputs, labels, keys, dict(dataset.get_corpus().specs), source)

    def check_same(self, other: SubEpochLayout) -> None:
        """Refuse files whose sequences have another layout.

        Raises:
            ConfigError: The data keys differ, or a key has another layout; both files are named.
        """
        if set(self.keys) != set(other.keys):
            differ = f"the data keys are {list(self.keys)} in the one and {list(other.keys)} in the other"
        else:
            key = next((key for key in self.keys if not self.keys[key].fits(other.keys[key])), None)
            if key is None:
                return
            differ = f"{key!r} is {self.keys[key]} in the one and {other.keys[key]} in the other"
        raise ConfigError(
            f"files hold different data: {differ}",
            where=f"{self.source}, and {other.source}",
            fix="convert one of them, or read them as two datasets",
        )
