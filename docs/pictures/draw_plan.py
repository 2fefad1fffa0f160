"""Draws `plan.png`: what `hr.plot` shows of a frame budget without buckets."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import headrace as hr


def main() -> None:
    """Draw it again: the same picture each time."""
    lengths = np.random.default_rng(0).lognormal(5, 0.5, 700).astype(int) + 1
    items = [{"data": np.zeros((1, 1), np.float32)}] * len(lengths)
    dataset = hr.MapDataset(items, lengths={"data": lengths}, seq_ordering="random")
    with hr.DataLoader(dataset, batching=hr.FrameBudget(4_000)) as loader:
        hr.plot(loader, world_size=4).savefig(Path(__file__).with_name("plan.png"), dpi=70, metadata={"Software": None})


if __name__ == "__main__":
    main()
