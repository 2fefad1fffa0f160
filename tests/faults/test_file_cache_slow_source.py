"""A source that hangs in the middle, and who waits for it: another thread, another process, a killed one's heir."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import CacheError
from headrace.files.cache.cache import FileCache
from servers import Fault, FileServer

Make = Callable[..., FileCache]
_DEADLINE_SECONDS = 120.0
_SIZE = 40_000


@pytest.fixture(scope="module", autouse=True)
def _loop_of_fsspec() -> None:
    """Start the thread that fsspec never ends, before anybody counts threads."""
    asyn = pytest.importorskip("fsspec.asyn")
    pytest.importorskip("aiohttp")
    asyn.get_loop()


@pytest.fixture
def make_cache(tmp_path: Path) -> Iterator[Make]:
    caches: list[FileCache] = []

    def make(**options) -> FileCache:
        caches.append(FileCache(**{"cache_directory": tmp_path / "cache", **options}))
        return caches[-1]

    yield make
    for cache in caches:
        cache.close()


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small").write_bytes(b"0" * 100)
    return str(tmp_path / "small")


_CONTENT = bytes(number % 251 for number in range(_SIZE))


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({"a.hdf": _CONTENT}) as server:
        yield server


@pytest.fixture
def stall(server: FileServer) -> Fault:
    """Have all ranges of the file but the first hang, until the faults are cleared."""
    return server.faults.add("stall", skip=1, times=-1)


@pytest.fixture
def url(server: FileServer) -> str:
    return server.url("a.hdf")


_RANGES = {"range_bytes": 10_000, "num_streams": 1, "first_wait_seconds": 0.01}


@pytest.mark.extra
def test_closing_ends_it_within_a_second_also_in_the_middle_of_a_copy_which_is_gone_on_with(
    make_cache, server, stall, url, tmp_path
):
    cache = make_cache(fetch=_RANGES)
    cache.prefetch([url])
    assert stall.started.wait(_DEADLINE_SECONDS)
    assert cache.prefetch_status.current == url
    cache.close()
    server.faults.clear()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-file-cache"]
    assert len(os.listdir(tmp_path / "cache" / "parts")) == 1, "what came is kept"
    path = make_cache(fetch=_RANGES).get_file(url)
    assert Path(path).read_bytes() == _CONTENT
    assert os.listdir(tmp_path / "cache" / "parts") == []


@pytest.mark.extra
def test_what_is_needed_now_takes_the_room_of_a_copy_that_is_being_made_ahead(make_cache, stall, url, small, tmp_path):
    cache = make_cache(fetch=_RANGES, max_bytes=40_050)
    cache.prefetch([url])
    assert stall.started.wait(_DEADLINE_SECONDS)
    assert Path(cache.get_file(small)).read_bytes() == b"0" * 100
    assert os.listdir(tmp_path / "cache" / "parts") == []
    with pytest.raises(CacheError, match=r"40\.0 kB needed"):
        make_cache(max_bytes=40_050).get_file(url)


@pytest.mark.extra
def test_who_needs_the_file_that_is_being_copied_ahead_waits_for_it_as_long_as_it_comes(make_cache, server, stall, url):
    cache = make_cache(fetch=_RANGES)
    cache.prefetch([url])
    assert stall.started.wait(_DEADLINE_SECONDS)
    got: list[str] = []
    waiter = threading.Thread(target=lambda: got.append(cache.get_file(url)))
    waiter.start()
    server.faults.clear()
    waiter.join(_DEADLINE_SECONDS)
    assert Path(got[0]).stat().st_size == _SIZE


@pytest.mark.extra
def test_a_cache_that_is_dropped_ends_its_prefetch(stall, url, tmp_path):
    cache = FileCache(cache_directory=tmp_path / "cache", fetch=_RANGES)
    cache.prefetch([url])
    assert stall.started.wait(_DEADLINE_SECONDS)
    del cache
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-file-cache"]
    assert os.listdir(tmp_path / "cache" / "plans") == []


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_and_a_pickled_copy_have_no_prefetch(make_cache, stall, url):
    cache = make_cache(fetch=_RANGES)
    cache.prefetch([url])
    assert stall.started.wait(_DEADLINE_SECONDS)
    assert pickle.loads(pickle.dumps(cache)).prefetch_status.num_left == 0
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert cache.prefetch_status.num_left == 0
            cache.close()
            status = 7
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert cache.prefetch_status.num_left == 1


_GETS = """
import json, sys
from headrace.files.cache.cache import FileCache
with FileCache(cache_directory=sys.argv[1], fetch=json.loads(sys.argv[3])) as cache:
    print("ready", flush=True)
    path = cache.get_file(sys.argv[2])
    print(path, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a process that gets the file."""
    started: list[subprocess.Popen[str]] = []

    def start_one() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _GETS, str(tmp_path / "cache"), url, json.dumps(_RANGES)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.extra
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_copy_of_a_process_that_is_killed_in_the_middle_is_gone_on_with_by_who_waits(start, server, stall, how):
    maker = start()
    assert stall.started.wait(_DEADLINE_SECONDS)
    heirs = [start(), start()]
    maker.send_signal(how)
    maker.wait()
    server.faults.clear()
    paths = {heir.stdout.readline().strip() for heir in heirs}
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == _CONTENT
    assert server.num_requests() == 5, "each range once, and the one that hung again"


@pytest.mark.extra
def test_processes_that_wait_have_the_file_when_it_is_there_and_it_is_fetched_once(start, server, stall):
    processes = [start()]
    assert stall.started.wait(_DEADLINE_SECONDS)
    processes += [start() for _ in range(3)]
    server.faults.clear()
    # The answer that hung is asked for again.
    assert len({process.stdout.readline() for process in processes}) == 1
    assert server.num_requests() == 5
