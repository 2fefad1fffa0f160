"""Fetching through fsspec: file systems of every kind, S3, and what is missing."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.files.fetch.fetch import (
    FetchOptions,
    SourceChangedError,
    SourceStat,
    fetch_to,
    is_url,
    open_url,
    stat_source,
)
from servers import FileServer, S3Server, has_s3, nothing_left

fsspec = pytest.importorskip("fsspec")

RANGE = 8 * 1024
QUICK = FetchOptions(first_wait_seconds=0.001, max_wait_seconds=0.01, timeout_seconds=120, range_bytes=RANGE)
DATA = random.Random(1).randbytes(10 * RANGE + 123)
OTHER = random.Random(2).randbytes(len(DATA))


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "part"


def _options(**changes: object) -> FetchOptions:
    values = {name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__}
    return FetchOptions(**{**values, **changes})


def _fetch(url: str, part: Path, options: FetchOptions = QUICK, **more: Any) -> None:
    fetch_to(url, part, stat_source(url, options=options), options=options, **more)


class _OddStore(fsspec.AbstractFileSystem):
    """A store whose calls block, as many of fsspec's do, and which follows a script."""

    protocol = "odd"
    cachable = False
    content = DATA
    failures: list[BaseException | str] = []  # noqa: RUF012 - set by each test
    entered = threading.Event()
    release = threading.Event()
    facts: dict[str, object] = {}  # noqa: RUF012

    def info(self, path: str, **_options: object) -> dict[str, object]:
        return {"name": path, "type": "file", "size": len(self.content), **self.facts}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_options: object) -> bytes:
        failure = self.failures.pop(0) if self.failures else None
        if failure == "hang":
            self.entered.set()
            self.release.wait()
        elif failure == "short":
            return self.content[start:end][:-1]
        elif failure == "long":
            return self.content[start:end] + b"x"
        elif isinstance(failure, BaseException):
            raise failure
        return self.content[start:end]


@pytest.fixture
def odd() -> Iterator[type[_OddStore]]:
    _OddStore.failures, _OddStore.content, _OddStore.facts = [], DATA, {"mtime": 7}
    _OddStore.entered, _OddStore.release = threading.Event(), threading.Event()
    fsspec.register_implementation("odd", _OddStore, clobber=True)
    with nothing_left():
        yield _OddStore
        _OddStore.release.set()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("s3://bucket/a", True),
        ("https://host/a?b#c", True),
        ("HTTP://host", True),
        ("git+ssh://host/a", True),
        ("zip://a.hdf::s3://bucket/b.zip", True),
        ("simplecache::s3://bucket/a", True),
        ("file:///a", True),
        ("/a/b", False),
        ("a/b", False),
        ("a::b", False),
        ("C:/a", False),
        ("/a://b", False),
        ("", False),
        (Path("/a"), False),
    ],
)
def test_a_url_is_told_from_a_path(path, answer):
    assert is_url(path) is answer


@pytest.mark.parametrize("size", [0, 1, RANGE, RANGE + 1, len(DATA)])
def test_files_in_memory_are_fetched(part, size):
    fsspec.filesystem("memory").pipe_file("/fetch/a", DATA[:size])
    with nothing_left():
        _fetch("memory://fetch/a", part, _options(checksum="xxh3"))
    assert part.read_bytes() == DATA[:size]
    before = stat_source("memory://fetch/a")
    fsspec.filesystem("memory").pipe_file("/fetch/a", OTHER[:size])
    assert stat_source("memory://fetch/a") != before
    with open_url("memory://fetch/a") as file:
        assert file.read() == OTHER[:size]


def test_a_file_inside_an_archive_is_fetched(tmp_path, part):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/a.hdf", DATA)
    _fetch(f"zip://in/a.hdf::file://{tmp_path}/a.zip", part)
    assert part.read_bytes() == DATA


def test_missing_files_and_folders_are_refused():
    fsspec.filesystem("memory").pipe_file("/fetch/b", b"x")
    with pytest.raises(SourceError, match="does not exist"):
        stat_source("memory://fetch/no")
    with pytest.raises(SourceError, match="directory"):
        stat_source("memory://fetch")


def test_an_unknown_kind_of_url_names_those_that_are_known():
    with pytest.raises(ConfigError, match="did you mean 's3'") as caught:
        stat_source("s33://bucket/a")
    assert caught.value.where == "s33://bucket/a"


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("s3://b/a", "s3fs", "headrace[s3]"),
        ("gs://b/a", "gcsfs", "headrace[gs]"),
        ("hf://b/a", "huggingface_hub", "headrace[hf]"),
        ("https://b/a", "aiohttp", "headrace[http]"),
        ("simplecache::s3://b/a", "s3fs", "headrace[s3]"),
        ("abfs://b/a", "adlfs", "Install adlfs"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(url, module, extra):
    program = f"""
import sys
sys.modules[{module!r}] = None  # as if it were not installed
from headrace.errors import ConfigError
from headrace.files.fetch.fetch import stat_source
try:
    stat_source({url!r})
except ConfigError as error:
    print(error.fix)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert extra in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EIO, "bad moment"),
        OSError(errno.EBUSY, "slow down"),
        TimeoutError(),
        ConnectionResetError(),
        "short",
        "long",
    ],
)
def test_any_store_that_fails_for_a_moment_is_asked_again(odd, part, failure):
    odd.failures = [None, failure, None, failure, failure]
    _fetch("odd://a", part)
    assert part.read_bytes() == DATA


@pytest.mark.parametrize(
    ("failure", "what"),
    [
        (PermissionError("no"), "PermissionError: no"),
        (FileNotFoundError("gone"), "does not exist"),
        (ValueError("odd"), "ValueError: odd"),
        (RuntimeError("odd"), "RuntimeError: odd"),
    ],
)
def test_any_store_that_refuses_is_not_asked_again(odd, part, failure, what):
    odd.failures = [failure] + [ZeroDivisionError()] * 10
    with pytest.raises(SourceError, match=what):
        _fetch("odd://a", part, _options(num_streams=1))
    assert len(odd.failures) == 10


def test_a_store_that_hangs_is_named_after_the_time_limit(odd, part):
    odd.failures = ["hang"] * 99
    with pytest.raises(SourceError, match=r"2 tries: no answer from odd://a within 0\.05 s"):
        _fetch("odd://a", part, _options(timeout_seconds=0.05, num_tries=2, num_streams=2))


def test_a_store_that_hangs_once_is_asked_again_and_what_comes_late_goes_nowhere(odd, part):
    odd.failures = ["hang"]
    _fetch("odd://a", part, _options(timeout_seconds=0.1, num_tries=100))
    assert part.read_bytes() == DATA


def test_a_store_that_hangs_can_be_left_at_once(odd, part):
    odd.failures = ["hang"] * 99

    def on_bytes(num_bytes: int) -> None:
        if odd.entered.is_set() and num_bytes == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _fetch("odd://a", part, on_bytes=on_bytes)


def test_a_store_whose_object_changes_is_noticed_at_the_end(odd, part):
    def on_bytes(num_bytes: int) -> None:
        if num_bytes > 0:
            odd.facts = {"mtime": 8}

    with pytest.raises(SourceChangedError, match="mtime:7 was expected, it is mtime:8 now"):
        _fetch("odd://a", part, on_bytes=on_bytes)
    assert not part.exists()


@pytest.mark.parametrize(
    ("facts", "version", "digest"),
    [
        ({"ETag": '"abc-2"', "LastModified": "now", "StorageClass": "STANDARD"}, 'ETag:"abc-2"', None),
        ({"ETag": '"' + "0a" * 16 + '"', "StorageClass": "STANDARD"}, 'ETag:"' + "0a" * 16 + '"', "md5:" + "0a" * 16),
        ({"generation": "17", "md5Hash": "CgoKCgoKCgoKCgoKCgoKCg=="}, "generation:17", "md5:" + "0a" * 16),
        ({"blob_id": "x", "lfs": {"sha256": "AB" * 32, "size": 3}}, "blob_id:" + "AB" * 32, "sha256:" + "ab" * 32),
        ({"content_settings": {"content_md5": bytearray(b"\n" * 16)}}, "", "md5:" + "0a" * 16),
        ({"mtime": 1.5}, "mtime:1.5", None),
        ({}, "", None),
    ],
)
def test_versions_and_checksums_are_found_in_what_stores_say(odd, facts, version, digest):
    odd.facts = facts
    stat = stat_source("odd://a")
    assert (stat.version, stat.digest) == (version, digest)


def test_a_store_without_versions_is_compared_by_size(odd, part):
    odd.facts = {}
    assert stat_source("odd://a") == SourceStat(len(DATA), "")
    _fetch("odd://a", part)
    odd.content = DATA + b"x"
    with pytest.raises(SourceChangedError):
        fetch_to("odd://a", part, SourceStat(len(DATA), ""), options=QUICK)


@pytest.mark.parametrize("is_right", [True, False])
def test_what_came_is_compared_with_the_checksum_of_the_store(odd, part, is_right):
    digest = hashlib.sha256(DATA if is_right else OTHER).hexdigest()
    odd.facts = {"lfs": {"sha256": digest}}
    if is_right:
        _fetch("odd://a", part, _options(checksum="store"))
        assert part.read_bytes() == DATA
    else:
        with pytest.raises(SourceError, match=f"the store says {digest}"):
            _fetch("odd://a", part, _options(checksum="store"))
        assert not part.exists()


def test_a_size_that_a_store_does_not_know_is_refused(odd):
    odd.facts = {"size": None}
    with pytest.raises(SourceError, match="how large"):
        stat_source("odd://a")


_FORKS = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: that is what is tried here
from headrace.files.fetch.fetch import fetch_to, stat_source
url, part = sys.argv[1:]
stat = stat_source(url)
fetch_to(url, part, stat)
child = os.fork()
if not child:
    try:
        fetch_to(url, part + "-child", stat_source(url))
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
fetch_to(url, part, stat)
print("good")
"""


@pytest.mark.extra
def test_a_child_that_was_forked_after_a_fetch_can_fetch(part):
    pytest.importorskip("aiohttp")
    with FileServer({"a": DATA}) as server:
        done = subprocess.run(
            [sys.executable, "-c", _FORKS, server.url("a"), str(part)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("good\n", "")
    assert (part.parent / "part-child").read_bytes() == part.read_bytes() == DATA


_FETCHES = """
import sys
from headrace.files.fetch.fetch import FetchOptions, fetch_to, stat_source
url, part = sys.argv[1:]
fetch_to(url, part, stat_source(url), options=FetchOptions(range_bytes=8192, num_streams=3, first_wait_seconds=0.001))
"""


def _start_fetch(url: str, part: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _FETCHES, url, str(part)], stderr=subprocess.PIPE)


@pytest.mark.extra
@pytest.mark.parametrize("num_before", [0, 1, 3, 5, 8, 10])
def test_a_fetch_goes_on_after_sigkill_with_what_had_come(part, num_before):
    pytest.importorskip("aiohttp")
    with FileServer({"a": DATA}) as server:
        fault = server.faults.add("stall", skip=num_before, times=-1, after_bytes=100)
        with _start_fetch(server.url("a"), part) as process:
            assert fault.started.wait(120)
            process.kill()
        server.faults.clear()
        server.requests.clear()
        counts: list[int] = []
        _fetch(server.url("a"), part, _options(checksum=None), on_bytes=counts.append)
        assert part.read_bytes() == DATA
        assert os.listdir(part.parent) == ["part"]
        # What had been written when the process died is not asked for again.
        assert counts[0] <= num_before * RANGE
        # (A set: a request of the process that died may be read by the server only now.)
        ranges = {request.range for request in server.requests if request.method == "GET"}
        assert len(ranges) == -(-(len(DATA) - counts[0]) // RANGE)


def _kill_until_done(server: FileServer, part: Path, rng: random.Random) -> int:
    """Fetch by processes of which each is killed after some requests, until one ends; return how many died."""
    num_killed = 0
    while True:
        process: list[subprocess.Popen[bytes]] = []
        started = threading.Event()

        def kill(process: list[subprocess.Popen[bytes]] = process, started: threading.Event = started) -> None:
            started.wait()
            process[0].kill()

        server.faults.clear()
        server.faults.add("call", skip=rng.randrange(12), call=kill)
        with _start_fetch(server.url("a"), part) as running:
            process.append(running)
            started.set()
            running.wait(120)
        if running.returncode == 0:
            return num_killed
        assert running.returncode == -9
        num_killed += 1


@pytest.mark.extra
def test_processes_that_are_killed_again_and_again_make_a_whole_file_in_the_end(part):
    pytest.importorskip("aiohttp")
    with FileServer({"a": DATA}) as server:
        assert _kill_until_done(server, part, random.Random(3)) > 0
    assert part.read_bytes() == DATA
    assert os.listdir(part.parent) == ["part"]


@pytest.mark.extra
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_processes_that_are_killed_while_the_file_changes_never_make_a_mixed_file(part, seed):
    pytest.importorskip("aiohttp")
    rng = random.Random(seed)
    with FileServer({"a": DATA}) as server:
        for content in (OTHER, DATA, OTHER):
            server.files["a"] = content
            _kill_until_done(server, part, rng)
            assert part.read_bytes() == content


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    if not has_s3():
        pytest.skip("needs moto[server] and s3fs")
    with nothing_left(), S3Server() as store:
        yield store


@pytest.fixture
def s3(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    store.faults.clear()
    store.requests.clear()
    yield store
    store.faults.clear()


@pytest.mark.extra
@pytest.mark.parametrize("size", [0, 1, RANGE, len(DATA)])
def test_objects_of_s3_are_fetched(s3, part, size):
    url = s3.put("bucket", f"folder/{size}", DATA[:size])
    stat = stat_source(url)
    assert (stat.size, stat.digest) == (size, f"md5:{hashlib.md5(DATA[:size]).hexdigest()}")
    _fetch(url, part, _options(checksum="store"))
    assert part.read_bytes() == DATA[:size]


@pytest.mark.extra
def test_an_object_of_several_parts_has_no_checksum(s3, part):
    whole = [bytes(5 * 2**20), DATA]
    url = s3.put_in_parts("bucket", "parts", whole)
    assert stat_source(url).digest is None
    options = FetchOptions(checksum="store")
    with pytest.raises(SourceError, match="gives no checksum"):
        _fetch(url, part, options)
    _fetch(url, part, FetchOptions(checksum="xxh3"))
    assert part.read_bytes() == b"".join(whole)


@pytest.mark.extra
def test_an_object_that_is_replaced_is_seen_at_once(s3, part):
    url = s3.put("bucket", "replaced", DATA)
    before = stat_source(url)
    s3.put("bucket", "replaced", DATA[:100])
    now = stat_source(url)
    assert now.size == 100  # no listing of before
    with pytest.raises(SourceChangedError):
        fetch_to(url, part, before, options=QUICK)
    fetch_to(url, part, now, options=QUICK)
    assert part.read_bytes() == DATA[:100]


@pytest.mark.extra
def test_an_object_that_is_replaced_in_the_middle_is_refused(s3, part):
    url = s3.put("bucket", "middle", DATA)
    s3.faults.add("call", path="middle", skip=4, call=lambda: s3.put("bucket", "middle", OTHER))
    with pytest.raises(SourceChangedError, match="ETag"):
        _fetch(url, part)
    assert not part.exists()
    _fetch(url, part)
    assert part.read_bytes() == OTHER


@pytest.mark.extra
def test_missing_objects_buckets_and_folders_are_refused(s3):
    s3.put("bucket", "folder/a", b"x")
    for url in ("s3://bucket/no", "s3://no-such-bucket/a"):
        with pytest.raises(SourceError, match="does not exist"):
            stat_source(url)
    with pytest.raises(SourceError, match="directory"):
        stat_source("s3://bucket/folder")


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["cut", "truncate", "status"])
def test_an_s3_that_fails_for_a_moment_is_asked_again(s3, part, kind):
    url = s3.put("bucket", "moment", DATA)
    s3.faults.add(kind, path="moment", status=503, retry_after="0", after_bytes=100, skip=2, times=3)
    _fetch(url, part, _options(checksum="store"))
    assert part.read_bytes() == DATA


@pytest.mark.extra
def test_an_s3_that_refuses_is_not_asked_again(s3, part):
    url = s3.put("bucket", "refused", DATA)
    stat = stat_source(url)
    s3.faults.add("status", path="refused", status=403, times=-1)
    with pytest.raises(SourceError, match="credentials"):
        fetch_to(url, part, stat, options=_options(num_streams=1))
    assert sum("refused" in path for method, path, _ in s3.requests if method == "GET") == 1


@pytest.mark.extra
def test_an_s3_that_is_silent_is_named_after_the_time_limit(s3, part):
    url = s3.put("bucket", "silent", DATA)
    stat = stat_source(url)
    s3.faults.add("stall", path="silent", times=-1)
    with pytest.raises(SourceError, match=r"no answer from s3://bucket/silent within 0\.2 s"):
        fetch_to(url, part, stat, options=_options(timeout_seconds=0.2, num_tries=2, num_streams=2))
