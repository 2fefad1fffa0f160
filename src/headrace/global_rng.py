"""The generators that belong to the whole process: those of Python, of NumPy, and of torch if it is loaded.

Nothing of ours draws from them. They are seeded for foreign code that does, and put back where they are the user's.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .rng import derive_seed

GlobalsState = tuple[Any, ...]


def seed_globals(seed: int, purpose: str, *, epoch: int = 0, number: int = 0) -> None:
    """Seed all three for one piece of work, whoever does it. About 10 us.

    Args:
        seed: 64 bits, signed or not.
        purpose: See `derive_seed`.
        epoch: The epoch.
        number: Of the piece of work.
    """
    signed = seed - 2**64 if seed >= 2**63 else seed
    derived = derive_seed(signed, purpose, epoch=epoch, corpus_idx=number, bits=63)
    random.seed(derived)
    np.random.seed(derived % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(derived)


def globals_state() -> GlobalsState:
    """Return where the three are: values that can be pickled."""
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state().numpy()
    return random.getstate(), np.random.get_state(), of_torch


def set_globals_state(state: GlobalsState) -> None:
    """Put the three back to where they were."""
    of_python, of_numpy, of_torch = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_torch is not None and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(torch.from_numpy(of_torch.copy()))


@contextmanager
def kept_globals() -> Iterator[None]:
    """Put the three back in the end. They are the process's, so this is of no use to several threads at once."""
    state = globals_state()
    try:
        yield
    finally:
        set_globals_state(state)
