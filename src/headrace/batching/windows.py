"""Frames around frames: context around a chunk, zero padding, and a sliding window over features.

Start with `parse_context_window`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.errors import ConfigError

from .numbers import NumbersDict

_FORMS = 'valid forms: None, 5, {"data": 5}, or (left, right) as ({"data": 2}, {"data": 2})'


def parse_context_window(value: Any) -> tuple[NumbersDict, NumbersDict]:
    """Read the `context_window` option: extra frames to the left and to the right of each chunk in a batch.

    A total n means `max(n, 1) - 1` extra frames, half of them left; an odd one goes right: 2 -> 0/1, 3 -> 1/1, 4 ->
    1/2.

    Args:
        value: `None` (no frames); a total for the key "data"; totals by key; or a pair (left, right) of frames by
            key, used as given.

    Raises:
        ConfigError: Another form, or a negative or fractional number of frames.
    """
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ConfigError(f"context_window needs a pair (left, right), not {len(value)} items", fix=_FORMS)
        left, right = (_frames(part, value) for part in value)
        return left, right
    if value is None:
        return NumbersDict(0), NumbersDict(0)
    extra = _frames(value, value).unary_op(lambda total: max(total, 1) - 1)
    return extra.unary_op(lambda frames: frames // 2), extra.unary_op(lambda frames: frames - frames // 2)


def _frames(part: Any, whole: Any) -> NumbersDict:
    """Read frames by key; a bare number is for the key "data"."""
    if isinstance(part, int | np.integer) and not isinstance(part, bool):
        part = {"data": int(part)}
    if not isinstance(part, Mapping | NumbersDict):
        raise ConfigError(f"context_window cannot be read: {whole!r}", fix=_FORMS)
    frames = NumbersDict(part)
    wrong = [number for number in frames.values() if number < 0 or number % 1 != 0]
    if wrong:
        raise ConfigError(f"context_window needs whole numbers of frames, not {wrong[0]}: {whole!r}", fix=_FORMS)
    return frames


def slice_pad_zeros(array: NDArray[Any], start: int, end: int) -> NDArray[Any]:
    """Return frames start..end, with zeros for frames that lie outside of the array.

    Args:
        array: `any[T, ...]`.
        start: First frame; may be negative, which means before the array (not from its end).
        end: Frame after the last; may exceed T; not before `start`.

    Returns:
        `any[end - start, ...]`; a view if no zeros are needed.
    """
    if end < start:
        raise ConfigError(f"a slice ends before it starts: {start}..{end}")
    num_frames = len(array)
    if start >= 0 and end <= num_frames:
        return array[start:end]
    padded = np.zeros((end - start, *array.shape[1:]), dtype=array.dtype)
    first, last = max(start, 0), min(end, num_frames)
    if first < last:
        padded[first - start : last - start] = array[first:last]
    return padded


def apply_window(array: NDArray[Any], window: int) -> NDArray[Any]:
    """Join each frame with its neighbours: frame t becomes frames t - w/2 .. t + w/2, oldest first, zeros outside.

    Args:
        array: `any[T, D]`, or `any[T]` for scalar frames (D = 1); more axes may stand between.
        window: Odd number of frames; 1 returns the array itself.

    Returns:
        `any[T, D * window]`.
    """
    if window < 1 or window % 2 == 0:
        raise ConfigError(f"a window needs an odd number of frames: {window}")
    if array.ndim == 0:
        raise ConfigError("a window needs frames: this array has no time axis")
    if window == 1:
        return array
    if array.ndim == 1:
        array = array[:, None]
    if len(array) == 0:
        return np.zeros((*array.shape[:-1], window * array.shape[-1]), dtype=array.dtype)
    half = window // 2
    padded = slice_pad_zeros(array, -half, len(array) + half)
    windows = np.moveaxis(sliding_window_view(padded, window, axis=0), -1, -2)  # [T, ..., window, D]
    return np.ascontiguousarray(windows).reshape(*array.shape[:-1], window * array.shape[-1])
