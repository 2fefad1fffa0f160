"""What a worker costs to start, to keep and to lose: time to the first item, memory, and the stall after a SIGKILL.

Run `python benchmarks/faults.py`. Two workers. The stall is the time from the kill of a worker, while items flow, to
the next item that was not done yet when it died; every item is compared with what it should be, so nothing is lost or
twice. The time to the first item starts with the making of the engine, in a process that has imported everything.
Memory is the proportional set size of a worker after its first items, beside that of a process that only imports NumPy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.datasets import MultiProcDataset
from headrace.engine import Engine, EngineOptions, Job, Restarting, WorkerInfo
from measuring.processes import descendants, pss_bytes

NUM_WORKERS = 2
MIB = 1 << 20


def setup_arrays(info: WorkerInfo) -> Callable[[int], tuple[int, np.ndarray]]:
    """Make items of 64 KiB that tell which process made them."""
    del info
    return lambda idx: (os.getpid(), np.full(16384, idx, np.float32))


def killed_flow(num_kills: int, work_seconds: float) -> dict[str, Any]:
    """Kill a worker every now and then; return the stalls."""

    def setup(info: WorkerInfo) -> Callable[[int], tuple[int, np.ndarray]]:
        make = setup_arrays(info)

        def work(idx: int) -> tuple[int, np.ndarray]:
            end = time.perf_counter() + work_seconds
            while time.perf_counter() < end:
                pass
            return make(idx)

        return work

    options = EngineOptions(on_death=Restarting(budget=num_kills))
    gaps: list[list[float]] = []  # after each kill, the times between items
    items_per_kill = max(200, int(0.5 / work_seconds)) if work_seconds else 20_000
    num_items = (num_kills + 1) * items_per_kill
    with Engine(Job(setup), num_workers=NUM_WORKERS, options=options) as engine:
        before = time.perf_counter()
        for ticket, delivered in enumerate(engine.run(range(num_items))):
            pid, array = delivered.value
            assert delivered.ticket == ticket, f"item {delivered.ticket} instead of {ticket}"
            assert array[0] == array[-1] == ticket, f"item {ticket} holds {array[0]}"
            now = time.perf_counter()
            if gaps:
                gaps[-1].append(now - before)
            before = now
            if ticket % items_per_kill == items_per_kill - 1 and len(gaps) < num_kills:
                gaps.append([])
                os.kill(pid, signal.SIGKILL)
        num_restarts = sum(worker.num_restarts for worker in engine.report.workers)
    longest = [max(after_kill) for after_kill in gaps]
    assert ticket + 1 == num_items, "items are missing"
    return {
        "num_kills": num_restarts,
        "median_ms": statistics.median(longest) * 1000,
        "longest_ms": max(longest) * 1000,
    }


def first_items() -> dict[str, Any]:
    """Start an engine; return the time to the first item, and what its processes weigh."""
    start = time.perf_counter()
    with Engine(Job(setup_arrays), num_workers=NUM_WORKERS) as engine:
        run = engine.run(range(1000))
        pid = next(run).value[0]
        first = time.perf_counter() - start
        pids = {pid, *(delivered.value[0] for delivered in run)}
        return {"first_ms": first * 1000, **weigh(pids)}


class Seqs:
    """Short sequences, made when they are asked for."""

    def __init__(self, num_seqs: int) -> None:
        self.num_seqs = num_seqs

    def __len__(self) -> int:
        return self.num_seqs

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        return {"data": np.full((10, 8), i, np.float32), "classes": np.arange(i, i + 10, dtype=np.int32) % 4}


def first_seqs(num_seqs: int) -> dict[str, Any]:
    """Start a `MultiProcDataset`; return the time to the first sequence, and what its processes weigh."""
    config = {"class": "MapDataset", "map_dataset": Seqs(num_seqs)}
    start = time.perf_counter()
    dataset = MultiProcDataset(dataset=config, num_workers=NUM_WORKERS, buffer_size=100)
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 1)
    dataset.get_data(0, "data")
    first = time.perf_counter() - start
    for idx in range(1, 2000):
        dataset.load_seqs(idx, idx + 1)
    figures = weigh(set(worker_processes()))
    dataset.finish_epoch(free_resources=True)
    return {"first_ms": first * 1000, **figures}


def worker_processes() -> Iterator[int]:
    """Yield the processes below ours that have none below them: the workers, and not what watches them."""
    return (pid for pid in descendants() if not descendants(pid))


def weigh(workers: set[int]) -> dict[str, float]:
    """Return the memory of the workers and of what watches them."""
    watchers = set(descendants()) - workers
    return {
        "worker_mib": statistics.mean(map(pss_bytes, workers)) / MIB,
        "watcher_mib": sum(map(pss_bytes, watchers)) / MIB,
    }


def only_numpy() -> dict[str, Any]:
    """Weigh a process that has imported NumPy, and nothing of Headrace."""
    code = "import numpy, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        figures = {"worker_mib": pss_bytes(process.pid) / MIB}
        process.communicate()
    return figures


TURNS: dict[str, Callable[[], dict[str, Any]]] = {
    "engine": first_items,
    "MultiProcDataset, 10^4 seqs": lambda: first_seqs(10**4),
    "MultiProcDataset, 10^7 seqs": lambda: first_seqs(10**7),
    "only NumPy": only_numpy,
}


def median_turns(name: str, repeats: int) -> dict[str, Any]:
    """Return the medians over processes of their own."""
    rows = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, __file__, "--turn", name], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=5, help="starts of each kind")
    parser.add_argument("--quick", action="store_true", help="5 kills, 1 start of each kind")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--turn", choices=list(TURNS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        print(json.dumps(TURNS[options.turn]()))
        return
    kills, repeats = (5, 1) if options.quick else (options.kills, options.repeats)
    stalls = {f"{seconds * 1000:g} ms of work an item": killed_flow(kills, seconds) for seconds in (0, 0.001, 0.01)}
    print("| | kills | stall, median ms | stall, longest ms |\n|---|---|---|---|")
    for name, row in stalls.items():
        print(f"| {name} | {row['num_kills']} | {row['median_ms']:.0f} | {row['longest_ms']:.0f} |")
    starts = {name: median_turns(name, repeats) for name in TURNS}
    print("\n| | ms to the first item | PSS of a worker, MiB | PSS of what watches them, MiB |\n|---|---|---|---|")
    for name, row in starts.items():
        cells = [f"{row[key]:.0f}" if key in row else "" for key in ("first_ms", "worker_mib", "watcher_mib")]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if options.json:
        options.json.write_text(json.dumps({"stalls": stalls, "starts": starts}, indent=1))


if __name__ == "__main__":
    main()
