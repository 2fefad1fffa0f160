"""The global generators of processes of ours, at the start of an epoch."""

from __future__ import annotations

import random
import sys

import numpy as np

from headrace.pipes.seeds import SeedGenerator


def seed_globals_from(seeds: SeedGenerator, *, shared: bool = False) -> None:
    """Seed the three generators from three successive seeds, as documented.

    Args:
        seeds: Where they come from.
        shared: Take shared seeds instead of this worker's own.
    """
    of_python, of_torch, of_numpy = (
        seeds.generate_shared_seed() if shared else seeds.generate_seed() for _ in range(3)
    )
    random.seed(of_python)
    np.random.seed(of_numpy >> 32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(of_torch)
