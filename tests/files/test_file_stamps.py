from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.files import FileStamp


def rewrite(path: Path, content: bytes, *, keep_mtime: bool) -> None:
    stat = path.stat()
    path.write_bytes(content)
    if keep_mtime:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_stamp_tells_how_a_file_differs_now(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    stamp = FileStamp.of(tmp_path / "a")
    assert stamp.difference() is None
    assert (stamp.path, stamp.size) == (str(tmp_path / "a"), 3)
    os.utime(tmp_path / "a", ns=(5, 7))
    assert stamp.difference() == f"its modification time was {stamp.mtime_ns} ns and is 7 ns now"
    (tmp_path / "a").write_bytes(b"abcd")
    assert stamp.difference() == "its size was 3 bytes and is 4 now"
    (tmp_path / "a").unlink()
    assert stamp.difference() == "the file does not exist"


@given(size=st.integers(1, 65_536), data=st.data())
def test_any_changed_byte_of_a_small_file_is_seen_at_the_same_size_and_time(
    tmp_path_factory: pytest.TempPathFactory, size: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("stamps") / "a"
    path.write_bytes(bytes(size))
    stamp = FileStamp.of(path)
    position = data.draw(st.integers(0, size - 1))
    rewrite(path, bytes(position) + b"x" + bytes(size - position - 1), keep_mtime=True)
    assert "digest" in (stamp.difference() or "")


@pytest.mark.parametrize("position", [0, 4095, -1, -4096])
def test_a_changed_byte_at_either_end_of_a_big_file_is_seen(tmp_path: Path, position: int) -> None:
    content = bytearray(1_000_003)
    (tmp_path / "a").write_bytes(content)
    stamp = FileStamp.of(tmp_path / "a")
    content[position] = 1
    rewrite(tmp_path / "a", bytes(content), keep_mtime=True)
    assert "digest" in (stamp.difference() or "")


def test_a_path_below_a_folder_moves_with_it_and_another_stays(tmp_path: Path) -> None:
    (tmp_path / "old/sub").mkdir(parents=True)
    (tmp_path / "old/sub/a").touch()
    (tmp_path / "old-not/").mkdir()
    (tmp_path / "old-not/b").touch()
    below = FileStamp.of(tmp_path / "old/sub/a").relative_to(tmp_path / "old")
    beside = FileStamp.of(tmp_path / "old-not/b").relative_to(tmp_path / "old")
    assert (below.path, beside.path) == ("sub/a", str(tmp_path / "old-not/b"))
    (tmp_path / "old").rename(tmp_path / "new")
    assert below.resolved(tmp_path / "new").difference() is None
    assert beside.resolved(tmp_path / "new").difference() is None
