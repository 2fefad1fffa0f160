"""Items and padded batches from two workers on a Ray cluster of this machine: `RayExecutor`, and Ray used by hand.

Run `python benchmarks/ray_workers.py` (`--quick`: a short look, `--json PATH`: the figures); needs `ray[data]`. An
item is a float32 array that a worker fills, and of which the consumer reads two elements. Ray has four arrangements:
actors that return one array a call, with calls ahead; actors that return lists of arrays (8 MiB, as ours do, and three
calls ahead of each actor); a streaming generator for each actor; and Ray Data, `map_batches` in two tasks read by
`iter_batches`. "between nodes": the workers are on other nodes of the cluster than the consumer, so that each result
goes through two object stores and a socket. The same with worker processes of Headrace, without Ray.

Batches are padded, 16 sequences of 40 numbers a frame with lengths as of read speech, made in the workers (Headrace;
`map_batches`), or in the consumer as `iter_batches` gives rows. Turns are interleaved, medians are shown, and ratios
are medians of the ratios of each round. Also shown: how long the first item takes on a cluster that runs, against an
actor that returns a number; and how many processes a worker has.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
from ray.cluster_utils import Cluster

import headrace as hr
from headrace.engine import Engine, Job, WorkerInfo
from measuring.loader_corpora import draw_lengths

NUM_WORKERS, NUM_VALUES = 2, 251
SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20}
LIST_BYTES, LISTS_AHEAD, CALLS_AHEAD, AHEAD_BYTES = 8 << 20, 3, 64, 64 << 20
ACTOR = {"num_cpus": 0.1}
PASS_BYTES = 1 << 30  # after which Ray Data begins anew
DIM, BATCH_SIZE = 40, 16
NODE = {"num_cpus": 2, "object_store_memory": 600 << 20, "include_dashboard": False}


def fill(num_bytes: int, number: int) -> np.ndarray:
    """Return one item."""
    return np.full(num_bytes // 4, number % NUM_VALUES, np.float32)


@ray.remote(**ACTOR)
class Filler:
    """Fills arrays in an actor."""

    def one(self, num_bytes: int, number: int) -> np.ndarray:
        """Return one array."""
        return fill(num_bytes, number)

    def some(self, num_bytes: int, numbers: range) -> list[np.ndarray]:
        """Return several."""
        return [fill(num_bytes, number) for number in numbers]

    def many(self, num_bytes: int) -> Iterator[np.ndarray]:
        """Yield arrays for ever."""
        for number in range(1 << 60):
            yield fill(num_bytes, number)


def with_actors(items: Callable[[list[Any], int], Iterator[np.ndarray]]) -> Callable[[int], Iterator[np.ndarray]]:
    """Return a function that yields items from actors, which are ended with it."""

    def run(num_bytes: int) -> Iterator[np.ndarray]:
        actors = [Filler.remote() for _ in range(NUM_WORKERS)]
        try:
            yield from items(actors, num_bytes)
        finally:
            for actor in actors:
                ray.kill(actor)

    return run


def of_calls(actors: list[Any], num_bytes: int) -> Iterator[np.ndarray]:
    refs: deque[Any] = deque()
    for number in range(1 << 60):
        refs.append(actors[number % NUM_WORKERS].one.remote(num_bytes, number))
        if len(refs) >= max(2, min(CALLS_AHEAD, AHEAD_BYTES // num_bytes)):
            yield ray.get(refs.popleft())


def of_lists(actors: list[Any], num_bytes: int) -> Iterator[np.ndarray]:
    refs: deque[Any] = deque()
    count = min(max(LIST_BYTES // num_bytes, 1), 1024)
    for number in range(1 << 60):
        numbers = range(number * count, (number + 1) * count)
        refs.append(actors[number % NUM_WORKERS].some.remote(num_bytes, numbers))
        if len(refs) >= LISTS_AHEAD * NUM_WORKERS:
            yield from ray.get(refs.popleft())


def of_generators(actors: list[Any], num_bytes: int) -> Iterator[np.ndarray]:
    ahead = max(2, min(CALLS_AHEAD, AHEAD_BYTES // num_bytes))
    options = {"num_returns": "streaming", "_generator_backpressure_num_objects": ahead}
    streams = deque(actor.many.options(**options).remote(num_bytes) for actor in actors)
    while True:
        yield ray.get(next(streams[0]))
        streams.rotate(-1)


def of_ray_data(num_bytes: int) -> Iterator[np.ndarray]:
    count = min(max(LIST_BYTES // num_bytes, 1), 1024)

    def make(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": np.stack([fill(num_bytes, number) for number in rows["id"].tolist()])}

    total = PASS_BYTES // num_bytes
    numbers = ray.data.range(total, override_num_blocks=total // count)
    made = numbers.map_batches(make, batch_size=count, concurrency=NUM_WORKERS)
    while True:
        for batch in made.iter_batches(batch_size=count):
            yield from batch["x"]


def filling(num_bytes: int) -> Job:
    def setup(_info: WorkerInfo) -> Callable[[int], np.ndarray]:
        return lambda number: fill(num_bytes, number)

    return Job(setup)


def of_ours(executor: Callable[[], Any]) -> Callable[[int], Iterator[np.ndarray]]:
    def run(num_bytes: int) -> Iterator[np.ndarray]:
        with Engine(filling(num_bytes), num_workers=NUM_WORKERS, executor=executor()) as engine:
            for done in engine.run(range(1 << 60)):
                yield done.value

    return run


ITEMS = {
    "RayExecutor": of_ours(lambda: hr.RayExecutor(**ACTOR)),
    "lists by hand": with_actors(of_lists),
    "one item a call": with_actors(of_calls),
    "streaming generators": with_actors(of_generators),
    "Ray Data": of_ray_data,
    "worker processes": of_ours(lambda: "process"),
}


def rate_of(items: Iterator[np.ndarray], seconds: float) -> float:
    """Return items a second, after the first second."""
    count, until, begins = 0, 0.0, time.perf_counter() + 1.0
    for value in items:
        value[0], value[-1]
        now = time.perf_counter()
        if until:
            count += 1
            if now > until:
                break
        elif now > begins:
            start, until = now, now + seconds
    rate = count / (time.perf_counter() - start)
    items.close()  # type: ignore[attr-defined]
    return rate


class Corpus:
    """Sequences of some lengths: views of one array."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths
        self.block = np.random.default_rng(2).random((int(lengths.max()), DIM), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return {"data": self.block[: self.lengths[number]]}


def pad(arrays: list[np.ndarray]) -> np.ndarray:
    padded = np.zeros((len(arrays), max(map(len, arrays)), DIM), np.float32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def batches_of_ours(executor: Callable[[], Any]) -> Callable[[Corpus, Any], Callable[[], Iterator[np.ndarray]]]:
    def open_loader(corpus: Corpus, _rows: Any) -> Callable[[], Iterator[np.ndarray]]:
        loader = hr.DataLoader(
            corpus, batch_size=BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, executor=executor()
        )
        return lambda: (batch["data"] for batch in loader)

    return open_loader


def batches_of_tasks(_corpus: Corpus, rows: Any) -> Callable[[], Iterator[np.ndarray]]:
    def make(batch: dict[str, Any]) -> dict[str, Any]:  # one row, as batches of other shapes cannot be joined with it
        return {"data": [pad(list(batch["data"]))]}

    padded = rows.map_batches(make, batch_size=BATCH_SIZE, concurrency=NUM_WORKERS)
    return lambda: (batch["data"][0] for batch in padded.iter_batches(batch_size=1, prefetch_batches=8))


def batches_of_rows(_corpus: Corpus, rows: Any) -> Callable[[], Iterator[np.ndarray]]:
    batches = lambda: rows.iter_batches(batch_size=BATCH_SIZE, prefetch_batches=8)  # noqa: E731
    return lambda: (pad(list(batch["data"])) for batch in batches())


BATCHES = {
    "RayExecutor": batches_of_ours(lambda: hr.RayExecutor(**ACTOR)),
    "Ray Data, map_batches": batches_of_tasks,
    "Ray Data, iter_batches": batches_of_rows,
    "worker processes": batches_of_ours(lambda: "process"),
}


def pass_rate(batches: Callable[[], Iterator[np.ndarray]], num_seqs: int) -> float:
    """Return batches a second of one pass."""
    num, found, start = 0, 0, time.perf_counter()
    for array in batches():
        array[0, 0, 0], array[-1, -1, -1]
        num += 1
        found += len(array)
    if found != num_seqs:
        raise RuntimeError(f"{found} sequences of {num_seqs}")
    return num / (time.perf_counter() - start)


def shown(title: str, turns: list[dict[str, float]]) -> dict[str, float]:
    """Print and return the medians of turns, and how the first contender compares with the others."""
    names = list(turns[0])
    medians = {name: statistics.median(turn[name] for turn in turns) for name in names}
    print(title)
    for name in names:
        ratio = statistics.median(turn[names[0]] / turn[name] for turn in turns)
        print(f"  {name:26}{medians[name]:>12,.0f}/s" + ("" if name == names[0] else f"   ours {ratio:5.2f} x"))
    return medians


def first_item() -> dict[str, float]:
    """Return seconds until the first item: of ours, and of actors of Ray that return a number."""
    start = time.perf_counter()
    with Engine(filling(4), num_workers=NUM_WORKERS, executor=hr.RayExecutor(**ACTOR)) as engine:
        next(engine.run(range(100)))
        ours = time.perf_counter() - start
    start = time.perf_counter()
    actors = [Filler.remote() for _ in range(NUM_WORKERS)]
    ray.get([actor.one.remote(4, 0) for actor in actors])
    return {"RayExecutor": ours, "actors by hand": time.perf_counter() - start}


def pids_of(_info: WorkerInfo) -> Callable[[int], tuple[int, int]]:
    """Return the worker's process and the one that has started it, and how many that has started."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return lambda _number: (os.getpid(), len(children))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short look")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    rounds, seconds, num_seqs = (1, 2.0, 1000) if arguments.quick else (5, 4.0, 8000)
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"})
    figures: dict[str, Any] = {}
    for nodes in ("one node", "between nodes"):
        apart = nodes != "one node"
        head = {**NODE, "num_cpus": 0 if apart else 4, "object_store_memory": 1 << 30}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(NUM_WORKERS if apart else 0):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        for size, num_bytes in SIZES.items():
            turns = [{name: rate_of(way(num_bytes), seconds) for name, way in ITEMS.items()} for _ in range(rounds)]
            figures[f"{size}, {nodes}"] = shown(f"items of {size}, {nodes}", turns)
        corpus = Corpus(draw_lengths(num_seqs))
        rows = ray.data.from_items([corpus[number] for number in range(num_seqs)], override_num_blocks=32)
        rows = rows.materialize()
        ways = {name: make(corpus, rows) for name, make in BATCHES.items()}
        turns = [{name: pass_rate(way, num_seqs) for name, way in ways.items()} for _ in range(rounds + 1)]
        figures[f"batches, {nodes}"] = shown(f"padded batches of read speech, {nodes}", turns[1:])
        del ways
        firsts = [first_item() for _ in range(rounds)]
        figures[f"first item, {nodes}"] = {name: statistics.median(one[name] for one in firsts) for name in firsts[0]}
        print(f"seconds to the first item, {nodes}: {figures[f'first item, {nodes}']}")
        with Engine(Job(pids_of), num_workers=NUM_WORKERS, executor=hr.RayExecutor(**ACTOR)) as engine:
            print(f"processes that a worker has started: {max(done.value[1] for done in engine.run(range(100)))}")
        ray.shutdown()
        cluster.shutdown()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
