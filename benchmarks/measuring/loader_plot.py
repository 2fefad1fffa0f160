"""The plot of the loader benchmark, as SVG: two columns of panels of bars from zero; outliers are cut."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from .loader_contender import OURS
from .loader_report import RATES, Results, counts_of, middle

_WIDTH, _LABELS, _VALUES, _BAR, _GAP, _TITLE, _MARGIN = 900, 170, 62, 11, 5, 26, 14
_CUT = 5  # times the median: what is longer would leave the others too short to be compared
_OURS, _PEER, _TEXT = "#0b6e99", "#b8b8b8", "#222"


@dataclass(frozen=True)
class _Panel:
    title: str
    bars: list[tuple[str, float]]
    write: Callable[[float], str]

    @property
    def height(self) -> int:
        return _TITLE + len(self.bars) * (_BAR + _GAP)


def write_plot(results: Results, path: Path) -> None:
    """Write bars, two panels beside each other, each from zero."""
    panels = [panel for panel in _panels(results) if panel.bars]
    parts: list[str] = []
    top = _MARGIN
    for left, right in zip(panels[::2], [*panels[1::2], None], strict=False):
        for panel, x in ((left, 0), (right, _WIDTH // 2)):
            if panel is not None:
                parts.append(f'<g transform="translate({x},{top})">{_draw(panel)}</g>')
        top += max(panel.height for panel in (left, right) if panel is not None) + _MARGIN
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" font-family="sans-serif" '
        f'font-size="11" fill="{_TEXT}"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panels(results: Results) -> list[_Panel]:
    def bars(key: str, field: str) -> list[tuple[str, float]]:
        found = ((title, middle(results, title, key, field)) for title in results)
        return [(title, value) for title, value in found if value is not None]

    def shares(what: str, field: str, less: float) -> list[_Panel]:
        return [
            _Panel(
                f"{what}: {corpus}",
                [(title, value - less) for title, value in bars(f"costs {corpus}", field)],
                lambda value: f"{value:.1%}",
            )
            for corpus in ("speech", "words")
        ]

    return [
        *(_Panel(f"frames per second: {name}", bars(key, "frames"), _short) for key, name in RATES.items()),
        *(
            _Panel(f"{RATES[key]}: CPU seconds for a million frames", bars(key, "cpu_seconds"), "{:.2g}".format)
            for key in ("speech cheap", "words cheap")
        ),
        *shares("padding", "padding", 0),
        *shares("slowest of 8 ranks above their mean", "skew", 1),
        *(
            _Panel(f"seconds to the first batch of {count:,} sequences", bars(f"first {count}", "seconds"), _seconds)
            for count in counts_of(results, "first")[:2]
        ),
        *(_resume_panel(results, count) for count in counts_of(results, "resume")),
    ]


def _resume_panel(results: Results, count: int) -> _Panel:
    found = []
    for title, measured in results.items():
        for figures in measured.get(f"resume {count}", []):
            for share, seconds in zip(("0", "50", "99"), figures.get("seconds") or [], strict=False):
                found.append((f"{title}, {share} %", seconds))
    return _Panel(f"seconds to resume in {count:,} sequences", found, _seconds)


def _draw(panel: _Panel) -> str:
    values = [value for _, value in panel.bars]
    full = min(max(values), _CUT * statistics.median(values)) or 1
    scale = (_WIDTH / 2 - _LABELS - _VALUES - _MARGIN) / full
    parts = [f'<text x="8" y="14" font-size="12" font-weight="bold">{escape(panel.title)}</text>']
    for place, (name, value) in enumerate(panel.bars):
        y = _TITLE + place * (_BAR + _GAP)
        length = max(min(value, full) * scale, 1)
        color = _OURS if name.startswith(OURS) else _PEER
        parts.append(f'<text x="{_LABELS - 6}" y="{y + 9}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{_LABELS}" y="{y}" width="{length:.0f}" height="{_BAR}" fill="{color}"/>')
        if value > full:  # a gap in the bar says that it is cut
            x = _LABELS + length - 16
            parts.append(f'<path d="M{x + 4},{y - 1}h4l-4,{_BAR + 2}h-4z" fill="white"/>')
        parts.append(f'<text x="{_LABELS + length + 5:.0f}" y="{y + 9}">{panel.write(value)}</text>')
    return "".join(parts)


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
