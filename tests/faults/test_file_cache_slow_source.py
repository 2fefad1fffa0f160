"""A source that hangs in the middle, and who waits for it: another thread, another process, a killed one's heir."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.files.cache.cache import FileCache
from servers import Fault, FileServer

pytestmark = pytest.mark.extra

_DEADLINE_SECONDS = 120.0
_CONTENT = bytes(number % 251 for number in range(40_000))


@pytest.fixture(scope="module", autouse=True)
def _loop_of_fsspec() -> None:
    """Start the thread that fsspec never ends, before anybody counts threads."""
    asyn = pytest.importorskip("fsspec.asyn")
    pytest.importorskip("aiohttp")
    asyn.get_loop()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({"a.hdf": _CONTENT}) as server:
        yield server


@pytest.fixture
def stall(server: FileServer) -> Fault:
    """Have the answers hang in the middle until the faults are cleared."""
    return server.faults.add("stall", times=-1, after_bytes=10_000)


@pytest.fixture
def url(server: FileServer) -> str:
    return server.url("a.hdf")


def _cache(tmp_path: Path) -> FileCache:
    return FileCache(cache_directory=tmp_path / "cache", fetch={"first_wait_seconds": 0.01})


def test_who_needs_the_file_that_is_being_copied_ahead_waits_for_it_as_long_as_it_comes(tmp_path, server, stall, url):
    with _cache(tmp_path) as cache:
        cache.prefetch([url])
        assert stall.started.wait(_DEADLINE_SECONDS)
        got: list[str] = []
        waiter = threading.Thread(target=lambda: got.append(cache.get_file(url)))
        waiter.start()
        server.faults.clear()
        waiter.join(_DEADLINE_SECONDS)
        assert Path(got[0]).read_bytes() == _CONTENT


def test_a_cache_can_be_closed_while_its_source_hangs_and_what_comes_later_goes_nowhere(tmp_path, server, stall, url):
    cache = _cache(tmp_path)
    cache.prefetch([url])
    assert stall.started.wait(_DEADLINE_SECONDS)
    cache.close()
    server.faults.clear()
    with _cache(tmp_path) as other:
        assert Path(other.get_file(url)).read_bytes() == _CONTENT
    for thread in threading.enumerate():
        if thread.name == "headrace-file-cache":
            thread.join(_DEADLINE_SECONDS)


_GETS = """
import sys
from headrace.files.cache.cache import FileCache
with FileCache(cache_directory=sys.argv[1], fetch={"first_wait_seconds": 0.01}) as cache:
    print("ready", flush=True)
    print(cache.get_file(sys.argv[2]), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a process that gets the file."""
    started: list[subprocess.Popen[str]] = []

    def start_one() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _GETS, str(tmp_path / "cache"), url]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_copy_of_a_process_that_is_killed_in_the_middle_is_made_by_who_waits(start, server, stall, tmp_path, how):
    maker = start()
    assert stall.started.wait(_DEADLINE_SECONDS)
    assert not any(entry.stat().st_size for entry in os.scandir(tmp_path / "cache" / "entries"))
    heirs = [start(), start()]
    maker.send_signal(how)
    maker.wait()
    server.faults.clear()
    (path,) = {heir.stdout.readline().strip() for heir in heirs}
    assert Path(path).read_bytes() == _CONTENT
    assert [file.name for file in (tmp_path / "cache").glob("data/*/*")] == ["a.hdf"]


def test_processes_that_wait_have_the_file_when_it_is_there_and_it_is_fetched_once(start, server, stall):
    processes = [start()]
    assert stall.started.wait(_DEADLINE_SECONDS)
    processes += [start() for _ in range(3)]
    server.faults.clear()
    assert len({process.stdout.readline() for process in processes}) == 1
    assert server.num_requests() == 2, "the answer that hung is asked for again"
