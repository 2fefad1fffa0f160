"""The example with torchrun, killed in mid-epoch: it goes on with the same losses, or with fewer ranks."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import HDFWriter
from headrace.engine.process.proc_tree import descendants_of

pytest.importorskip("torch.distributed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_torchrun.py"
NUM_SEQS, NUM_EPOCHS, NUM_LINES = 120, 6, 12
_DEADLINE_SECONDS = 200.0
_PIPE_BYTES = 4096  # the least that a pipe holds: some twenty lines
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "OMPI_", "PMI_")

Line = dict[str, Any]


@pytest.fixture(scope="module")
def hdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "words.hdf"
    rng = np.random.default_rng(1)
    with HDFWriter(path, labels={"classes": ["one", "two", "three"], "language": ["en", "fr"]}) as writer:
        for number in range(NUM_SEQS):
            data = rng.normal(size=(int(rng.integers(10, 40)), 8)).astype(np.float32)
            targets = {key: np.array([number % dim], np.int32) for key, dim in (("classes", 3), ("language", 2))}
            writer.append(f"a-word-with-a-long-name-{number:04d}", {"data": data, **targets})
    return path


def start_job(hdf: Path, folder: Path, num_ranks: int, num_workers: int = 1) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    options = {
        "--epochs": NUM_EPOCHS,
        "--max-frames": 200,
        "--num-workers": num_workers,
        "--checkpoint": folder / "checkpoint.pt",
        "--record": folder,
    }
    words = [*launcher, EXAMPLE, hdf, *(word for option in options.items() for word in option)]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OF_RANKS)}
    environment |= {"OMP_NUM_THREADS": "1", "HEADRACE_CACHE": str(folder / "indices")}
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(list(map(str, words)), env=environment, text=True, **streams)


def run_job(hdf: Path, folder: Path, num_ranks: int, num_workers: int = 1) -> list[list[Line]]:
    """Return what each rank was given."""
    folder.mkdir(exist_ok=True)
    job = start_job(hdf, folder, num_ranks, num_workers)
    _, errors = job.communicate(timeout=_DEADLINE_SECONDS)
    assert job.returncode == 0, errors
    return [read_lines((folder / f"rank-{rank}.jsonl").read_text()) for rank in range(num_ranks)]


def read_lines(text: str) -> list[Line]:
    """Return the whole lines."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def kill_job(hdf: Path, folder: Path) -> None:
    """Run on two ranks until rank 0 has done some steps, and kill all processes.

    Rank 0 cannot be far ahead of that, because it writes what it was given to a small pipe.
    """
    folder.mkdir()
    os.mkfifo(folder / "rank-0.jsonl")
    reader = os.open(folder / "rank-0.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    job = start_job(hdf, folder, 2)
    found = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while found.count(b"\n") < NUM_LINES:
        if not [event for _, event in poll.poll(10) if event & select.POLLIN]:
            assert job.poll() is None, job.stderr and job.stderr.read()
            continue
        found += os.read(reader, 200)
    pids = [job.pid, *descendants_of(job.pid)]
    descriptors = {pid: os.pidfd_open(pid) for pid in pids}
    for descriptor in descriptors.values():
        with contextlib.suppress(ProcessLookupError):  # it ended with those that were killed before it
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    job.communicate()
    for pid, descriptor in descriptors.items():
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(1000 * _DEADLINE_SECONDS), f"process {pid} lives on"
        os.close(descriptor)
    os.close(reader)
    os.unlink(folder / "rank-0.jsonl")


def position_in(folder: Path) -> tuple[int, int]:
    import torch

    state = torch.load(folder / "checkpoint.pt", weights_only=True)["loader"]
    return state["epoch"], state["position"]


@pytest.mark.slow
@pytest.mark.kernel_timing  # the processes are killed wherever they are
def test_two_ranks_that_were_killed_go_on_with_the_same_losses_or_as_one(hdf: Path, tmp_path: Path) -> None:
    expected = run_job(hdf, tmp_path / "whole", 2)
    assert len(expected[0]) == len(expected[1]) > NUM_LINES + 30
    kill_job(hdf, tmp_path / "two")
    epoch, position = position_in(tmp_path / "two")
    assert (epoch, position) > (1, 0)
    shutil.copytree(tmp_path / "two", tmp_path / "one")

    # with two ranks, it is as if nothing had happened: losses, tags and positions, bit for bit
    resumed = run_job(hdf, tmp_path / "two", 2, num_workers=2)
    for rank, lines in enumerate(resumed):
        left = [line for line in expected[rank] if (line["epoch"], line["position"]) >= (epoch, position)]
        assert 0 < len(left) < len(expected[rank])
        assert lines == left
    names = {path.name for path in (tmp_path / "two").iterdir()}
    assert names - {"indices"} == {"checkpoint.pt", "rank-0.jsonl", "rank-1.jsonl"}

    # with one, the same batches: each of those that were left, once, in the order of their numbers
    (lines,) = run_job(hdf, tmp_path / "one", 1)
    given = {(line["epoch"], line["position"]): line["tags"] for line in lines}
    assert len(given) == len(lines)
    assert list(given) == sorted(given)
    for rank_lines in resumed:
        for line in rank_lines:
            assert given[line["epoch"], line["position"]] == line["tags"]
    done = {(line["epoch"], line["position"]): line["tags"] for rank in expected for line in rank}
    for later in range(epoch, NUM_EPOCHS + 1):
        before = [tags for place, tags in done.items() if (later, 0) <= place < (epoch, position)]
        after = [tags for (of, _), tags in given.items() if of == later]
        tags = [tag for tags in (*before, *after) for tag in tags]
        assert len(tags) == len(set(tags)) == NUM_SEQS
