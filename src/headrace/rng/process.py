"""The generators that belong to the whole process: those of Python, of NumPy, and of torch if it is loaded.

Headrace never draws from them. It seeds them for user code that does, and restores them where they belong to the user.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import MT19937

from .keyed import derive_seed

GlobalsState = tuple[Any, ...]


def seed_globals(seed: int, purpose: str, *, epoch: int = 0, number: int = 0) -> None:
    """Seed all three for one piece of work, whichever process does it. About 12 us, most of it for Python's.

    Args:
        seed: 64 bits, signed or not.
        purpose: See `derive_seed`.
        epoch: The epoch.
        number: Number of the piece of work.
    """
    signed = seed - 2**64 if seed >= 2**63 else seed
    derived = derive_seed(signed, purpose, epoch=epoch, corpus_idx=number, bits=63)
    random.seed(derived)
    if type(np.random.get_bit_generator()) is MT19937:  # type: ignore[attr-defined, unused-ignore]
        np.random.seed(derived % 2**32)
    else:  # the user's own: NumPy seeds its own only
        np.random.set_bit_generator(MT19937(derived))  # type: ignore[attr-defined, unused-ignore]
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(derived)


def globals_state() -> GlobalsState:
    """Return the states of all three, as values that can be pickled."""
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state().numpy()
    return random.getstate(), np.random.get_state(), of_torch


def set_globals_state(state: GlobalsState) -> None:
    """Restore the states of all three."""
    of_python, of_numpy, of_torch = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_torch is not None and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(torch.from_numpy(of_torch.copy()))


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restore all three on exit. They belong to the process, so several threads cannot do this at once.

    About 0.2 ms, besides the cost of seeding them.
    """
    torch = sys.modules.get("torch")
    of_python, of_torch = random.getstate(), None if torch is None else torch.get_rng_state()
    generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined, unused-ignore]
    of_numpy: Any = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(of_python)
        if np.random.get_bit_generator() is not generator:  # type: ignore[attr-defined, unused-ignore]
            np.random.set_bit_generator(generator)  # type: ignore[attr-defined, unused-ignore]
        np.random.set_state(of_numpy)
        if of_torch is not None and torch is not None:
            torch.set_rng_state(of_torch)
