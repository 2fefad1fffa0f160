"""Several trainings with one recipe: over a shared service, and each with workers of its own; and what a hit costs.

Run `python benchmarks/service.py` (`--quick` for a short look, `--json PATH` for the figures). A training is a process
that reads one epoch, begun together with the others. Its transform is expensive: some milliseconds of the processor for
each sequence. All trainings of a turn have the same number of worker processes: the service has as many as each has
where each has its own. Turns are interleaved, and the median is shown.

A hit is a ticket whose result the service keeps: one trainer asks for the same items again and again. Beside it are the
same items from a remote worker that fills an array each time, which is hardly any work.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.engine import Engine, Job, WorkerInfo
from headrace.engine.remote import LocalLauncher, RemoteExecutor
from headrace.engine.remote.service import SharedService

NUM_WORKERS = 2
KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1KiB": KIB, "64KiB": 64 * KIB, "1MiB": MIB}
NUM_KEPT = 64
SEQ_SECONDS = 0.004
SECRET, ADDRESS, NUM_SEQS = "SERVICE_SECRET", "SERVICE_ADDRESS", "SERVICE_SEQS"


class Items:
    """Short sequences."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return {"x": np.full(2000, float(idx))}


def be_expensive(features: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Use the processor for some milliseconds."""
    noise, until = rng.standard_normal(2000), time.thread_time() + SEQ_SECONDS
    while time.thread_time() < until:
        noise = np.sort(noise)
    return {"x": features["x"] + noise}


def train() -> None:
    """Be a training: say that it is ready, and when told so, read an epoch; say how long it took, in seconds."""
    address = os.environ[ADDRESS]
    executor = hr.SharedService(address, secret=os.environ[SECRET]) if address else "process"
    options: dict[str, Any] = {"num_workers": NUM_WORKERS, "executor": executor}
    with hr.DataLoader(
        Items(int(os.environ[NUM_SEQS])), batch_size=4, shuffle=True, seed=1, transform=be_expensive, **options
    ) as loader:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        start = time.perf_counter()
        total = sum(float(batch["x"].sum()) for batch in loader)
    sys.stdout.write(f"{time.perf_counter() - start} {total}\n")


def run_trainings(num_trainings: int, num_seqs: int, address: str, secret: str) -> float:
    """Return how long it takes until the last of some trainings has its epoch, in seconds."""
    environment = {**os.environ, SECRET: secret, ADDRESS: address, NUM_SEQS: str(num_seqs)}
    command = [sys.executable, __file__, "--train"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    trainings = [subprocess.Popen(command, env=environment, **pipes) for _ in range(num_trainings)]
    try:
        for training in trainings:
            training.stdout.readline()
        for training in trainings:
            training.stdin.write("go\n")
            training.stdin.flush()
        found = [training.communicate()[0].split() for training in trainings]
    finally:
        for training in trainings:
            training.kill()
            training.wait()
    if len({total for _, total in found}) != 1:
        raise AssertionError("trainings have read different data")
    return max(float(seconds) for seconds, _ in found)


@contextlib.contextmanager
def serving(secret: str) -> Iterator[str]:
    """Have a service in a process of its own, and give its address."""
    command = [sys.executable, "-m", "headrace", "serve", "--bind", "127.0.0.1:0", "--workers", str(NUM_WORKERS)]
    environment = {**os.environ, "HEADRACE_WORKER_SECRET": secret}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process.stderr.readline().split()[2].rstrip(",")
        finally:
            process.terminate()


def filling(num_bytes: int) -> Job:
    """Return a job whose tickets are items of this size."""

    def setup(_info: WorkerInfo) -> Callable[[int], np.ndarray]:
        return lambda number: np.full(num_bytes // 4, number, np.float32)

    return Job(setup, is_pure=True)


def measure_items(num_bytes: int, seconds: float, executor: Any) -> float:
    """Return microseconds for an item."""
    with Engine(filling(num_bytes), num_workers=1, executor=executor) as engine:
        run = engine.run(number % NUM_KEPT for number in itertools.count())
        for _ in range(4 * NUM_KEPT):
            next(run)
        num_items, start = 0, time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            for _ in range(16):
                next(run)
            num_items += 16
        return 1e6 * (now - start) / num_items


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short turn")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--train", action="store_true", help="be one of the trainings")
    options = parser.parse_args()
    if options.train:
        train()
        return
    num_turns, num_seqs, seconds = (1, 200, 0.3) if options.quick else (3, 1000, 1.0)
    secret = secrets.token_hex(16)
    figures: dict[str, list[float]] = {}
    with serving(secret) as address:
        for _ in range(num_turns):
            for num_trainings in (1, 2, 3):
                for name, where in (("service", address), ("own", "")):
                    took = run_trainings(num_trainings, num_seqs, where, secret)
                    figures.setdefault(f"{num_trainings} {name}", []).append(took)
            for size, num_bytes in SIZES.items():
                shared, remote = SharedService(address, secret=secret), RemoteExecutor(LocalLauncher())
                figures.setdefault(f"hit {size}", []).append(measure_items(num_bytes, seconds, shared))
                figures.setdefault(f"remote {size}", []).append(measure_items(num_bytes, seconds, remote))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    lines = [f"an epoch of {num_seqs} expensive sequences, {NUM_WORKERS} workers each, seconds until all have it"]
    for num_trainings in (1, 2, 3):
        shared, own = medians[f"{num_trainings} service"], medians[f"{num_trainings} own"]
        lines.append(f"  {num_trainings} trainings: service {shared:.2f}, own workers {own:.2f}: {own / shared:.2f} x")
    lines.append("an item that is kept, from one worker, microseconds; beside it one that a remote worker fills")
    lines += [f"  {size:>6}: {medians[f'hit {size}']:.1f}, {medians[f'remote {size}']:.1f}" for size in SIZES]
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
