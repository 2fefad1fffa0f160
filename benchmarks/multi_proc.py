"""Small sequences through `MultiProcDataset`: Headrace against RETURNN, the same config and the same loop.

Run `python benchmarks/multi_proc.py`. The inner dataset has all sequences in memory, so what is measured is the way
from two workers to the reader. Each turn is a process of its own: one epoch in which all data are compared, then epochs
that are timed, and the median is shown. Every contender has turns with several buffer sizes; the best one counts. The
inner dataset alone, in one process, shows how much of the time is not spent on the way. RETURNN is left out, with a
line that says so, if it is not installed (`pip install headrace[bench]`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

NUM_FEATURES = 8
BUFFER_SIZES = (16, 256, 4096)
CONTENDERS = {
    "headrace": "headrace.datasets",
    "RETURNN": "returnn.datasets.multi_proc",
}


def make_seqs(num_seqs: int, mean_frames: int) -> list[dict[str, np.ndarray]]:
    """Make sequences of about `mean_frames` frames: float32 features and int32 labels."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(mean_frames // 2, mean_frames * 3 // 2 + 1, num_seqs)
    return [
        {
            "data": rng.random((length, NUM_FEATURES), dtype=np.float32),
            "classes": rng.integers(0, 1000, length, dtype=np.int32),
        }
        for length in lengths.tolist()
    ]


def open_dataset(contender: str, seqs: list[dict[str, np.ndarray]], buffer_size: int) -> Any:
    """Make a dataset; a buffer size of 0 means the inner one alone."""
    config = {
        "class": "StaticDataset",
        "data": seqs,
        "output_dim": {"data": (NUM_FEATURES, 2), "classes": (1000, 1)},
        "input_dim": NUM_FEATURES,
    }
    if contender == "headrace":
        from headrace.datasets import MultiProcDataset, init_dataset
    else:
        from returnn.datasets.basic import init_dataset
        from returnn.datasets.multi_proc import MultiProcDataset
    if not buffer_size:
        return init_dataset(config)
    dataset = MultiProcDataset(dataset=config, num_workers=2, buffer_size=buffer_size)
    dataset.initialize()
    return dataset


def read_epoch(dataset: Any, epoch: int, seqs: list[dict[str, np.ndarray]], *, check: bool) -> tuple[float, float]:
    """Read an epoch; return the seconds to the first sequence and to the end."""
    start = time.perf_counter()
    dataset.init_seq_order(epoch=epoch)
    first = 0.0
    seq_idx = 0
    while dataset.is_less_than_num_seqs(seq_idx):
        dataset.load_seqs(seq_idx, seq_idx + 1)
        data, classes = dataset.get_data(seq_idx, "data"), dataset.get_data(seq_idx, "classes")
        first = first or time.perf_counter() - start
        if check:
            np.testing.assert_array_equal(data, seqs[seq_idx]["data"], strict=True)
            np.testing.assert_array_equal(classes, seqs[seq_idx]["classes"], strict=True)
        elif data.shape[0] != classes.shape[0]:
            raise AssertionError(f"sequence {seq_idx}: {data.shape[0]} frames and {classes.shape[0]} labels")
        seq_idx += 1
    took = time.perf_counter() - start
    assert seq_idx == len(seqs), f"{seq_idx} sequences instead of {len(seqs)}"
    return first, took


def take_turn(contender: str, buffer_size: int, num_seqs: int, frames: int, seconds: float) -> dict[str, float]:
    """Run one turn in this process."""
    seqs = make_seqs(num_seqs, frames)
    start = time.perf_counter()
    dataset = open_dataset(contender, seqs, buffer_size)
    opened = time.perf_counter() - start
    first, _ = read_epoch(dataset, 1, seqs, check=True)
    times: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        times.append(read_epoch(dataset, 2 + len(times), seqs, check=False))
    return {
        "rate": num_seqs / statistics.median(took for _, took in times),
        "first_seconds": opened + first,
        "next_epoch_seconds": statistics.median(first for first, _ in times),
    }


def run_turn(contender: str, buffer_size: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """Run one turn in a process of its own."""
    turn = [contender, str(buffer_size), str(options.num_seqs), str(options.frames), str(options.seconds)]
    done = subprocess.run([sys.executable, __file__, "--turn", *turn], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        print(f"{contender}, buffer_size {buffer_size}: failed: {done.stderr.strip().splitlines()[-1]}")
        return None
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"contender": contender, "buffer_size": buffer_size, **row}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | buffer_size | sequences/s | ms from start to first sequence | ms to first sequence of a later epoch |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        how = f"{row['buffer_size']:,}" if row["buffer_size"] else "no workers"
        lines.append(
            f"| {row['contender']} | {how} | {row['rate']:,.0f} | {row['first_seconds'] * 1000:,.0f} | "
            f"{row['next_epoch_seconds'] * 1000:,.1f} |"
        )
    return "\n".join(lines)


def best(rows: list[dict[str, Any]], contender: str) -> float | None:
    return max((row["rate"] for row in rows if row["contender"] == contender and row["buffer_size"]), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-seqs", type=int, default=20_000)
    parser.add_argument("--frames", type=int, default=20, help="in a sequence, on average")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of the timed part of a turn")
    parser.add_argument("--quick", action="store_true", help="fewer sequences, shorter turns")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--turn", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        contender, buffer_size, num_seqs, frames, seconds = options.turn
        row = take_turn(contender, int(buffer_size), int(num_seqs), int(frames), float(seconds))
        print(json.dumps(row), flush=True)
        os._exit(0)  # RETURNN's workers see to themselves
    if options.quick:
        options.num_seqs, options.seconds = 5000, 0.5
    contenders = [name for name, module in CONTENDERS.items() if importlib.util.find_spec(module.split(".")[0])]
    for name in CONTENDERS.keys() - set(contenders):
        print(f"{name} is not installed: left out (pip install headrace[bench])")
    rows = []
    for buffer_size in (0, *BUFFER_SIZES):
        for contender in contenders:
            row = run_turn(contender, buffer_size, options)
            if row is not None:
                rows.append(row)
    rows.sort(key=lambda row: (row["contender"], row["buffer_size"]))
    print(table(rows))
    ours, theirs = best(rows, "headrace"), best(rows, "RETURNN")
    if ours and theirs:
        print(f"\nheadrace / RETURNN, each at its best buffer size: {ours / theirs:.1f} x")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
