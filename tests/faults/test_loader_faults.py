"""A loader whose workers die, whose consumer keeps all batches, or is killed itself: the batches stay the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import DataLoader, StaticDataset, WorkerDiedError
from headrace.batching import FixedCount, FrameBudget
from headrace.engine import EngineOptions, Raising
from headrace.engine.process.proc_tree import descendants_of

pytestmark = pytest.mark.usefixtures("warm_workers")


def _dataset() -> StaticDataset:
    seqs = [{"data": np.full((i % 13 + 1, 3), i, np.float32)} for i in range(300)]
    return StaticDataset(seqs, seq_ordering="random")


def _print_of(batch: Any) -> tuple[Any, ...]:
    return batch.position, batch.tags, batch["data"].tobytes(), batch.lengths["data"].tolist()


def _noisy(seq: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"data": seq["data"] + rng.random(seq["data"].shape, dtype=np.float32)}


def _dies(once: Callable[[], bool]) -> Any:
    def transform(seq: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if seq["data"][0, 0] == 150 and once():
            os.kill(os.getpid(), signal.SIGKILL)
        return _noisy(seq, rng)

    return transform


def test_a_killed_worker_changes_no_batch(once: Callable[[], bool]) -> None:
    options = {"batching": FrameBudget(50), "num_workers": 2}
    with DataLoader(_dataset(), transform=_noisy, **options) as loader:
        expected = [_print_of(batch) for batch in loader]
    with DataLoader(_dataset(), transform=_dies(once), **options) as loader:
        assert [_print_of(batch) for batch in loader] == expected
        assert loader.report.num_restarts == 1
        assert "1 restarts" in loader.explain()


def test_after_an_error_the_state_is_that_of_the_last_batch_and_the_loader_can_go_on(once: Callable[[], bool]) -> None:
    with DataLoader(_dataset(), batching=FixedCount(4)) as loader:
        expected = [batch.tags for batch in loader]
    options = {"batching": FixedCount(4), "num_workers": 1, "engine_options": EngineOptions(on_death=Raising())}
    with DataLoader(_dataset(), transform=_dies(once), **options) as loader:
        found = []
        with pytest.raises(WorkerDiedError):
            found.extend(batch.tags for batch in loader)
        state = loader.state_dict()
        assert state["position"] < len(expected)
        loader.load_state_dict(state)
        rest = [batch.tags for batch in loader]
    assert rest == expected[state["position"] :]


_PROGRAM = """
import json, os, signal, sys
import numpy as np
import headrace as hr
from headrace.batching import FrameBudget

state_path, kill_at, workers, rank, world_size = sys.argv[1], *map(int, sys.argv[2:])
seqs = [{"data": np.full((i % 13 + 1, 3), i, np.float32)} for i in range(300)]
loader = hr.DataLoader(
    hr.StaticDataset(seqs, seq_ordering="random"),
    batching=FrameBudget(50),
    num_workers=workers,
    rank=rank,
    world_size=world_size,
    remainder="pad",
    transform=lambda seq, rng: {"data": seq["data"] + rng.random(seq["data"].shape, dtype=np.float32)},
)
if os.path.exists(state_path):
    loader.load_state_dict(json.load(open(state_path)))
for step, batch in enumerate(loader):
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    print(batch.position, batch.is_repeat, batch["data"].sum(), flush=True)
    with open(state_path + ".new", "w") as file:
        json.dump(loader.state_dict(), file)
    os.replace(state_path + ".new", state_path)
loader.close()
"""


def _run(path: Path, *arguments: object) -> list[str]:
    command = [sys.executable, "-c", _PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=path, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.stdout.splitlines()


def test_a_trainer_that_was_killed_goes_on_with_other_workers_and_ranks_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    expected = _run(tmp_path, "whole", 10**6, 0, 0, 1)
    found = _run(tmp_path, "state", 5, 2, 0, 1)
    assert len(found) == 5
    state = tmp_path / "state"
    assert json.loads(state.read_text())["position"] == 5
    for rank in (0, 1):
        (tmp_path / f"state{rank}").write_text(state.read_text())
        found += _run(tmp_path, f"state{rank}", 10**6, 1 - rank, rank, 2)
    own = {line for line in found if " False " in line}
    assert own == set(expected)
    assert len(found) - len(own) == (len(expected) - 5) % 2  # the last step is filled up


def test_closing_leaves_no_process_and_del_is_enough() -> None:
    loader = DataLoader(_dataset(), batching=FixedCount(4), num_workers=2)
    iterator = iter(loader)
    next(iterator)
    assert descendants_of(os.getpid())
    del loader, iterator  # the fixture looks whether anything is left
