"""One turn of one contender, in a process of its own: `python -m measuring.turn NAME KIND REPEATS SECONDS`.

Prints one line of JSON.
"""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from .contenders import CONTENDERS, NUM_WORKERS
from .items import KINDS, MIB, Kind, check_item, glance
from .processes import cpu_seconds, descendants, pss_bytes

LIMIT = "no transport"


def measure(name: str, kind: Kind, repeats: int, seconds: float) -> dict[str, Any]:
    """Start a contender's workers, check items in full, then count items."""
    contender = CONTENDERS[name]
    importlib.import_module(contender.module)
    start = time.perf_counter()
    stream = contender.stream(kind)
    item = next(stream)
    first_seconds = time.perf_counter() - start
    check_item(kind, 0, item)
    del item
    num_checked = 2 * max(kind.group, 4) * (NUM_WORKERS + 1)
    for idx, item in enumerate(itertools.islice(stream, num_checked - 1), 1):
        check_item(kind, idx, item)
        del item
    idx, _ = count_items(stream, kind, num_checked, min(seconds, 0.3))  # until caches are warm
    rates, first_idx = [], idx
    cpu = cpu_seconds()
    for _ in range(repeats):
        end_idx, took = count_items(stream, kind, idx, seconds)
        rates.append((end_idx - idx) / took)
        idx = end_idx
    cpu = cpu_seconds() - cpu
    processes = descendants()
    pss = sum(map(pss_bytes, processes)) / NUM_WORKERS
    stream.close()
    return {
        "rate": statistics.median(rates),
        "rates": rates,
        "first_seconds": first_seconds,
        "cpu_seconds_per_gb": cpu / ((idx - first_idx) * kind.num_bytes / 1e9),
        "pss_mib": pss / MIB,
    }


def count_items(stream: Iterator[Any], kind: Kind, idx: int, seconds: float) -> tuple[int, float]:
    """Consume for so many seconds; return the index after the last item, and the seconds it took."""
    start = now = time.perf_counter()
    block = 1
    while now - start < seconds:
        before = now
        idx = glance(itertools.islice(stream, block), idx, is_dict=kind.is_dict)
        now = time.perf_counter()
        if now - before < 0.005:
            block *= 2
    return idx, now - start


def measure_limit(kind: Kind, repeats: int, seconds: float) -> dict[str, Any]:
    """Count how often two processes together fill an array of their own, with no transport at all."""
    context = multiprocessing.get_context("fork")
    rates = []
    for _ in range(repeats):
        with context.Pool(NUM_WORKERS) as pool:
            rates.append(sum(pool.starmap(fill, [(kind.num_bytes, seconds)] * NUM_WORKERS, chunksize=1)))
    return {"rate": statistics.median(rates), "rates": rates}


def fill(num_bytes: int, seconds: float) -> float:
    """Fill one array over and over; return how often in a second."""
    array = np.empty(num_bytes // 4, np.float32)
    array.fill(0)
    start, num = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for value in range(16):
            array.fill(value)
        num += 16
    return num / (time.perf_counter() - start)


def main() -> None:
    name, kind_name, repeats, seconds = sys.argv[1:]
    kind = KINDS[kind_name]
    if name == LIMIT:
        result = measure_limit(kind, int(repeats), float(seconds))
    else:
        result = measure(name, kind, int(repeats), float(seconds))
    print(json.dumps(result), flush=True)
    os._exit(0)  # how long a contender takes to end is not the question here


if __name__ == "__main__":
    main()
