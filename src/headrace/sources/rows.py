"""Several sequences in one array, one after the other: cheaper to write, to send and to cut than an array for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_JOINED_BYTES = 4096  # on average. Below, `bytes.join` and one more copy take a third of NumPy's time


def fill_rows(out: NDArray[Any], arrays: Sequence[NDArray[Any]]) -> None:
    """Copy arrays into the rows of one array, one after the other.

    Args:
        out: `dtype[N, ...]` in C order.
        arrays: `dtype[n, ...]`, whose n add up to N; or N arrays `dtype[...]`, with one axis less. That their dtype is
            that of `out`, and their shapes are alike, is for the caller to know.

    Raises:
        ValueError: They do not fit.
    """
    if not out.dtype.hasobject and out.nbytes <= len(arrays) * _MAX_JOINED_BYTES:
        try:
            data = b"".join(arrays)  # type: ignore[arg-type]  # an array is a buffer
        except (BufferError, TypeError, ValueError):  # one is not in C order, or of a dtype that no buffer has
            data = b""
        if len(data) == out.nbytes:
            out.reshape(-1).view(np.uint8)[...] = np.frombuffer(data, np.uint8)
            return
    if not arrays:
        raise ValueError(f"there are no arrays for {len(out)} rows")
    join = np.stack if arrays[0].ndim < out.ndim else np.concatenate
    join(arrays, out=out, casting="no")
