"""The global generators of Python, NumPy and torch in processes of ours; in the user's process they are left alone."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.pipes.seeds import SeedGenerator
from headrace.rng import derive_seed

_HALF = 2**63


def seed_globals(seeds: SeedGenerator, *, shared: bool = False) -> None:
    """Seed the three generators from three successive seeds.

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


def seed_globals_for(key: int, number: int) -> None:
    """Seed the three generators for one item, whoever makes it. About 20 us.

    Args:
        key: Of the epoch, 64 bits.
        number: Of the item in the stream.
    """
    seed = derive_seed(key - 2 * _HALF if key >= _HALF else key, "pipes: item", corpus_idx=number, bits=63)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)


def globals_state() -> tuple[Any, ...]:
    """Return where the three generators are."""
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state().numpy()
    return random.getstate(), np.random.get_state(), of_torch


def set_globals_state(state: tuple[Any, ...]) -> None:
    """Put the three generators back to where they were."""
    of_python, of_numpy, of_torch = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_torch is not None and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(torch.from_numpy(of_torch.copy()))


@contextlib.contextmanager
def globals_kept() -> Iterator[None]:
    """Put the three generators back in the end, for code that runs in the user's process."""
    state = globals_state()
    try:
        yield
    finally:
        set_globals_state(state)
