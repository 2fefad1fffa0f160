"""Two real ranks of accelerate: a loader that shares its batches out is not divided once more."""

import json
import os
import subprocess
import sys

import pytest

from peers.trainer_jobs import free_port

pytest.importorskip("torch")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.extra

JOB = """
import json, os, sys
import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from headrace import ConfigError, DataLoader
from headrace.adapters.torch.loaders import TorchLoader

class Loader(TorchLoader):
    def set_epoch(self, epoch):  # accelerate counts from 0
        super().set_epoch(epoch + 1)

def read(kind, dispatch, **ranks):
    config = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = DataLoader(
        [{"data": np.full(2, i)} for i in range(40)], batch_size=4, **ranks,
        collate=lambda seqs: {"i": torch.tensor([int(seq["data"][0]) for seq in seqs])},
    )
    with loader:
        given = Loader(loader)
        if kind == "wrapped":
            options = {"batch_size": None, "collate_fn": lambda batch: batch}
            if not dispatch:  # accelerate cannot share what has no batch size
                options = {"batch_size": 1, "collate_fn": lambda batches: batches[0]}
            given = torch.utils.data.DataLoader(given, num_workers=0, **options)
        try:
            return sorted(i for batch in accelerator.prepare(given) for i in batch["i"].tolist())
        except ConfigError as error:
            return str(error)

own = {"rank": 0, "world_size": 1}
found = {
    "left alone": read("plain", None),
    "shared": read("wrapped", False),
    "dispatched": read("wrapped", True),
    "accelerate shares": read("wrapped", False, **own),
    "accelerate dispatches": read("wrapped", True, **own),
}
json.dump(found, open(os.path.join(sys.argv[1], os.environ["RANK"]), "w"))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_a_loader_that_accelerate_would_divide_again_is_refused_on_all_ranks(tmp_path):
    environ = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(tmp_path)],
            env={**os.environ, **environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [program.communicate(timeout=240)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    assert [program.returncode for program in programs] == [0, 0], errors
    ranks = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    for name in ("shared", "dispatched"):
        for found in ranks:
            assert "two levels would divide the data" in found[name]
            assert "accelerator.prepare" in found[name]
    for name in ("left alone", "accelerate shares", "accelerate dispatches"):
        assert sorted(i for found in ranks for i in found[name]) == list(range(40))
