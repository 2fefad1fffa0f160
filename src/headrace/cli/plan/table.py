"""A plan in a terminal: a line with a bar for each bin, or for each sub-epoch if they are many; and how even it is.

Everything fits into 80 columns, and is shown by text and length, not by colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from headrace.errors import HeadraceError
from headrace.show.drawing import draw_bar, format_bytes, format_count

from ..console import bold
from .amounts import UNKNOWN, Amounts
from .subject import SubjectFacts

_MAX_BINS = 48  # more are shown by sub-epoch: two screens can still be seen at a glance
_MAX_WIDTH, _MIN_BAR = 100, 12  # columns
_LEVELS = "▁▂▃▄▅▆▇█"
_GAP = "  "

Results = Mapping[int, Amounts | HeadraceError]  # by number of ranks: what each rank has, or why that is impossible


def print_facts(output: Console, facts: SubjectFacts, size: str, max_ranks: int) -> None:
    """Print the facts about the dataset, in a few lines."""
    output.print(bold(f"{facts.name}:"), size)
    _print_wrapped(output, "  ", ", ".join(f"{name}={value}" for name, value in facts.options.items()))
    for remark in facts.remarks(max_ranks):
        _print_wrapped(output, "  ", remark)


def print_bins(output: Console, amounts: Amounts) -> None:
    """Print what each rank has in each sub-epoch."""
    by_epoch = amounts.num_ranks > 1 and amounts.num_bins > _MAX_BINS
    rows = _rows_by_epoch(amounts) if by_epoch else _rows_by_bin(amounts)
    lines = _aligned(rows)
    room = max(min(output.width, _MAX_WIDTH) - len(lines[0]) - len(_GAP), _MIN_BAR)
    drawn = amounts.by_name[amounts.drawn]
    top = max(int(drawn.max()), 1)
    if by_epoch:
        title, pictures = f"{amounts.drawn} by rank", [_draw_heights(row, top, room) for row in drawn]
    else:
        title, pictures = f"bars: {amounts.drawn}", [draw_bar(value / top, room) for value in drawn.ravel()]
    for line, picture in zip(lines, [title, *pictures], strict=True):
        output.print(f"{line}{_GAP}{picture}".rstrip())


def print_balance(output: Console, amounts: Amounts) -> None:
    """Print how even the bins are, and what is lost if all ranks stop with the first that ends."""
    rows = _balance_rows(amounts)
    if len(rows) > 1:
        for line in _aligned(rows, num_texts=1):
            output.print(line)
    if amounts.num_ranks > 1:
        output.print(_describe_worst(amounts))
        output.print(_describe_loss(amounts))


def _balance_rows(amounts: Amounts) -> list[list[str]]:
    """Return a table of how even each amount is, its head first."""
    balances = {name: amounts.balance(name) for name in amounts.balanced}
    rows = [["max/mean", *balances]]
    if amounts.num_ranks > 1:
        rows.append(["ranks of a sub-epoch, at worst", *(f"{b.among_ranks:.3f}" for b in balances.values())])
    if len(amounts.epochs) > 1:
        rows.append(["sub-epochs", *(f"{b.among_epochs:.3f}" for b in balances.values())])
    return rows


def _describe_worst(amounts: Amounts) -> str:
    """Name the rank that has most, and its sub-epoch."""
    worst = amounts.balance(amounts.drawn)
    return f"by {amounts.drawn} the worst is sub-epoch {worst.worst_epoch}: rank {worst.worst_rank} has most"


def _describe_loss(amounts: Amounts) -> str:
    """Return what is not read in these sub-epochs if all ranks stop when the first one ends."""
    balance = amounts.balance(amounts.lost_by)
    share = f"{100 * balance.lost_share:.1f} %"
    if amounts.lost_by == "sequences":
        what = f"{format_count(balance.lost)} of {format_count(balance.total)} sequences ({share})"
        return f'remainder="drop" loses {what}'
    return f'remainder="drop" loses about {share}, by {amounts.lost_by}; --count shows it in sequences'


def print_comparison(output: Console, results: Results) -> None:
    """Print a line for each number of ranks: how even it would be, or why that number is impossible.

    At least one of them must be possible.
    """
    measured = {num_ranks: amounts for num_ranks, amounts in results.items() if isinstance(amounts, Amounts)}
    drawn, lost_by = next((amounts.drawn, amounts.lost_by) for amounts in measured.values())
    rows = [["ranks", "bins", f"{drawn} a bin", "among ranks", "among sub-epochs", "lost"]]
    losses = {}
    for num_ranks, amounts in measured.items():
        balance, losses[num_ranks] = amounts.balance(drawn), amounts.balance(lost_by).lost_share
        mean = _format_amount(drawn, round(balance.total / amounts.num_bins))
        ratios = [f"{balance.among_ranks:.3f}", f"{balance.among_epochs:.3f}"]
        rows.append([str(num_ranks), str(amounts.num_bins), mean, *ratios, f"{100 * losses[num_ranks]:.1f} %"])
    head, *lines = _aligned(rows)
    room, most = max(min(output.width, 80) - len(head) - len(_GAP), _MIN_BAR), max(*losses.values(), 1e-9)
    line_of = dict(zip(measured, lines, strict=True))
    output.print(bold(head))
    for num_ranks, result in results.items():
        if isinstance(result, Amounts):
            bar = draw_bar(losses[num_ranks] / most, room)
            output.print(f"{line_of[num_ranks]}{_GAP}{bar}".rstrip())
        else:
            _print_wrapped(output, f"{num_ranks:>{len('ranks')}}{_GAP}", result.what)
    output.print(f"among: max/mean of {drawn}; for ranks, of those of the worst sub-epoch")
    output.print(f'lost: what remainder="drop" drops, by {lost_by}')


def _format_amount(name: str, amount: int) -> str:
    """Return an amount for people: bytes with their unit, `?` if it is unknown."""
    if amount == UNKNOWN:
        return "?"
    return format_bytes(amount) if name == "bytes" else format_count(amount)


def _print_wrapped(output: Console, start: str, text: str) -> None:
    width = max(output.width, 2 * len(start) + 20)
    for line in textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start)):
        output.print(line)


def _rows_by_bin(amounts: Amounts) -> list[list[str]]:
    names, several = amounts.shown, amounts.num_ranks > 1
    rows = [["sub-epoch", *(["rank"] if several else []), *names]]
    for row, epoch in enumerate(amounts.epochs):
        for rank in range(amounts.num_ranks):
            first = [str(epoch) if rank == 0 else "", *([str(rank)] if several else [])]
            rows.append(first + [_format_amount(name, int(amounts.by_name[name][row, rank])) for name in names])
    return rows


def _rows_by_epoch(amounts: Amounts) -> list[list[str]]:
    names, drawn = amounts.shown, amounts.by_name[amounts.drawn]
    rows = [["sub-epoch", *names, "max/mean"]]
    for row, epoch in enumerate(amounts.epochs):
        sums = [_sum_of(amounts.by_name[name][row]) for name in names]
        ratio = drawn[row].max() / max(drawn[row].mean(), 1e-9)
        rows.append([str(epoch), *map(_format_amount, names, sums), f"{ratio:.3f}"])
    return rows


def _sum_of(row: NDArray[np.int64]) -> int:
    return UNKNOWN if (row == UNKNOWN).any() else int(row.sum())


def _draw_heights(values: NDArray[np.int64], top: int, width: int) -> str:
    """Return a line of heights from 0 to `top`; where there are more values than columns, the largest of each part."""
    parts = np.array_split(values, min(width, len(values)))
    return "".join(_LEVELS[round(int(part.max()) / top * (len(_LEVELS) - 1))] for part in parts)


def _aligned(rows: Sequence[Sequence[str]], num_texts: int = 0) -> list[str]:
    """Return lines of equal length; the first `num_texts` columns are texts, the others numbers.

    By hand, because the bar beside them takes the room that they leave, and a table of rich shortens or wraps numbers
    where a terminal is narrow.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            f"{cell:<{width}}" if column < num_texts else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
