"""The form of an encoded value: the tree that describes it, the names of dtypes, and the slot that its bytes lie in.

A node of the tree is either an atom, which stands for itself (None, bool, int, float, complex, str or bytes of exactly
that type), or a tuple whose first element is one of the tags below. The tree is made of what `marshal` knows: it writes
text three times faster than pickle, and keeps each type, the sign of a zero, NaNs and lone surrogates. It is made and
read by the same interpreter on the same machine, and only travels between a trainer and its own workers.

An offset is where bytes begin: `offset >= 0`, from the start of what the codec reserved, or `~position < 0` of what was
produced in the slot already. A token names a dtype. An items node is restored to a list, or, if it is raw, to what it
holds, a list or a tuple. Raw is a container of atoms and of other raw containers.

Invariant: a dtype that holds references to Python objects or to memory of its own never gets a token, so such an array
is never viewed.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.specs import is_plain_tensor

ALIGNMENT = 64  # bytes; unaligned arrays cost a sum 40 %, and torch and BLAS like a cache line


class Slot(Protocol):
    """Memory that is filled from its start: a bump allocator.

    A position is a byte offset from the start of the slot. If `reserve` makes the slot grow, its bytes move with it, so
    earlier positions stay valid; earlier buffers do not belong to the slot any more, but must stay readable until the
    value that they belong to is encoded: `encode` copies from them what it cannot use in place.
    """

    def reserve(self, num_bytes: int, alignment: int = ALIGNMENT) -> tuple[int, NDArray[np.uint8]]:
        """Return the position of the next `num_bytes` bytes, and the writable bytes: `uint8[num_bytes]`."""
        ...

    def find(self, array: NDArray[Any]) -> int | None:
        """Return the position of a C-contiguous array that lies wholly inside the slot as it is now, else `None`."""
        ...


Node = Any

# tag                what follows it in the tuple
RAW = 0  #           the value: a list, tuple, dict, set or frozenset
LIST = 1  #          list of nodes
TUPLE = 2  #         items node
DICT = 3  #          items node of the keys, list of nodes of the values
NAMED = 4  #         index of the class in the pickled list, items node: a namedtuple
OBJECT = 5  #        index of the class in the pickled list, node of the dict of its state: a dataclass
ARRAY = 6  #         offset, token, shape, whether in Fortran order
BLOB = 7  #          offset, number of bytes: long bytes
SCALAR = 8  #        token, its bytes: a NumPy number
TENSOR = 9  #        torch dtype where NumPy has none, else None; node of the array
PICKLED = 10  #      index in the pickled list
TEXT = 11  #         str or bytes, of which NumPy's class is made

# columns: nodes that are restored to a list
RAGGED = 12  #       offset, token, tuple of the lengths, shape of the other axes
STACKED = 13  #      offset, token, shape of the column: arrays of one shape
POINTS = 14  #       offset, token, number of arrays: 0-d arrays
NUMBERS = 15  #      offset, token, number of elements: NumPy numbers
TENSORS = 16  #      torch dtype where NumPy has none, else None; items node of the arrays
DICTS = 17  #        tuple of the keys, list of items nodes, one for each key
TUPLES = 18  #       list of items nodes, one for each element of the tuple
NAMEDS = 19  #       index of the class, TUPLES node
OBJECTS = 20  #      index of the class, items node of the dicts of their state
PLACED = (
    21  #       token, tuple of starts, tuple of lengths, shape of the other axes: arrays produced in the slot; a start
)
#                    is a position in the slot divided by the size of an element
LISTED = 22  #       index of the class in the pickled list, items node: a kind of list that adds methods only

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})


Token = str | bytes

_NUMERIC = {char: np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"}
_CHARS = {id(dtype): char for char, dtype in _NUMERIC.items()}  # NumPy has one object for each; "l" and "q" are two
_KINDS = frozenset("?biufcmMSUV")  # not "O", nor "T", strings that keep their text elsewhere
_LAST_BUILT_IN = 23  # dtype.num of float16; those of other packages come later

SCALAR_CHARS = {dtype.type: char for char, dtype in _NUMERIC.items()}
"""NumPy's numbers: scalar type -> token."""


def plain_token(dtype: np.dtype[Any]) -> str | None:
    """Return the name of a numeric dtype in native byte order, `None` for any other."""
    return _CHARS.get(id(dtype))


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
    if not is_plain_tensor(tensor) or tensor.is_conj() or tensor.is_neg() or tensor.__dict__:
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
