"""Every goal of this project that is a number, and where it stands: runs the other benchmarks and prints two tables.

The second one compares how far we are ahead with what docs/reference/benchmarks.md says, and names what has become
slower by more than a tenth.

Run `python benchmarks/goals.py` on a quiet machine (an hour and more; the peers are installed by
`pip install headrace[bench]`), `--quick` for the short forms (which say little), `--only house transport` for some of
the benchmarks. `--figures FOLDER` keeps what each benchmark found there, and reads what an earlier run left instead of
measuring it again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring.ahead import PUBLISHED, compared
from measuring.turn import LIMIT
from transport import best_of

HERE = Path(__file__).parent
Figures = Any  # what a benchmark writes with --json


@dataclass(frozen=True)
class Goal:
    """A number to reach.

    Attributes:
        benchmark: Name of the script that measures it.
        what: What it is, with its unit.
        find: Returns it from what the script wrote; raises `KeyError` or `ValueError` where a contender is missing.
        least: The least that it should be, or `None`.
        most: The most that it should be, or `None`.
    """

    benchmark: str
    what: str
    find: Callable[[Figures], float]
    least: float | None = None
    most: float | None = None

    def is_met(self, value: float) -> bool:
        """Tell whether a value is as wanted."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def text(self) -> str:
        """Return what is wanted."""
        return f">= {self.least:,g}" if self.least is not None else f"<= {self.most:,g}"


def in_house(row: str, *, what: str | None = None, most: float) -> Goal:
    """Return a goal of the source tree, or of the calls behind a batch or a ticket."""

    def find(figures: Figures) -> float:
        value = figures[row] if what is None else figures[row][what]
        return float(value)

    return Goal("house", row if what is None else f"{row}: {what}", find, most=most)


def rate_of(rows: Figures, *, ours: bool, with_groups: bool = True) -> float:
    """Return the highest rate of one side in the benchmark of the transport."""
    rate = best_of(rows, ours=ours, with_groups=with_groups)
    if rate is None:
        raise ValueError("none of that side was measured")
    return rate


def transport(kind: str, least: float) -> Goal:
    """Return a goal of items a second, against the best peer that sends single items."""

    def find(figures: Figures) -> float:
        rows = figures[kind]
        return rate_of(rows, ours=True) / rate_of(rows, ours=False, with_groups=False)

    return Goal("transport", f"items of {kind} a second / best peer that sends single ones", find, least=least)


def single_rate(figures: Figures) -> float:
    """Return our items of 1 KiB a second, one a message."""
    return rate_of(figures["1KiB"], ours=True, with_groups=False)


def group_rate(figures: Figures) -> float:
    """Return our items of 1 KiB a second, several in a message."""
    return rate_of(figures["1KiB"], ours=True)


def share_written(figures: Figures) -> float:
    """Return our items of 16 MiB a second over those that two processes could write."""
    rows = figures["16MiB"]
    return rate_of(rows, ours=True) / float(rows[LIMIT]["rate"])


def best_of_multi_proc(figures: Figures) -> float:
    """Return our sequences a second over RETURNN's, each at its best buffer size."""
    best = {
        name: max(row["rate"] for row in figures if row["contender"] == name and row["buffer_size"])
        for name in ("headrace", "RETURNN")
    }
    return best["headrace"] / best["RETURNN"]


def items(case: str, least: float, peers: str = "torch") -> Goal:
    """Return a goal of batches a second, against the best of the contenders whose names begin so."""

    def find(figures: Figures) -> float:
        rates = {name: row["batches"] for name, row in figures[case].items()}
        return float(rates["headrace"] / max(rate for name, rate in rates.items() if name.startswith(peers)))

    return Goal("loader_items", f"DataLoader, {case}: batches a second / {peers}", find, least=least)


def order(mode: str, least: float) -> Goal:
    """Return a goal of the time of an order, against RETURNN."""

    def find(figures: Figures) -> float:
        return float(next(row["ratio"] for row in figures["orders"] if row["mode"] == mode and "ratio" in row))

    return Goal("order", f"{mode}: RETURNN's time / ours", find, least=least)


def lhotse(kind: str, least: float) -> Goal:
    """Return a goal of batches a second, against the documented loader."""

    def find(figures: Figures) -> float:
        rows = figures["loader"][kind]
        return float(rows["headrace"]["rate"] / rows["documented loader"]["rate"])

    return Goal("lhotse", f"{kind}: LhotseDataLoader / the documented loader", find, least=least)


def pipes(case: str, least: float) -> Goal:
    """Return a goal of items a second, against torchdata 0.9."""

    def find(figures: Figures) -> float:
        rates = figures[case]
        return statistics.median(rates["headrace"]) / statistics.median(rates["torchdata"])

    return Goal("pipes", f"DataLoader2, {case} items / torchdata", find, least=least)


GOALS = [
    in_house("source files", most=330),
    in_house("code lines", most=44_000),
    in_house("entries of the largest folder", most=20),
    in_house("circles of imports", most=0),
    in_house("isinstance against dataset classes in loading, cli, adapters", most=0),
    in_house("reads of private names across files", most=0),
    in_house("loader", what="calls", most=70),
    in_house("loader", what="files", most=12),
    in_house("further batch", what="calls", most=60),
    in_house("further batch", what="files", most=8),
    in_house("ticket of 64 KiB", what="calls", most=12),
    in_house("ticket of 64 KiB", what="files", most=6),
    in_house("ticket of 1 KiB", what="calls of each", most=2),
    Goal("transport", "items of 1KiB a second, one a message", single_rate, least=100_000),
    Goal("transport", "items of 1KiB a second, in groups", group_rate, least=2_000_000),
    transport("1KiB", 60),
    transport("64KiB", 30),
    transport("1MiB", 12),
    transport("16MiB", 4),
    Goal("transport", "items of 16MiB / what two processes can write", share_written, least=0.8),
    Goal("multi_proc", "sequences a second / RETURNN's", best_of_multi_proc, least=50),
    items("1KiB x 1", 8),
    items("64KiB x 1", 5),
    items("1MiB x 1", 12),
    items("16MiB x 1", 8),
    items("image, label x 64", 10, "torch, tensors"),
    Goal(
        "loader_items",
        "DataLoader, 1KiB x 1: processor time of the trainer, us a batch",
        lambda figures: figures["1KiB x 1"]["headrace"]["trainer_us"],
        most=15,
    ),
    Goal(
        "loader_items",
        "DataLoader, items of 5 ms: share of the workers' processor time that is the user's code",
        lambda figures: figures["expensive x 1"]["headrace"]["user_share"],
        least=0.97,
    ),
    order("random", 1),
    order("laplace", 1.5),
    order("sorted", 3),
    order("sort_bin_shuffle:.1000", 8),
    Goal("order", "permute, us an index", lambda figures: max(figures["permute_us"].values()), most=0.2),
    lhotse("1 KiB, numpy", 1),
    lhotse("64 KiB, numpy", 1),
    pipes("1 KiB", 100),
    pipes("1 MiB", 10),
    Goal(
        "faults",
        "longest stall after a worker was killed, ms",
        lambda figures: max(row["longest_ms"] for row in figures["stalls"].values()),
        most=1000,
    ),
    Goal(
        "faults",
        "MultiProcDataset of 10^7 sequences: ms to the first",
        lambda figures: figures["starts"]["MultiProcDataset, 10^7 seqs"]["first_ms"],
        most=500,
    ),
    Goal(
        "faults",
        "memory of a worker (PSS), MiB",
        lambda figures: max(
            row["worker_mib"] for name, row in figures["starts"].items() if name.startswith("MultiProcDataset")
        ),
        most=40,
    ),
]


def measured(names: Iterable[str], folder: Path, *, quick: bool) -> dict[str, Figures]:
    """Run benchmarks, or read what an earlier run left in the folder; those that fail are left out, and said."""
    found: dict[str, Figures] = {}
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists():
            print(f"== {name}", file=sys.stderr, flush=True)
            command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path), *(["--quick"] if quick else [])]
            status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
            if status:
                print(f"{name}.py ended with status {status}", file=sys.stderr)
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def report(goals: Iterable[Goal], found: dict[str, Figures]) -> str:
    """Return the table, as Markdown."""
    lines = ["| benchmark | what | goal | measured | |", "|---|---|---|---|---|"]
    for goal in goals:
        measure, verdict = "", "not measured"
        if goal.benchmark in found:
            try:
                value = goal.find(found[goal.benchmark])
            except (KeyError, ValueError, StopIteration):  # of a contender that is not installed, or has failed
                pass
            else:
                measure = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
                verdict = "met" if goal.is_met(value) else "**not met**"
        lines.append(f"| {goal.benchmark} | {goal.what} | {goal.text()} | {measure} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    names = list(dict.fromkeys([*(goal.benchmark for goal in GOALS), *PUBLISHED]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these benchmarks")
    parser.add_argument("--quick", action="store_true", help="the short forms of all benchmarks")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="keep what was found here; what is there, stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-goals-") as folder:
        figures = options.figures or Path(folder)
        figures.mkdir(parents=True, exist_ok=True)
        found = measured(options.only, figures, quick=options.quick)
    print(report([goal for goal in GOALS if goal.benchmark in options.only], found))
    print("\n| benchmark | ours / best peer | published | now | change | |\n|---|---|---|---|---|---|")
    for name in PUBLISHED:
        if name in options.only:
            print(*compared(name, found.get(name)), sep="\n")
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
