"""Seeds for foreign code that draws from the global generators of Python, NumPy and torch."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from headrace.rng import derive_seed


@contextmanager
def seeded_globals(seed: int, epoch: int, number: int) -> Iterator[None]:
    """Seed the global generators by a batch, and put them back as they were; torch's only if torch is loaded.

    They belong to the whole process, so this is of no use to several threads at once.

    Args:
        seed: Of the loader.
        epoch: Of the batch.
        number: Of the batch in the epoch.
    """
    derived = derive_seed(seed, "global generators", epoch=epoch, corpus_idx=number, bits=63)
    torch = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = None if torch is None else torch.get_rng_state()
    random.seed(derived)
    np.random.seed(derived % 2**32)
    if torch is not None:
        torch.default_generator.manual_seed(derived)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)
