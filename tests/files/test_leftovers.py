"""Temporary files of processes that were killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.files import PendingFile, atomic_write
from headrace.files.atomic.names import temporary_name

_WEEK = 7 * 24 * 3600

_WRITES_AND_WAITS = """
import sys
from headrace.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(bytes(100_000))
    file.flush()
    print("writing", flush=True)
    sys.stdin.readline()
"""


def _write(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(b"new")


@pytest.fixture
def writer(tmp_path: Path):
    """A process that is in the middle of writing `tmp_path / "big"`."""
    command = [sys.executable, "-c", _WRITES_AND_WAITS, str(tmp_path / "big")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            yield process
        finally:
            process.kill()


def test_what_a_killed_process_left_is_removed_by_the_next_one_that_writes_there(tmp_path, writer):
    assert len(os.listdir(tmp_path)) == 1
    writer.kill()  # SIGKILL
    writer.wait()
    assert len(os.listdir(tmp_path)) == 1
    _write(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


def test_a_killed_process_that_nobody_waits_for_counts_as_dead(tmp_path, writer):
    writer.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and stays a zombie
    _write(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


def test_what_another_process_is_writing_is_left_alone(tmp_path, writer):
    _write(tmp_path / "a")
    assert len(os.listdir(tmp_path)) == 2
    writer.communicate(b"\n")
    assert writer.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["a", "big"]


def test_what_this_process_is_writing_is_left_alone(tmp_path):
    with PendingFile(tmp_path / "a") as pending:
        command = [sys.executable, "-c", _WRITES_AND_WAITS, str(tmp_path / "b")]
        subprocess.run(command, input=b"\n", check=True, capture_output=True)
        assert pending.temporary.exists()
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def _name(**replaced: str) -> str:
    """Return a temporary name of this process, with some of its parts replaced."""
    parts = dict(
        zip(("place", "pid", "start", "random"), temporary_name()[len(".headrace-") : -4].split("-"), strict=True)
    )
    return ".headrace-" + "-".join({**parts, **replaced}.values()) + ".tmp"


def test_a_process_number_that_was_given_again_is_told_by_the_start(tmp_path):
    dead, alive = tmp_path / _name(start="1"), tmp_path / _name()
    dead.touch()
    alive.touch()
    _write(tmp_path / "a")
    assert (dead.exists(), alive.exists()) == (False, True)


@pytest.mark.parametrize(("age", "stays"), [(0, True), (_WEEK - 3600, True), (_WEEK + 3600, False)])
def test_a_file_of_another_machine_or_boot_stays_for_a_week(tmp_path, age, stays):
    path = tmp_path / _name(place="0" * 16, pid="1")
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    _write(tmp_path / "a")
    assert path.exists() == stays


def test_files_of_other_users_and_other_names_stay(tmp_path, monkeypatch):
    others = [".headrace-mine.tmp", f"{_name(start='1')}.bak", f"x{_name(start='1')}", ".headrace-0123456789abcdef.tmp"]
    for name in others:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    _write(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "a"])
    (tmp_path / "theirs").mkdir()
    name = _name(start="1")
    (tmp_path / "theirs" / name).touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    _write(tmp_path / "theirs" / "a")
    assert sorted(os.listdir(tmp_path / "theirs")) == sorted([name, "a"])


def test_without_proc_a_process_number_alone_decides(tmp_path, monkeypatch):
    def no_proc(path, *args):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_bytes", no_proc)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    dead, alive = tmp_path / _name(pid=str(process.pid)), tmp_path / _name(pid=str(os.getppid()))
    assert re.search("-0-[0-9a-f]{16}.tmp", dead.name)
    dead.touch()
    alive.touch()
    _write(tmp_path / "a")
    assert (dead.exists(), alive.exists()) == (False, True)


def test_a_folder_is_looked_through_once(tmp_path):
    _write(tmp_path / "a")
    (tmp_path / _name(start="1")).touch()
    _write(tmp_path / "a")
    assert len(os.listdir(tmp_path)) == 2
