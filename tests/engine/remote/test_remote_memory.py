"""The memory that results are received into: bounded, reused, and never written while anybody looks at it."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.engine.remote import memory as memory_module
from headrace.engine.remote.memory import ReceiveMemory, capacity_for
from headrace.engine.remote.wire import charge

LIMIT = 1 << 20


@given(st.integers(1, 1 << 40))
def test_a_slot_is_at_most_a_quarter_larger_than_the_pages_of_its_result(num_bytes: int) -> None:
    assert charge(num_bytes) <= capacity_for(num_bytes) <= 1.25 * charge(num_bytes)
    assert capacity_for(capacity_for(num_bytes)) == capacity_for(num_bytes)


def _taken_bytes(memory: ReceiveMemory) -> int:
    return os.fstat(memory._fd).st_blocks * 512


@examples(40)
@given(st.lists(st.tuples(st.integers(1, LIMIT // 2), st.integers(0, 3)), max_size=60))
def test_results_keep_their_values_and_memory_its_bound_whoever_keeps_what(turns: list[tuple[int, int]]) -> None:
    memory = ReceiveMemory(LIMIT)
    kept: deque[tuple[Any, int]] = deque()
    for number, (num_bytes, num_dropped) in enumerate(turns):
        for _ in range(min(num_dropped, len(kept))):
            view, value = kept.popleft()
            assert (view == value).all()
            del view
        memory.drain()
        while memory.held_bytes + charge(num_bytes) > LIMIT:
            kept.popleft()
            memory.drain()
        view = memory.reserve(num_bytes)
        assert view.nbytes == num_bytes
        view.fill(number % 251)
        kept.append((view[: num_bytes // 2 + 1], number % 251))
        del view
        assert memory.held_bytes == sum(charge_of(view) for view, _ in kept)
        assert _taken_bytes(memory) <= 1.25 * LIMIT + (8 << 10)
    for view, value in kept:
        assert (view == value).all()
    memory.close()
    memory.close()


def charge_of(view: Any) -> int:
    base = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    return charge(base.nbytes)


def test_small_results_that_are_kept_take_no_slots_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_MAX_LEASES", 10)
    memory = ReceiveMemory(1 << 30)
    views = []
    for number in range(100):
        view = memory.reserve(5000)
        view.fill(number)
        views.append(view)
        memory.drain()
    assert memory.held_bytes <= 12 * charge(5000)
    assert all((view == number).all() for number, view in enumerate(views))
    memory.close()
