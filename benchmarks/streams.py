"""A stream of items that are slow to read, with a transform that is slow, too: how it grows with the number of workers.

Run `python benchmarks/streams.py` (a minute; `--quick` for less). Reading an item keeps a processor busy for 200 us,
transforming it for 1 ms. Shown for each number of workers, and each size of items: items a second, the processor time
of all workers and of the trainer for an item, without what starting them takes, and how often each item was read. The
processor time of reading is there once, whatever the number of workers, if items are read once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace import DataLoader

READ_SECONDS, TRANSFORM_SECONDS = 200e-6, 1e-3
WORKERS, SIZES = (0, 1, 2, 4), {"1 KiB": 1 << 10, "256 KiB": 256 << 10}
BATCH_ITEMS = 16


def keep_busy(seconds: float) -> None:
    """Use a processor for so long, whoever else uses it."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class SlowStream:
    """Items of so many bytes; each that is read is noted in a file, one byte each."""

    def __init__(self, num_items: int, num_bytes: int, notes: str) -> None:
        self._num_items, self._num_bytes, self._notes = num_items, num_bytes, notes

    def __iter__(self) -> Iterator[dict[str, Any]]:
        notes = os.open(self._notes, os.O_WRONLY | os.O_APPEND)
        try:
            for number in range(self._num_items):
                keep_busy(READ_SECONDS)
                os.write(notes, b".")
                yield {"data": np.full(self._num_bytes // 4, number, np.float32)}
        finally:
            os.close(notes)


def slow_transform(seq: dict[str, Any]) -> dict[str, Any]:
    """Return twice the values, some time later."""
    keep_busy(TRANSFORM_SECONDS)
    return {"data": 2 * seq["data"]}


def measure(num_workers: int, num_bytes: int, num_items: int) -> dict[str, float]:
    """Load one epoch, and return what it took."""
    with tempfile.NamedTemporaryFile() as notes:
        stream = SlowStream(num_items, num_bytes, notes.name)
        options = {"batch_size": BATCH_ITEMS, "window_seqs": 8 * BATCH_ITEMS, "transform": slow_transform}
        with DataLoader(stream, num_workers=num_workers, **options) as loader:
            loader.start()
            own, start = time.process_time(), time.perf_counter()
            total = sum(float(batch["data"][:, 0].sum()) for batch in loader)
            seconds, own = time.perf_counter() - start, time.process_time() - own
        assert total == num_items * (num_items - 1), "items were lost, or came twice"
        num_read = os.path.getsize(notes.name)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of workers that ended
    return {"seconds": seconds, "workers": used.ru_utime + used.ru_stime, "trainer": own, "reads": num_read}


def compare(num_workers: int, num_bytes: int, num_items: int) -> dict[str, float]:
    """Return what an item takes, beyond what starting takes."""
    long, short = (
        json.loads(
            subprocess.run(
                [sys.executable, __file__, "--turn", str(num_workers), str(num_bytes), str(count)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
        )
        for count in (num_items, BATCH_ITEMS)
    )
    of_item = {name: (long[name] - short[name]) / (num_items - BATCH_ITEMS) for name in long}
    return {
        "items_per_second": 1 / of_item["seconds"],
        "workers_us": 1e6 * of_item["workers"],
        "trainer_us": 1e6 * of_item["trainer"],
        "reads_per_item": of_item["reads"],
    }


def main() -> None:
    """Measure, each number of workers in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer items")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--turn", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turn is not None:
        print(json.dumps(measure(*arguments.turn)))
        return
    num_items = 512 if arguments.quick else 4096
    figures: dict[str, dict[str, float]] = {}
    print("| items | workers | items/s | workers' processor time, us an item | trainer's | reads of an item |")
    print("|---|---|---|---|---|---|")
    for size, num_bytes in SIZES.items():
        for num_workers in WORKERS:
            found = compare(num_workers, num_bytes, num_items)
            figures[f"{size} x {num_workers}"] = found
            shown = (found[name] for name in ("items_per_second", "workers_us", "trainer_us"))
            print(
                f"| {size} | {num_workers} | {' | '.join(f'{x:,.0f}' for x in shown)} | {found['reads_per_item']:g} |"
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
