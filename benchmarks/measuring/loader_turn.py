"""One turn of one contender of the loader benchmark, in a process of its own: `python -m measuring.loader_turn TURN`.

The turn is JSON: the title of a contender and tasks. Prints one line of JSON for each task, with its figures or with
what it failed by; a task that fails does not keep the next one from being done.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .items import MIB
from .loader_contender import NUM_WORKERS, WORLD_SIZE, Batch, Contender, open_contender
from .loader_corpora import Corpus
from .processes import cpu_seconds, descendants, pss_bytes

WARM_BATCHES = 24  # are checked and not counted: more than the workers may be ahead
SHARES = (0.0, 0.5, 0.99)


@dataclass(frozen=True)
class Task:
    """What to measure.

    Attributes:
        what: "first", "rate", "resume" or "costs".
        corpus: Over what.
        is_dear: Whether each sequence costs 2 ms of work.
        amount: Seconds of a rate, repeats of a resume.
    """

    what: str
    corpus: Corpus
    is_dear: bool = False
    amount: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> Task:
        """Undo `to_json`."""
        return cls(data["what"], Corpus(**data["corpus"]), data["is_dear"], data["amount"])


def measure_first(contender: Contender, task: Task) -> dict[str, float]:
    """Measure the seconds to the first batch, and what the processes hold after a few."""
    start = time.perf_counter()
    stream = contender.stream(task.corpus, is_dear=task.is_dear)
    next(stream)
    seconds = time.perf_counter() - start
    for _ in range(2 * NUM_WORKERS):
        next(stream)
    pss = pss_mib()
    stream.close()
    return {"seconds": seconds, "pss_mib": pss}


def pss_mib() -> float:
    """Return the proportional set size of all started processes, divided by the number of workers."""
    return sum(map(pss_bytes, descendants())) / NUM_WORKERS / MIB


def measure_rate(contender: Contender, task: Task) -> dict[str, float]:
    """Check some batches in full, then count batches and frames."""
    stream = contender.stream(task.corpus, is_dear=task.is_dear)
    marks = task.corpus.marks()
    for _ in range(WARM_BATCHES // 4 if task.is_dear else WARM_BATCHES):
        check_batch(next(stream), marks)
    num_batches = num_frames = 0
    cpu = cpu_seconds()
    start = now = time.perf_counter()
    while now - start < task.amount:
        data, lengths = next(stream)
        assert float(data[0, 0, 0]) >= 0
        num_batches += 1
        num_frames += int(lengths.sum())
        now = time.perf_counter()
    cpu = cpu_seconds() - cpu
    pss = pss_mib()
    stream.close()
    seconds = now - start
    return {
        "batches": num_batches / seconds,
        "frames": num_frames / seconds,
        "cpu_seconds": cpu / (num_frames / 1e6),
        "pss_mib": pss,
    }


def check_batch(batch: Batch, marks: set[tuple[int, bytes]]) -> None:
    """Check that the rows are sequences of the corpus, padded with zeros."""
    data, lengths = np.asarray(batch[0]), np.asarray(batch[1])
    assert data.shape[1] == lengths.max(), f"{data.shape[1]} frames, and the longest has {lengths.max()}"
    for row, length in zip(data, lengths.tolist(), strict=True):
        assert (length, row[0].tobytes()) in marks, f"no sequence of {length} frames begins like this: {row[0, :4]}"
        assert not row[length:].any(), "padding is not zero"


def measure_resume(contender: Contender, task: Task) -> dict[str, Any]:
    """Measure the seconds to the first batch after a resume, at each share of an epoch, in turns."""
    saved = contender.save(task.corpus, SHARES)
    if saved is None:
        return {"seconds": None}
    found: dict[float, list[float]] = {share: [] for share in SHARES}
    for repeat in range(int(task.amount) + 1):
        for share, (state, wanted) in zip(SHARES, saved, strict=True):
            start = time.perf_counter()
            stream = contender.resume(task.corpus, state)
            _, lengths = next(stream)
            seconds = time.perf_counter() - start
            stream.close()
            got = np.asarray(lengths).tolist()
            assert got == wanted, f"resumed at {share:.0%} with lengths {got[:4]} instead of {wanted[:4]}"
            if repeat:  # the first round warms up
                found[share].append(seconds)
    return {"seconds": [statistics.median(seconds) for seconds in found.values()]}


def measure_costs(contender: Contender, task: Task) -> dict[str, Any]:
    """Measure padding, and how uneven the ranks of a step are, from the batches that each rank gets."""
    places: list[list[int]] = []
    frames = 0
    for rank in range(WORLD_SIZE):
        places.append([])
        for lengths in contender.rank_lengths(task.corpus, rank):
            places[-1].append(len(lengths) * int(lengths.max()))
            frames += int(lengths.sum())
    steps = [len(rank) for rank in places]
    costs = np.array([rank[: min(steps)] for rank in places])
    longest = max(max(rank) for rank in places)
    return {
        "padding": 1 - frames / sum(map(sum, places)),
        "skew": float((costs.max(axis=0) / costs.mean(axis=0)).mean()),
        "steps": [min(steps), max(steps)],
        "largest": longest / task.corpus.budget,
        "frames": frames / sum(steps),
    }


MEASURES = {"first": measure_first, "rate": measure_rate, "resume": measure_resume, "costs": measure_costs}


def take_turn(title: str, tasks: list[Task]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each task."""
    contender = open_contender(title)
    for task in tasks:
        try:
            yield MEASURES[task.what](contender, task)
        except Exception as error:  # noqa: BLE001 - one failure of a peer is a result, and is shown as one
            traceback.print_exc()
            yield {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    turn = json.loads(sys.argv[1])
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contender prints is kept from our lines
    for figures in take_turn(turn["title"], [Task.of_json(task) for task in turn["tasks"]]):
        print(json.dumps(figures), file=results, flush=True)
    os._exit(0)  # how long a contender takes to end is not the question here


if __name__ == "__main__":
    main()
