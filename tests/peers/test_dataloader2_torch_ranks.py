"""`DistributedReadingService` on two real ranks of gloo, alone and with workers; needs torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.extra

_PROGRAM = """
import gc, json, sys, torch
from headrace.dataloader2 import (
    DataLoader2, DistributedReadingService, MultiProcessingReadingService, SequentialReadingService,
)
from torch.utils.data.datapipes.iter import IterableWrapper
rank, folder, num_workers = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
service = DistributedReadingService()
if num_workers:
    service = SequentialReadingService(service, MultiProcessingReadingService(num_workers))
epochs = []
with DataLoader2(IterableWrapper(range(23)).shuffle().sharding_filter(), None, service) as loader:
    loader.seed(rank)  # that of rank 0 counts
    for _ in range(2):
        epochs.append(list(loader))
del loader, service
gc.collect()
groups = len(torch.distributed.distributed_c10d._world.pg_map)
torch.distributed.destroy_process_group()
print(json.dumps([*epochs, groups]))
"""


_LATE_PROGRAM = """
import json, pathlib, sys, time, torch
from headrace.dataloader2 import DistributedReadingService
from headrace.pipes.graph.seeds import SeedGenerator
from headrace.pipes.iter import IterableWrapper
rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
service = DistributedReadingService(timeout=10)
service.initialize(IterableWrapper(range(4)))
done = folder / "rank 1 is done"
if rank == 0:  # does not begin the epoch
    while not done.exists():
        time.sleep(0.05)
    print(json.dumps("waited"))
else:
    try:
        service.initialize_iteration(SeedGenerator(1))
    except RuntimeError:
        print(json.dumps("timed out"))
    done.touch()
torch.distributed.destroy_process_group()
service.finalize()  # the group is gone already
"""


def _run_ranks(folder: Path, num_workers: int, text: str = _PROGRAM) -> list[Any]:
    program = folder / "program.py"
    program.write_text(text)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program), str(rank), str(folder), str(num_workers)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [json.loads(output) for output in outputs]


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_share_the_shuffle_and_end_together(num_workers: int, tmp_path: Path) -> None:
    first, second = _run_ranks(tmp_path, num_workers)
    for epoch in range(2):
        both = first[epoch] + second[epoch]
        assert len(set(both)) == len(both)
        assert set(both) <= set(range(23))
        assert len(first[epoch]) == len(second[epoch]) == 11  # the shorter rank ends both
    assert first[0] != first[1]
    assert first[2] == second[2] == 1  # of the loader's process groups, none is left


@pytest.mark.long  # both ranks have to make their group within the timeout
def test_a_rank_waits_no_longer_than_the_timeout_for_another_to_begin_an_epoch(tmp_path: Path) -> None:
    assert _run_ranks(tmp_path, 0, _LATE_PROGRAM) == ["waited", "timed out"]
