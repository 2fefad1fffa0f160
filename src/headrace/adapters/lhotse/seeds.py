"""Samplers that draw from the global generators of Python, NumPy or torch when a pass begins.

The states of the generators are recorded, so that a resume can begin the pass in the same way. torch is never imported
for this.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def watched_globals(replaced: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Record the states of the generators, if the block draws from them; or set states that were recorded before.

    Args:
        replaced: Recorded states, by generator. The current ones are restored at the end.

    Yields:
        A dict that holds, after the block, plain data for each generator that was drawn from.
    """
    before = plain_globals()
    found: dict[str, Any] = {}
    _set_states(replaced)
    try:
        yield found
    finally:
        _set_states({name: state for name, state in before.items() if name in replaced})
        now = plain_globals()
        found.update({name: state for name, state in before.items() if now.get(name) != state})
        found.update(replaced)


def plain_globals() -> dict[str, Any]:
    """Return the states of the global generators as JSON data: `random` and `numpy`, and `torch` if it is loaded."""
    found = {"random": plain_python(random.getstate()), "numpy": plain_legacy(np.random.get_state(legacy=True))}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = pack(torch.get_rng_state().numpy())
    return found


def _set_states(states: Mapping[str, Any]) -> None:
    if "random" in states:
        random.setstate(python_state(states["random"]))
    if "numpy" in states:
        np.random.set_state(legacy_state(states["numpy"]))
    torch = sys.modules.get("torch")
    if "torch" in states and torch is not None:
        torch.set_rng_state(torch.from_numpy(unpack(states["torch"], np.uint8).copy()))


def plain_python(state: Any) -> Any:
    """Return the state of a `random.Random` as JSON data."""
    version, words, gauss = state
    return [version, pack(np.array(words, np.uint32)), gauss]


def python_state(plain: Any) -> Any:
    """Return the state that `plain_python` was given."""
    version, words, gauss = plain
    return version, tuple(unpack(words, np.uint32).tolist()), gauss


def plain_legacy(state: Any) -> Any:
    """Return the state of a `numpy.random.RandomState` as JSON data."""
    name, keys, position, has_gauss, cached = state
    return [name, pack(np.asarray(keys, np.uint32)), int(position), int(has_gauss), float(cached)]


def legacy_state(plain: Any) -> Any:
    """Return the state that `plain_legacy` was given."""
    name, keys, position, has_gauss, cached = plain
    return name, unpack(keys, np.uint32), position, has_gauss, cached


def pack(array: Any) -> str:
    """Return the bytes of an array as text."""
    return base64.b64encode(array.tobytes()).decode()


def unpack(text: str, dtype: Any) -> Any:
    """Return the array that `pack` encoded."""
    return np.frombuffer(base64.b64decode(text), dtype)
