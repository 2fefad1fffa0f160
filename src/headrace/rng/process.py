"""The generators that belong to the whole process: those of Python, of NumPy, and of torch if it is loaded.

Headrace never draws from them. It seeds them for user code that does, and restores them where they belong to the user.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import MT19937

from .lazy import MT19937_BYTES, key_seed, note_another, of_numpy, of_python, settled_bit_generator

GlobalsState = tuple[Any, ...]


def seed_globals(seed: int, purpose: str, *, epoch: int = 0, number: int = 0, lazily: bool = False) -> None:
    """Seed all three for one piece of work, whichever process does it. About 7 us, most of it for Python's.

    Args:
        seed: 64 bits, signed or not.
        purpose: See `derive_seed`.
        epoch: The epoch.
        number: Number of the piece of work.
        lazily: Let those of Python and NumPy be seeded when they are next drawn from, see `lazy.py`: about 1 us, and
            what is drawn is the same. For processes of our own, in which no other code draws.
    """
    signed = seed - 2**64 if seed >= 2**63 else seed
    key = signed, purpose, epoch, number
    torch = sys.modules.get("torch")
    if lazily and torch is None and note_another(key):
        return
    is_python_done, is_numpy_done = lazily and of_python.note(key), lazily and of_numpy.note(key)
    if is_python_done and is_numpy_done and torch is None:
        return
    derived = key_seed(key)
    if not is_python_done:
        random.seed(derived)
    if is_numpy_done:
        pass
    elif type(settled_bit_generator()) is MT19937:
        np.random.seed(derived % 2**32)
    else:  # the user's own: NumPy seeds its own only
        np.random.set_bit_generator(MT19937(derived))  # type: ignore[attr-defined, unused-ignore]
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


class _KeptNumpy:
    """Keeps the state of NumPy's generator and restores it, in some 5 us.

    `np.random.get_state` and `set_state` go through the 624 words one by one, 150 us. So the memory at the address in
    `BitGenerator.ctypes` is copied instead. A normal number that is buffered for the next call is not in that memory: a
    draw shows whether there is one, because it returns that, and leaves the memory unchanged.
    """

    def __init__(self) -> None:
        self._generator = settled_bit_generator()
        self._held_back: float | None = None
        if type(self._generator) is not MT19937:  # the user's own: it is replaced by another one meanwhile
            self._state = np.random.get_state(legacy=False)
            return
        address = self._generator.ctypes.state_address
        self._memory = ctypes.string_at(address, MT19937_BYTES)
        drawn = np.random.standard_normal()
        if ctypes.string_at(address, MT19937_BYTES) == self._memory:
            self._held_back = drawn

    def put_back(self) -> None:
        """Restore it."""
        if settled_bit_generator() is not self._generator:
            np.random.set_bit_generator(self._generator)  # type: ignore[attr-defined, unused-ignore]
        if type(self._generator) is not MT19937:
            np.random.set_state(self._state)
            return
        np.random.seed(0)  # so that nothing is buffered
        ctypes.memmove(self._generator.ctypes.state_address, self._memory, MT19937_BYTES)
        if self._held_back is not None:
            state: Any = np.random.get_state(legacy=False)
            np.random.set_state({**state, "has_gauss": 1, "gauss": self._held_back})


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restore all three on exit. They belong to the process, so several threads cannot do this at once.

    About 20 us, besides what seeding them costs.
    """
    of_numpy, of_python = _KeptNumpy(), random.getstate()
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        of_numpy.put_back()
        if of_torch is not None and torch is not None:
            torch.set_rng_state(of_torch)
