"""Plan the batches of an epoch: time and memory by policy; padding and waiting ranks, ours and Lhotse's side by side.

    python benchmarks/batching.py [--quick] [--json PATH]

Lengths are log-normal, as those of speech are (median 7 s at 100 frames a second, cut to 0.5 s .. 35 s), in random
order. Each time is measured in a process of its own, which plans all windows of an epoch and keeps the plans: "us" is
the time for a sequence, "peak" the growth of the resident memory for a sequence, "plan" what the plans hold.

Padding is compared at the same budget and with the same number of buckets on the same lengths. "waiting" is the share
of its time that a rank waits at each step for the slowest of eight, if time is padded frames. Lhotse's eight samplers
(`sync_buckets=True`, the default) each run through the whole corpus, as on eight ranks. Without Lhotse, the plain
budget over a random order is what is compared with.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import (
    Batching,
    Buckets,
    FixedCount,
    FrameBudget,
    Pack,
    PlanCounts,
    WindowKey,
    WindowPlan,
    num_windows,
    window_bounds,
)

MAX_FRAMES = 80_000  # 800 s of speech with its padding
WORLD_SIZE = 8
BLOCK = 65_536
POLICIES: dict[str, Batching] = {
    "FixedCount": FixedCount(32),
    "FrameBudget": FrameBudget(MAX_FRAMES),
    "FrameBudget, not padded": FrameBudget(MAX_FRAMES, padded=False),
    "FrameBudget, quadratic": FrameBudget(MAX_FRAMES, quadratic_length=1500),
    "FrameBudget of one sequence, chunks": FrameBudget(1000, too_long="chunk"),
    "Buckets": Buckets(FrameBudget(MAX_FRAMES)),
    "Buckets, FixedCount": Buckets(FixedCount(32)),
    "Pack, first fit": Pack(4000, 20),
    "Pack, best fit": Pack(4000, 20, "best_fit"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a million sequences only, and fewer for Lhotse")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers to this file")
    parser.add_argument("--child", nargs=2, metavar=("POLICY", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(POLICIES[arguments.child[0]], int(arguments.child[1]))))
        return
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}\n")
    costs = [run_child(name, size) for size in ([10**6] if arguments.quick else [10**6, 10**7]) for name in POLICIES]
    print_table(costs)
    padding = compare_padding(30_000 if arguments.quick else 100_000)
    print_table(padding)
    if arguments.json:
        arguments.json.write_text(json.dumps({"costs": costs, "padding": padding}, indent=2) + "\n")


def speech_lengths(num_seqs: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    lengths = np.empty(num_seqs, np.int64)
    for part in np.split(
        lengths, range(BLOCK, num_seqs, BLOCK)
    ):  # in blocks, so that no temporary array counts as peak
        part[:] = np.clip(rng.lognormal(np.log(700), 0.7, len(part)), 50, 3500)
    return lengths


def plan_epoch(batching: Batching, lengths: NDArray[np.int64]) -> list[WindowPlan]:
    window_seqs, plans = batching.window_seqs(), []
    for window in range(num_windows(len(lengths), window_seqs)):
        first, end = window_bounds(window, len(lengths), window_seqs)
        plans.append(batching.plan_window(lengths[first:end], WindowKey(1, 1, window)))
    return plans


def run_child(name: str, num_seqs: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name, str(num_seqs)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {"policy": name, "sequences": num_seqs, **json.loads(output)}


def measure(batching: Batching, num_seqs: int) -> dict[str, Any]:
    """Plan an epoch in this process."""
    lengths = speech_lengths(num_seqs)
    plan_epoch(batching, lengths[:1000])  # what is loaded on first use is not counted
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    plans = plan_epoch(batching, lengths)
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    counts = sum((plan.counts for plan in plans), PlanCounts())
    return {
        "seconds": seconds,
        "us a seq": seconds / num_seqs * 1e6,
        "peak B a seq": peak / num_seqs,
        "plan B a seq": sum(plan.nbytes for plan in plans) / num_seqs,
        "batches": sum(map(len, plans)),
        "padding": counts.padding_share,
    }


def compare_padding(num_seqs: int) -> list[dict[str, Any]]:
    """Compare padding, full batches and waiting ranks, on the same lengths."""
    lengths = speech_lengths(num_seqs)
    rows = [our_padding("headrace, no buckets", FrameBudget(MAX_FRAMES), lengths)]
    has_peer = importlib.util.find_spec("lhotse") is not None
    for num_buckets in (10, 30, 64, 100):
        batching = Buckets(FrameBudget(MAX_FRAMES), num_buckets=num_buckets)
        rows.append(our_padding(f"headrace, {num_buckets} buckets", batching, lengths))
        if has_peer:
            rows.append(peer_padding(num_buckets, lengths))
    if not has_peer:
        print("Lhotse is not installed: only our own numbers (python -m pip install lhotse)")
    return rows


def our_padding(name: str, batching: Batching, lengths: NDArray[np.int64]) -> dict[str, Any]:
    start = time.perf_counter()
    plans = plan_epoch(batching, lengths)
    seconds = time.perf_counter() - start
    costs = np.concatenate([plan.costs for plan in plans])
    num_steps = len(costs) // WORLD_SIZE
    return padding_row(name, lengths, costs, costs[: num_steps * WORLD_SIZE].reshape(-1, WORLD_SIZE), seconds)


def padding_row(
    name: str, lengths: NDArray[np.int64], costs: NDArray[np.int64], steps: NDArray[np.int64], seconds: float
) -> dict[str, Any]:
    """Return one row of the table; `costs` are those of an epoch on one rank, `steps` on eight."""
    return {
        "batching": name,
        "padding": 1 - int(lengths.sum()) / int(costs.sum()),
        "batches": len(costs),
        "full": float(costs.mean()) / MAX_FRAMES,
        "over": int((costs > MAX_FRAMES).sum()),
        "waiting": 1 - float(steps.mean() / steps.max(axis=1).mean()),
        "us a seq": seconds / len(lengths) * 1e6,
    }


def peer_padding(num_buckets: int, lengths: NDArray[np.int64]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    from lhotse import CutSet, MonoCut
    from lhotse.dataset.sampling import DynamicBucketingSampler

    # a second stands for a frame: durations are whole numbers then, and sums of them exact
    cuts = CutSet.from_cuts(
        [MonoCut(id=str(number), start=0.0, duration=float(frames), channel=0) for number, frames in enumerate(lengths)]
    )

    def costs_of(rank: int, world_size: int) -> NDArray[np.int64]:
        sampler = DynamicBucketingSampler(
            cuts, max_duration=float(MAX_FRAMES), num_buckets=num_buckets, shuffle=True, seed=1, rank=rank,
            world_size=world_size,
        )  # fmt: skip
        return np.array([len(batch) * max(cut.duration for cut in batch) for batch in sampler], np.int64)

    start = time.perf_counter()
    costs = costs_of(0, 1)
    seconds = time.perf_counter() - start
    ranks = [costs_of(rank, WORLD_SIZE) for rank in range(WORLD_SIZE)]
    # without its last step, whose batches Lhotse makes of a remainder
    steps = np.stack([rank[: min(map(len, ranks)) - 1] for rank in ranks], axis=1)
    return padding_row(f"Lhotse, {num_buckets} buckets", lengths, costs, steps, seconds)


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(cell(name, value) for name, value in row.items()) + " |")
    print(flush=True)


def cell(name: str, value: Any) -> str:
    if name in ("padding", "full", "waiting"):
        return f"{value:.2%}"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
