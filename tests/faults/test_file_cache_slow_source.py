"""A source that hangs in the middle, and who waits for it: another thread, another process, a killed one's heir."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import CacheError
from headrace.files.cache.cache import FileCache

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


def _content() -> bytes:
    return bytes(number % 251 for number in range(_SIZE))


class _SlowServer:
    """A web server whose files never end: it gives the size at once, half of the bytes, and nothing more."""

    def __init__(self) -> None:
        size, content = _SIZE, _content()
        self.num_served = 0
        self.is_slow = threading.Event()
        self.is_slow.set()
        self.reached = threading.Event()
        self.released = threading.Event()
        slow = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.send_response(200)
                self._headers(size)

            def do_GET(self) -> None:
                first, last = 0, size - 1
                if "Range" in self.headers:
                    first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
                else:
                    self.send_response(200)
                self._headers(last + 1 - first)
                if slow.is_slow.is_set() and first > 0:
                    slow.reached.set()
                    slow.released.wait(_DEADLINE_SECONDS)
                    return
                slow.num_served += last + 1 - first
                self.wfile.write(content[first : last + 1])

            def _headers(self, length: int) -> None:
                self.send_header("Content-Length", str(length))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", '"one"')
                self.send_header("Connection", "close")  # so that none of ours outlives the test
                self.end_headers()

            def log_message(self, *args) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = False
            block_on_close = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/a.hdf"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def slow() -> Iterator[_SlowServer]:
    server = _SlowServer()
    yield server
    server.close()


_RANGES = {"range_bytes": 10_000, "num_streams": 1, "first_wait_seconds": 0.01}


@pytest.mark.extra
def test_closing_ends_it_within_a_second_also_in_the_middle_of_a_copy_which_is_gone_on_with(make_cache, slow, tmp_path):
    cache = make_cache(fetch=_RANGES)
    cache.prefetch([slow.url])
    assert slow.reached.wait(_DEADLINE_SECONDS)
    assert cache.prefetch_status.current == slow.url
    cache.close()
    slow.is_slow.clear()
    slow.released.set()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-file-cache"]
    assert len(os.listdir(tmp_path / "cache" / "parts")) == 1, "what came is kept"
    path = make_cache(fetch=_RANGES).get_file(slow.url)
    assert Path(path).read_bytes() == _content()
    assert os.listdir(tmp_path / "cache" / "parts") == []


@pytest.mark.extra
def test_what_is_needed_now_takes_the_room_of_a_copy_that_is_being_made_ahead(make_cache, slow, small, tmp_path):
    cache = make_cache(fetch=_RANGES, max_bytes=40_050)
    cache.prefetch([slow.url])
    assert slow.reached.wait(_DEADLINE_SECONDS)
    assert Path(cache.get_file(small)).read_bytes() == b"0" * 100
    assert os.listdir(tmp_path / "cache" / "parts") == []
    with pytest.raises(CacheError, match=r"40\.0 kB needed"):
        make_cache(max_bytes=40_050).get_file(slow.url)


@pytest.mark.extra
def test_who_needs_the_file_that_is_being_copied_ahead_waits_for_it_as_long_as_it_comes(make_cache, slow):
    cache = make_cache(fetch=_RANGES)
    cache.prefetch([slow.url])
    assert slow.reached.wait(_DEADLINE_SECONDS)
    got: list[str] = []
    waiter = threading.Thread(target=lambda: got.append(cache.get_file(slow.url)))
    waiter.start()
    slow.is_slow.clear()
    slow.released.set()
    waiter.join(_DEADLINE_SECONDS)
    assert Path(got[0]).stat().st_size == _SIZE


@pytest.mark.extra
def test_a_cache_that_is_dropped_ends_its_prefetch(slow, tmp_path):
    cache = FileCache(cache_directory=tmp_path / "cache", fetch=_RANGES)
    cache.prefetch([slow.url])
    assert slow.reached.wait(_DEADLINE_SECONDS)
    del cache
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-file-cache"]
    assert os.listdir(tmp_path / "cache" / "plans") == []


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_and_a_pickled_copy_have_no_prefetch(make_cache, slow):
    cache = make_cache(fetch=_RANGES)
    cache.prefetch([slow.url])
    assert slow.reached.wait(_DEADLINE_SECONDS)
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
def start(tmp_path: Path, slow: _SlowServer) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a process that gets the file."""
    started: list[subprocess.Popen[str]] = []

    def start_one() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _GETS, str(tmp_path / "cache"), slow.url, json.dumps(_RANGES)]
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
def test_the_copy_of_a_process_that_is_killed_in_the_middle_is_gone_on_with_by_who_waits(start, slow, how):
    maker = start()
    assert slow.reached.wait(_DEADLINE_SECONDS)
    heirs = [start(), start()]
    slow.is_slow.clear()
    maker.send_signal(how)
    maker.wait()
    slow.released.set()
    paths = {heir.stdout.readline().strip() for heir in heirs}
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == _content()
    assert slow.num_served == _SIZE, "what had come was not fetched again"


@pytest.mark.extra
def test_processes_that_wait_have_the_file_when_it_is_there_and_it_is_fetched_once(start, slow):
    processes = [start()]
    assert slow.reached.wait(_DEADLINE_SECONDS)
    processes += [start() for _ in range(3)]
    slow.is_slow.clear()
    slow.released.set()
    # The answer that hung is asked for again.
    assert len({process.stdout.readline() for process in processes}) == 1
    assert slow.num_served == _SIZE
