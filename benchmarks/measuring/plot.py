"""The plot of the transport benchmark, as SVG: no package is needed for a few bars."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .contenders import CONTENDERS
from .turn import LIMIT

_WIDTH, _LABELS, _BAR, _GAP, _TITLE = 760, 210, 12, 4, 30
_OURS, _PEER, _GROUPS, _PEER_GROUPS, _LIMIT = "#0b6e99", "#b8b8b8", "#48a9c5", "#8d8d8d", "#e0d8c0"


def write_plot(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Write bars of items per second, one panel for each kind, on a logarithmic scale."""
    parts: list[str] = []
    top = 8
    for kind, figures in results.items():
        names = [name for name in [*CONTENDERS, LIMIT] if name in figures]
        if not names:
            continue
        panel, height = _panel(kind, [(name, figures[name]["rate"]) for name in names])
        parts.append(f'<g transform="translate(0,{top})">{panel}</g>')
        top += height + 14
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(kind: str, rates: list[tuple[str, float]]) -> tuple[str, int]:
    """Return the SVG of one panel and its height."""
    low = math.floor(math.log10(min(rate for _, rate in rates)))
    high = math.ceil(math.log10(max(rate for _, rate in rates)))
    scale = (_WIDTH - _LABELS - 80) / max(high - low, 1)
    bottom = _TITLE + len(rates) * (_BAR + _GAP)
    parts = [f'<text x="8" y="16" font-size="13" font-weight="bold">{escape(kind)}: items per second</text>']
    for exponent in range(low, high + 1):
        x = _LABELS + (exponent - low) * scale
        parts.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{_TITLE - 4}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x:.0f}" y="{_TITLE - 6}" text-anchor="middle" fill="#777">{_short(10**exponent)}</text>'
        )
    for place, (name, rate) in enumerate(rates):
        y = _TITLE + place * (_BAR + _GAP)
        length = max((math.log10(rate) - low) * scale, 1)
        parts.append(f'<text x="{_LABELS - 6}" y="{y + 10}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{_LABELS}" y="{y}" width="{length:.0f}" height="{_BAR}" fill="{_color(name)}"/>')
        parts.append(f'<text x="{_LABELS + length + 5:.0f}" y="{y + 10}">{_short(rate)}</text>')
    return "".join(parts), bottom


def _color(name: str) -> str:
    if name == LIMIT:
        return _LIMIT
    contender = CONTENDERS[name]
    if contender.is_ours:
        return _GROUPS if contender.groups else _OURS
    return _PEER_GROUPS if contender.groups else _PEER


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
