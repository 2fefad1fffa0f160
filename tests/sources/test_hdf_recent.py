"""Layouts of HDF5 files that a process read before, and opens again with others or in another order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from headrace.sources import HDFSource, HDFWriter
from headrace.sources.hdf import source as hdf_source
from headrace.sources.hdf.layout import FileLayout, read_layout
from headrace.sources.hdf.recent import RecentLayouts

Reader = Callable[[Sequence[str]], Iterable[FileLayout]]


def write(path: Path, num_seqs: int, tag: str = "seq") -> str:
    with HDFWriter(path, labels={"classes": ["a", "b"]}) as writer:
        for number in range(num_seqs):
            frames = np.full((number % 3 + 1, 2), number, np.float32)
            writer.append(f"{tag}-{number}", {"data": frames, "classes": np.zeros(number % 3 + 1, np.int32)})
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [write(tmp_path / f"{number}.hdf", 3 + number, f"file{number}") for number in range(4)]


def noting(read: list[str]) -> Reader:
    def read_layouts(paths: Sequence[str]) -> Iterable[FileLayout]:
        for path in paths:
            read.append(path)
            yield read_layout(path)

    return read_layouts


def test_each_file_is_read_once_in_whatever_order_it_comes(files: list[str]) -> None:
    recent, read = RecentLayouts(min_age_ns=0), list[str]()
    for paths in (files[:3], files[2:], files[::-1]):
        assert [layout.path for layout in recent.layouts(paths, noting(read))] == paths
    assert read == files


def test_a_file_that_changed_is_read_again(files: list[str]) -> None:
    recent, read = RecentLayouts(min_age_ns=0), list[str]()
    recent.layouts(files, noting(read))
    status = os.stat(files[1])
    os.unlink(files[1])
    write(Path(files[1]), 9)
    os.utime(files[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    layouts = recent.layouts(files, noting(read))
    assert layouts[1].num_seqs == 9
    assert read == [*files, files[1]]


def test_a_file_that_was_just_written_is_not_kept(files: list[str]) -> None:
    recent, read = RecentLayouts(min_age_ns=3_600_000_000_000), list[str]()
    for _ in range(2):
        recent.layouts(files, noting(read))
    assert read == files * 2


def test_what_was_used_last_stays_within_the_limit(files: list[str]) -> None:
    recent, read = RecentLayouts(max_bytes=12_000, min_age_ns=0), list[str]()
    for number in (0, 1, 2, 3, 0, 1, 2, 3):
        recent.layouts([files[number]], noting(read))
    assert read == files
    small = RecentLayouts(max_bytes=3 * 1500, min_age_ns=0)
    small.layouts(files, noting(read := []))
    small.layouts(files, noting(read))
    assert read == files * 2, "one that takes more than an eighth is not kept"


def test_the_index_of_kept_layouts_is_that_of_new_ones(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf_source, "RECENT", recent := RecentLayouts(min_age_ns=0))
    HDFSource(files, index=None).close()
    for paths in (files, files[::-1], files[1:3]):
        kept = HDFSource(paths, index=None)
        recent.forget()
        new = HDFSource(paths, index=None)
        assert kept.index.digest == new.index.digest
        assert kept.index.meta == new.index.meta
        assert list(kept.index.tags) == list(new.index.tags)
        for idx in range(len(new)):
            np.testing.assert_array_equal(kept.read(idx, "data"), new.read(idx, "data"))
        recent.layouts(files, lambda paths: map(read_layout, paths))
        kept.close()
        new.close()
    HDFSource(paths := [files[2], files[0]], index=None).close()
    assert list(HDFSource(paths, index=None).index.tags)[4:6] == ["file2-4", "file0-0"]
