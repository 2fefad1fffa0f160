"""`AnythingDataset`: zeros for any sequence that is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, did_you_mean
from headrace.order import ArrayOrder, Order
from headrace.specs import DataSpec

from ..base import Dataset
from ..checks import check_indices, check_tags

_OPTIONS = ("dim", "shape", "dtype", "sparse")


class AnythingDataset(Dataset):
    """A dataset of zeros, without end, that has every tag: for a `MetaDataset` in which a data key has to be there.

    Args:
        data_keys: Data key -> {"shape": (None, 40), "dim": 40, "dtype": "float32", "sparse": False}; the first axis is
            time. Free axes have the size 1.
        **kwargs: See `Dataset`.

    Raises:
        ConfigError: `data_keys` has another form.

    Examples:
        >>> import headrace as hr
        >>> dataset = hr.AnythingDataset(data_keys={"data": {"shape": (None, 2)}})
        >>> dataset.init_seq_order(epoch=1, seq_list=["any", "other"])
        True
        >>> dataset.load_seqs(0, 2)
        >>> dataset.get_tag(1), dataset.get_data(1, "data").tolist()
        ('other', [[0.0, 0.0]])
    """

    supports_jumps = True  # no sequence depends on the one before
    content_options = ("data_keys",)

    def __init__(self, *, data_keys: Mapping[str, Mapping[str, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(data_keys, Mapping) or not data_keys:
            raise ConfigError(
                f"data_keys must be a dict data key -> layout, got {data_keys!r}",
                fix='write {"data": {"shape": (None, 40), "dim": 40, "dtype": "float32"}}',
            )
        self._layouts = {key: _checked(key, layout) for key, layout in data_keys.items()}
        self.num_outputs = {key: (dim, len(shape)) for key, (shape, dim, _, _) in self._layouts.items()}
        self.num_inputs = next(iter(self.num_outputs.values()))[0]
        self._tags: list[str] | None = None
        self._order: Order | None = None

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start an epoch: of the tags or corpus indices that are given, or without end."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self._tags = None if seq_list is None else check_tags(seq_list)
        self._order = None
        if seq_order is not None:
            self._order = ArrayOrder(check_indices(seq_order, 2**62, f"dataset {self.name!r}"))
        return True

    def _complete_outputs(self) -> None:
        """Do nothing: `num_inputs` is that of the first key, whatever its name."""

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices that were given."""
        if self._order is None:
            self._not_offered("get_current_seq_order unless one is given")
        return self._order

    def supports_seq_order_sorting(self) -> bool:
        """All lengths are known."""
        return True

    def have_seqs(self) -> bool:
        """Yes."""
        return True

    def load_seqs(self, start: int, end: int) -> None:
        """Do nothing: there is nothing to load."""

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return zeros, `dtype[1, ...]`."""
        self._check_place(seq_idx)
        shape, _, dtype, _ = self._checked_layout(key)
        return np.zeros([size or 1 for size in shape], dtype)

    def _check_place(self, seq_idx: int) -> None:
        if seq_idx < 0 or not self.is_less_than_num_seqs(seq_idx):
            raise IndexError(f"sequence {seq_idx} is outside an epoch of {self.num_seqs} (dataset {self.name!r})")

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames."""
        self._check_place(seq_idx)
        return NumbersDict({key: (shape[0] or 1) if shape else 1 for key, (shape, *_) in self._layouts.items()})

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return 1."""
        self._check_place(seq_idx)
        return 1

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag that was given, or `seq-<corpus index>`."""
        self._check_place(seq_idx)
        if self._tags is not None:
            return self._tags[seq_idx]
        return f"seq-{seq_idx if self._order is None else self._order[seq_idx]}"

    @property
    def num_seqs(self) -> int:
        """Number of sequences that were asked for.

        Raises:
            OptionalNotImplementedError: There is no end.
        """
        if self._tags is not None:
            return len(self._tags)
        if self._order is not None:
            return len(self._order)
        if self._epoch is not None:
            self._not_offered("num_seqs unless an order is given")
        return 0

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the sequence exists: more than `seq_idx` were asked for; always, if no number was given."""
        if self._tags is None and self._order is None and self._epoch is not None:
            return True
        return seq_idx < self.num_seqs

    # --- layout ---

    def _checked_layout(self, key: str) -> tuple[tuple[int | None, ...], int, str, bool]:
        if key not in self._layouts:
            raise ConfigError(
                f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, self._layouts)
            )
        return self._layouts[key]

    def _layout_of(self, key: str) -> DataSpec:
        shape, dim, dtype, sparse = self._checked_layout(key)
        return DataSpec(dtype, shape[1:], sparse, dim)

    def get_data_keys(self) -> list[str]:
        """Return the data keys."""
        return list(self._layouts)

    def get_target_list(self) -> list[str]:
        """Return all data keys but the first."""
        return list(itertools.islice(self._layouts, 1, None))


def _checked(key: str, layout: Any) -> tuple[tuple[int | None, ...], int, str, bool]:
    """Return shape (time first), dim, dtype and whether it is sparse."""
    if not isinstance(layout, Mapping):
        raise ConfigError(f"data_keys[{key!r}] must be a dict, got {layout!r}", fix=f"with {', '.join(_OPTIONS)}")
    is_sparse = bool(layout.get("sparse", False))
    dim = layout.get("dim")
    shape = tuple(layout.get("shape", (None,) if is_sparse else (None, dim)))
    if dim is None and shape and not is_sparse:
        dim = shape[-1]
    sizes = [size for size in (*shape, dim) if size is not None]
    if dim is None or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise ConfigError(
            f"data_keys[{key!r}] has no layout: shape {layout.get('shape')!r}, dim {layout.get('dim')!r}",
            fix='write {"shape": (None, 40), "dim": 40, "dtype": "float32"}, the first axis is time',
        )
    dtype = str(layout.get("dtype", "int32" if is_sparse else "float32"))
    try:
        np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"data_keys[{key!r}] has the unknown dtype {dtype!r}", fix="such as 'float32'") from error
    return shape, dim, dtype, is_sparse
