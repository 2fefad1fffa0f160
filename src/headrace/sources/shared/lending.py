"""Borrows arrays of user objects instead of copying them at once, as they are copied later anyway.

A map-style dataset may return the same memory for each item, filled anew. So a borrowed array is copied before the
next item is asked for, unless no other object refers to its memory: then nothing can write to it.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_LENT_BYTES = 1 << 14  # a copy of less costs about as much as finding out whether it is needed


def own_arrays(arrays: dict[str, Any]) -> None:
    """Copy the arrays of a dict that other objects may refer to; small ones are copies already."""
    for key in arrays:
        is_large = isinstance(arrays[key], np.ndarray) and arrays[key].nbytes >= MIN_LENT_BYTES
        if is_large and not _is_owned(arrays, key):
            arrays[key] = arrays[key].copy()


def _is_owned(arrays: dict[str, NDArray[Any]], key: str) -> bool:
    """Tell whether an array, and its memory, is referred to by the dict alone."""
    if sys.getrefcount(arrays[key]) > _NUM_REFS_IN_DICT:
        return False
    array = arrays[key]
    while weakref.getweakrefcount(array) == 0:
        base: Any = array.base
        if base is None:
            return array.flags.owndata
        if type(base) is bytes:  # immutable
            return True
        if type(base) is not np.ndarray or sys.getrefcount(base) > _NUM_REFS_OF_BASE:
            return False
        array = base
    return False


def _num_refs_in_dict() -> int:
    arrays = {"": np.zeros(1)}
    return sys.getrefcount(arrays[""])


def _num_refs_of_base() -> int:
    array = np.zeros(1)[:]
    base: Any = array.base
    return sys.getrefcount(base)


# How many references are counted where there is no other: versions of Python differ in that.
_NUM_REFS_IN_DICT, _NUM_REFS_OF_BASE = _num_refs_in_dict(), _num_refs_of_base()
