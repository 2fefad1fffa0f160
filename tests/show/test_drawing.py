"""Numbers and pictures made of text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.show.drawing import (
    draw_bar,
    draw_histogram,
    format_bytes,
    format_seconds,
    plan_bins,
    quantiles_of,
)

LENGTHS = st.lists(st.integers(0, 10**7), min_size=1, max_size=200).map(np.array)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (5e15, "5000.0 TB")],
)
def test_sizes_are_in_decimal_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.000 s"), (0.9999, "1.000 s"), (99.9, "99.9 s"), (100, "2 min"), (7200, "2 h 00 min")]
)
def test_durations_have_about_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(lengths=LENGTHS, max_bins=st.integers(1, 20))
def test_bins_hold_every_length_and_are_as_few_as_asked(lengths: np.ndarray, max_bins: int) -> None:
    edges = plan_bins(int(lengths.min()), int(lengths.max()), max_bins)
    widths = np.diff(edges)
    assert 1 <= len(widths) <= max_bins
    assert np.all(widths == widths[0])
    assert str(widths[0]).rstrip("0") in {"1", "2", "5"}
    assert edges[0] <= lengths.min()
    assert lengths.max() < edges[-1]


@given(lengths=LENGTHS, width=st.integers(40, 200))
def test_a_histogram_shows_every_count_and_fits_the_terminal(lengths: np.ndarray, width: int) -> None:
    edges = plan_bins(int(lengths.min()), int(lengths.max()), 12)
    counts = np.histogram(lengths, bins=edges)[0]
    lines = draw_histogram(edges, counts, width)
    assert len(lines) == len(counts)
    assert all(len(line) <= width for line in lines)
    # the first two columns are the range and the count
    assert [int(line.split()[1].replace(",", "")) for line in lines] == counts.tolist()
    fullest = lines[int(counts.argmax())]
    assert fullest.endswith("█")
    assert len(fullest) == width


@given(fraction=st.floats(0, 1), width=st.integers(1, 100))
def test_a_bar_is_as_long_as_its_fraction_to_an_eighth(fraction: float, width: int) -> None:
    bar = draw_bar(fraction, width)
    eighths = 8 * bar.count("█") + sum({"▏": 1, "▎": 2, "▍": 3, "▌": 4, "▋": 5, "▊": 6, "▉": 7}.get(c, 0) for c in bar)
    assert abs(eighths - fraction * width * 8) <= 0.5


@given(lengths=LENGTHS)
def test_quantiles_are_lengths_that_occur(lengths: np.ndarray) -> None:
    quantiles = quantiles_of(lengths)
    assert set(quantiles) <= set(lengths.tolist())
    assert (quantiles[0], quantiles[-1]) == (lengths.min(), lengths.max())
    assert quantiles == sorted(quantiles)
