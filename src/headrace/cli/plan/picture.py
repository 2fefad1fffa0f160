"""A plan as a picture, by matplotlib: for slides and logs. The package is an extra, and loaded only for this."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import ConfigError
from headrace.files.atomic.pending import atomic_path

from .amounts import Amounts

_BAR, _MOST = "#3f7f9f", "#c2553a"
_BETWEEN = 1.0  # sub-epochs: the width of a bar
_MIN_WIDTH, _MAX_WIDTH, _INCHES_PER_BAR = 7.0, 16.0, 0.12
_BARS_PER_ROW = 600  # three pixels a bar
_ROW_INCHES, _MAX_ROWS = 2.4, 60
_DPI = 120
_MAX_TICKS = 40
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def check_can_draw() -> None:
    """Check that a picture can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--png needs matplotlib", fix="pip install 'headrace[report]', or take --html")


def write_picture(path: Path, title: str, results: Sequence[Amounts]) -> None:
    """Draw the bins of some numbers of ranks below each other: bars from 0, the mean dashed, the fullest ranks marked.

    Raises:
        ConfigError: There are too many bins.
        SourceError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    rows = [(amounts, part) for amounts in results for part in _rows_of(amounts)]
    if len(rows) > _MAX_ROWS:
        raise ConfigError(
            f"{sum(amounts.num_bins for amounts in results)} bins are too many for one picture",
            where=f"--png {path}",
            fix="choose fewer sub-epochs (--epochs) or numbers of ranks, or take --html",
        )
    num_bars = max(len(part) * (amounts.num_ranks + _BETWEEN) for amounts, part in rows)
    width = min(max(_MIN_WIDTH, num_bars * _INCHES_PER_BAR), _MAX_WIDTH)
    figure = Figure(figsize=(width, 0.6 + _ROW_INCHES * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for panel, (amounts, part) in zip(figure.subplots(len(rows), squeeze=False)[:, 0], rows, strict=True):
        _draw(panel, amounts, part)
        if part.start == 0:
            panel.set_title(_describe(amounts), fontsize=9, loc="left")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI, metadata={"Software": None})


def _rows_of(amounts: Amounts) -> Iterator[range]:
    """Yield the sub-epochs of each row."""
    num_epochs = len(amounts.epochs)
    most = max(int(_BARS_PER_ROW / (amounts.num_ranks + _BETWEEN)), 1)
    for part in np.array_split(np.arange(num_epochs), -(-num_epochs // most)):  # rows of about the same length
        yield range(int(part[0]), int(part[-1]) + 1)


def _draw(panel: Any, amounts: Amounts, row: range) -> None:
    """Draw the bins of some sub-epochs."""
    name, num_ranks = amounts.drawn, amounts.num_ranks
    unit, size = _unit_of(name, int(amounts.by_name[name].max()))
    everything = amounts.by_name[name] / size
    values = everything[row.start : row.stop]
    starts = np.arange(len(row)) * (num_ranks + _BETWEEN)
    xs = starts[:, None] + np.arange(num_ranks)
    is_most = np.arange(num_ranks) == values.argmax(axis=1)[:, None]
    colors = np.where(is_most & (num_ranks > 1), _MOST, _BAR)
    panel.bar(xs.ravel(), values.ravel(), width=0.86, color=colors.ravel().tolist())
    panel.axhline(everything.mean(), color=_MOST, linewidth=0.8, linestyle="--")
    ticks = np.arange(0, len(row), -(-len(row) // _MAX_TICKS))
    panel.set_xticks(starts[ticks] + (num_ranks - 1) / 2, [str(amounts.epochs[row[tick]]) for tick in ticks])
    panel.set_xlim(-_BETWEEN, xs.max() + _BETWEEN)
    panel.set_ylim(0, max(everything.max(), 1e-9) * 1.05)
    panel.set_xlabel("sub-epoch")
    panel.set_ylabel(f"{name} ({unit})" if unit else name)
    panel.spines[["top", "right"]].set_visible(False)


def _describe(amounts: Amounts) -> str:
    balance = amounts.balance(amounts.drawn)
    if amounts.num_ranks == 1:
        return f"1 rank\nmax/mean {balance.among_epochs:.3f} among sub-epochs"
    return (
        f"{amounts.num_ranks} ranks, the fullest of each sub-epoch in the other colour\n"
        f"max/mean {balance.among_ranks:.3f} among ranks at worst, {balance.among_epochs:.3f} among sub-epochs"
    )


def _unit_of(name: str, largest: int) -> tuple[str, float]:
    if name != "bytes":
        return "", 1.0
    return next(((unit, size) for size, unit in _UNITS if largest >= size), ("B", 1.0))
