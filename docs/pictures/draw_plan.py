"""Draws `plan.png`: what `hr.plot` shows of a frame budget without buckets."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

import headrace as hr


def main() -> None:
    """Draw it again: the same picture each time."""
    lengths = np.random.default_rng(0).lognormal(5, 0.5, 700).astype(int) + 1
    items = [{"data": np.zeros((1, 1), np.float32)}] * len(lengths)
    dataset = hr.MapDataset(items, lengths={"data": lengths}, seq_ordering="random")
    with hr.DataLoader(dataset, batching=hr.FrameBudget(4_000)) as loader:
        drawn = io.BytesIO()
        hr.plot(loader, world_size=4).savefig(drawn, dpi=70)
    few_colours = Image.open(drawn).convert("RGB").quantize(24)
    few_colours.save(Path(__file__).with_name("plan.png"), optimize=True)


if __name__ == "__main__":
    main()
