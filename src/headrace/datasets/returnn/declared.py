"""The layout of the data keys as the RETURNN API declares it: `num_outputs`, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.specs import DataSpec

from ..checks import check_outputs


class DeclaredLayout:
    """Data keys, dims, dtypes and labels by `num_inputs`, `num_outputs` and `labels`.

    Attributes:
        num_inputs: Size of a frame of "data"; 0 if there is no such key.
        num_outputs: Data key -> (dim, number of axes, time included).
        labels: Data key -> the text of each class.
    """

    num_inputs: int = 0
    num_outputs: dict[str, tuple[int, int]] | None = None
    labels: dict[str, Sequence[str]]
    name: str
    window: int

    def _complete_outputs(self) -> None:
        """Bring what a sub-class has set as `num_outputs` to one form: (dim, ndim) of every key, "data" included."""
        if isinstance(getattr(type(self), "num_outputs", None), property) or self.num_outputs is None:
            return  # a property may have to read files, and is asked when somebody wants to know
        outputs = check_outputs(self.num_outputs, self.num_inputs or 0, f"dataset {self.name!r}")
        if outputs != self.num_outputs:
            self.num_outputs = outputs

    def get_data_keys(self) -> list[str]:
        """Return the data keys: "data", then the targets."""
        return ["data", *self.get_target_list()]

    def get_text_keys(self) -> list[str]:
        """Return the keys of texts, which `get_data` returns as arrays of one string, `str[]`.

        They are no part of batches and no data keys: the functions of a `PostprocessingDataset` get them, and make
        arrays of them.
        """
        return []

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data": those that `num_outputs` names; "classes" as long as it is not set."""
        outputs = self.num_outputs
        if outputs is None:
            return ["classes"]
        return [key for key in check_outputs(outputs, 0, f"dataset {self.name!r}") if key != "data"]

    def _num_output(self, key: str) -> tuple[int, int]:
        outputs = self.num_outputs or {}
        if key not in outputs:
            raise ConfigError(f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, outputs))
        return outputs[key]

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        dim = self._num_output(key)[0]
        return dim * self.window if key == "data" else dim

    def _layout_of(self, key: str) -> DataSpec | None:  # noqa: ARG002 (a contract)
        """Return what is known of the arrays of a data key, `None` if that is what `num_outputs` tells."""
        return None

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        known = self._layout_of(key)
        if known is not None:
            return known.dtype
        return "int32" if self.is_data_sparse(key) else "float32"

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        known = self._layout_of(key)
        return self._num_output(key)[1] <= 1 if known is None else known.sparse

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame, `None` for a free axis."""
        known = self._layout_of(key)
        if known is not None:
            shape = list(known.shape)
            if key == "data" and self.window > 1 and shape and shape[-1] is not None:
                shape[-1] *= self.window
            return shape
        dim, ndim = self._num_output(key)
        if self.is_data_sparse(key):
            return []
        return [None] * (ndim - 2) + [self.get_data_dim(key)] if ndim > 1 else [dim]

    def can_serialize_data(self, key: str) -> bool:
        """Whether this key has labels that tell classes apart: more than one."""
        return len(self.labels.get(key, ())) > 1

    def serialize_data(self, key: str, data: NDArray[Any]) -> str:
        """Return the text of class indices, `int[T]` or an int, by `labels[key]`.

        Words are joined by blanks, single characters (of fewer than 1000) by nothing; the 256 byte values are the
        bytes of UTF-8 text.

        Raises:
            ConfigError: There are no labels, or a class has none.
        """
        if key not in self.labels:
            raise ConfigError(
                f"no labels of {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, self.labels)
            )
        labels, classes = self.labels[key], np.asarray(data)
        wrong = classes[(classes < 0) | (classes >= len(labels))].tolist()
        if wrong:
            what = f"the class {wrong[0]} of {key!r} has no label: there are {len(labels)}"
            raise ConfigError(what, where=f"dataset {self.name!r}", fix="take out what marks no class, such as -1")
        if classes.ndim and len(labels) == 256 and all(label == chr(byte) for byte, label in enumerate(labels)):
            return classes.astype(np.uint8).tobytes().decode(errors="replace")
        are_characters = len(labels) < 1000 and all(len(label) == 1 for label in labels)
        return ("" if are_characters else " ").join(labels[index] for index in np.atleast_1d(classes).tolist())
