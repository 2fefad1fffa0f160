"""What the tests of the loader read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.sources import HDFWriter
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


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return six HDF files of ten sequences of 1 to 7 frames."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    paths = []
    for number in range(6):
        paths.append(str(tmp_path / f"{number}.hdf"))
        with HDFWriter(paths[-1]) as writer:
            for i in range(10):
                length = (number + 3 * i) % 7 + 1
                writer.append(f"{number}/{i}", {"data": np.full((length, 2), 10 * number + i, np.float32)})
    return paths
