"""A worker of a `DistributeFilesDataset` dies or is closed at every stage: the stream is the same, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.datasets import DistributeFilesDataset, HDFDataset, init_dataset
from headrace.files.cache.entry import CachedFile
from headrace.sources import HDFWriter
from servers import FileServer

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM_FILES = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    paths = [str(folder / f"{i}.hdf") for i in range(NUM_FILES)]
    for i, path in enumerate(paths):
        with HDFWriter(path) as writer:
            for number in range(10 * i, 10 * i + 10):
                writer.append(f"n{number}", {"data": np.full((number % 3 + 1, 2), number, np.float32)})
    return paths


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingDataset(HDFDataset):
    """Ends its process where it is told to, once."""

    def __init__(self, *, once: Callable[[], bool], point: str, file: str, **options: Any) -> None:
        self._once, self._point = once, point
        if point == "building" and any(name.endswith(file) for name in options["files"]) and once():
            die()
        super().__init__(**options)

    def init_seq_order(self, epoch: Any = None, seq_list: Any = None, seq_order: Any = None) -> bool:
        if self._point == "ordering" and epoch is not None and self._once():
            die()
        return super().init_seq_order(epoch, seq_list, seq_order)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        if self._point == "closing" and free_resources and self._once():
            die()
        super().finish_epoch(free_resources=free_resources)


def expected_of(files: list[str], epoch: int) -> list[tuple[str, bytes]]:
    inner = init_dataset({"class": "HDFDataset", "files": files, "seq_ordering": "random"})
    return stream(inner, (epoch - 1) // 3 + 1)


def stream(dataset: Any, epoch: int) -> list[tuple[str, bytes]]:
    return [(seq.tag, seq["data"].tobytes()) for seq in dataset.epoch(epoch)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("point", "file", "num_workers"),
    [
        ("building", "0.hdf", 2),
        ("building", "3.hdf", 1),
        ("building", "3.hdf", 2),
        ("ordering", "", 2),
        ("reading", "", 1),
        ("reading", "", 2),
        ("closing", "", 1),
    ],
)
def test_the_stream_is_the_same_when_a_worker_is_killed_once(
    files: list[str], once: Callable[[], bool], point: str, file: str, num_workers: int
) -> None:
    def transform(features: dict[str, Any]) -> dict[str, Any]:
        if point == "reading" and features["data"][0, 0] == 23 and once():
            die()
        return features

    def function(files: list[str]) -> dict[str, Any]:
        options = {"files": files, "seq_ordering": "random", "transform": transform}
        if point == "reading" or files == function_of_layout:
            return {"class": "HDFDataset", **options}
        return {"class": DyingDataset, "once": once, "point": point, "file": file, **options}

    function_of_layout = files[:1]
    with DistributeFilesDataset(
        files=files, get_sub_epoch_dataset=function, partition_epoch=3, num_workers=num_workers
    ) as dataset:
        dataset.initialize()
        for epoch in range(1, 6):
            assert stream(dataset, epoch) == expected_of(dataset.get_files(epoch), epoch)
        report = dataset.engine_report
        assert report is not None
        assert sum(worker.num_restarts for worker in report.workers) == 1
    assert not once()


def worker_pids(dataset: DistributeFilesDataset) -> list[int]:
    lives = dataset._stream._engine._workers.executor._lives.values()  # type: ignore[union-attr, attr-defined]
    return [life.pid for life in lives if life.pid is not None]


def test_a_worker_that_is_killed_between_sub_epochs_is_not_missed(files: list[str]) -> None:
    with DistributeFilesDataset(
        files=files,
        get_sub_epoch_dataset=lambda files: {"class": "HDFDataset", "files": files, "seq_ordering": "random"},
        partition_epoch=3,
    ) as dataset:
        for epoch in range(1, 5):
            assert stream(dataset, epoch) == expected_of(dataset.get_files(epoch), epoch)
            os.kill(worker_pids(dataset)[0], signal.SIGKILL)


@pytest.fixture(scope="module", autouse=True)
def _loop() -> None:
    """Start what fsspec keeps for as long as a process lives."""
    with contextlib.suppress(ImportError):
        from fsspec.asyn import get_loop

        get_loop()


@pytest.fixture
def server(files: list[str]) -> Iterator[FileServer]:
    pytest.importorskip("aiohttp")
    with FileServer({Path(file).name: Path(file).read_bytes() for file in files}) as server:
        yield server


def cached(files: list[str]) -> dict[str, Any]:
    return {"class": "HDFDataset", "files": [CachedFile(file) for file in files], "seq_ordering": "random"}


@pytest.mark.extra
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize("held", ["0.hdf", "2.hdf"])
def test_closing_while_files_are_fetched_ends_that(
    files: list[str], server: FileServer, tmp_path: Path, executor: str, held: str
) -> None:
    fault = server.faults.add("stall", path=held, after_bytes=100, times=-1)
    dataset = DistributeFilesDataset(
        files=[server.url(Path(file).name) for file in files],
        get_sub_epoch_dataset=cached,
        partition_epoch=3,
        preload_next_n_sub_epochs=1,
        executor=executor,
        file_cache={"cache_directory": str(tmp_path / "cache")},
    )
    dataset.init_seq_order(epoch=1)
    if held == "2.hdf":
        assert dataset.num_seqs == 20
        assert fault.started.wait(120)
    elif executor == "thread":
        assert fault.started.wait(120)
    dataset.close()


@pytest.mark.extra
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_going_to_another_sub_epoch_does_not_wait_for_the_files_of_the_one_before(
    files: list[str], server: FileServer, tmp_path: Path, executor: str
) -> None:
    fault = server.faults.add("stall", path="0.hdf", after_bytes=100, times=-1)
    dataset = DistributeFilesDataset(
        files=[server.url(Path(file).name) for file in files],
        get_sub_epoch_dataset=cached,
        partition_epoch=3,
        executor=executor,
        file_cache={"cache_directory": str(tmp_path / "cache")},
    )
    with dataset:
        dataset.init_seq_order(epoch=1)
        assert fault.started.wait(120)
        places = [int(Path(str(file)).stem) for file in dataset.get_files(2)]
        assert 0 not in places
        expected = {f"n{number}" for place in places for number in range(10 * place, 10 * place + 10)}
        assert {seq.tag for seq in dataset.epoch(2)} == expected


def test_a_forked_child_reads_with_workers_of_its_own(
    files: list[str], run_program: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_program(
        f"""
import os, warnings
from headrace.datasets import DistributeFilesDataset

warnings.simplefilter("ignore")  # newer Pythons warn of threads
for executor in ("inline", "thread", "process"):
    dataset = DistributeFilesDataset(
        files={files!r}, get_sub_epoch_dataset=lambda files: {{"class": "HDFDataset", "files": files}},
        partition_epoch=3, preload_next_n_sub_epochs=1, executor=executor,
    )
    seqs = dataset.epoch(1)
    tags = [next(seqs).tag]
    if (pid := os.fork()) == 0:
        whole = [seq.tag for epoch in (2, 3) for seq in dataset.epoch(epoch)]
        dataset.close()
        os._exit(0 if len(whole) == 40 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    tags += [seq.tag for seq in seqs]
    assert len(tags) == 20
    assert [seq.tag for seq in dataset.epoch(1)] == tags
    dataset.close()
print("done")
"""
    )
    assert done.stdout == "done\n", done.stderr


RANK_PROGRAM = """
import json, os, signal, sys
from headrace.datasets import DistributeFilesDataset
from headrace.files.cache.entry import CachedFile

files, cache, dies_at = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with DistributeFilesDataset(
    files=files, partition_epoch=2, seq_ordering="random", distrib_shard_files=True, num_workers=2,
    get_sub_epoch_dataset=lambda files: {"class": "HDFDataset", "files": [CachedFile(file) for file in files]},
    file_cache={"cache_directory": cache, "wait_seconds": 120},
) as dataset:
    for epoch in (1, 2, 3, 4):
        tags = []
        for seq in dataset.epoch(epoch):
            tags.append(seq.tag)
            dies_at -= 1
            if dies_at == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps(tags), flush=True)
    assert "torchrun" in dataset.ranks.source
"""


def test_ranks_that_share_a_cache_read_everything_once_though_one_is_killed_and_comes_back(
    files: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(RANK_PROGRAM)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "OMPI", "PMI"))}

    def start(rank: int, dies_at: int = 0) -> subprocess.Popen[str]:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3}
        command = [sys.executable, str(program), json.dumps(files), str(tmp_path / "cache"), str(dies_at)]
        variables = {**environment, **{name: str(number) for name, number in numbers.items()}}
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)

    ranks = [start(0), start(1, dies_at=3), start(2)]
    assert ranks[1].communicate(timeout=120)[0] == ""
    assert ranks[1].returncode == -signal.SIGKILL
    ranks[1] = start(1)
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    read = [[json.loads(line) for line in output.splitlines()] for output in outputs]  # by rank and sub-epoch
    for full_epoch in range(2):
        tags = [tag for of_rank in read for tags in of_rank[2 * full_epoch : 2 * full_epoch + 2] for tag in tags]
        assert sorted(tags) == sorted(f"n{number}" for number in range(10 * NUM_FILES))
    assert len(list((tmp_path / "cache").rglob("*.hdf"))) == NUM_FILES
