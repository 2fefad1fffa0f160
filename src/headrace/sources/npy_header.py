"""Headers of `.npy` files, many of them: the form that NumPy itself writes, without evaluating it.

To evaluate a header takes some 30 microseconds, and 2 to take the usual one apart by a pattern; which shows where a
corpus has a file or a member for each array. Any other form goes to `parse_npy`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from .npy_format import NpyHeader, parse_npy

USUAL_BYTES = 192  # of the usual header, up to some ten axes
_MAGIC = b"\x93NUMPY\x01\x00"
_USUAL = re.compile(
    rb"\{'descr': '([<>|=]?[biufc][0-9]{1,2})', 'fortran_order': (False|True), 'shape': \(([0-9, ]{0,200})\), \} *\n"
)
_GROWTH_CHARS = 21  # NumPy keeps room for a first axis of so many digits


def parse_usual_npy(head: bytes) -> NpyHeader | None:
    """Read a header of the usual form; `None` if it has another, or more bytes than are given."""
    num_bytes = 10 + int.from_bytes(head[8:10], "little")
    usual = _USUAL.fullmatch(head, 10, num_bytes) if head[:8] == _MAGIC and num_bytes <= len(head) else None
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
    length = -(-(len(_MAGIC) + 2 + len(text) + 1) // 64) * 64 - len(_MAGIC) - 2
    return _MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
