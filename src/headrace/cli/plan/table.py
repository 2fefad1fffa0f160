"""A plan in a terminal: a line with a bar for each bin, and how even they are.

Everything fits into 80 columns, and is shown by text and length, not by colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console

from headrace.show.drawing import draw_bar, format_bytes, format_count

from ..console import bold
from .amounts import UNKNOWN, Amounts
from .subject import SubjectFacts

_MAX_WIDTH, _MIN_BAR = 100, 12  # columns
_GAP = "  "


def print_facts(output: Console, facts: SubjectFacts, size: str, num_ranks: int) -> None:
    """Print the facts about the dataset, in a few lines."""
    output.print(bold(f"{facts.name}:"), size)
    _print_wrapped(output, "  ", ", ".join(f"{name}={value}" for name, value in facts.options.items()))
    for remark in facts.remarks(num_ranks):
        _print_wrapped(output, "  ", remark)


def print_bins(output: Console, amounts: Amounts) -> None:
    """Print what each rank has in each sub-epoch."""
    lines = _aligned(_rows_of(amounts))
    room = max(min(output.width, _MAX_WIDTH) - len(lines[0]) - len(_GAP), _MIN_BAR)
    drawn = amounts.by_name[amounts.drawn]
    top = max(int(drawn.max()), 1)
    pictures = [f"bars: {amounts.drawn}", *(draw_bar(value / top, room) for value in drawn.ravel())]
    for line, picture in zip(lines, pictures, strict=True):
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


def _format_amount(name: str, amount: int) -> str:
    """Return an amount for people: bytes with their unit, `?` if it is unknown."""
    if amount == UNKNOWN:
        return "?"
    return format_bytes(amount) if name == "bytes" else format_count(amount)


def _print_wrapped(output: Console, start: str, text: str) -> None:
    width = max(output.width, 2 * len(start) + 20)
    for line in textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start)):
        output.print(line)


def _rows_of(amounts: Amounts) -> list[list[str]]:
    names, several = amounts.shown, amounts.num_ranks > 1
    rows = [["sub-epoch", *(["rank"] if several else []), *names]]
    for row, epoch in enumerate(amounts.epochs):
        for rank in range(amounts.num_ranks):
            first = [str(epoch) if rank == 0 else "", *([str(rank)] if several else [])]
            rows.append(first + [_format_amount(name, int(amounts.by_name[name][row, rank])) for name in names])
    return rows


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
