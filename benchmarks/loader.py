"""Batches from HDF5 through two workers: ours, and torch's `DataLoader` over the same plan and the same reading code.

    python benchmarks/loader.py [--quick] [--json PATH]

The corpus is synthetic: log-normal lengths, as those of speech are, 40 features a frame, in one HDF5 file, which is in
the page cache. Both contenders deliver the same padded batches (buckets, a budget of frames); torch's gets them as a
`batch_sampler` made from our plan, reads with our `HDFSource` and pads with NumPy in its `collate_fn`, so what differs
is who carries a batch, and how. Each contender has its turns one after the other in one process; the best is kept. A
consumer touches every batch. Time to the first batch and to resume are for a plan over a corpus that is never read
(inline, one sequence is made on the spot), so that they show what the number of sequences costs.

Without torch only ours is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace import DataLoader, HDFDataset, MapDataset
from headrace.batching import BatchOrder, Buckets, FrameBudget, WindowKey, num_windows, window_bounds
from headrace.sources import HDFSource, HDFWriter

NUM_WORKERS = 2
DIM = 40
BATCHING = Buckets(FrameBudget(16_000))
WORLD_SIZE = 8


def draw_lengths(num_seqs: int) -> np.ndarray:
    """Return frames of sequences as of speech: median 7 s at 100 frames a second, 0.5 s to 35 s."""
    lengths = np.random.default_rng(1).lognormal(np.log(700), 0.6, num_seqs)
    return np.clip(lengths, 50, 3500).astype(np.int64)


def write_corpus(path: str, num_seqs: int) -> None:
    """Write the corpus; the content of a sequence does not matter."""
    block = np.random.default_rng(2).random((3500, DIM), dtype=np.float32)
    with HDFWriter(path) as writer:
        for number, length in enumerate(draw_lengths(num_seqs).tolist()):
            writer.append(f"seq-{number}", {"data": block[:length]})


def measure(batches: Iterator[Any]) -> dict[str, float]:
    """Read all batches of an iterator whose workers are warm; touch each."""
    num_batches = num_frames = 0
    start = time.perf_counter()
    for data, lengths in batches:
        num_batches += 1
        num_frames += int(lengths.sum())
        assert float(data[0, 0, 0]) >= 0
    seconds = time.perf_counter() - start
    return {"batches/s": num_batches / seconds, "frames/s": num_frames / seconds, "batches": num_batches}


def ours(path: str, num_turns: int) -> dict[str, float]:
    """Measure a `headrace.DataLoader`."""
    dataset = HDFDataset(files=path, seq_ordering="random")
    found = []
    start = time.perf_counter()
    with DataLoader(dataset, batching=BATCHING, num_workers=NUM_WORKERS, seed=1) as loader:
        next(iter(loader))
        first = time.perf_counter() - start
        for _ in range(num_turns):
            loader.set_epoch(1)
            found.append(measure((batch["data"], batch.lengths["data"]) for batch in loader))
    dataset.close()
    return {**max(found, key=lambda turn: turn["frames/s"]), "first batch s": first}


class TorchItems:
    """A map-style dataset over the same file, as torch users write it."""

    def __init__(self, path: str) -> None:
        self.source = HDFSource([path])

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, corpus_idx: int) -> np.ndarray:
        return self.source.read(corpus_idx, "data")


def pad_torch(seqs: list[np.ndarray]) -> Any:
    """Pad as most `collate_fn` do: into one new tensor."""
    import torch

    lengths = torch.tensor([len(seq) for seq in seqs])
    padded = torch.zeros((len(seqs), int(lengths.max()), DIM))
    for row, seq in enumerate(seqs):
        padded[row, : len(seq)] = torch.from_numpy(seq)
    return padded, lengths


def planned_batches(path: str) -> list[list[int]]:
    """Return the corpus indices of the batches of the first epoch, as our loader plans them."""
    with (
        HDFDataset(files=path, seq_ordering="random") as dataset,
        DataLoader(dataset, batching=BATCHING, seed=1) as plan,
    ):
        epoch_plan = plan._plan_of(1)
        return [epoch_plan.task(number)[0].indices.tolist() for number in range(epoch_plan.num_batches())]


def torchs(path: str, num_turns: int) -> dict[str, float]:
    """Measure torch's `DataLoader`."""
    import torch

    batches = planned_batches(path)
    options = {"collate_fn": pad_torch, "num_workers": NUM_WORKERS, "persistent_workers": True, "prefetch_factor": 8}
    start = time.perf_counter()
    loader = torch.utils.data.DataLoader(TorchItems(path), batch_sampler=batches, **options)
    next(iter(loader))
    first = time.perf_counter() - start
    found = [measure(iter(loader)) for _ in range(num_turns)]
    return {**max(found, key=lambda turn: turn["frames/s"]), "first batch s": first}


class Made:
    """Sequences made on the spot, of the same lengths."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, corpus_idx: int) -> dict[str, np.ndarray]:
        return {"data": np.zeros((int(self.lengths[corpus_idx]), 1), np.float32)}


def start_and_resume(num_seqs: int) -> dict[str, float]:
    """Measure the time to the first batch of an epoch, and of one that is resumed at 50 and 99 %."""
    lengths = draw_lengths(num_seqs)
    dataset = MapDataset(Made(lengths), lengths={"data": lengths}, seq_ordering="permute")
    dataset.source.index.digest  # noqa: B018 (known beforehand, as that of an index in a file)
    found = {}
    with DataLoader(dataset, batching=BATCHING) as loader:
        plan = loader._plan_of(1)
        num_batches, state = plan.num_batches(), loader.state_dict()
        for share in (0.0, 0.5, 0.99):
            position = int(num_batches * share)
            saved = {**state, "position": position, "window": list(plan.locate(position))}
            start = time.perf_counter()
            with DataLoader(dataset, batching=BATCHING) as other:
                other.load_state_dict(saved)
                assert next(iter(other)).position == position
            found[f"at {share:.0%} s"] = time.perf_counter() - start
    return found


def waiting_share(num_seqs: int, order: BatchOrder) -> float:
    """Return the share of its time that a rank waits for the slowest of eight, if time is padded frames."""
    lengths = np.random.default_rng(3).permutation(draw_lengths(num_seqs))
    costs = []
    for window in range(num_windows(num_seqs, 65_536)):
        start, stop = window_bounds(window, num_seqs, 65_536)
        costs.append(BATCHING.plan_window(lengths[start:stop], WindowKey(1, 1, window), order).costs)
    steps = np.concatenate(costs)
    steps = steps[: len(steps) // WORLD_SIZE * WORLD_SIZE].reshape(-1, WORLD_SIZE)
    return float(1 - steps.sum() / (steps.max(axis=1).sum() * WORLD_SIZE))


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small corpora: a check that it runs")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    num_seqs, num_turns = (300, 1) if arguments.quick else (6000, 3)
    contenders: dict[str, Callable[[str, int], dict[str, float]]] = {"Headrace": ours}
    if importlib.util.find_spec("torch") is not None:
        contenders["torch DataLoader"] = torchs
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADRACE_CACHE"] = os.path.join(folder, "cache")
        path = os.path.join(folder, "corpus.hdf")
        write_corpus(path, num_seqs)
        for name, contender in contenders.items():
            results[name] = contender(path, num_turns)
            print(f"{name:20}", ", ".join(f"{key} {value:,.2f}" for key, value in results[name].items()))
    for number in (10**4, 10**5 if arguments.quick else 10**7):
        results[f"{number:,} sequences"] = found = start_and_resume(number)
        print(f"{number:>12,} seqs   ", ", ".join(f"{key} {value:.3f}" for key, value in found.items()))
    for name, order in (("grouped", BatchOrder()), ("shuffled only", BatchOrder("shuffle", 1))):
        share = results[f"waiting, {name}"] = waiting_share(10**4 if arguments.quick else 10**6, order)
        print(f"a rank of {WORLD_SIZE} waits, batches {name}: {share:.1%}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
