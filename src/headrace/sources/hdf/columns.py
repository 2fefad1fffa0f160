"""`WriteColumn`: one data key of an HDF5 file in the making."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec, takes_for_classes

from ..shared.spool import Spool
from .layout import READABLE_KINDS

_MAX_CLASS = 2**63 - 2  # the dim, one more, is an int64 in the file


class WriteColumn:
    """One data key of a file in the making.

    Args:
        data_key: Its name.
        spec: What every array of it must be; a free axis gets its size from the first array.
        dim: Number of classes, if known.

    Attributes:
        num_frames: Of all sequences so far.
        is_sparse: Whether values are class indices.
        dim: Number of classes, if known.
        spool: Where the frames go; to be set before the first `append`.
    """

    spool: Spool

    def __init__(self, data_key: str, spec: DataSpec, dim: int | None) -> None:
        dtype = np.dtype(spec.dtype)
        if dtype.kind not in READABLE_KINDS or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            raise ConfigError(f"the key {data_key!r} has dtype {spec.dtype}", fix="use numbers of up to 64 bits")
        self.data_key = data_key
        self.dtype = dtype
        self.num_frames = 0
        self._spec = spec
        self.is_sparse = spec.sparse
        self.dim = dim
        self._largest = -1
        self._has_negative = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all frames together."""
        return (self.num_frames, *(size or 0 for size in self._spec.shape))

    @property
    def needs_note(self) -> bool:
        """Whether the layout alone says something else: of what is sparse, or of a dim that is not known."""
        is_by_rule = self.is_sparse == takes_for_classes(self.dtype, len(self.shape))
        return not is_by_rule or (self.is_sparse and self.dim is None and self._has_negative)

    def final_dim(self) -> int:
        """Return the number of classes or features; of class indices, if not given, one more than the largest seen."""
        if self._spec.shape:
            return self.shape[-1]
        if self.dim is not None:
            return self.dim
        return self._largest + 1 if self.is_sparse else 1

    def checked(self, value: NDArray[Any], where: str) -> NDArray[Any]:
        """Return `dtype[T, ...]` as it will be stored, or say why this cannot be. Changes nothing."""
        array = np.asarray(value)
        if array.dtype != self.dtype:
            if array.dtype.newbyteorder("=") != self.dtype:
                raise self._mismatch(f"dtype {array.dtype}", f"dtype {self._spec.dtype}", where)
            array = array.astype(self.dtype)
        if array.ndim == len(self._spec.shape) and (not self._spec.has_time or not array.ndim):
            array = array[None]
        wanted = self._spec.shape
        fits = len(array.shape) == 1 + len(wanted) and all(
            size is None or size == found for size, found in zip(wanted, array.shape[1:], strict=True)
        )
        if not fits:
            axes = ", ".join(["T", *("?" if size is None else str(size) for size in wanted)])
            raise self._mismatch(f"shape {list(array.shape)}", f"shape [{axes}]", where)
        if self.is_sparse and array.size:
            largest = int(array.max())
            if largest > _MAX_CLASS:
                raise SourceError(
                    f"the class index {largest} of {self.data_key!r} has no dim that a file could say",
                    where=where,
                    fix="give signed numbers, or a second axis",
                )
            if self.dim is not None and largest >= self.dim:
                raise SourceError(
                    f"the class index {largest} of {self.data_key!r} is not below its dim {self.dim}",
                    where=where,
                    fix="correct the data, or the dim in specs, or the labels",
                )
        return array

    def append(self, array: NDArray[Any]) -> None:
        """Store what `checked` returned; OSError if the disk is full."""
        self.spool.append(array)
        self.num_frames += len(array)
        if None in self._spec.shape:
            self._spec = replace(self._spec, shape=array.shape[1:])
        if self.is_sparse and self.dim is None and array.size:
            self._largest = max(self._largest, int(array.max()))
            self._has_negative = self._has_negative or int(array.min()) < 0

    def _mismatch(self, found: str, wanted: str, where: str) -> SourceError:
        return SourceError(
            f"the key {self.data_key!r} has {found}, but {wanted} was declared or came before",
            where=where,
            fix="convert it: a file holds one dtype and one frame shape for a key",
        )
