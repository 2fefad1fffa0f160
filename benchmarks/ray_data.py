"""Padded batches of a dataset of Ray Data: through `hr.DataLoader`, and through Ray Data itself.

Run `python benchmarks/ray_data.py` (`--quick` for a short look, `--json PATH` for the figures); needs `headrace[ray]`.
Two corpora like those of `loader.py`, features of 40 numbers a frame, lie in the object store of a Ray cluster of this
machine, each as one materialized dataset that all read: "speech" with lengths as of read speech, and "words" with
lengths as of spoken numbers. Wanted are padded batches of 16 sequences, of "words" 64: a float32 array and the lengths.

Headrace reads in a random order: by two worker processes, by two workers that Ray has placed, and in the consumer's
thread. Of Ray Data there are `map_batches`, which pads in two tasks at a time, and padding in the consumer's thread as
`iter_batches` gives rows, with 8 batches fetched ahead; both in the order of the dataset, the cheapest that it has. The
consumer reads two elements of each batch. Each turn is a pass over the corpus after one that does not count, turns are
interleaved, and medians are shown. "processor us" is what the consumer's process used for a batch.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data

import headrace as hr
from measuring.loader_corpora import draw_lengths

NUM_WORKERS = 2
_DIM = 40
_NUM_BLOCKS = 32


def make_corpus(lengths: np.ndarray) -> Any:
    """Return sequences of some lengths as a materialized dataset."""
    block = np.random.default_rng(2).random((int(lengths.max()), _DIM), dtype=np.float32)
    rows = [{"data": block[:length]} for length in lengths]
    return ray.data.from_items(rows, override_num_blocks=_NUM_BLOCKS)


def pad(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of a batch as one padded array, and their lengths."""
    arrays = list(rows["data"])
    lengths = np.array([len(array) for array in arrays], np.int32)
    padded = np.zeros((len(arrays), lengths.max(), _DIM), np.float32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return {"data": padded, "lengths": lengths}


def pad_as_one_row(rows: dict[str, Any]) -> dict[str, Any]:
    """Return a padded batch as one row: rows of one shape could not be joined with those of another."""
    return {key: [value] for key, value in pad(rows).items()}


class OfOurs:
    """Our loader, whose workers stay for all passes; a call is a pass."""

    def __init__(self, corpus: Any, batch_size: int, executor: Any) -> None:
        num_workers = 0 if executor == "inline" else NUM_WORKERS
        self._loader = hr.DataLoader(
            corpus, batch_size=batch_size, shuffle=True, num_workers=num_workers, executor=executor
        )

    def __call__(self) -> Iterator[Any]:  # noqa: D102
        return (batch["data"] for batch in self._loader)

    def close(self) -> None:
        """End the workers."""
        self._loader.close()


class OfRay:
    """Ray Data, which begins an execution for each pass; a call is a pass."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __call__(self) -> Iterator[Any]:  # noqa: D102
        return self._make()

    def close(self) -> None:
        """Nothing stays."""


def in_workers(corpus: Any, batch_size: int) -> Iterator[Any]:
    """Yield batches that `map_batches` pads."""
    padded = corpus.map_batches(pad_as_one_row, batch_size=batch_size, concurrency=NUM_WORKERS)
    for batch in padded.iter_batches(batch_size=1, prefetch_batches=8):
        yield batch["data"][0]


def in_consumer(corpus: Any, batch_size: int) -> Iterator[Any]:
    """Yield batches that are padded where they are consumed."""
    for batch in corpus.iter_batches(batch_size=batch_size, prefetch_batches=8):
        yield pad(batch)["data"]


def one_pass(ways: Callable[[], Iterator[Any]]) -> tuple[float, float, int]:
    """Return batches a second, processor seconds a batch, and how many sequences there were."""
    num_batches, num_seqs, start, cpu = 0, 0, time.perf_counter(), time.process_time()
    for array in ways():
        array[0, 0, 0], array[-1, -1, -1]
        num_batches += 1
        num_seqs += len(array)
    seconds = time.perf_counter() - start
    return num_batches / seconds, (time.process_time() - cpu) / num_batches, num_seqs


def compare(name: str, lengths: np.ndarray, batch_size: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Let all have their turns over one corpus; print and return the medians."""
    corpus = make_corpus(lengths)
    ways: dict[str, Any] = {
        "Headrace, worker processes": OfOurs(corpus, batch_size, "process"),
        "Headrace, RayExecutor": OfOurs(corpus, batch_size, hr.RayExecutor(num_cpus=0.1)),
        "Headrace, consumer's thread": OfOurs(corpus, batch_size, "inline"),
        "Ray Data, map_batches": OfRay(lambda: in_workers(corpus, batch_size)),
        "Ray Data, consumer's thread": OfRay(lambda: in_consumer(corpus, batch_size)),
    }
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for title, way in ways.items():
            rate, cpu, found = one_pass(way)
            if found != len(lengths):
                raise RuntimeError(f"{title} gave {found} sequences of {len(lengths)}")
            if number:
                turns[title].append((rate, cpu))
    figures = {}
    print(f"{name}, {len(lengths)} sequences, batches of {batch_size}")
    for title, way in ways.items():
        way.close()
        rate, cpu = (statistics.median(column) for column in zip(*turns[title], strict=True))
        figures[title] = rate, cpu
        ratios = {
            other: statistics.median(a[0] / b[0] for a, b in zip(turns[title], turns[other], strict=True))
            for other in ways
            if title.startswith("Headrace") and other.startswith("Ray")
        }
        of_theirs = ", ".join(f"{ratio:.1f} x {other}" for other, ratio in ratios.items())
        print(f"  {title:34}{rate:>8,.0f} batches/s{1e6 * cpu:>8.0f} processor us   {of_theirs}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short look")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    scale, rounds = (1, 3) if arguments.quick else (4, 5)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=3 << 30)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    words = np.clip(np.random.default_rng(3).lognormal(np.log(70), 0.3, 10_000 * scale), 30, 200).astype(int)
    figures = {
        "speech": compare("speech", draw_lengths(2000 * scale), 16, rounds),
        "words": compare("words", words, 64, rounds),
    }
    ray.shutdown()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
