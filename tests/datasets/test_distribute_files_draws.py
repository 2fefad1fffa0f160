"""Random transforms below files that are shared out: a sequence has its own draws, wherever it comes to be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import DistributeFilesDataset, HDFWriter

NUM_FILES = 8


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    names = [str(tmp_path / f"{number}.hdf") for number in range(NUM_FILES)]
    for number, name in enumerate(names):
        with HDFWriter(name) as writer:
            for i in range(3):
                writer.append(f"{number}/{i}", {"data": np.zeros((4, 1), np.float32)})
    return names


def only_noise(features: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"data": rng.random(features["data"].shape, dtype=np.float32)}


def read_one(files: list[str]) -> dict[str, Any]:
    return {"class": "HDFDataset", "files": files, "transform": only_noise, "index": None}


def read_meta(files: list[str]) -> dict[str, Any]:
    data_map = {"data": ("inner", "data")}
    return {"class": "MetaDataset", "datasets": {"inner": read_one(files)}, "data_map": data_map}


def noise_of(files: list[str], function: Any, num_ranks: int, epochs: range, num_workers: int = 0) -> dict[str, bytes]:
    noise = {}
    for rank in range(num_ranks):
        with DistributeFilesDataset(
            files=files,
            get_sub_epoch_dataset=function,
            partition_epoch=2,
            num_canonical_shards=4,
            distrib_shard_files=True,
            rank=rank,
            world_size=num_ranks,
            num_workers=max(num_workers, 1),
            use_worker_proc=num_workers > 0,
        ) as dataset:
            for epoch in epochs:
                noise.update({seq.tag: seq["data"].tobytes() for seq in dataset.epoch(epoch)})
    return noise


@pytest.mark.parametrize("function", [read_one, read_meta])
def test_draws_belong_to_the_sequence_and_not_to_its_rank_or_sub_epoch(files: list[str], function: Any) -> None:
    alone = noise_of(files, function, 1, range(1, 3))
    assert len(alone) == 3 * NUM_FILES
    assert len(set(alone.values())) == 3 * NUM_FILES
    for num_ranks in (2, 3):
        assert noise_of(files, function, num_ranks, range(1, 3)) == alone
    assert noise_of(files, function, 1, range(1, 3), num_workers=2) == alone
    assert not set(alone.values()) & set(noise_of(files, function, 1, range(3, 5)).values())
