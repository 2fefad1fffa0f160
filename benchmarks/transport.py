"""Items from two workers to one consumer: Headrace, torch, Grain, SPDL, RETURNN and a process pool, side by side.

Run `python benchmarks/transport.py` (`--quick` for a minute instead of ten). An item is a float32 array, or a dict of
five arrays and a tag, that a worker fills and of which the consumer reads two elements. Each turn of a contender is a
process of its own with two workers; its first items are compared in full with what they should be, then items are
counted, and the median of the repeats is shown. A contender that is not installed is left out, with a line that says so
(`pip install headrace[bench]`). "Groups" means several items in one message: the rows of one array for small arrays,
and a list for dicts and for "headrace, copied, groups".

Also shown: what two processes can write with no transport at all; seconds from the making of the loader to the first
item (imports of the library not counted); processor seconds of all processes for each GB; and the proportional set size
of all processes that a loader starts, divided by the number of workers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from measuring.contenders import CONTENDERS, choose, has_turn
from measuring.items import KINDS
from measuring.plot import write_plot
from measuring.processes import run_turn
from measuring.turn import LIMIT

TURN_SECONDS = 90  # a turn that takes longer is ended and shown as failed
Results = dict[str, dict[str, dict[str, Any]]]  # kind -> contender -> figures


def run_all(names: list[str], kinds: list[str], repeats: int, seconds: float) -> Results:
    """Let all contenders have their turns, kind by kind."""
    results: Results = {}
    for kind in kinds:
        results[kind] = {}
        turns = [name for name in names if has_turn(CONTENDERS[name], name, KINDS[kind])]
        for name in turns if KINDS[kind].is_dict else [*turns, LIMIT]:
            figures = run_turn("measuring.turn", name, kind, str(repeats), str(seconds), limit=TURN_SECONDS)
            if figures is not None:
                results[kind][name] = figures
                print(f"  {kind:6s} {name:28s} {figures['rate']:14,.0f} items/s", flush=True)
    return results


def best_of(figures: dict[str, dict[str, Any]], *, ours: bool, with_groups: bool = True) -> float | None:
    """Return the highest rate of one side."""
    rates = [
        figures[name]["rate"]
        for name, contender in CONTENDERS.items()
        if name in figures and contender.is_ours is ours and (with_groups or not contender.groups)
    ]
    return max(rates, default=None)


def ratio(one: float | None, other: float | None) -> str:
    return "" if one is None or other is None else f"{one / other:.1f} x"


def number(value: float | None) -> str:
    """Write a number with three digits that count."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(results: Results, key: str, scale: float = 1.0) -> list[str]:
    """Return a table of one figure: a row for each contender, a column for each kind."""
    kinds = list(results)
    lines = ["| | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for name in [*CONTENDERS, LIMIT]:
        values = [results[kind].get(name, {}).get(key) for kind in kinds]
        if any(value is not None for value in values):
            cells = [number(None if value is None else value * scale) for value in values]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def ratios(results: Results) -> list[str]:
    """Return a table of how the best of ours compares."""
    rows: dict[str, list[str]] = {}
    for figures in results.values():
        ours, single = best_of(figures, ours=True), best_of(figures, ours=True, with_groups=False)
        limit = figures.get(LIMIT, {}).get("rate")
        for title, cell in {
            "ours / best peer, one item a message each": ratio(single, best_of(figures, ours=False, with_groups=False)),
            "ours / best peer that sends single items": ratio(ours, best_of(figures, ours=False, with_groups=False)),
            "ours / best peer, groups allowed to all": ratio(ours, best_of(figures, ours=False)),
            "ours / two processes that only write": "" if not (ours and limit) else f"{ours / limit:.2f}",
        }.items():
            rows.setdefault(title, []).append(cell)
    lines = ["| | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    return lines + [f"| {title} | " + " | ".join(cells) + " |" for title, cells in rows.items()]


def report(results: Results) -> str:
    """Return all tables, as Markdown."""
    parts = [
        ("Items per second", table(results, "rate")),
        ("Ratios", ratios(results)),
        ("Processor seconds per GB, all processes", table(results, "cpu_seconds_per_gb")),
        ("Milliseconds to the first item", table(results, "first_seconds", 1000)),
        ("PSS of all started processes per worker, MiB", table(results, "pss_mib")),
    ]
    return "\n\n".join("\n".join([f"### {title}", "", *lines]) for title, lines in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(KINDS), help="default: all")
    parser.add_argument(
        "--peers", nargs="+", metavar="WORD", help="only contenders with one of these words in the name"
    )
    parser.add_argument("--repeats", type=int, help="of each measurement")
    parser.add_argument("--seconds", type=float, help="length of one measurement")
    parser.add_argument("--quick", action="store_true", help="two sizes, one short measurement each: under a minute")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="write a plot (SVG) to this file")
    options = parser.parse_args()
    kinds = options.sizes or (["1KiB", "1MiB"] if options.quick else list(KINDS))
    repeats = options.repeats or (1 if options.quick else 3)
    seconds = options.seconds or (0.2 if options.quick else 0.5)
    names = choose(CONTENDERS, options.peers)
    if options.quick and options.peers is None:
        names = [name for name in names if "torch spawn" not in name]
    results = run_all(names, kinds, repeats, seconds)
    print("\n" + report(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.plot:
        write_plot(results, options.plot)


if __name__ == "__main__":
    main()
