"""Names of dtypes that can lie in a slot, and torch tensors as arrays.

Invariant: a dtype that holds references to Python objects or to memory of its own never gets a token, so such an array
is never viewed.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Token = str | bytes

_NUMERIC = {char: np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"}
_CHARS = {id(dtype): char for char, dtype in _NUMERIC.items()}  # NumPy has one object for each; "l" and "q" are two
_KINDS = frozenset("?biufcmMSUV")  # not "O", nor "T", strings that keep their text elsewhere
_LAST_BUILT_IN = 23  # dtype.num of float16; those of other packages come later

SCALAR_CHARS = {dtype.type: char for char, dtype in _NUMERIC.items()}
"""NumPy's numbers: scalar type -> token."""


def dtype_token(dtype: np.dtype[Any]) -> Token | None:
    """Return a name that `dtype_of` understands, or `None` if arrays of this dtype have to be pickled."""
    return _CHARS.get(id(dtype)) or _rarer_token(dtype)


def _rarer_token(dtype: np.dtype[Any]) -> Token | None:
    if dtype.hasobject or dtype.kind not in _KINDS or dtype.itemsize == 0:
        return None
    if dtype.metadata is not None or dtype.kind == "V" or dtype.num > _LAST_BUILT_IN:
        return pickle.dumps(dtype, 5)
    return dtype.str


@lru_cache(maxsize=256)
def dtype_of(token: Token) -> np.dtype[Any]:
    """Return the dtype of a token."""
    if isinstance(token, bytes):
        dtype: np.dtype[Any] = pickle.loads(token)  # noqa: S301  # made by our own worker
        return dtype
    return np.dtype(token)


def tensor_type() -> type | None:
    """Return `torch.Tensor` if torch is loaded; it is never imported for this."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def tensor_as_array(tensor: Any) -> tuple[NDArray[Any], str | None] | None:
    """Return a tensor as an array over the same memory.

    Args:
        tensor: An object of exactly the type `torch.Tensor`.

    Returns:
        The array, and the name of the torch dtype if NumPy has none such (bfloat16, float8): the array then holds the
        bits as integers. `None` if torch must pickle the tensor: it is on a device, nested, sparse, quantized, has a
        gradient, a lazy conjugate, or attributes.
    """
    torch = sys.modules["torch"]
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.device.type != "cpu"
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.__dict__
    ):
        return None
    try:
        return tensor.numpy(), None
    except TypeError:
        pass
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    if bits is None:
        return None
    return tensor.view(bits).numpy(), str(tensor.dtype).removeprefix("torch.")


def tensor_of(array: NDArray[Any], dtype_name: str | None) -> Any:
    """Return a tensor over the memory of an array; the inverse of `tensor_as_array`."""
    torch = importlib.import_module("torch")  # loaded already, unless only the worker uses it
    tensor = torch.from_numpy(array)
    return tensor if dtype_name is None else tensor.view(getattr(torch, dtype_name))
