"""What the sequences of all sub-epochs have in common: learnt once, compared with each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError, did_you_mean

from ..base import Dataset
from ..cached2 import CachedDataset2


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """One data key: what `get_data_dim`, `get_data_dtype`, `is_data_sparse` and `get_data_shape` answer.

    Attributes:
        dim: Size of the last axis, or the number of classes; of a sparse key perhaps only of those that were seen.
        dtype: Name.
        sparse: Whether values are class indices.
        shape: Of a frame.
        num_labels: How many classes have names; `None` if none has.
    """

    dim: int
    dtype: str
    sparse: bool
    shape: tuple[int | None, ...]
    num_labels: int | None

    def fits(self, other: KeyLayout) -> bool:
        """Whether two can be read as one."""
        if None not in (self.num_labels, other.num_labels) and self.num_labels != other.num_labels:
            return False
        return (self.dtype, self.sparse, self.shape) == (other.dtype, other.sparse, other.shape)

    def __str__(self) -> str:
        axes = ", ".join(["T", *("?" if size is None else str(size) for size in self.shape)])
        labels = "" if self.num_labels is None else f" with {self.num_labels} labels"
        return f"{'sparse ' if self.sparse else ''}{self.dtype}[{axes}]{labels}"


@dataclass(frozen=True, slots=True)
class SubEpochLayout:
    """What a sub-dataset says of its layout, and its data keys.

    Attributes:
        num_inputs: See `DeclaredLayout`.
        num_outputs: Likewise.
        labels: Likewise.
        keys: Data key -> layout, in the order of the sub-dataset.
        source: Which files it was learnt from, for messages.
    """

    num_inputs: int
    num_outputs: dict[str, tuple[int, int]]
    labels: Mapping[str, Sequence[str]]
    keys: dict[str, KeyLayout]
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
        return cls(dataset.num_inputs, outputs, labels, keys, source)

    def check_same(self, other: SubEpochLayout) -> None:
        """Refuse files whose sequences are different.

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


class LaidOutByFiles(CachedDataset2):
    """Answers about data keys by a layout that may have to be learnt from files first, or by the first sequence."""

    @abstractmethod
    def _known_layout(self) -> SubEpochLayout | None:
        """Return the layout, learnt now if need be; `None` if only sequences show it."""

    @property
    def num_inputs(self) -> int:  # type: ignore[override] # an attribute elsewhere; here it may have to be learnt
        """Size of a frame of "data"; 0 if there is no such key."""
        layout = self._known_layout()
        return 0 if layout is None else layout.num_inputs

    @property
    def num_outputs(self) -> dict[str, tuple[int, int]] | None:  # type: ignore[override]
        """Data key -> (dim, ndim), as the sub-dataset says."""
        layout = self._known_layout()
        return None if layout is None else dict(layout.num_outputs)

    @property
    def labels(self) -> dict[str, Sequence[str]]:
        """Data key -> names of the classes, as the first entry of the file list says."""
        layout = self._known_layout()
        return {} if layout is None else dict(layout.labels)

    @labels.setter
    def labels(self, value: dict[str, Sequence[str]]) -> None:
        if value:
            raise ConfigError(f"the labels of a {type(self).__name__} are those of its files")

    def _key_layout(self, key: str) -> KeyLayout | None:
        layout = self._known_layout()
        if layout is None:
            return None
        if key not in layout.keys:
            raise ConfigError(
                f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, layout.keys)
            )
        return layout.keys[key]

    def get_data_keys(self) -> list[str]:
        """Return the data keys."""
        layout = self._known_layout()
        return super().get_data_keys() if layout is None else list(layout.keys)

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        known = self._key_layout(key)
        if known is None:
            return super().get_data_dim(key)
        return known.dim * self.window if key == "data" else known.dim

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        known = self._key_layout(key)
        return super().get_data_dtype(key) if known is None else known.dtype

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        known = self._key_layout(key)
        return super().is_data_sparse(key) if known is None else known.sparse

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame."""
        known = self._key_layout(key)
        if known is None:
            return super().get_data_shape(key)
        shape = list(known.shape)
        if key == "data" and shape and shape[-1] is not None:
            shape[-1] *= self.window
        return shape
