"""Human-readable numbers, and small text charts of lengths. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EIGHTHS = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"]
BYTES = "bytes"  # the unit of amounts that are shown by `format_bytes`
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def format_count(count: float) -> str:
    """Return a whole number with separators: `1,234,567`."""
    return f"{count:,.0f}"


def format_bytes(num_bytes: float) -> str:
    """Return a size in decimal units: `12.3 MB`; `rich.filesize.decimal` would make 999,950 bytes `1,000.0 kB`.

    >>> format_bytes(999), format_bytes(12_345_678)
    ('999 B', '12.3 MB')
    """
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    units = ["kB", "MB", "GB", "TB"]
    while True:
        num_bytes /= 1000
        unit = units.pop(0)
        if num_bytes < 999.95 or not units:  # values that would round to 1000.0 are shown in the next unit
            return f"{num_bytes:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Return a duration to about three digits.

    >>> format_seconds(0.01234), format_seconds(4.2), format_seconds(7325)
    ('0.012 s', '4.2 s', '2 h 02 min')
    """
    if seconds < 1:
        return f"{seconds:.3f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def draw_bar(fraction: float, width: int) -> str:
    """Return a horizontal bar, `fraction` (0..1) of `width` columns long, to an eighth of a column.

    >>> draw_bar(0.5, 5)
    '██▌'
    """
    eighths = round(fraction * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def plan_bins(shortest: int, longest: int, max_bins: int) -> NDArray[np.int64]:
    """Return the `int64[B + 1]` edges of at most `max_bins` equal bins of round width that hold shortest..longest.

    Bin b holds edges[b] <= length < edges[b + 1]. The width is 1, 2 or 5 times a power of ten.

    >>> plan_bins(3, 97, 10).tolist()
    [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    """
    magnitude = 1
    while True:
        for factor in (1, 2, 5):
            width = factor * magnitude
            first, last = shortest // width, longest // width
            if last - first < max_bins:
                return np.arange(first, last + 2, dtype=np.int64) * width
        magnitude *= 10


def draw_histogram(edges: NDArray[np.int64], counts: NDArray[np.int64], width: int) -> list[str]:
    """Return the lines of a histogram: range, count, bar.

    Args:
        edges: `int64[B + 1]`, see `plan_bins`.
        counts: `int64[B]`, not all of them 0.
        width: Columns of the terminal; a line is at most this long.
    """
    ranges = [f"{low:,}" if high - low == 1 else f"{low:,}..{high - 1:,}" for low, high in pairwise(edges.tolist())]
    range_width, count_width = max(map(len, ranges)), len(format_count(counts.max()))
    bar_width = max(width - range_width - count_width - 2, 4)
    lines = []
    for label, count in zip(ranges, counts.tolist(), strict=True):
        bar = draw_bar(count / counts.max(), bar_width)
        lines.append(f"{label:>{range_width}} {format_count(count):>{count_width}} {bar}".rstrip())
    return lines


def quantiles_of(lengths: NDArray[Any]) -> list[int]:
    """Return the lengths at `QUANTILES`, each of which is the length of some sequence."""
    return [int(value) for value in np.quantile(lengths, QUANTILES, method="inverted_cdf")]
