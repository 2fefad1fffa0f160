from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.files import PendingFile, atomic_write
from headrace.files.atomic import _remove_leftovers_once


def test_a_file_appears_with_its_content_and_nothing_else(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "error", [RuntimeError("mine"), KeyboardInterrupt(), FileNotFoundError(errno.ENOENT, "another file")]
)
def test_a_failing_block_leaves_the_old_file_and_raises_its_own_error(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def write() -> None:
        with atomic_write(tmp_path / "a") as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)) as caught:
        write()
    assert caught.value is error
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_in_the_block_becomes_an_error_of_ours(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(SourceError, match=r"No space left(.|\n)*where: .*/a(.|\n)*fix:"), atomic_write(tmp_path / "a"):
        raise full
    assert os.listdir(tmp_path) == []


def test_what_only_fails_when_the_buffer_is_flushed_leaves_nothing(tmp_path: Path) -> None:
    # /dev/full refuses every byte; a small write meets that only when the file is closed.
    def write() -> None:
        with PendingFile(tmp_path / "a") as pending:
            pending.temporary.unlink()
            pending.temporary.symlink_to("/dev/full")
            pending.temporary.write_bytes(b"x")

    with pytest.raises(SourceError, match="No space left"):
        write()
    assert os.listdir(tmp_path) == []


def test_the_mode_of_a_new_file_is_what_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a"):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(SourceError, match=r"No such file(.|\n)*no/a(.|\n)*make the folder"),
        atomic_write(tmp_path / "no/a"),
    ):
        pass


def test_a_folder_or_device_is_not_replaced(tmp_path: Path) -> None:
    for target in (tmp_path, Path("/dev/null")):
        with pytest.raises(SourceError, match="folder or device"), atomic_write(target):
            pass
    assert Path("/dev/null").is_char_device()


def test_a_link_stays_a_link_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there/file").read_bytes() == b"new"


def test_a_pending_file_can_be_aborted_and_neither_end_can_be_repeated(tmp_path: Path) -> None:
    pending = PendingFile(tmp_path / "a")
    pending.abort()
    pending.abort()
    pending.commit()
    assert os.listdir(tmp_path) == []
    pending = PendingFile(tmp_path / "a")
    pending.commit()
    (tmp_path / "a").unlink()
    pending.commit()
    pending.abort()
    assert os.listdir(tmp_path) == []


def test_a_commit_that_fails_leaves_nothing(tmp_path: Path) -> None:
    pending = PendingFile(tmp_path / "a")
    (tmp_path / "a").mkdir()
    with pytest.raises(SourceError, match="cannot write the file"):
        pending.commit()
    assert os.listdir(tmp_path) == ["a"]


def test_of_two_writers_that_may_not_replace_one_succeeds(tmp_path: Path) -> None:
    first, second = (PendingFile(tmp_path / "a", overwrite=False) for _ in range(2))
    first.temporary.write_bytes(b"first")
    first.commit()
    with pytest.raises(ConfigError, match="the file exists"):
        second.commit()
    with pytest.raises(ConfigError, match="the file exists"):
        PendingFile(tmp_path / "a", overwrite=False)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


DAY = 24 * 3600


@pytest.mark.parametrize(("age", "stays"), [(0, True), (DAY - 3600, True), (DAY + 3600, False)])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_is_removed_a_day_later(tmp_path: Path, age: int, stays: bool, kind: str) -> None:
    left = PendingFile(tmp_path / "a").temporary
    if kind == "folder":
        left.unlink()
        left.mkdir()
    inside = left / "b" if kind == "folder" else left
    inside.write_bytes(b"part")
    others = [tmp_path / "x.tmp", tmp_path / ".headrace-x"]
    for path in (inside, left, *others):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    _remove_leftovers_once.cache_clear()
    with atomic_write(tmp_path / "c"):
        pass
    assert left.exists() == stays
    assert all(path.exists() for path in others)
    with PendingFile(tmp_path / "d") as pending:
        os.utime(pending.temporary, (0, 0))
        with atomic_write(tmp_path / "e"):  # a folder is looked through once
            pass
