"""Ranks that torchrun starts share out files through one cache folder; one is killed, and the job comes back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace import HDFWriter
from headrace.engine.process.proc_tree import descendants_of

pytest.importorskip("torch.distributed")

NUM_FILES, NUM_SUB_EPOCHS = 12, 3

PROGRAM = """
import os, sys
import torch.distributed as distributed
import headrace as hr

distributed.init_process_group("gloo")

def read(files):
    return {"class": "HDFDataset", "files": [hr.CachedFile(file) for file in files], "index": None}

dataset = hr.DistributeFilesDataset(
    files=sys.argv[1] + "/*.hdf",
    get_sub_epoch_dataset=read,
    partition_epoch=%(num_sub_epochs)d,
    seq_ordering="random",
    distrib_shard_files=True,
    file_cache={"cache_directory": sys.argv[2]},
)
with dataset, open(f"{sys.argv[3]}/{os.environ['RANK']}", "w") as out:
    for epoch in range(1, %(num_sub_epochs)d + 1):
        for seq in dataset.epoch(epoch):
            assert (seq["data"] == int(seq.tag)).all(), seq.tag
            print(epoch, seq.tag, file=out, flush=True)
    assert "torch.distributed" in dataset.ranks.source, dataset.ranks
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    number = 0
    for file_idx in range(NUM_FILES):
        with HDFWriter(folder / f"{file_idx:02d}.hdf") as writer:
            for _ in range(20 + file_idx):
                writer.append(str(number), {"data": np.full((30, 40), number, np.float32)})
                number += 1
    return folder


def start_job(tmp_path: Path, corpus: Path, num_ranks: int) -> subprocess.Popen[str]:
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "program.py").write_text(PROGRAM % {"num_sub_epochs": NUM_SUB_EPOCHS})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    paths = [str(tmp_path / "program.py"), str(corpus), str(tmp_path / "cache"), str(tmp_path / "out")]
    own = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "OMPI_", "PMI_")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    environment["HEADRACE_CACHE"] = str(tmp_path / "indices")
    return subprocess.Popen(
        [*command, *paths], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def check_streams(tmp_path: Path, num_ranks: int) -> None:
    lines = [line for rank in range(num_ranks) for line in (tmp_path / "out" / str(rank)).read_text().splitlines()]
    tags = sorted(int(line.split()[1]) for line in lines)
    assert tags == list(range(sum(20 + file_idx for file_idx in range(NUM_FILES))))


@pytest.mark.slow
@pytest.mark.kernel_timing  # the processes are killed wherever they are
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_of_torchrun_read_everything_once_also_after_the_job_was_killed(
    tmp_path: Path, corpus: Path, num_ranks: int
) -> None:
    dice = random.Random(num_ranks)
    job = start_job(tmp_path, corpus, num_ranks)
    pause = threading.Event()
    # Some rank or worker of it dies, at some moment after the first has begun to read; torchrun ends the others.
    while not (files := list((tmp_path / "out").iterdir())) or not any(file.stat().st_size for file in files):
        assert job.poll() is None, job.stderr and job.stderr.read()
        pause.wait(0.01)
    pause.wait(dice.random() * 0.2)
    for pid in list(descendants_of(job.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.kill()
    job.communicate()
    job = start_job(tmp_path, corpus, num_ranks)
    _, errors = job.communicate(timeout=200)
    assert job.returncode == 0, errors
    check_streams(tmp_path, num_ranks)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if ".part" in path.name or path.suffix == ".tmp"]
    assert left == []
