from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, SourceError
from headrace.files.lists.sizes import FileTable, measure_files
from servers import FileServer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the tables; the user's cache folder is one of this test's own."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "files"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return ten files, of 0 to 9 bytes."""
    for size in range(10):
        (tmp_path / f"{size}.hdf").write_bytes(bytes(size))
    return [str(tmp_path / f"{size}.hdf") for size in range(10)]


def _tables(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.counts"))


def test_the_size_of_an_entry_is_that_of_its_files(cache: Path, files: list[str]) -> None:
    trees = [files[3], (files[4], {"k": [files[5], files[5]]}), Path(files[0]), f"file://{files[9]}", files[3]]
    table = FileTable.of(trees)
    assert table.sizes.tolist() == [3, 14, 0, 9, 3]
    assert table.sizes.dtype == np.int64
    assert table.num_seqs.tolist() == table.num_frames.tolist() == [-1] * 5


def test_what_was_noted_is_there_the_next_time(cache: Path, files: list[str]) -> None:
    table = FileTable.of(files)
    table.note_counts(2, 20, 200)
    table.note_counts(9, 90)
    table.note_counts(0, 0, 0)
    table.save()
    again = FileTable.of(files)
    assert again.num_seqs.tolist() == [0, -1, 20, *[-1] * 6, 90]
    assert again.num_frames.tolist() == [0, -1, 200, *[-1] * 7]
    assert len(_tables(cache)) == 1


def test_a_changed_file_is_measured_anew_and_what_was_noted_of_its_entry_is_forgotten(
    cache: Path, files: list[str]
) -> None:
    trees = [files[1], (files[2], files[3]), (files[4], files[5])]
    table = FileTable.of(trees)
    for entry in range(3):
        table.note_counts(entry, 7, 70)
    table.save()
    Path(files[3]).write_bytes(bytes(30))
    os.utime(files[5], ns=(0, 5))
    again = FileTable.of(trees)
    assert again.sizes.tolist() == [1, 32, 9]
    assert again.num_seqs.tolist() == [7, -1, -1]
    again.note_counts(1, 8)
    again.save()
    assert FileTable.of(trees).num_seqs.tolist() == [7, 8, -1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: b"\xff" * 100,
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
)
def test_a_damaged_table_counts_as_none_and_is_replaced(cache: Path, files: list[str], damage: Any) -> None:
    table = FileTable.of(files)
    table.note_counts(3, 33)
    table.save()
    path = _tables(cache)[0]
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    again = FileTable.of(files)
    assert again.num_seqs.tolist() == [-1] * 10
    again.note_counts(3, 33)
    again.save()
    assert path.read_bytes() == whole


def test_what_two_processes_note_is_both_kept(cache: Path, files: list[str]) -> None:
    one, two = FileTable.of(files), FileTable.of(files)
    one.note_counts(1, 11)
    two.note_counts(2, 22)
    one.save()
    two.save()
    assert two.num_seqs.tolist()[:4] == [-1, 11, 22, -1]
    assert FileTable.of(files).num_seqs.tolist() == two.num_seqs.tolist()


def test_a_folder_that_cannot_be_used_is_told_once(
    cache: Path, files: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.touch()
    for _ in range(2):
        table = FileTable.of(files)
        table.note_counts(0, 1)
        table.save()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cannot be kept" in caplog.text


# --- measuring ---


def test_missing_files_are_told_in_one_error_with_their_number_and_the_first_few(cache: Path, files: list[str]) -> None:
    trees = [files[0], *(f"/no/{place}" for place in range(500)), ("/no/0", files[1])]
    with pytest.raises(SourceError) as caught:
        FileTable.of(trees)
    what = "500 of 502 files cannot be used (the first: the file does not exist): '/no/0', '/no/1', '/no/2', ..."
    assert caught.value.what == what
    assert caught.value.where == "/no/0"


def test_a_pattern_inside_a_tree_is_told_from_a_missing_file(cache: Path, files: list[str]) -> None:
    with pytest.raises(SourceError, match="only expanded where it is an entry of its own"):
        FileTable.of([(files[0], "/no/*.hdf")])


def test_progress_is_told_to_the_end_and_may_stop_the_work(cache: Path, files: list[str]) -> None:
    told: list[tuple[int, int]] = []
    FileTable.of([*files, *files], progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (10, 10)
    assert told == sorted(told)

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        FileTable.of(files, progress=stop)


@given(sizes=st.lists(st.integers(0, 2000), max_size=200), max_threads=st.integers(1, 40))
def test_any_number_of_files_and_threads_give_the_same_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_threads: int
) -> None:
    folder = tmp_path_factory.mktemp("many")
    names = []
    for place, size in enumerate(sizes):
        names.append(str(folder / str(place)))
        Path(names[-1]).write_bytes(bytes(size))
    stats = measure_files(names, max_threads=max_threads)
    assert list(stats) == names
    assert [stat.size for stat in stats.values()] == sizes


@pytest.fixture
def server() -> Iterator[FileServer]:
    pytest.importorskip("aiohttp")
    with FileServer({f"{size}.hdf": bytes(size) for size in range(10)}) as server:
        yield server


@pytest.mark.extra
def test_files_of_a_web_server_are_measured_many_at_a_time(cache: Path, server: FileServer) -> None:
    trees = [server.url(f"{size}.hdf") for size in range(10)]
    together = threading.Barrier(10, timeout=120)  # each answer waits until all are asked for
    server.faults.add("call", method="HEAD", times=10, call=together.wait)
    table = FileTable.of(trees)
    server.faults.clear()
    assert table.sizes.tolist() == list(range(10))
    table.note_counts(4, 44)
    table.save()
    assert FileTable.of(trees).num_seqs[4] == 44
    server.files["4.hdf"] = b"same"
    assert FileTable.of(trees).num_seqs[4] == -1


@pytest.mark.extra
def test_missing_and_refused_files_of_a_web_server_are_told(cache: Path, server: FileServer) -> None:
    with pytest.raises(SourceError, match=r"1 of 2 files.*the file does not exist") as caught:
        FileTable.of([server.url("1.hdf"), server.url("no.hdf?signature=secret")])
    assert "secret" not in str(caught.value)
    for method in ("HEAD", "GET"):
        server.faults.add("status", method=method, status=403, times=-1)
    with pytest.raises(SourceError, match=r"of 500 files.*could not look at it"):
        FileTable.of([server.url(f"{place}.hdf") for place in range(500)])
    assert server.num_requests("HEAD") < 200  # it stops when it is clear that all will be refused


def test_a_kind_of_url_that_nobody_knows_is_refused(cache: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ConfigError, match="cannot be used"):
        FileTable.of(["nothing://a/b"])
