"""Items from two workers on a Ray cluster of this machine: over our connections, and through Ray's object store.

Run `python benchmarks/ray_workers.py` (`--quick` for a short look, `--json PATH` for the figures); needs
`headrace[ray]`. An item is a float32 array that a worker fills, and of which the consumer reads two elements. Of Ray
itself there are actors that return an array a call, with as many calls under way as our workers have tickets, taken
in order; and a streaming generator for each actor. Turns are interleaved, and the median is shown. "processor us" is
what the trainer's process used for an item. Also shown: how long the first item takes, on a cluster that runs, and
how long the consumer waits when an actor is killed, or a node of another cluster, of three nodes with a worker each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray

import headrace as hr
from headrace.engine import Engine, EngineOptions, Job, WorkerInfo
from remote import AHEAD_BYTES, NUM_VALUES, NUM_WORKERS, SIZES, filling, measure

_AHEAD_CALLS = 64


@ray.remote(num_cpus=0.1)
class Filler:
    """Fills arrays in an actor."""

    def one(self, num_bytes: int, number: int) -> np.ndarray:
        """Return one array."""
        return np.full(num_bytes // 4, number % NUM_VALUES, np.float32)

    def many(self, num_bytes: int) -> Iterator[np.ndarray]:
        """Yield arrays for ever."""
        number = 0
        while True:
            yield np.full(num_bytes // 4, number % NUM_VALUES, np.float32)
            number += 1


def of_ours(num_bytes: int, seconds: float) -> tuple[float, float, float]:
    tickets = max(2, min(1000, AHEAD_BYTES // num_bytes))
    options = EngineOptions(tickets_per_worker=None if num_bytes <= 1 << 16 else tickets)
    executor = hr.RayExecutor(num_cpus=0.1)
    with Engine(filling(num_bytes), num_workers=NUM_WORKERS, executor=executor, options=options) as engine:
        run = engine.run(iter(int, 1))

        def next_item() -> None:
            value = next(run).value
            value[0], value[-1]

        return measure(next_item, seconds)


def of_calls(num_bytes: int, seconds: float) -> tuple[float, float, float]:
    actors = [Filler.remote() for _ in range(NUM_WORKERS)]
    numbers = iter(range(1 << 60))
    ahead = max(2, min(_AHEAD_CALLS, AHEAD_BYTES // num_bytes))
    refs = deque(actors[n % NUM_WORKERS].one.remote(num_bytes, n) for n, _ in zip(numbers, range(ahead), strict=False))

    def next_item() -> None:
        value = ray.get(refs.popleft())
        number = next(numbers)
        refs.append(actors[number % NUM_WORKERS].one.remote(num_bytes, number))
        value[0], value[-1]

    result = measure(next_item, seconds)
    for actor in actors:
        ray.kill(actor)
    return result


def of_generators(num_bytes: int, seconds: float) -> tuple[float, float, float]:
    actors = [Filler.remote() for _ in range(NUM_WORKERS)]
    ahead = max(2, min(_AHEAD_CALLS, AHEAD_BYTES // num_bytes))
    options = {"num_returns": "streaming", "_generator_backpressure_num_objects": ahead}
    streams = deque(actor.many.options(**options).remote(num_bytes) for actor in actors)

    def next_item() -> None:
        value = ray.get(next(streams[0]))
        streams.rotate(-1)
        value[0], value[-1]

    result = measure(next_item, seconds)
    for actor in actors:
        ray.kill(actor)
    return result


def _pids(_info: WorkerInfo) -> Callable[[int], Any]:
    agent = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    return lambda number: (number, agent)


def first_item() -> float:
    """Return the seconds until the first item, with new workers on a cluster that runs."""
    start = time.perf_counter()
    with Engine(Job(_pids), num_workers=NUM_WORKERS, executor=hr.RayExecutor(num_cpus=0.1)) as engine:
        next(engine.run(range(100)))
        return time.perf_counter() - start


def stall_after_kill() -> float:
    """Return the longest wait for an item after an actor was killed."""
    with Engine(Job(_pids), num_workers=NUM_WORKERS, executor=hr.RayExecutor(num_cpus=0.1)) as engine:
        run = engine.run(iter(int, 1))
        _, agent = next(run).value
        os.kill(agent, signal.SIGKILL)
        return _longest_wait(run, 6.0)


def stall_after_node_kill(rounds: int) -> list[float]:
    """Return the longest wait for an item after a node was killed, of three that have a worker each, for each round."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "num_cpus": 0})
    nodes = [cluster.add_node(**options) for _ in range(NUM_WORKERS + 1)]
    ray.init(address=cluster.address, log_to_driver=False)
    stalls = []
    for _ in range(rounds):
        executor = hr.RayExecutor(num_cpus=0.3, scheduling_strategy="SPREAD")
        with Engine(Job(_pids), num_workers=NUM_WORKERS + 1, executor=executor) as engine:
            run = engine.run(iter(int, 1))
            seen: set[int] = set()
            while len(seen) <= NUM_WORKERS:
                seen.add(next(run).value[1])
            nodes.pop().kill_raylet()
            stalls.append(_longest_wait(run, 10.0))
        nodes.append(cluster.add_node(**options))
    ray.shutdown()
    cluster.shutdown()
    return stalls


def _longest_wait(run: Iterator[Any], seconds: float) -> float:
    worst, until = 0.0, time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        next(run)
        worst = max(worst, time.perf_counter() - start)
    return worst


WAYS = {"RayExecutor": of_ours, "calls of actors": of_calls, "streaming generators": of_generators}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short look")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    rounds, seconds = (1, 2.0) if arguments.quick else (5, 4.0)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    figures: dict[str, Any] = {}
    print(f"{'':8}" + "".join(f"{name:>24}{'processor us':>14}" for name in WAYS))
    for size, num_bytes in SIZES.items():
        turns = [{name: way(num_bytes, seconds) for name, way in WAYS.items()} for _ in range(rounds)]
        medians = {
            name: (
                statistics.median(turn[name][0] for turn in turns),
                statistics.median(turn[name][1] for turn in turns),
            )
            for name in WAYS
        }
        figures[size] = medians
        print(f"{size:8}" + "".join(f"{rate:>22,.0f}/s{1e6 * cpu:>14.1f}" for rate, cpu in medians.values()))
    figures["first item"] = statistics.median(first_item() for _ in range(rounds))
    figures["wait after a kill"] = statistics.median(stall_after_kill() for _ in range(rounds))
    ray.shutdown()
    figures["wait after a node was killed"] = statistics.median(stall_after_node_kill(rounds))
    print(
        f"first item {figures['first item']:.1f} s, longest wait after an actor was killed "
        f"{figures['wait after a kill']:.1f} s, after a node was killed "
        f"{figures['wait after a node was killed']:.1f} s"
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
