"""`DistributeFilesDataset` over a file system that is slow, as NFS under load is, and over a real S3 server."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.datasets import DistributeFilesDataset, init_dataset
from headrace.files.cache.entry import CachedFile
from headrace.sources import HDFWriter
from servers import S3Server, has_s3

fsspec = pytest.importorskip("fsspec")
local = pytest.importorskip("fsspec.implementations.local")

_DEADLINE_SECONDS = 120.0
NUM_FILES, PARTITION_EPOCH = 6, 3


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [str(tmp_path / f"{i}.hdf") for i in range(NUM_FILES)]
    for i, path in enumerate(paths):
        with HDFWriter(path) as writer:
            for number in range(10 * i, 10 * i + 10):
                writer.append(f"n{number}", {"data": np.full((number % 3 + 1, 2), number, np.float32)})
    return paths


class SlowFiles(local.LocalFileSystem):
    """Local files, of which each is only there when the test lets it: nothing is timed."""

    protocol = "slowfiles"
    cachable = False
    allowed = threading.Semaphore(0)
    asked: set[str] = set()  # noqa: RUF012 - by the test

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("slowfiles://")

    def get_file(self, rpath: str, lpath: str, callback: Any = None, **options: Any) -> None:
        self.asked.add(Path(rpath).name)
        assert self.allowed.acquire(timeout=_DEADLINE_SECONDS)
        super().get_file(rpath, lpath, callback=callback, **options)


@pytest.fixture
def slow() -> type[SlowFiles]:
    SlowFiles.allowed, SlowFiles.asked = threading.Semaphore(0), set()
    fsspec.register_implementation("slowfiles", SlowFiles, clobber=True)
    return SlowFiles


def cached(files: list[str]) -> dict[str, Any]:
    return {"class": "HDFDataset", "files": [CachedFile(file) for file in files], "seq_ordering": "random"}


def expected_of(files: list[str], epoch: int, where: dict[str, str]) -> list[str]:
    config = {"class": "HDFDataset", "files": [where[file] for file in files], "seq_ordering": "random"}
    dataset = init_dataset(config)
    return [seq.tag for seq in dataset.epoch((epoch - 1) // PARTITION_EPOCH + 1)]


@pytest.mark.parametrize("max_bytes", [None, "one sub-epoch"])
def test_the_next_files_come_while_these_are_read_if_there_is_room_and_the_stream_is_the_same(
    files: list[str], slow: type[SlowFiles], tmp_path: Path, wait_until: Any, max_bytes: str | None
) -> None:
    where = {f"slowfiles://{file}": file for file in files}
    room = {} if max_bytes is None else {"max_bytes": 3 * max(map(os.path.getsize, files))}
    with DistributeFilesDataset(
        files=list(where),
        get_sub_epoch_dataset=cached,
        partition_epoch=PARTITION_EPOCH,
        executor="thread",
        preload_next_n_sub_epochs=1,
        file_cache={"cache_directory": str(tmp_path / "cache"), **room},
    ) as dataset:
        for _ in range(3):  # those of the first sub-epoch, one of which may have been read for the layout
            slow.allowed.release()
        dataset.init_seq_order(epoch=1)
        assert dataset.num_seqs == 10 * len(dataset.get_files(1))
        if max_bytes is None:
            coming = {Path(str(file)).name for file in dataset.get_files(2)}
            wait_until(lambda: coming <= slow.asked, "the next files are not asked for")
        slow.allowed.release(1000)
        for epoch in range(1, 2 * PARTITION_EPOCH + 1):
            expected = expected_of(list(map(str, dataset.get_files(epoch))), epoch, where)
            assert [seq.tag for seq in dataset.epoch(epoch)] == expected


@pytest.mark.extra
def test_workers_read_objects_of_s3_through_one_cache_whatever_fails_for_a_moment(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_s3():
        pytest.skip("needs moto[server] and s3fs")
    with S3Server() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        where = {store.put("corpus", f"set/{Path(file).name}", Path(file).read_bytes()): file for file in files}
        store.faults.add("cut", path="1.hdf", after_bytes=100, times=1)
        with DistributeFilesDataset(
            files="s3://corpus/set/*.hdf",
            get_sub_epoch_dataset=cached,
            partition_epoch=PARTITION_EPOCH,
            num_workers=2,
            file_cache={"cache_directory": str(tmp_path / "cache")},
        ) as dataset:
            for epoch in range(1, 2 * PARTITION_EPOCH + 1):
                expected = expected_of(list(map(str, dataset.get_files(epoch))), epoch, where)
                assert [seq.tag for seq in dataset.epoch(epoch)] == expected
    assert {path.name for path in (tmp_path / "cache" / "data").glob("*/*")} == {Path(file).name for file in files}
