"""Items through two workers: `DataLoader2` against torchdata's and torch's `DataLoader`, the same pipe, the same loop.

Run `python benchmarks/pipes.py --torchdata-python PATH`, where PATH is a Python that has torch and torchdata 0.7 to 0.9
(0.10 has no `DataLoader2`); without it, or without torch, those lines are left out. Items are dicts with an array and a
number; the array was made before, so what is measured is the way. Each turn is a process of its own: one epoch that is
checked, then epochs that are timed; turns of all contenders alternate, and the median is shown.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

NUM_WORKERS = 2
# Bytes of an item, and items of an epoch for the quick contenders and for the slow ones.
CASES = {"1 KiB": (1 << 10, 100_000, 3_000), "1 MiB": (1 << 20, 3_000, 600)}
CONTENDERS = ("headrace", "headrace, torch's pipes", "torchdata", "DataLoader of torch")
SLOW = ("torchdata", "DataLoader of torch")


class MakeItem:
    """Makes item number n."""

    def __init__(self, num_bytes: int) -> None:
        self.array = np.full(num_bytes, 7, np.uint8)

    def __call__(self, number: int) -> dict[str, Any]:
        """Return it; its array is the same for all."""
        return {"x": self.array, "i": number}


def keep(item: Any) -> Any:
    """Leave an item as it is: torch would make a tensor of its array."""
    return item


def open_loader(contender: str, num_bytes: int, num_items: int) -> tuple[Any, Any]:
    """Make a loader, and what ends it."""
    make = MakeItem(num_bytes)
    if contender == "headrace":
        wrapper = importlib.import_module("headrace.pipes.iter").IterableWrapper
    else:
        wrapper = importlib.import_module("torch.utils.data.datapipes.iter").IterableWrapper
    pipe = wrapper(range(num_items), deepcopy=False).sharding_filter().map(make)
    if contender == "DataLoader of torch":
        return importlib.import_module("torch.utils.data").DataLoader(
            pipe, batch_size=None, num_workers=NUM_WORKERS, collate_fn=keep, persistent_workers=True
        ), lambda: None
    room = importlib.import_module("torchdata.dataloader2" if contender == "torchdata" else "headrace.dataloader2")
    service = room.MultiProcessingReadingService(num_workers=NUM_WORKERS)
    loader = room.DataLoader2(pipe, reading_service=service)
    return loader, loader.shutdown


def run_turn(contender: str, num_bytes: int, num_items: int, num_epochs: int) -> list[float]:
    """Return the items per second of each epoch after the first, which is checked."""
    loader, shutdown = open_loader(contender, num_bytes, num_items)
    numbers = set()
    for item in loader:
        if item["x"].shape != (num_bytes,) or item["x"][0] != 7 or item["x"][-1] != 7:
            raise AssertionError(f"item {item['i']} is wrong")
        numbers.add(int(item["i"]))
    if numbers != set(range(num_items)):
        raise AssertionError(f"{len(numbers)} items came, and not {num_items}")
    rates = []
    for _ in range(num_epochs):
        start = time.perf_counter()
        num_read = sum(1 for _ in loader)
        rates.append(num_read / (time.perf_counter() - start))
    shutdown()
    return rates


def run_apart(python: str, contender: str, num_bytes: int, num_items: int, num_epochs: int) -> list[float]:
    """Run a turn in a process of its own."""
    command = [python, "-W", "ignore", __file__, "--turn", contender, str(num_bytes), str(num_items), str(num_epochs)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{contender} failed:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    """Measure all contenders and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchdata-python", help="a Python with torch and torchdata 0.7 to 0.9")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each contender")
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs of a turn")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of items")
    parser.add_argument("--quick", action="store_true", help="a tenth of the items, one turn each")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rates to this file")
    parser.add_argument("--turn", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        contender, *numbers = options.turn
        print(json.dumps(run_turn(contender, *map(int, numbers))))
        return
    if options.quick:
        options.scale, options.repeat = 0.1, 1
    has_torch = importlib.util.find_spec("torch") is not None
    pythons = dict.fromkeys(CONTENDERS, sys.executable) | {"torchdata": options.torchdata_python}
    contenders = [name for name in CONTENDERS if pythons[name] and (name in ("headrace", "torchdata") or has_torch)]
    print(f"left out: {', '.join(set(CONTENDERS) - set(contenders)) or 'nobody'}")
    found: dict[str, dict[str, list[float]]] = {}
    for case, (num_bytes, num_quick, num_slow) in CASES.items():
        rates = found[case] = {name: [] for name in contenders}
        for _ in range(options.repeat):
            for name in contenders:
                num_items = max(int(options.scale * (num_slow if name in SLOW else num_quick)), 100)
                rates[name] += run_apart(pythons[name], name, num_bytes, num_items, options.epochs)
        print(f"\n{case} items, {NUM_WORKERS} workers, items/s: median (slowest .. quickest epoch)")
        base = statistics.median(rates.get("torchdata", [0.0]))
        for name, values in rates.items():
            median = statistics.median(values)
            ratio = f"{median / base:8.1f} x" if base else ""
            print(f"  {name:24} {median:10,.0f} ({min(values):,.0f} .. {max(values):,.0f}) {ratio}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
