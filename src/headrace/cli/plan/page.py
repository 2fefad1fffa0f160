"""A plan as one HTML file that needs nothing else: no script, no network; the bins are bars in SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from headrace.errors import HeadraceError
from headrace.show.drawing import format_count
from headrace.version import __version__

from .amounts import Amounts
from .subject import SubjectFacts
from .table import balance_rows, describe_loss, describe_worst, format_amount

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
        f'<g transform="translate({_LEFT},{row_idx * height})">{"".join(_draw_row(amounts, row, group, pitch))}</g>'
        for row_idx, row in enumerate(rows)
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
    for column, epoch_idx in enumerate(row):
        values = drawn[epoch_idx]
        for rank in range(amounts.num_ranks):
            length = int(values[rank]) / top * _BARS
            is_most = amounts.num_ranks > 1 and rank == int(values.argmax())
            x = column * group + _BETWEEN / 2 + rank * pitch
            yield (
                f'<rect class="{"most" if is_most else "bar"}" x="{x:.1f}" y="{base - length:.1f}" '
                f'width="{pitch * 0.86:.1f}" height="{length:.1f}"><title>{describe_bin(amounts, epoch_idx, rank)}'
                "</title></rect>"
            )
        middle = (column + 0.5) * group
        yield f'<text x="{middle:.1f}" y="{base + 14}" text-anchor="middle">{amounts.epochs[epoch_idx]}</text>'
    yield f'<line class="axis" x1="0" x2="{right:.1f}" y1="{base}" y2="{base}"/>'
    y = base - mean / top * _BARS
    yield f'<line class="mean" x1="0" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    for value, y in ((top, _ABOVE), (0, base)):
        yield f'<text x="-6" y="{y + 4}" text-anchor="end">{format_amount(amounts.drawn, value)}</text>'


def describe_bin(amounts: Amounts, epoch_idx: int, rank: int) -> str:
    """Describe one bin in a line."""
    known = []
    for name in amounts.shown:
        number = format_amount(name, int(amounts.by_name[name][epoch_idx, rank]))
        known.append(number if name == "bytes" else f"{number} {name}")
    return f"sub-epoch {amounts.epochs[epoch_idx]}, rank {rank}: {', '.join(known)}"


_CSS = """
:root { color-scheme: light dark; --bar: #3f7f9f; --most: #c2553a; --line: #bbb; --dim: #666; --text: #222;
  --page: #fff }
@media (prefers-color-scheme: dark) { :root { --bar: #62a5c7; --most: #e58265; --line: #555; --dim: #aaa;
  --text: #ddd; --page: #1b1b1b } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 960px;
  margin: 24px auto; padding: 0 16px }
h1 { font-size: 20px } h2 { font-size: 16px; margin-top: 36px } .dim { color: var(--dim) }
table { border-collapse: collapse; margin: 12px 0 } th, td { padding: 2px 14px 2px 0; text-align: right }
th { border-bottom: 1px solid var(--line); font-weight: 600 } td.why { text-align: left; color: var(--most) }
th:first-child, td:first-child { text-align: left } svg { width: 100%; height: auto }
"""
Results = Mapping[int, Amounts | HeadraceError]


def draw_page(title: str, facts: SubjectFacts, size: str, results: Results) -> str:
    """Return the page.

    Args:
        title: Title, for example the name of the config.
        facts: Facts about the dataset.
        size: Size of the corpus.
        results: Number of ranks -> their amounts, or why that number is impossible.
    """
    options = ", ".join(f"{name}={value}" for name, value in facts.options.items())
    remarks = "".join(f"<br>{escape(remark)}" for remark in facts.remarks(max(results)))
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Plan of {escape(title)}</title><style>{_CSS}{CHART_CSS}</style></head><body>",
        f"<h1>Plan of {escape(title)}</h1>",
        f"<p><b>{escape(facts.name)}</b>: {escape(size)}<br>{escape(options)}{remarks}</p>",
    ]
    if len(results) > 1:
        parts += ["<h2>Numbers of ranks</h2>", _table(_comparison(results))]
    for num_ranks, amounts in results.items():
        if isinstance(amounts, Amounts):
            parts += _section(num_ranks, amounts)
    parts.append(f'<p class="dim">Made by headrace {escape(__version__)}.</p></body></html>\n')
    return "\n".join(parts)


def _comparison(results: Results) -> Iterator[list[str]]:
    yield ["ranks", "bins", "max/mean of ranks, at worst", "max/mean of sub-epochs", 'lost by remainder="drop"']
    for num_ranks, amounts in results.items():
        if isinstance(amounts, Amounts):
            balance, loss = amounts.balance(amounts.drawn), amounts.balance(amounts.lost_by).lost_share
            ratios = [f"{balance.among_ranks:.3f}", f"{balance.among_epochs:.3f}"]
            yield [str(num_ranks), format_count(amounts.num_bins), *ratios, f"{100 * loss:.1f} %"]
        else:
            yield [str(num_ranks), amounts.what]


def _section(num_ranks: int, amounts: Amounts) -> Iterator[str]:
    yield f"<h2>{format_count(num_ranks)} rank{'s' if num_ranks > 1 else ''}</h2>"
    rows = balance_rows(amounts)
    if len(rows) > 1:
        yield _table(rows)
    if num_ranks > 1:
        yield f"<p>{escape(describe_worst(amounts).capitalize())}. {escape(describe_loss(amounts))}.</p>"
    marked = "; the fullest rank of each sub-epoch has the other colour" if num_ranks > 1 else ""
    yield f'<p class="dim">{amounts.drawn} by sub-epoch, the mean dashed{marked}.</p>'
    yield draw_chart(amounts)
    yield f"<details><summary>All {format_count(amounts.num_bins)} bins</summary>{_table(_bins(amounts))}</details>"


def _bins(amounts: Amounts) -> Iterator[list[str]]:
    yield ["sub-epoch", "rank", *amounts.shown]
    for row, epoch in enumerate(amounts.epochs):
        for rank in range(amounts.num_ranks):
            numbers = (format_amount(name, int(amounts.by_name[name][row, rank])) for name in amounts.shown)
            yield [str(epoch), str(rank), *numbers]


def _table(rows: Iterator[list[str]] | Sequence[list[str]]) -> str:
    """Return a table whose first row is its head; the last cell of a short row spans the rest."""
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in body:
        cells = [f"<td>{escape(cell)}</td>" for cell in row]
        if len(row) < len(head):
            cells[-1] = f'<td class="why" colspan="{len(head) - len(row) + 1}">{escape(row[-1])}</td>'
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
