"""Parts of an epoch that others make, as tasks of Ray Data do, are the batches of the loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.engine import Skipping
from headrace.loading.iterate import LoaderPosition
from headrace.ranks import Ranks


def noisy(seq: dict[str, Any], rng: Any) -> dict[str, Any]:
    if len(seq["x"]) == 4:
        raise ValueError("a bad one")
    return {"x": seq["x"] + rng.random(len(seq["x"]))}


def open_loader(**options: Any) -> hr.DataLoader:
    items = [{"x": np.full(1 + number % 5, float(number))} for number in range(30)]
    options = {"batch_size": 4, "shuffle": True, "seed": 1, "transform": noisy, "seed_globals": False, **options}
    return hr.DataLoader(items, engine_options=hr.EngineOptions(on_error=Skipping(99)), **options)


@given(st.integers(1, 12), st.integers(0, 2), st.integers(1, 3), st.sampled_from(["drop", "pad", "keep"]))
def test_any_number_of_portions_are_the_rest_of_the_epoch(
    num: int, num_done: int, world_size: int, remainder: str
) -> None:
    position, ranks = LoaderPosition(2, num_done * world_size), Ranks(world_size - 1, world_size, "told")
    with open_loader(rank=ranks.rank, world_size=world_size, remainder=remainder) as loader:
        loader.set_epoch(2)
        expected = [(batch.tags, batch["x"].tolist()) for batch in loader][num_done:]
        portions = loader._runs.portions(position, ranks, None)
    cut = portions.cut(num)
    assert len(cut) == max(min(num, len(portions)), 1)
    parcel = portions.parcel
    rows = [row for part in cut for row in part.rows(parcel.data, [buffer.raw() for buffer in parcel.buffers])]
    assert [(row["tags"], row["x"].tolist()) for row in rows] == expected
    assert {part.num_rows for part in cut} == {None}  # batches of nothing but bad sequences are left out


def test_what_is_passed_over_ends_the_iteration_and_is_the_epoch_that_was_next() -> None:
    with open_loader(rank=0, world_size=1) as loader:
        iterator = iter(loader)
        next(iterator)
        position, _ = loader._iterations.pass_over()
        assert position == LoaderPosition(2)
        with pytest.raises(hr.HeadraceError, match="asked for a dataset of the next epoch"):
            list(iterator)
        assert next(iter(loader)).epoch == 3
