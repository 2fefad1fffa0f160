"""`DistributeFilesDataset` with workers on other machines: the same stream, by nothing that only this one can see."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest

from headrace.datasets import DistributeFilesDataset
from headrace.datasets.distribute.shared import Shared
from headrace.engine.remote import LocalLauncher, RemoteExecutor
from headrace.errors import ConfigError, HeadraceError
from headrace.sources import HDFWriter


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for number, size in enumerate([40, 3, 25, 60]):
        paths.append(str(folder / f"{number}.hdf"))
        with HDFWriter(paths[-1]) as writer:
            for seq in range(size):
                writer.append(f"{number}-{seq}", {"data": np.full((seq % 3 + 1, 2), seq, np.float32)})
    return paths


def read_shuffled(files: list[str]) -> dict[str, object]:
    return {"class": "HDFDataset", "files": files, "seq_ordering": "random"}


def read_with_pids(files: list[str]) -> dict[str, object]:
    return {
        "class": "PostprocessingDataset",
        "dataset": read_shuffled(files),
        "map_seq": lambda seq, **_: {**seq, "pid": np.array(os.getpid(), np.int64)},
        "map_outputs": {"data": {"dim": 2}, "pid": {"dim": 1, "shape": (), "dtype": "int64"}},
    }


def seqs_of(dataset: DistributeFilesDataset, epoch: int) -> list[tuple[str, bytes]]:
    return [(seq.seq_tag, seq.features["data"].tobytes()) for seq in dataset.epoch(epoch)]


def test_the_stream_is_that_of_this_machine(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"files": files, "get_sub_epoch_dataset": read_shuffled, "partition_epoch": 2, "seq_ordering": "random"}
    with DistributeFilesDataset(**options, num_workers=0) as dataset:
        expected = [seqs_of(dataset, epoch) for epoch in (1, 2, 3)]
    assert sum(map(len, expected[:2])) == 128
    monkeypatch.setattr(Shared, "put_into_memory_file", lambda self: pytest.fail("another machine cannot read it"))
    with DistributeFilesDataset(**options, num_workers=2, executor=RemoteExecutor(LocalLauncher())) as dataset:
        assert [seqs_of(dataset, epoch) for epoch in (1, 2, 3)] == expected


def test_it_stays_so_when_a_worker_is_killed(files: list[str]) -> None:
    options = {"files": files, "get_sub_epoch_dataset": read_with_pids, "partition_epoch": 1}
    with DistributeFilesDataset(**options, num_workers=0) as dataset:
        expected = seqs_of(dataset, 1)
    pids: set[int] = set()
    found = []
    with DistributeFilesDataset(**options, buffer_size=4, executor=RemoteExecutor(LocalLauncher())) as dataset:
        for seq in dataset.epoch(1):
            found.append((seq.seq_tag, seq.features["data"].tobytes()))
            pids.add(int(seq.features["pid"].item()))
            if len(found) == 20:
                os.kill(max(pids), signal.SIGKILL)
    assert found == expected
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_what_goes_with_the_tickets_is_read_when_its_owner_is_gone() -> None:
    here, sent = Shared(3, ["a", "b"], "a list"), Shared(4, ["a", "b"], "a list")
    here.put_into_memory_file()
    sent.put_into_tickets()
    of_here, of_sent = pickle.dumps(here), pickle.dumps(sent)
    assert b"/proc/" in of_here
    assert b"/proc/" not in of_sent
    here.retire()
    sent.retire()
    reference, carried = pickle.loads(of_here), pickle.loads(of_sent)
    assert (carried.number, carried.load(), carried.is_current) == (4, ["a", "b"], True)
    with pytest.raises(HeadraceError, match=r"stale|cannot read what its trainer shares"):
        reference.load()


def test_a_plan_that_cannot_be_carried_is_refused_before_a_worker_starts(files: list[str], tmp_path: Path) -> None:
    with (
        (tmp_path / "held").open("w") as held,
        DistributeFilesDataset(
            files=files,
            get_sub_epoch_dataset=lambda names: {**read_shuffled(names), "held": held},
            executor=RemoteExecutor(LocalLauncher()),
        ) as dataset,
        pytest.raises(ConfigError, match="the dataset of sub-epoch 1"),
    ):
        dataset.init_seq_order(1)
