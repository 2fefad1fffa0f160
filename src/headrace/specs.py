"""What one data key holds: dtype, shape of a frame, sparse or dense; and which torch tensors hold plain numbers.

This module knows no dataset and no file, and imports no torch. Start with `DataSpec`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

_NUMBER_KINDS = "biufc"
_MAX_AXES = 32  # of NumPy 1, time included; NumPy 2 has 64
_MAX_SIZE = 2**63 - 1
_WRITE_AGAIN = "the file is damaged, or of another kind: write it again"


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The layout of one data key.

    Attributes:
        dtype: NumPy dtype name, for example `"float32"`.
        shape: Shape of one frame, without the time axis; `None` for a free axis.
        sparse: Whether values are class indices.
        dim: Number of classes if sparse, else the size of the last axis (1 for scalars per frame).
        has_time: Whether the first axis of an array of this key is time.
        is_text: Whether the arrays are the bytes of texts for which no encoding was asked, such as ids: their lengths
            count for a budget only where nothing else has a length. Layouts that differ in it alone are equal.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    sparse: bool = False
    dim: int | None = None
    has_time: bool = True
    is_text: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a dtype that NumPy does not know."""
        try:
            np.dtype(self.dtype)
        except TypeError as error:
            fix = "use a NumPy dtype name such as 'float32'"
            raise ConfigError(f"unknown dtype {self.dtype!r}", fix=fix) from error

    @property
    def ndim(self) -> int:
        """Number of axes of an array of this key, time included."""
        return len(self.shape) + int(self.has_time)

    @property
    def num_outputs(self) -> tuple[int, int]:
        """The pair (dim, ndim), as in RETURNN's `num_outputs`."""
        return (self.dim if self.dim is not None else 1, self.ndim)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, see `from_json`."""
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "sparse": self.sparse,
            "dim": self.dim,
            "has_time": self.has_time,
            **({"is_text": True} if self.is_text else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DataSpec:
        """Make a spec from JSON data of `to_json`, and check it: it may come from a damaged file.

        Raises:
            ConfigError: It is not a spec: a part is missing or of another type, the dtype is not numeric in native byte
                order, or no array can have such a shape.
        """
        try:
            dtype, shape, dim = data["dtype"], data["shape"], data["dim"]
            sparse, has_time, is_text = data["sparse"], data["has_time"], data.get("is_text", False)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ConfigError(f"this is not the layout of a data key: {_short(data)}", fix=_WRITE_AGAIN) from error
        is_spec = isinstance(dtype, str) and all(isinstance(flag, bool) for flag in (sparse, has_time, is_text))
        is_spec = is_spec and (dim is None or _is_size(dim)) and isinstance(shape, list | tuple)
        if not is_spec or len(shape) >= _MAX_AXES or not all(size is None or _is_size(size) for size in shape):
            raise ConfigError(f"this is not the layout of a data key: {_short(data)}", fix=_WRITE_AGAIN)
        spec = cls(dtype, tuple(shape), sparse, dim, has_time, is_text)
        stored = np.dtype(dtype)
        if stored.kind not in _NUMBER_KINDS or not stored.isnative:
            raise ConfigError(f"the dtype {dtype!r} is not numeric in native byte order", fix=_WRITE_AGAIN)
        if math.prod(size for size in shape if size) * stored.itemsize > _MAX_SIZE:
            raise ConfigError(f"no array has the shape {shape}", fix=_WRITE_AGAIN)
        return spec

    @classmethod
    def of_array(cls, array: NDArray[Any], *, dim: int | None = None) -> DataSpec:
        """Derive the spec of an array by RETURNN's rule.

        An array is sparse if its dtype is an integer and it has at most one axis (time).

        Args:
            array: `any[T, ...]`, or a scalar array without a time axis.
            dim: Number of classes, for a sparse array; 1 more than the largest value if not given.
        """
        sparse = takes_for_classes(array.dtype, array.ndim)
        shape = tuple(array.shape[1:])
        if dim is None:
            dim = int(array.max(initial=0)) + 1 if sparse else (int(array.shape[-1]) if array.ndim > 1 else 1)
        return cls(dtype=array.dtype.name, shape=shape, sparse=sparse, dim=dim, has_time=array.ndim > 0)


def takes_for_classes(dtype: np.dtype[Any], num_axes: int) -> bool:
    """Whether numbers of unspecified meaning are taken as class indices: integers with at most one axis.

    Args:
        dtype: Dtype of the numbers.
        num_axes: Axes of the array of one sequence, time included.
    """
    return dtype.kind in "iu" and num_axes <= 1


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_SIZE


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_plain_tensor(value: Any) -> bool:
    """Tell whether a value is exactly a `torch.Tensor` of numbers in this process's memory, and no part of a gradient.

    It may still be a lazy conjugate or negative, or carry attributes.
    """
    torch: Any = sys.modules.get("torch")
    return bool(
        torch is not None
        and type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not (value.is_nested or value.is_quantized or value.requires_grad)
    )
