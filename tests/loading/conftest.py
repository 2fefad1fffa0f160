"""What the tests of the loader read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from servers.leaks import nothing_left


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_left():
        yield


def make_seqs(lengths: list[int]) -> list[dict[str, Any]]:
    return [
        {"data": np.full((n, 2), i, np.float32), "classes": np.arange(n, dtype=np.int32)} for i, n in enumerate(lengths)
    ]


@pytest.fixture
def seqs() -> list[dict[str, Any]]:
    """Return forty sequences of 1 to 20 frames."""
    return make_seqs([7 * i % 20 + 1 for i in range(40)])
