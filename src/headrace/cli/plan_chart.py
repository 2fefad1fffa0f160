"""The bins of a plan as SVG: a bar for each rank, grouped by sub-epoch. No package is needed for bars."""

from __future__ import annotations

from collections.abc import Iterator

from .plan_amounts import Amounts
from .plan_table import format_amount

CHART_CSS = """
.bar { fill: var(--bar) } .most { fill: var(--most) }
.mean { stroke: var(--most); stroke-dasharray: 4 3 } .axis { stroke: var(--line) }
svg text { fill: var(--dim); font-size: 11px }
"""
_WIDTH, _LEFT, _RIGHT = 900, 70, 8  # of the picture, and what is beside the bars
_BARS, _ABOVE, _BELOW = 84, 12, 20  # heights in a row: of the longest bar, and what is above and below
_WIDEST, _NARROWEST = 26.0, 3.0  # bars, unless one sub-epoch does not fit into a row
_BETWEEN = 10.0  # sub-epochs


def draw_chart(amounts: Amounts) -> str:
    """Return an `<svg>` element: bars from 0, the mean as a dashed line, the fullest rank of each sub-epoch marked."""
    room, num_ranks = _WIDTH - _LEFT - _RIGHT, amounts.num_ranks
    pitch = min(_WIDEST, max(_NARROWEST, (room / len(amounts.epochs) - _BETWEEN) / num_ranks))
    pitch = min(pitch, (room - _BETWEEN) / num_ranks)
    group = pitch * num_ranks + _BETWEEN
    in_row = max(int(room / group), 1)
    height = _ABOVE + _BARS + _BELOW
    rows = [range(start, min(start + in_row, len(amounts.epochs))) for start in range(0, len(amounts.epochs), in_row)]
    parts = [
        f'<g transform="translate({_LEFT},{place * height})">{"".join(_draw_row(amounts, row, group, pitch))}</g>'
        for place, row in enumerate(rows)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {len(rows) * height}" role="img" '
        f'aria-label="{amounts.drawn} by sub-epoch and rank">\n' + "\n".join(parts) + "\n</svg>"
    )


def _draw_row(amounts: Amounts, row: range, group: float, pitch: float) -> Iterator[str]:
    """Yield the sub-epochs of one row of bars."""
    drawn = amounts.by_name[amounts.drawn]
    top, mean = max(int(drawn.max()), 1), float(drawn.mean())
    base = _ABOVE + _BARS
    right = group * len(row)
    for place, epoch_idx in enumerate(row):
        values = drawn[epoch_idx]
        for rank in range(amounts.num_ranks):
            length = int(values[rank]) / top * _BARS
            is_most = amounts.num_ranks > 1 and rank == int(values.argmax())
            x = place * group + _BETWEEN / 2 + rank * pitch
            yield (
                f'<rect class="{"most" if is_most else "bar"}" x="{x:.1f}" y="{base - length:.1f}" '
                f'width="{pitch * 0.86:.1f}" height="{length:.1f}"><title>{describe_bin(amounts, epoch_idx, rank)}'
                "</title></rect>"
            )
        middle = (place + 0.5) * group
        yield f'<text x="{middle:.1f}" y="{base + 14}" text-anchor="middle">{amounts.epochs[epoch_idx]}</text>'
    yield f'<line class="axis" x1="0" x2="{right:.1f}" y1="{base}" y2="{base}"/>'
    y = base - mean / top * _BARS
    yield f'<line class="mean" x1="0" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    for value, y in ((top, _ABOVE), (0, base)):
        yield f'<text x="-6" y="{y + 4}" text-anchor="end">{format_amount(amounts.drawn, value)}</text>'


def describe_bin(amounts: Amounts, epoch_idx: int, rank: int) -> str:
    """Return what is known of one bin, in a line."""
    known = []
    for name in amounts.shown:
        number = format_amount(name, int(amounts.by_name[name][epoch_idx, rank]))
        known.append(number if name == "bytes" else f"{number} {name}")
    return f"sub-epoch {amounts.epochs[epoch_idx]}, rank {rank}: {', '.join(known)}"
