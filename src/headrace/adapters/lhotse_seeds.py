"""Samplers that draw from the global generators of Python, NumPy or torch when a pass begins.

Where the generators were is noted, so that a resume can begin the pass likewise. torch is never imported for this.
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
