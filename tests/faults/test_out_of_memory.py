"""Workers that the kernel kills over a sequence: the error says what ran out, at which sequence, and what to do."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import DataLoader, StaticDataset, WorkerDiedError
from headrace.batching import FixedCount
from headrace.engine import EngineOptions, Raising, Restarting
from headrace.engine.process import exit_cause
from headrace.engine.process.exit_cause import MEMORY_ADVICE

_SEQS = [{"data": np.full((4, 2), number, np.float32)} for number in range(20)]
_TAG = "seq-7"


def _error_of(transform: Callable[..., Any], on_death: Raising | Restarting, num_workers: int) -> str:
    """The text of the error of a loader whose worker dies over one sequence, each time."""
    options = EngineOptions(on_death=on_death)
    loader = DataLoader(
        StaticDataset(_SEQS),
        batching=FixedCount(4),
        transform=transform,
        num_workers=num_workers,
        engine_options=options,
    )
    with loader, pytest.raises(WorkerDiedError) as info:
        list(loader)
    return str(info.value)


def _dies(counter: Path) -> Callable[..., Any]:
    """A transform whose process is killed over one sequence, of which the counter of the kernel tells."""

    def transform(seq: dict[str, Any]) -> dict[str, Any]:
        if seq["data"][0, 0] == 7:
            with counter.open("a") as file:
                file.write("killed\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return seq

    return transform


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("is_counted", [True, False])
def test_a_worker_that_is_killed_over_a_sequence_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_counted: bool, num_workers: int
) -> None:
    counter = tmp_path / "oom_kills"
    counter.touch()
    # The kernel's counter is that of the machine, or of a group that a test may not make: this one stands in for it.
    monkeypatch.setattr(exit_cause, "count_oom_kills", lambda: len(counter.read_text().split()) if is_counted else 0)
    text = _error_of(_dies(counter), Restarting(budget=2), num_workers)
    assert "was killed by signal 9 (SIGKILL)" in text
    assert f"where: tag {_TAG!r}, epoch 1, ticket 1" in text
    assert f"it was number 3 of this run and on_death allows 2; 3 workers died at tag {_TAG!r}, epoch 1" in text
    assert ("probably because memory ran out" in text) == is_counted
    assert ("rose from 2 to 3" in text) == is_counted
    assert (f"fix: {MEMORY_ADVICE}; it was" in text) == is_counted


# Its process and all that it starts may have so much memory together; each worker that reads sequence 7 wants more.
_LIMIT_BYTES = 400 << 20
_PROGRAM = """
import sys
with open({group!r} + "/cgroup.procs", "w") as file:
    file.write("0")
import numpy as np
from headrace import DataLoader, StaticDataset, WorkerDiedError
from headrace.batching import FixedCount
from headrace.engine import EngineOptions, Restarting

def greedy(seq):
    if seq["data"][0, 0] == 7:
        hoard = [np.ones(1 << 20) for _ in range(100)]
        assert not hoard
    return seq

seqs = [{{"data": np.full((4, 2), number, np.float32)}} for number in range(20)]
options = EngineOptions(on_death=Restarting(budget=1))
with DataLoader(
    StaticDataset(seqs), batching=FixedCount(4), transform=greedy, num_workers=1, engine_options=options
) as loader:
    try:
        list(loader)
    except WorkerDiedError as error:
        print(error)
"""


def _own_groups() -> Iterator[tuple[Path, str]]:
    """The folders of the control groups of this process that limit memory, and what the limit is called in them."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            yield Path("/sys/fs/cgroup", path.lstrip("/")), "memory.max"
        elif "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory", path.lstrip("/")), "memory.limit_in_bytes"


def _make_small_group() -> Path | None:
    """Make a control group below that of this process whose memory is limited; None where that is not possible."""
    for own, limit in _own_groups():
        group = own / f"headrace-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            # A folder of an ordinary file system has no such file: it must be there already.
            with (group / limit).open("r+") as file:
                file.write(str(_LIMIT_BYTES))
        except OSError:
            group.rmdir()
        else:
            return group
    return None


@pytest.fixture
def small_group(wait_until: Callable[[Callable[[], bool], str], None]) -> Iterator[Path]:
    group = _make_small_group()
    if group is None:
        pytest.skip("no control group may be made here")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "processes of the group are left")
    group.rmdir()


def test_a_worker_that_runs_out_of_memory_is_told_as_such(
    small_group: Path, run_program: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = run_program(_PROGRAM.format(group=str(small_group)))
    assert result.returncode == 0, result.stderr
    assert "probably because memory ran out: the out-of-memory kills of its control group rose from 1 to 2" in (
        result.stdout
    )
    assert f"where: tag {_TAG!r}, epoch 1, ticket 1" in result.stdout
    assert f"fix: {MEMORY_ADVICE}; it was number 2" in result.stdout
