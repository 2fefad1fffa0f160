"""Locks that die with their holder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.errors import CacheError
from headrace.files import locks as cache_lock
from headrace.files.locks import describe_holders, lock_exclusive_nowait, lock_shared_nowait

_HOLDS = """
import os, sys
from headrace.files.locks import lock_exclusive_nowait
lock = lock_exclusive_nowait(sys.argv[1])
{more}
print("locked", flush=True)
sys.stdin.readline()
"""


def _start(path: str, more: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _HOLDS.format(more=more), path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.json")


def test_many_share_a_lock_and_one_has_it_alone(path):
    assert lock_shared_nowait(path) is None, "it is not created for a shared lock"
    alone = lock_exclusive_nowait(path)
    assert lock_exclusive_nowait(path) is None
    assert lock_shared_nowait(path) is None
    assert alone.share_nowait()
    others = [lock_shared_nowait(path) for _ in range(3)]
    assert None not in others
    assert lock_exclusive_nowait(path) is None
    for lock in [alone, *others]:
        lock.close()
        lock.close()
    again = lock_exclusive_nowait(path, create=False)
    assert again is not None
    again.close()


def test_the_lock_of_a_killed_process_is_free_at_once(path):
    with _start(path) as process:
        assert lock_exclusive_nowait(path) is None
        assert describe_holders(path) == [f"process {process.pid} ({Path(sys.executable).name[:15]})"]
        process.kill()
        process.wait()
        lock = lock_exclusive_nowait(path)
        assert lock is not None
        assert describe_holders(path) == [f"this process ({os.getpid()})"]
        lock.close()
    assert describe_holders(path) == []


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_parents_lock(path):
    more = "if os.fork():\n    os.waitpid(-1, 0)\n    os._exit(0)"  # the child goes on, and says so
    with _start(path, more) as process:
        process.kill()
        process.wait()
        lock = lock_exclusive_nowait(path)
        assert lock is not None
        lock.close()


def test_a_lock_is_always_on_the_file_that_has_the_name(path):
    """One thread locks and removes the file again and again, others lock it: never two of them at a time."""
    inside, most, num_locked = 0, 0, 0
    mutex = threading.Lock()

    def work():
        nonlocal inside, most, num_locked
        for _ in range(300):
            lock = lock_exclusive_nowait(path)
            if lock is None:
                continue
            with mutex:
                inside += 1
                num_locked += 1
                most = max(most, inside)
            assert lock.is_current
            with mutex:
                inside -= 1
            os.unlink(path)
            assert not lock.is_current
            lock.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert num_locked > 0


def test_a_link_is_not_followed(path, tmp_path):
    (tmp_path / "target").write_text("precious")
    os.symlink(tmp_path / "target", path)
    with pytest.raises(CacheError, match="cannot open the lock"):
        lock_exclusive_nowait(path)


def test_too_many_open_files_are_told_with_a_way_out(path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(cache_lock.os, "open", refuse)
    with pytest.raises(CacheError, match="ulimit -n"):
        lock_shared_nowait(path)
