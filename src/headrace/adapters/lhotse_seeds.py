"""The global generators of Python, NumPy and torch, for code that draws from them.

A worker seeds them for each batch, so that what is drawn does not depend on who makes it. In the user's own process
they are put back. A sampler that draws from them when a pass begins is noted, so that a resume can begin it likewise.
torch is never imported for this.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace.rng import derive_seed

_HALF = 2**63


def seed_globals(key: int, number: int) -> None:
    """Seed the generators for one batch. About 10 us.

    Args:
        key: Of the pass, 64 bits.
        number: Of the batch among those of all ranks.
    """
    seed = derive_seed(key - 2 * _HALF if key >= _HALF else key, "lhotse: batch", corpus_idx=number, bits=63)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


@contextmanager
def kept_globals() -> Iterator[None]:
    """Put the generators back in the end."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)


@contextmanager
def watched_globals(replaced: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Note the generators as they are, if the block draws from them; or put in what was noted another time.

    Args:
        replaced: What was noted, by generator. Those are put back at the end.

    Yields:
        A dict that holds, after the block, plain data for each generator that was drawn from.
    """
    before = _states()
    found: dict[str, Any] = {}
    _set_states(replaced)
    try:
        yield found
    finally:
        _set_states({name: state for name, state in before.items() if name in replaced})
        now = _states()
        found.update({name: state for name, state in before.items() if now.get(name) != state})
        found.update(replaced)


def _states() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    found: dict[str, Any] = {
        "random": [version, _pack(np.array(words, np.uint32)), gauss],
        "numpy": [name, _pack(np.asarray(keys, np.uint32)), int(position), int(has_gauss), float(cached)],
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = _pack(torch.get_rng_state().numpy())
    return found


def _set_states(states: Mapping[str, Any]) -> None:
    if "random" in states:
        version, words, gauss = states["random"]
        random.setstate((version, tuple(_unpack(words, np.uint32).tolist()), gauss))
    if "numpy" in states:
        name, keys, position, has_gauss, cached = states["numpy"]
        np.random.set_state((name, _unpack(keys, np.uint32), position, has_gauss, cached))
    torch = sys.modules.get("torch")
    if "torch" in states and torch is not None:
        torch.set_rng_state(torch.from_numpy(_unpack(states["torch"], np.uint8).copy()))


def _pack(array: Any) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _unpack(text: str, dtype: Any) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype)
