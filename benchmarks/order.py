"""The order of an epoch: time and peak memory, ours and RETURNN's side by side.

Each measurement runs in a process of its own, so that its peak memory is its own: the high-water mark at the end minus
that before the order is computed. The sides take turns, so that a noisy machine hurts all of them alike; time is the
median of the turns. Both sides get the same lengths. RETURNN wants a function from a corpus index to a length; it is
measured with a list's and with an array's `__getitem__`, and the faster of the two counts. "later s" is the time of a
later sub-epoch of the same full epoch; "same" says whether both sides gave the same order.

    python benchmarks/order.py --num-seqs 10000000 --json order.json
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.order import OrderCorpus, OrderPlanner, OrderRecipe, Permutation

MODES = (
    "default",
    "default_every_n:100",
    "random",
    "random_sample",
    "laplace",
    "laplace:.1000",
    "sorted",
    "sorted_reverse",
    "sort_bin_shuffle:.1000",
    "sort_bin_shuffle_x2:.1000",
    "permute",
)
PEER_KINDS = ("returnn-list", "returnn-array")
GOALS = {"random": 1.0, "laplace:.1000": 1.5, "sorted": 3.0, "sort_bin_shuffle:.1000": 8.0}
MEASURABLE = 0.0005  # seconds; a ratio of less would be noise
NUM_SUB_EPOCHS = 20
PERMUTE_BLOCK = 65_536


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        print(json.dumps(measure(arguments.child, arguments.modes[0], arguments.num_seqs)))
        return
    has_peer = importlib.util.find_spec("returnn") is not None
    if not has_peer:
        print("RETURNN is not installed: only our own numbers (python -m pip install returnn dm-tree)")
    print(f"{arguments.num_seqs:,} sequences, median of {arguments.repeats}, {machine()}")
    print(f"{'mode':28}{'ours s':>9}{'later s':>10}{'MB':>7}{'RETURNN s':>11}{'MB':>7}{'ratio':>8}{'goal':>6}  same")
    rows = []
    for mode in arguments.modes:
        row = compare(mode, arguments.num_seqs, arguments.repeats, has_peer=has_peer)
        rows.append(row)
        print_row(row)
    blocks = measure_permute_blocks()
    for size, microseconds in blocks.items():
        print(f"permute, N = {int(size):,}: {microseconds:.3f} us per index in blocks of {PERMUTE_BLOCK}, goal 0.2")
    if arguments.json:
        result = {"machine": machine(), "num_seqs": arguments.num_seqs, "orders": rows, "permute_us": blocks}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--num-seqs", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a million sequences, one repeat")
    parser.add_argument("--modes", nargs="+", default=MODES, metavar="MODE")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_seqs, arguments.repeats = 10**6, 1
    return arguments


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"


def compare(mode: str, num_seqs: int, repeats: int, *, has_peer: bool) -> dict[str, Any]:
    """Measure one mode, all sides in turn."""
    kinds = ["headrace"]
    if has_peer and mode != "permute":
        needs_lengths = mode.startswith(("sort", "laplace"))
        kinds += PEER_KINDS if needs_lengths else PEER_KINDS[1:]
    turns = [[run_child(kind, mode, num_seqs) for kind in kinds] for _ in range(repeats)]
    ours, *peers = (summarize(list(results)) for results in zip(*turns, strict=True))
    row: dict[str, Any] = {"mode": mode, "ours": ours}
    if peers:
        row["returnn"] = min(peers, key=lambda peer: peer["seconds"])
        row["ratio"] = row["returnn"]["seconds"] / max(ours["seconds"], 1e-9)
        row["same"] = row["returnn"]["digest"] == ours["digest"]
    return row


def summarize(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of several measurements of the same thing."""
    numbers = ("seconds", "peak_mb", "later_seconds")
    medians = {name: statistics.median(turn[name] for turn in turns) for name in numbers if name in turns[0]}
    return {**turns[0], **medians, "all_seconds": [turn["seconds"] for turn in turns]}


def print_row(row: dict[str, Any]) -> None:
    ours = row["ours"]
    text = f"{row['mode']:28}{ours['seconds']:9.3f}{ours['later_seconds']:10.6f}{ours['peak_mb']:7.0f}"
    if "returnn" in row:
        goal = f"{GOALS[row['mode']]:.1f}" if row["mode"] in GOALS else ""
        ratio = f"{row['ratio']:.2f}" if row["returnn"]["seconds"] > MEASURABLE else ""
        text += f"{row['returnn']['seconds']:11.3f}{row['returnn']['peak_mb']:7.0f}{ratio:>8}{goal:>6}  "
        text += "yes" if row["same"] else "NO"
    print(text, flush=True)


def run_child(kind: str, mode: str, num_seqs: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", kind, "--modes", mode, "--num-seqs", str(num_seqs)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure(kind: str, mode: str, num_seqs: int) -> dict[str, Any]:
    """Measure one mode of one side, in this process."""
    order_for_epoch = ours_for_epoch if kind == "headrace" else peer_for_epoch
    lengths = np.random.Generator(np.random.PCG64(0)).integers(10, 3000, size=num_seqs, dtype=np.int32)
    order_for_epoch(kind, mode, lengths[:1000])(1)  # what is loaded on first use is not counted
    compute = order_for_epoch(kind, mode, lengths)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    order = compute(1)
    seconds = time.perf_counter() - start
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    digest = hashlib.sha256(np.asarray(order, dtype=np.int64).tobytes()).hexdigest()
    result = {"kind": kind, "seconds": seconds, "peak_mb": peak_mb, "digest": digest}
    if kind == "headrace":
        result["later_seconds"] = measure_later_sub_epochs(mode, lengths)
    return result


def ours_for_epoch(kind: str, mode: str, lengths: NDArray[np.int32]) -> Callable[[int], Any]:  # noqa: ARG001
    planner = OrderPlanner(OrderRecipe(mode))
    corpus = OrderCorpus(len(lengths), lengths=lambda: lengths)
    return lambda epoch: planner.order_for_epoch(epoch, corpus)


def peer_for_epoch(kind: str, mode: str, lengths: NDArray[np.int32]) -> Callable[[int], Any]:
    warnings.simplefilter("ignore")
    from returnn.datasets.basic import Dataset

    get_length = lengths.tolist().__getitem__ if kind == "returnn-list" else lengths.__getitem__
    dataset = Dataset(seq_ordering=mode, random_seed_offset=0)
    return lambda epoch: dataset.get_seq_order_for_epoch(epoch, len(lengths), get_length)


def measure_later_sub_epochs(mode: str, lengths: NDArray[np.int32]) -> float:
    """Return the median time of the sub-epochs after the first of one full epoch."""
    planner = OrderPlanner(OrderRecipe(mode, partition_epoch=NUM_SUB_EPOCHS))
    corpus = OrderCorpus(len(lengths), lengths=lambda: lengths)
    seconds = []
    for epoch in range(1, NUM_SUB_EPOCHS + 1):
        start = time.perf_counter()
        planner.order_for_epoch(epoch, corpus)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def measure_permute_blocks() -> dict[str, float]:
    """Return microseconds per index of the lazy permutation, for sizes small and large."""
    result = {}
    for size in (1_000_003, 10_000_000, 10**12 + 39, 2**62):
        permutation = Permutation(size, seed=1)
        seconds = []
        for number in range(20):
            first = number * (size - PERMUTE_BLOCK) // 20
            positions = np.arange(first, first + PERMUTE_BLOCK, dtype=np.int64)
            start = time.perf_counter()
            permutation.at(positions)
            seconds.append(time.perf_counter() - start)
        result[str(size)] = statistics.median(seconds) / PERMUTE_BLOCK * 1e6
    return result


if __name__ == "__main__":
    main()
