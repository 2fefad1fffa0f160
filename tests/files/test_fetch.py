"""Fetching: local files, file systems of every kind, web servers, S3; what is tried again, and what is refused."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.files import fetch as fetching
from headrace.files.fetch import (
    FetchOptions,
    FetchStoppedError,
    SourceChangedError,
    SourceStat,
    fetch_to,
    is_gone,
    stat_source,
)
from servers import FileServer, S3Server, has_s3, nothing_left

fsspec = pytest.importorskip("fsspec")

QUICK = FetchOptions(first_wait_seconds=0.001, max_wait_seconds=0.01)
DATA = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(len(DATA))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target" / "copy"


def get(source: str | Path, target: Path, **more: Any) -> None:
    fetch_to(source, target, stat_source(source, options=QUICK), options=QUICK, **more)


def is_empty(target: Path) -> bool:
    return os.listdir(target.parent) == []


# --- local files ---


@pytest.mark.parametrize("size", [0, 1, len(DATA)])
def test_a_local_file_is_copied(tmp_path: Path, target: Path, size: int) -> None:
    source = tmp_path / "a"
    source.write_bytes(DATA[:size])
    told: list[int] = []
    get(source, target, tell=told.append)
    assert target.read_bytes() == DATA[:size]
    assert os.listdir(target.parent) == ["copy"]
    assert told[-1] == size
    assert stat_source(f"file://{source}") == SourceStat(size, str(source.stat().st_mtime_ns))


@pytest.mark.parametrize("kind", ["missing", "folder", "null", "pipe"])
def test_what_is_no_local_file_is_refused(tmp_path: Path, target: Path, kind: str) -> None:
    source = tmp_path / ("a\0" if kind == "null" else "a")
    if kind == "folder":
        source.mkdir()
    elif kind == "pipe":
        os.mkfifo(source)
    with pytest.raises(SourceError, match=r"does not exist|not a regular file|not a usable path"):
        stat_source(source)
    with pytest.raises(SourceError):
        fetch_to(source, target, SourceStat(1, "1"), options=QUICK)
    assert is_empty(target)


@pytest.mark.parametrize("change", [{"content": OTHER}, {"content": DATA[:-1]}, {"mtime": 5}])
def test_a_local_file_that_has_changed_is_refused(tmp_path: Path, target: Path, change: dict[str, Any]) -> None:
    source = tmp_path / "a"
    source.write_bytes(DATA)
    before = stat_source(source)
    source.write_bytes(change.get("content", DATA))
    mtime_ns = change.get("mtime", int(before.version) + 1)
    os.utime(source, ns=(mtime_ns, mtime_ns))
    with pytest.raises(SourceChangedError, match="the source has changed"):
        fetch_to(source, target, before, options=QUICK)
    assert is_empty(target)


def test_a_local_file_that_changes_while_it_is_copied_is_refused(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copyfile = tmp_path / "a", fetching.shutil.copyfile
    source.write_bytes(DATA)

    def copy(*args: Any) -> None:
        copyfile(*args)
        os.utime(source, ns=(7, 7))

    monkeypatch.setattr(fetching.shutil, "copyfile", copy)
    with pytest.raises(SourceChangedError):
        get(source, target)
    assert is_empty(target)


# --- any file system ---


class OddStore(fsspec.AbstractFileSystem):
    """A store whose calls block, as many of fsspec's do, and which follows a script."""

    protocol = "odd"
    cachable = False
    content = DATA
    failures: list[Any] = []  # noqa: RUF012 - set by each test: of the next calls of `get_file`
    facts: dict[str, Any] = {}  # noqa: RUF012

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": len(self.content), **self.facts}

    def get_file(self, rpath: str, lpath: str, callback: Any = None, **_options: Any) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, BaseException):
            raise failure
        cut = {"short": slice(0, -1), None: slice(None)}[failure if failure == "short" else None]
        data = self.content[cut] + (b"x" if failure == "long" else b"")
        Path(lpath).write_bytes(data[:10])
        callback.absolute_update(10)
        if failure == "changes":
            type(self).facts = {"mtime": 8}
        Path(lpath).write_bytes(data)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_options: Any) -> bytes:
        return self.content[start:end]


@pytest.fixture
def odd() -> Iterator[type[OddStore]]:
    OddStore.failures, OddStore.content, OddStore.facts = [], DATA, {"mtime": 7}
    fsspec.register_implementation("odd", OddStore, clobber=True)
    with nothing_left():
        yield OddStore


TRANSIENT = [
    OSError(errno.EIO, "x"),
    OSError(errno.ESTALE, "x"),
    TimeoutError(),
    ConnectionResetError(),
    "short",
    "long",
]


@pytest.mark.parametrize("failure", TRANSIENT)
def test_a_store_that_fails_for_a_moment_is_asked_again(odd: type[OddStore], target: Path, failure: Any) -> None:
    odd.failures = [failure, failure, failure]
    get("odd://a", target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("failure", TRANSIENT)
def test_a_store_that_keeps_failing_is_an_error_after_as_many_tries_as_asked_for(
    odd: type[OddStore], target: Path, failure: Any
) -> None:
    odd.failures = [failure] * 9
    with pytest.raises(SourceError, match=r"could not fetch it \(5 tries"):
        get("odd://a", target)
    assert len(odd.failures) == 4
    assert is_empty(target)


@pytest.mark.parametrize(
    ("failure", "what"),
    [
        (PermissionError("no"), r"PermissionError: no(.|\n)*credentials"),
        (FileNotFoundError("gone"), "does not exist"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_a_store_that_refuses_is_not_asked_again(
    odd: type[OddStore], target: Path, failure: Exception, what: str
) -> None:
    odd.failures = [failure, ZeroDivisionError()]
    with pytest.raises(SourceError, match=what) as caught:
        get("odd://a", target)
    assert len(odd.failures) == 1
    assert is_gone(caught.value) == isinstance(failure, FileNotFoundError)


def test_an_object_that_changes_is_noticed(odd: type[OddStore], target: Path) -> None:
    odd.failures = ["changes"]
    with pytest.raises(SourceChangedError, match="mtime:7 was expected, it is mtime:8 now"):
        get("odd://a", target)
    assert is_empty(target)


def test_a_fetch_is_stopped_where_it_reports_progress_and_between_tries(odd: type[OddStore], target: Path) -> None:
    stop = threading.Event()

    def tell(num_bytes: int) -> None:
        assert num_bytes == 10
        stop.set()

    with pytest.raises(FetchStoppedError):
        get("odd://a", target, stop=stop, tell=lambda _: stop.set())
    stop.clear()
    with pytest.raises(FetchStoppedError):
        get("odd://a", target, stop=stop, tell=tell)
    odd.failures = [TimeoutError()] * 9
    with pytest.raises(FetchStoppedError):
        get("odd://a", target, stop=stop)
    assert len(odd.failures) == 8
    assert is_empty(target)


@pytest.mark.parametrize(
    ("facts", "version"),
    [
        ({"ETag": '"abc-2"', "LastModified": "now"}, 'ETag:"abc-2"'),
        ({"generation": "17", "updated": "now"}, "generation:17"),
        ({"blob_id": "x", "last_commit": None}, "blob_id:x"),
        ({"mtime": 1.5}, "mtime:1.5"),
        ({}, ""),
    ],
)
def test_versions_are_found_in_what_stores_say(odd: type[OddStore], facts: dict[str, Any], version: str) -> None:
    odd.facts = facts
    assert stat_source("odd://a") == SourceStat(len(DATA), version)


def test_an_unknown_kind_of_url_names_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="did you mean 's3'") as caught:
        stat_source("s33://bucket/a")
    assert caught.value.where == "s33://bucket/a"


@pytest.mark.parametrize(
    ("options", "name"),
    [({"num_tries": 0}, "num_tries"), ({"first_wait_seconds": -1}, "first_wait"), ({"max_wait_seconds": "1"}, "max_w")],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        FetchOptions(**options)


# --- web servers ---


@pytest.fixture
def server() -> Iterator[FileServer]:
    pytest.importorskip("aiohttp")
    with FileServer({"a": DATA}) as server:
        yield server


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["cut", "truncate", "status"])
def test_a_web_server_that_fails_for_a_moment_is_asked_again(server: FileServer, target: Path, kind: Any) -> None:
    server.faults.add(kind, status=503, after_bytes=100, times=2)
    get(server.url("a"), target)
    assert target.read_bytes() == DATA
    assert os.listdir(target.parent) == ["copy"]


@pytest.mark.extra
def test_a_file_of_a_web_server_that_changes_is_refused_and_one_that_is_missing_is_named(
    server: FileServer, target: Path
) -> None:
    before = stat_source(server.url("a"))
    server.files["a"] = OTHER
    with pytest.raises(SourceChangedError):
        fetch_to(server.url("a"), target, before, options=QUICK)
    server.faults.add("call", call=lambda: server.files.update(a=DATA))
    with pytest.raises(SourceChangedError):
        get(server.url("a"), target)
    with pytest.raises(SourceError, match="does not exist") as caught:
        stat_source(server.url("no"))
    assert is_gone(caught.value)
    assert is_empty(target)


# --- S3 ---


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
    yield store
    store.faults.clear()


@pytest.mark.extra
@pytest.mark.parametrize("size", [0, 1, len(DATA)])
def test_objects_of_s3_are_fetched(s3: S3Server, target: Path, size: int) -> None:
    get(s3.put("bucket", f"folder/{size}", DATA[:size]), target)
    assert target.read_bytes() == DATA[:size]
    whole = [bytes(5 * 2**20), DATA]
    get(s3.put_in_parts("bucket", "parts", whole), target)
    assert target.read_bytes() == b"".join(whole)


@pytest.mark.extra
def test_an_object_that_is_replaced_is_seen_at_once_and_in_the_middle(s3: S3Server, target: Path) -> None:
    url = s3.put("bucket", "replaced", DATA)
    before = stat_source(url)
    s3.put("bucket", "replaced", DATA[:100])
    assert stat_source(url).size == 100  # no listing of before
    with pytest.raises(SourceChangedError):
        fetch_to(url, target, before, options=QUICK)
    s3.faults.add("call", path="replaced", call=lambda: s3.put("bucket", "replaced", OTHER[:100]))
    with pytest.raises(SourceChangedError, match="ETag"):
        get(url, target)
    assert is_empty(target)
    get(url, target)
    assert target.read_bytes() == OTHER[:100]


@pytest.mark.extra
def test_missing_objects_buckets_and_folders_are_refused_and_what_credentials_do_not_allow(s3: S3Server) -> None:
    s3.put("bucket", "folder/a", b"x")
    for url in ("s3://bucket/no", "s3://no-such-bucket/a"):
        with pytest.raises(SourceError, match="does not exist"):
            stat_source(url)
    with pytest.raises(SourceError, match="directory"):
        stat_source("s3://bucket/folder")
    s3.faults.add("status", path="a", method="HEAD", status=403, times=-1)
    with pytest.raises(SourceError, match="credentials"):
        stat_source("s3://bucket/folder/a")
