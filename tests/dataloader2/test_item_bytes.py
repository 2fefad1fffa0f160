"""How many bytes an item takes on its way."""

from __future__ import annotations

import numpy as np

from headrace.dataloader2.transport.item_bytes import estimate_bytes


def test_the_bytes_of_an_item_are_those_of_its_arrays_and_texts() -> None:
    assert estimate_bytes(np.zeros(1000, np.float64)) == 8000
    assert 8100 <= estimate_bytes({"a": np.zeros(1000), "b": ["x" * 100]}) <= 8300
    assert 50_000 <= estimate_bytes([b"x" * 100] * 500) <= 60_000
    assert estimate_bytes(None) == 8
