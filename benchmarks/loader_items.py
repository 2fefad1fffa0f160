"""Batches of a map-style dataset of plain items: Headrace's `DataLoader` beside torch's, Grain and RETURNN.

Run `python benchmarks/loader_items.py` (`--quick` for a minute in place of fifteen). An item is one float32 array, a
tuple or dict of a 28 x 28 image and its label, or a text; two workers make and batch them, and the consumer compares
two elements of each batch with what they should be. In each round, each contender has a turn of its own process for
each case; the median of the rounds is shown. A contender that is not installed is left out, with a line that says so
(`pip install headrace[bench]`). "torch, NumPy" stacks NumPy items by a `collate_fn`, "torch, tensors" has items that
are tensors, and torch's own collate. RETURNN delivers single sequences, which the consumer stacks.

Shown are batches and items a second, the processor time of the trainer for a batch (all of its threads), that of all
workers, and for items that take 5 ms each ("expensive") the share of the workers' processor time that is the dataset's
own code.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from measuring.contenders import choose
from measuring.item_batches import CASES, CONTENDERS, EXPENSIVE
from measuring.processes import run_turn

TURN_SECONDS = 60  # a turn that takes longer is ended and shown as failed
QUICK = ("1KiB x 1", "1MiB x 1", "image, label x 64", EXPENSIVE)
FIGURES = {
    "batches": "Batches per second",
    "items": "Items per second",
    "trainer_us": "Processor time of the trainer, us a batch",
    "workers_us": "Processor time of all workers, us a batch",
    "user_share": "Share of the workers' processor time that is the dataset's own code",
}
Results = dict[str, dict[str, dict[str, float]]]  # case -> contender -> medians


def run_all(names: list[str], cases: list[str], rounds: int, seconds: float) -> Results:
    """Let all contenders have their turns, case by case and round by round."""
    results: Results = {}
    for case in cases:
        turns: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            for name in names:
                if CASES[case].kind in CONTENDERS[name].kinds:
                    figures = run_turn("measuring.item_batches", name, case, str(seconds), limit=TURN_SECONDS)
                    if figures is not None:
                        turns.setdefault(name, []).append(figures)
        results[case] = {
            name: {key: statistics.median(one[key] for one in of_name) for key in of_name[0]}
            for name, of_name in turns.items()
        }
        print(f"  {case}: {', '.join(results[case])}", flush=True)
    return results


def table(results: Results, figure: str) -> list[str]:
    """Return a table of one figure, and how ours compares with the best peer in the same run."""
    cases = [case for case in results if any(figure in figures for figures in results[case].values())]
    names = [name for name in CONTENDERS if any(name in results[case] for case in cases)]
    lines = ["| | " + " | ".join(names) + " | ours / best peer |", "|---" * (len(names) + 2) + "|"]
    for case in cases:
        values = {name: figures[figure] for name, figures in results[case].items()}
        peers = [value for name, value in values.items() if name != "headrace"]
        best = (min if figure.endswith("_us") else max)(peers, default=None)
        ratio = "" if best is None or "headrace" not in values else f"{values['headrace'] / best:.2f}"
        cells = [number(values[name]) if name in values else "" for name in names]
        lines.append(f"| {case} | " + " | ".join([*cells, ratio]) + " |")
    return lines if cases else []


def number(value: float) -> str:
    """Write a number with three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), help="default: all")
    parser.add_argument(
        "--peers", nargs="+", metavar="WORD", help="only contenders with one of these words in the name"
    )
    parser.add_argument("--rounds", type=int, help="turns of each contender for each case")
    parser.add_argument("--seconds", type=float, help="length of a turn")
    parser.add_argument("--quick", action="store_true", help="four cases, one short turn each: about a minute")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    cases = options.cases or list(QUICK if options.quick else CASES)
    rounds = options.rounds or (1 if options.quick else 3)
    seconds = options.seconds or (0.4 if options.quick else 1.0)
    results = run_all(choose(CONTENDERS, options.peers), cases, rounds, seconds)
    for figure, title in FIGURES.items():
        lines = table(results, figure)
        if lines:
            print("\n".join(["", f"### {title}", "", *lines]))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
