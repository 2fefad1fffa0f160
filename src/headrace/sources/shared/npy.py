"""The header of a `.npy` file, which says which array is in it, and where its bytes begin.

The format is NumPy's own (NEP 1). Only arrays of numbers are taken: what is pickled is never read.

To evaluate a header takes some 30 microseconds, and 2 to take the usual one, which NumPy itself writes, apart by a
pattern (`parse_usual_npy`); that shows where a corpus has a file or a member for each array. Any other form goes to
`numpy.lib.format` (`parse_npy`).
"""

from __future__ import annotations

import io
import math
import re
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as numpy_format

from headrace.errors import SourceError

HEAD_BYTES = 1 << 14  # enough for any header of an array of numbers: NumPy itself refuses longer ones
_READERS: dict[tuple[int, int], Any] = {
    (1, 0): numpy_format.read_array_header_1_0,
    (2, 0): numpy_format.read_array_header_2_0,
    (3, 0): numpy_format.read_array_header_2_0,  # differs in names of fields, of which arrays of numbers have none
}
_MAX_BYTES = 2**63 - 1
_MAX_AXES = 32  # of NumPy 1; NumPy 2 has 64


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What a header says.

    Attributes:
        dtype: Dtype of the numbers, with their byte order.
        shape: Shape of the array.
        fortran: Whether the first axis varies fastest.
        num_bytes: Bytes of the header: where the numbers begin.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    num_bytes: int

    @property
    def end(self) -> int:
        """Where the numbers end, from the start of the header."""
        return self.num_bytes + math.prod(self.shape) * self.dtype.itemsize


def parse_npy(head: bytes, where: str) -> NpyHeader:
    """Read a header.

    Args:
        head: The first `HEAD_BYTES` bytes of the file, or all of it.
        where: The file, for errors.

    Raises:
        SourceError: It is none, or not one of an array of numbers.
    """
    stream = io.BytesIO(head)
    try:
        shape, fortran, dtype = _READERS[numpy_format.read_magic(stream)](stream, max_header_size=HEAD_BYTES)
    except (KeyError, ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        what = f"this is not a file in NumPy's format, or its header is damaged: {error}"
        raise SourceError(what, where=where, fix="write it with numpy.save") from error
    is_shape = len(shape) <= _MAX_AXES and all(type(size) is int and size >= 0 for size in shape)
    # NumPy multiplies the sizes in 64 bits, those of arrays without items, too.
    if dtype.kind not in "biufc" or not is_shape or math.prod(filter(None, shape)) * dtype.itemsize > _MAX_BYTES:
        what = f"this is not an array of numbers: it has {dtype} of the shape {shape!r}"
        raise SourceError(what, where=where, fix="store numbers: pickled objects are never loaded")
    return NpyHeader(dtype, shape, fortran, stream.tell())


USUAL_BYTES = 192  # of the usual header, up to some ten axes
_USUAL_MAGIC = b"\x93NUMPY\x01\x00"
_USUAL = re.compile(
    rb"\{'descr': '([<>|=]?[biufc][0-9]{1,2})', 'fortran_order': (False|True), 'shape': \(([0-9, ]{0,200})\), \} *\n"
)
_GROWTH_CHARS = 21  # NumPy keeps room for a first axis of this many digits


def parse_usual_npy(head: bytes) -> NpyHeader | None:
    """Read a header of the usual form; `None` if it has another, or more bytes than are given."""
    num_bytes = 10 + int.from_bytes(head[8:10], "little")
    usual = _USUAL.fullmatch(head, 10, num_bytes) if head[:8] == _USUAL_MAGIC and num_bytes <= len(head) else None
    if usual is None:
        return None
    descr, order, axes = usual.groups()
    try:
        return NpyHeader(_dtype_of(descr), _shape_of(axes), order == b"True", num_bytes)
    except (TypeError, ValueError):  # a dtype that NumPy does not know (<f3); axes that are no numbers (1 2)
        return None


def parse_any_npy(head: bytes, where: str) -> NpyHeader:
    """Read a header of any form, see `parse_npy`."""
    return parse_usual_npy(head) or parse_npy(head, where)


@lru_cache(maxsize=256)
def _dtype_of(descr: bytes) -> np.dtype[Any]:
    return np.dtype(descr.decode())


@lru_cache(maxsize=65_536)  # lengths repeat
def _shape_of(axes: bytes) -> tuple[int, ...]:
    return tuple(int(axis) for axis in axes.split(b",") if axis.strip())


def make_npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an array in C order, byte for byte as `numpy.save` writes it."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape!r}, }}"
    if shape:
        text += " " * (_GROWTH_CHARS - len(str(shape[0])))
    length = -(-(len(_USUAL_MAGIC) + 2 + len(text) + 1) // 64) * 64 - len(_USUAL_MAGIC) - 2
    return _USUAL_MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
