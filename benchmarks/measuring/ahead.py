"""How many times as quick as the best peer we are, as docs/reference/benchmarks.md has it, and as it is now.

`ahead.json` has the published ratios: benchmark -> what -> ratio, of a quiet machine where the page has several runs. A
new table on that page changes it, too.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transport import best_of

from .item_batches import EXPENSIVE
from .loader_report import OURS, RATES, ratio

PUBLISHED: dict[str, dict[str, float]] = json.loads(Path(__file__).with_suffix(".json").read_text())
SLOWER = 0.9  # of the published ratio: what is less has become slower
Figures = Any  # what a benchmark writes with --json


def _transport(figures: Figures) -> Iterator[tuple[str, float]]:
    for kind, rows in figures.items():
        for what, with_groups in (("one item a message", False), ("groups allowed to all", True)):
            ours, theirs = (best_of(rows, ours=is_ours, with_groups=with_groups) for is_ours in (True, False))
            if ours and theirs:
                yield f"{kind}, {what}", ours / theirs


def _loader_items(figures: Figures) -> Iterator[tuple[str, float]]:
    for case, rows in figures.items():
        peers = [row["batches"] for name, row in rows.items() if name != "headrace"] if case != EXPENSIVE else []
        if peers and "headrace" in rows:
            yield case, rows["headrace"]["batches"] / max(peers)


def _loader(figures: Figures) -> Iterator[tuple[str, float]]:
    results = figures["results"]
    for key, name in RATES.items():
        found = [ratio(results, title, key, "frames") for title in results if title != OURS]
        if known := [one for one in found if one is not None]:
            yield name, min(known)


def _multi_proc(figures: Figures) -> Iterator[tuple[str, float]]:
    best = dict.fromkeys(("headrace", "RETURNN"), 0.0)
    for row in figures:
        if row["buffer_size"]:
            best[row["contender"]] = max(best[row["contender"]], row["rate"])
    if all(best.values()):
        yield "sequences a second", best["headrace"] / best["RETURNN"]


def _pipes(figures: Figures) -> Iterator[tuple[str, float]]:
    for case, rates in figures.items():
        if rates.get("torchdata"):
            yield f"{case} items", statistics.median(rates["headrace"]) / statistics.median(rates["torchdata"])


def _lhotse(figures: Figures) -> Iterator[tuple[str, float]]:
    for kind, rows in figures["loader"].items():
        with suppress(KeyError):
            yield kind, rows["headrace"]["rate"] / rows["documented loader"]["rate"]


_FIND: dict[str, Callable[[Figures], Iterator[tuple[str, float]]]] = {
    "transport": _transport,
    "loader_items": _loader_items,
    "loader": _loader,
    "multi_proc": _multi_proc,
    "pipes": _pipes,
    "lhotse": _lhotse,
}


def ratios(benchmark: str, figures: Figures) -> dict[str, float]:
    """Return what -> ratio, as far as the contenders were there."""
    return dict(_FIND[benchmark](figures))


def compared(benchmark: str, figures: Figures | None) -> list[str]:
    """Return the rows of a table, in Markdown: what, published, now, the change, and what follows."""
    lines = []
    now = {} if figures is None else ratios(benchmark, figures)
    for what, published in PUBLISHED[benchmark].items():
        cells = [benchmark, what, f"{published:.3g} x"]
        if what in now:
            change = now[what] / published - 1
            verdict = "" if now[what] >= SLOWER * published else "**slower**" if now[what] >= 1 else "**behind**"
            cells += [f"{now[what]:.3g} x", f"{change:+.0%}", verdict]
        else:
            cells += ["", "", "not measured"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
